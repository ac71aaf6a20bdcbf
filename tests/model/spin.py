"""One run of a model: spin writes its checker in C, which is compiled and goes through every state."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.servers import programs

HERE = Path(__file__).parent
MEMORY_MB = 2000
DEPTH_MAX = 1_000_000
LIVENESS = "LIVE"
"""The switch that checks under weak fairness that something happens, not only that nothing bad does."""


class ModelError(RuntimeError):
    """The model cannot be run, or its run did not come to an end."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a run came to. `broken`: the invariant that does not hold; "" when all do.

    `rests`: there are states in which nothing more can happen. Where there are none, nothing could be
    stuck, and I1 says nothing.
    """

    broken: str
    states: int
    transitions: int
    seconds: float
    memory_mb: float
    rests: bool
    trail: str = ""

    @property
    def result(self) -> str:
        return f"CAUGHT: {self.broken}" if self.broken else "ok"


def check(
    model: str,
    switches: Sequence[str],
    *,
    seconds_max: float,
    memory_mb: int = MEMORY_MB,
    optimised: bool = True,
    trail: bool = False,
) -> Found:
    """Goes through all states of `model` (a file's name without .pml) with `switches` (NAME or NAME=value).

    `optimised`: by gcc and with compressed states, worth it for millions of states; else by tcc: gcc takes
    longer than most runs, and to compress the states takes a third of them.
    Stops at the first violation; `trail` then adds the steps to it, as text. Raises ServerUnavailableError
    without spin or a compiler, ModelError when the model cannot be run or has not ended within the bounds.
    """
    spin = programs.find("spin", "spin")
    compiler = (
        [programs.find("gcc", "spin"), "-O1"] if optimised else [programs.find("tcc", "spin")]
    )
    source = HERE / f"{model}.pml"
    defines = [f"-D{switch}" for switch in switches]
    is_live = LIVENESS in switches
    with tempfile.TemporaryDirectory(prefix="toc-model-") as name:
        directory = Path(name)
        _run([spin, *defines, "-a", str(source)], directory)
        flags = [
            "-w",
            *(["-DCOLLAPSE"] if optimised else []),
            "-DVECTORSZ=2048",
            f"-DMEMLIM={memory_mb}",
        ]
        flags += ["-DNFAIR=4"] if is_live else ["-DSAFETY"]
        _run([*compiler, *flags, "-o", "pan", "pan.c"], directory)
        how = ["-a", "-f"] if is_live else []
        slots = f"-w{22 if optimised else 20}"  # of the hash table, as a power of two
        said = _run(["./pan", *how, "-E", f"-m{DEPTH_MAX}", slots], directory, seconds_max)
        found = _read(said)
        if trail and found.broken:
            steps = _run([spin, *defines, "-t", "-p", "-g", str(source)], directory)
            return replace(found, trail=steps)
        return found


def _run(command: Sequence[str], directory: Path, seconds_max: float = 100) -> str:
    try:
        run = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{command[0]} has not ended within {seconds_max:g} s") from None
    said = run.stdout + run.stderr
    if run.returncode or " Error: " in said:
        raise ModelError(f"{' '.join(command)}\n{said[-2000:]}")
    return said


def _read(said: str) -> Found:
    """What the checker prints at its end."""
    first = re.search(r"^pan:1: (.*)$", said, re.MULTILINE)
    broken = "" if first is None else _invariant(first[1])
    if not broken and re.search("not completed|search depth too small|out of memory", said):
        raise ModelError(f"the run did not come to its end:\n{said[-2000:]}")
    return Found(
        broken,
        states=int(_number(r"(\d+) states, stored", said)),
        transitions=int(_number(r"(\d+) transitions", said)),
        seconds=_number(r"elapsed time ([0-9.e+-]+)", said),
        memory_mb=_number(r"([0-9.]+)\s+total actual memory", said),
        rests="unreached in proctype NothingStuck\n\t(0 of" in said,
    )


def _invariant(violation: str) -> str:
    """Each assert of the models begins with the name of its invariant (I1, L1); the only property is I1."""
    if violation.startswith("acceptance cycle"):
        return "I1"
    name = re.match(r"assertion violated \(*([IL]\d)\|\|", violation)
    if name is None:
        raise ModelError(f"a violation that belongs to no invariant: {violation}")
    return name[1]


def _number(pattern: str, said: str) -> float:
    found = re.search(pattern, said)
    if found is None:
        raise ModelError(f"no {pattern!r} in what the checker said:\n{said[-2000:]}")
    return float(found[1])
