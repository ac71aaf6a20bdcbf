"""Commands as processes, and waiting for what they do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.forked import ForkedProcess, start_forked

POLL_SECONDS = 0.02
SECONDS_MAX = 60.0  # a process starts in that time on a busy machine too


def wait_until(condition: Callable[[], object], what: str, seconds: float = SECONDS_MAX) -> None:
    """Polls until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(POLL_SECONDS)


def clean_environment() -> dict[str, str]:
    """This environment without toc's settings: a test says all of them itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOC_")}


class Process:
    """A running `toc …`; what it says goes to files, which a full pipe cannot block.

    `forked`: of a process that has imported toc.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *arguments: str,
        forked: bool = False,
    ) -> None:
        name = f"{arguments[0]}-{time.monotonic_ns()}"
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        env = clean_environment() | settings
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process: subprocess.Popen[bytes] | ForkedProcess
            if forked:
                self._process = start_forked(
                    "toc", arguments, cwd=directory, env=env, stdout=out, stderr=err
                )
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "toc", *arguments],
                    cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def says(self, text: str, seconds: float = SECONDS_MAX) -> None:
        """Waits until it has said `text`, on either stream."""
        deadline = time.monotonic() + seconds
        while text not in self.out + self.err:
            running = self.code is None and time.monotonic() < deadline
            assert running, f"{text!r} was not said (exit code {self.code}):\n{self.out}{self.err}"
            time.sleep(POLL_SECONDS)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float = SECONDS_MAX) -> int:
        """Waits for its end; the exit code."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(
    directory: Path, settings: Mapping[str, str], *arguments: str, forked: bool = False
) -> Iterator[Process]:
    """A process that is ended at the end, in good order where it can be."""
    process = Process(directory, settings, *arguments, forked=forked)
    try:
        yield process
    finally:
        if process.code is None:
            process.send(signal.SIGTERM)
            try:
                process.ended(10)
            except subprocess.TimeoutExpired:
                process.kill()
