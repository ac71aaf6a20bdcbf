"""python -m tests.simulation: whole nodes in one process, faults between any two steps, seed by seed."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.redis import start_redis
from tests.simulation import LIVE_S
from tests.simulation.broken import Variant, copy_with, variant_of
from tests.simulation.in_place import break_imported_toc

if TYPE_CHECKING:
    from tests.simulation.world import Workshop

MINUTE_S = 60.0
BATCH = 10  # a run leaves some 20 MB
BATCH_S_MAX = 600.0  # on a busy machine

LIBRARIES = (
    "alembic.command", "greenlet", "kazoo.client", "prometheus_client", "pydantic_settings", "redis",
    "sqlalchemy.dialects.mysql", "sqlalchemy.dialects.sqlite", "sqlalchemy.orm",
)  # fmt: skip
"""What takes long to be imported. Not toc itself, of which each broken variant has a copy of its own: a process
without them has WORLD after --stdin."""
WORLD = "tests.simulation.world"


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of the seed
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
    with scratch() as (directory, socket):
        if sys.argv[1:2] != ["--stdin"]:
            return command(sys.argv[1:], directory, socket)
        # So that Redis and the directory go when the tests end this process.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        for library in (*LIBRARIES, *sys.argv[2:]):
            importlib.import_module(library)
        for line in sys.stdin:
            print(json.dumps(forked(json.loads(line), directory, socket)), flush=True)
    return 0


def forked(words: Sequence[str], directory: Path, socket: str) -> tuple[int, str]:
    """The exit status of a command and what it printed. It has a process of its own, which imports toc."""
    said = directory / "said"
    child = os.fork()
    if not child:
        status = 1
        # The pool ends its workers by SIGTERM. A handler in Python would lose the signal if it came during the
        # fork of a worker: the pool would wait for this worker for ever.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            status = command(words, directory, socket)
        except BaseException:  # noqa: BLE001 - nothing must go on behind fork()
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace")


def command(words: Sequence[str], directory: Path, socket: str) -> int:
    """What the words ask for. 0: no run broke anything, or the broken variant was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-200", metavar="FIRST-LAST")
    parser.add_argument("--seed", type=int, help="one; with --trace every step of note")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--kind", default="", choices=("", "bare", "calm", "poison"))
    parser.add_argument("--faults", metavar="NAME,NAME", help="these, in every run")
    parser.add_argument("--verbs", metavar="NAME,NAME", help="these, in every run")
    parser.add_argument(
        "--live-s", type=float, default=LIVE_S, help="when all jobs must have ended"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begins no run after that")
    parser.add_argument("--broken", metavar="NAME", help="a variant that must be caught")
    parser.add_argument("--stdin", action="store_true", help="first: a command a line, as JSON")
    asked = parser.parse_args(words)
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if asked.seed is not None:
        seeds = range(asked.seed, asked.seed + 1)
    until_s = time.monotonic() + asked.minutes * MINUTE_S
    if asked.broken:
        return search(asked.broken, seeds, until_s, asked.live_s, directory, socket)
    faults = None if asked.faults is None else frozenset(filter(None, asked.faults.split(",")))
    began_s = time.monotonic()
    verbs = None if asked.verbs is None else frozenset(filter(None, asked.verbs.split(",")))
    what = Asked(asked.kind, faults, until_s, asked.trace, verbs, asked.live_s)
    ran = run(seeds, what, directory, socket)
    if isinstance(ran, str):
        print(ran)
        return 1
    print(
        f"{ran['runs']:,} runs, {ran['jobs']:,} jobs, {ran['starts']:,} starts, {ran['steps']:,} steps, "
        f"digest {ran['digest']:x}, no violation: {time.monotonic() - began_s:.0f} s"
    )
    return 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is run, again and again. `faults`, `verbs` None: as the seed says."""

    kind: str
    faults: frozenset[str] | None
    until_s: float
    trace: bool = False
    verbs: frozenset[str] | None = None
    live_s: float = LIVE_S


def run(seeds: range, asked: Asked, directory: Path, socket: str) -> Counter[str] | str:
    """The sums of the runs; or what one broke, and how to see it again."""
    from tests.simulation.world import Workshop  # noqa: PLC0415 - imports toc

    workshop = Workshop(directory, socket)
    if len(seeds) <= BATCH:
        return run_some(workshop, asked, seeds)
    sums: Counter[str] = Counter()
    # A process for every few runs: engines and greenlets leave something behind.
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        work = partial(run_some, workshop, asked)
        runs = pool.imap(work, [seeds[n : n + BATCH] for n in range(0, len(seeds), BATCH)])
        for _ in range(0, len(seeds), BATCH):
            ran = runs.next(BATCH_S_MAX)
            if isinstance(ran, str):
                return ran
            sums.update(ran)
    return sums


def run_some(workshop: Workshop, asked: Asked, seeds: range) -> Counter[str] | str:
    """The sums of the runs, or what one of them broke."""
    from tests.simulation.world import World  # noqa: PLC0415 - imports toc

    sums: Counter[str] = Counter()
    # A sixth of the time otherwise, and most of what is left of a run is not garbage.
    gc.disable()
    for seed in seeds:
        if time.monotonic() > asked.until_s:
            break
        trace = partial(print, flush=True) if asked.trace else None
        try:
            result = World(
                seed, workshop, trace, kind=asked.kind, faults=asked.faults, verbs=asked.verbs,
                live_s=asked.live_s,
            ).run()  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what matters
            if asked.trace:
                traceback.print_exc()
            repeat = again(seed, asked)
            return f"seed {seed}: {type(error).__name__}: {error}\nagain: {repeat}"
        sums.update(
            runs=1, jobs=result.jobs, starts=result.starts, steps=result.steps,
            digest=result.digest,
        )  # fmt: skip
    return sums


def again(seed: int, asked: Asked) -> str:
    words = ["python -m tests.simulation", f"--seed {seed} --trace"]
    words += [f"--kind {asked.kind}"] if asked.kind else []
    words += [] if asked.live_s == LIVE_S else [f"--live-s {asked.live_s:g}"]
    for name, value in (("faults", asked.faults), ("verbs", asked.verbs)):
        words += [] if value is None else [f"--{name} {','.join(sorted(value)) or ','}"]
    return " ".join(words)


def search(
    name: str, seeds: range, until_s: float, live_s: float, directory: Path, socket: str
) -> int:
    """Runs a broken variant until it breaks an invariant. 0: it did, and so was caught."""
    variant = variant_of(name)
    asked = Asked(
        variant.kind,
        frozenset(filter(None, variant.faults.split(","))),
        until_s,
        verbs=frozenset(filter(None, variant.verbs.split(","))),
        live_s=live_s,
    )
    if WORLD not in sys.modules:
        ran = run_copy(variant, seeds, asked, directory, socket)
    else:
        make_models(directory, socket)
        if not break_imported_toc(variant):
            print(
                f"{name}: changes more than functions, so a process without toc must import a copy"
            )
            return 1
        ran = run(seeds, asked, directory, socket)
    _, violation, broken = str(ran).partition(": Violation: ")
    caught = bool(violation) and broken.split(":")[0] in variant.breaks.split()
    print(f"{name}: {str(ran).splitlines()[0] if caught else f'NOT CAUGHT: {ran}'}")
    return 0 if caught else 1


def run_copy(
    variant: Variant, seeds: range, asked: Asked, directory: Path, socket: str
) -> Counter[str] | str:
    with tempfile.TemporaryDirectory(dir=directory) as own:  # with databases of its own making
        sys.path.insert(0, str(copy_with(variant, Path(own))))
        return run(seeds, asked, Path(own), socket)


def make_models(directory: Path, socket: str) -> None:
    """By toc as it is, and in another process: toc keeps statements that it has made once."""
    from tests.simulation.world import Workshop  # noqa: PLC0415 - imports toc

    workshop = Workshop(directory, socket)
    if not workshop.has_all_models:
        maker = get_context("fork").Process(target=workshop.make_all_models)
        maker.start()
        maker.join()


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
