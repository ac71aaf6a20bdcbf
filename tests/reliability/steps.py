"""The wall clock of a process, which is wrong, or steps while the process runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers import Server, programs

SOURCE = Path(__file__).with_suffix(".c")
STEP_BYTES = 8


class Steps:
    """Of each process that starts with `environment`. ServerUnavailableError: there is no gcc.

    The clocks of one object step together. Only wall clocks: no machine's monotonic clock steps.
    """

    def __init__(self, path: Path, ahead_s: int = 0) -> None:
        self._path, self._library = path.absolute(), path.absolute().with_suffix(".so")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(STEP_BYTES))
        self.set(ahead_s)
        options = ["-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", str(self._library)]
        subprocess.run(
            [programs.find("gcc", "spin"), *options, str(SOURCE)], check=True, timeout=60
        )

    def set(self, ahead_s: int) -> None:
        """From now on the clock is ahead by so much; negative: behind."""
        step = (ahead_s * 10**9).to_bytes(STEP_BYTES, sys.byteorder, signed=True)
        with self._path.open("r+b", buffering=0) as file:  # in place: processes have it mapped
            file.write(step)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._path)}

    def put_on(self, server: Server) -> None:
        """Of one that does not run: from its next start on."""
        server._argv[:0] = ["env", *(f"{k}={v}" for k, v in self.environment.items())]
