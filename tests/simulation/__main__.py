"""python -m tests.simulation: whole nodes in one process, faults between any two steps, seed by seed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.redis import start_redis
from tests.simulation.broken import copy_with, variant_of

if TYPE_CHECKING:
    from tests.simulation.world import Workshop

MINUTE_S = 60.0
BATCH = 20
SLACK_S = 120.0  # for a run under way, on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-200", metavar="FIRST-LAST")
    parser.add_argument("--seed", type=int, help="one; with --trace every step of note")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--kind", default="", choices=("", "bare", "calm", "poison"))
    parser.add_argument("--faults", metavar="NAME,NAME", help="these, in every run")
    parser.add_argument("--minutes", type=float, default=60.0, help="begins no run after that")
    parser.add_argument("--broken", metavar="NAME", help="a variant that must be caught")
    asked = parser.parse_args()
    if asked.broken:
        return search(asked.broken, asked.seeds, asked.minutes)
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of the seed
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [sys.executable, *sys.orig_argv[1:]], env=environment, check=False
        ).returncode
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if asked.seed is not None:
        seeds = range(asked.seed, asked.seed + 1)
    faults = None if asked.faults is None else frozenset(filter(None, asked.faults.split(",")))
    until_s = time.monotonic() + asked.minutes * MINUTE_S
    return run(seeds, Asked(asked.kind, faults, until_s, asked.trace))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is run, again and again. `faults` None: as the seed says."""

    kind: str
    faults: frozenset[str] | None
    until_s: float
    trace: bool


def run(seeds: range, asked: Asked) -> int:
    """0: no run broke anything. 1: one did; which, and how to see it again, is printed."""
    from tests.simulation.world import Workshop  # noqa: PLC0415 - imports toc

    began_s = time.monotonic()
    sums: Counter[str] = Counter()
    with scratch() as (directory, socket):
        workshop = Workshop(directory, socket)
        # A process for every few runs: engines and greenlets leave something behind.
        with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            work = partial(run_some, workshop, asked)
            for ran in pool.imap(work, [seeds[n : n + BATCH] for n in range(0, len(seeds), BATCH)]):
                if isinstance(ran, str):
                    print(ran)
                    return 1
                sums.update(ran)
    seconds = time.monotonic() - began_s
    print(
        f"{sums['runs']:,} runs, {sums['jobs']:,} jobs, {sums['starts']:,} starts, "
        f"{sums['steps']:,} steps, digest {sums['digest']:x}, no violation: {seconds:.0f} s"
    )
    return 0


def run_some(workshop: Workshop, asked: Asked, seeds: range) -> Counter[str] | str:
    """The sums of the runs, or what one of them broke."""
    from tests.simulation.world import World  # noqa: PLC0415 - imports toc

    sums: Counter[str] = Counter()
    for seed in seeds:
        if time.monotonic() > asked.until_s:
            break
        trace = partial(print, flush=True) if asked.trace else None
        try:
            result = World(seed, workshop, trace, kind=asked.kind, faults=asked.faults).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what matters
            if asked.trace:
                traceback.print_exc()
            repeat = again(seed, asked.kind, asked.faults)
            return f"seed {seed}: {type(error).__name__}: {error}\nagain: {repeat}"
        sums.update(
            runs=1, jobs=result.jobs, starts=result.starts, steps=result.steps,
            digest=result.digest,
        )  # fmt: skip
    return sums


def again(seed: int, kind: str, faults: frozenset[str] | None) -> str:
    words = ["python -m tests.simulation", f"--seed {seed} --trace"]
    words += [f"--kind {kind}"] if kind else []
    words += [] if faults is None else [f"--faults {','.join(sorted(faults)) or ','}"]
    return " ".join(words)


def search(name: str, seeds: str, minutes: float) -> int:
    """Runs a broken variant until it breaks an invariant. 0: it did, and so was caught."""
    variant = variant_of(name)
    with tempfile.TemporaryDirectory() as directory:
        path = copy_with(variant, Path(directory))
        command = [
            sys.executable, "-P", "-m", "tests.simulation", "--seeds", seeds,
            "--minutes", str(minutes), "--kind", variant.plan,
        ]  # fmt: skip
        command += ["--faults", variant.faults or ","]
        environment = {
            **os.environ,
            "PYTHONPATH": str(path),
            "PYTHONHASHSEED": "0",
        }
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False,
            timeout=minutes * MINUTE_S + SLACK_S,
        )  # fmt: skip
    said = ran.stdout.strip().splitlines()
    caught = [line for line in said if ": Violation: " in line]
    print(f"{name}: {caught[0] if caught else 'NOT CAUGHT: ' + (ran.stdout + ran.stderr)[-2000:]}")
    broke = caught[0].split(": Violation: ")[1].split(":")[0] if caught else ""
    return 0 if broke in variant.breaks.split() else 1


@contextmanager
def scratch() -> Iterator[tuple[Path, str]]:
    """A directory in memory, and the socket of a Redis."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        socket = str(Path(name) / "redis.sock")
        server = start_redis(Path(name), "7", "--unixsocket", socket)
        try:
            yield Path(name), socket
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
