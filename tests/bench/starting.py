"""What it costs to start: an `import toc`, and the command that says how to go on."""

from __future__ import annotations

import subprocess
import sys
import time

from toc.bench.common import BenchContext

_IMPORT = "import time; t = time.perf_counter(); import toc; print(time.perf_counter() - t)"


def start(bench: BenchContext) -> None:
    """In processes of their own, the interpreter's start not counted for the import."""
    rounds = range(bench.options.rounds + 1)
    imports = [float(_said("-c", _IMPORT)) for _ in rounds][1:]  # the first one warms up the files
    helps = []
    for _ in rounds:
        began_s = time.perf_counter()
        _said("-m", "toc", "--help")
        helps.append(time.perf_counter() - began_s)
    add = bench.report.add_measurement
    add("start", "import toc", "s", [(None, s) for s in imports])
    add("start", "toc --help", "s", [(None, s) for s in helps[1:]])


def _said(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True
    ).stdout
