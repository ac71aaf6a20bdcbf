"""One run: breaks things by a seed while jobs go through, heals them, and judges what happened.

`python -m tests.chaos.run --minutes 30 --seed word` (`make chaos`). The same seed draws the same faults,
in the same order, of the same victims; what the processes do meanwhile is theirs.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.nemesis import (
    DATABASE_CLOCK,
    FAULTS,
    NAMES,
    NOTHING,
    REDIS_CLOCK,
    REDIS_LINK,
    Act,
    Fault,
)
from tests.chaos.plan import BATCH_TYPES, LONG, NOBODY, PULL_TYPES, SHORT, TYPES, Scale, chance
from tests.chaos.restricted import RESTRICTED_TYPES
from tests.chaos.restricted_judge import Breakage, Finding, judge
from tests.chaos.table import table
from tests.chaos.world import WORKERS, World, wall_ms
from tests.invariants.harness import ROOT
from tests.worker.waiting import wait_until
from toc.store.claims import SKEW_MS
from toc.testing import Report, Rules, check

RECOVERY_S_MAX = 90.0
QUIET_S_MAX = 150.0
LOOK_S = 0.5
LATE_MS = 2000.0  # a burst alone may make a busy machine late by a second
TWO, THREE = "two at once", "three at once"


@dataclass(slots=True)
class Outcome:
    """What a run has shown. `holds`: no problem, no trouble. findings: on restricted types."""

    seed: str
    report: Report
    troubles: list[str]
    directory: Path
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.report.holds and not self.problems_of_restricted and not self.troubles

    @property
    def problems_of_restricted(self) -> list[str]:
        return [problem for finding in self.findings for problem in finding.problems]


def drawn(rng: random.Random, among: Sequence[Fault]) -> Iterator[list[Fault]]:
    """Round by round: each fault alone, and some of them together, in any order."""
    while True:
        acts = [[one] for one in among]
        for count in (2, 2, 2, 3, 3):
            together = combined(rng, among, count)
            if together:
                acts.append(together)
        rng.shuffle(acts)
        yield from acts


def packed(rng: random.Random, among: Sequence[Fault], most: int) -> Iterator[list[Fault]]:
    """Each fault once, up to `most` of them at a time."""
    left = rng.sample(among, len(among))
    while left:
        chosen: list[Fault] = []
        for one in left:
            if len(chosen) < most and not any(one.hits & other.hits for other in chosen):
                chosen.append(one)
        left = [one for one in left if one not in chosen]
        yield chosen


def combined(rng: random.Random, among: Sequence[Fault], count: int) -> list[Fault]:
    """So many that break different things; empty where there are not enough."""
    chosen: list[Fault] = []
    for one in rng.sample(among, len(among)):
        if one.hits != NOTHING and not any(one.hits & other.hits for other in chosen):
            chosen.append(one)
            if len(chosen) == count:
                return chosen
    return []


class Nemesis:
    """Does faults to a world until the time is over."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng

    def run(self, acts: Iterator[list[Fault]], until_s: float) -> None:
        for together in acts:
            if time.monotonic() > until_s or self._world.troubles:
                return
            self._do(together)
            self._recover(together)

    def _do(self, together: Sequence[Fault]) -> None:
        world, rng = self._world, self._rng
        worker, client = rng.choice(world.workers), rng.choice(world.clients)
        chances = [chance(rng.getrandbits(64)) for _ in together]
        web, consumer = rng.choice(world.webs), rng.choice(world.consumers)
        threads = []
        began_ms = wall_ms()
        for one, own in zip(together, chances, strict=True):
            act = Act(world, own, worker, client, web, consumer)
            threads.append(threading.Thread(target=self._one, args=(one, act, began_ms)))
        say(f"{time.strftime('%H:%M:%S')} {' and '.join(one.name for one in together)}")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(together) > 1:
            world.note(TWO if len(together) == 2 else THREE, began_ms, NOBODY)

    def _one(self, one: Fault, act: Act, began_ms: float) -> None:
        try:
            self._world.note(one.name, began_ms, one.do(act))
        except BaseException as error:  # noqa: BLE001 - of whatever kind: the run has failed
            self._world.trouble(f"{one.name}: {error!r}")

    def _recover(self, together: Sequence[Fault]) -> None:
        """Until nothing is overdue any more.

        A machine that is busy with other things may do fewer jobs a second than the clients schedule: then
        jobs are overdue until the clients rest. It is said, since on an idle machine it would be toc's fault.
        """
        world = self._world
        time.sleep(max(one.rest_s for one in together) * world.scale.rest)
        if not self._is_over(RECOVERY_S_MAX):
            names = " and ".join(one.name for one in together)
            with world.clients_rest():
                if not self._is_over(QUIET_S_MAX):
                    world.trouble(
                        f"after {names}: jobs are overdue still, {QUIET_S_MAX:g} s after the clients' last"
                    )
                    return
            say(
                f"after {names}: jobs were overdue for {RECOVERY_S_MAX:g} s, until the clients rested: was"
                " this machine busy with other work? If not, look why"
            )
        time.sleep(world.scale.calm_s)

    def _is_over(self, seconds: float) -> bool:
        try:
            wait_seldom(lambda: self._world.overdue() == 0, "nothing to be overdue", seconds)
        except AssertionError:
            return False
        return True


def chaos(
    directory: Path,
    seed: str,
    seconds: float,
    scale: Scale = LONG,
    *,
    faults: Sequence[str] = (),
    root: Path = ROOT,
    mariadb: bool = False,
    acts: Iterator[list[Fault]] | None = None,
) -> Outcome:
    """Runs so long, and then until all jobs have ended. `faults`: only these, by name."""
    rng = chance(seed)
    among = choose_faults(faults)
    world = World(directory, seed, scale, root=root, mariadb=mariadb)
    try:
        world.start()
        time.sleep(scale.calm_s)
        Nemesis(world, rng).run(acts or drawn(rng, among), time.monotonic() + seconds)
        for client in world.clients:
            client.stop()
        world.end_restrictions()
        try:
            wait_seldom(lambda: not world.live(), "all jobs to end", QUIET_S_MAX)
        except AssertionError as error:
            world.trouble(str(error))
        world.write_rows()
        histories, seen = world.histories(), world.seen()
    finally:
        world.close()
    rules = Rules(
        late_ms=LATE_MS,
        early_ms={REDIS_CLOCK: SKEW_MS},
        max_attempts={
            name: terms.get("max_attempts", 16)
            for name, terms in (TYPES | BATCH_TYPES | PULL_TYPES | RESTRICTED_TYPES).items()
        },
        timeouts_ms=scale.holds_ms,
        lease_ms=scale.lease_s * 1000,
        held_types=frozenset(RESTRICTED_TYPES),
    )
    report, findings = check(histories, rules), judge(seen, breakage(scale))
    lines = [*table(report), *map(str, findings)]
    return Outcome(seed, report, world.troubles, directory, lines, findings)


def breakage(scale: Scale) -> Breakage:
    """Which faults concern the limits of types, and schedules."""
    return Breakage(
        redis={REDIS_LINK, *(one.name for one in FAULTS if "redis" in one.hits)},
        members={one.name for one in FAULTS if one.hits & {"worker", "zookeeper"}} - {REDIS_LINK},
        clocks={REDIS_CLOCK, DATABASE_CLOCK},
        workers=WORKERS,
        hold_ms=scale.lease_s * 1000,
    )


def choose_faults(names: Sequence[str]) -> list[Fault]:
    """The faults with these names; all of them if there are none."""
    return [one for one in FAULTS if not names or one.name in names]


def wait_seldom(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Asks the database no more often than it bears beside its work."""

    def found() -> bool:
        time.sleep(LOOK_S)
        return condition()

    wait_until(found, what, seconds)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def again(asked: argparse.Namespace, seed: str, database: str) -> str:
    """The command that does the same to the same."""
    words = [f"TOC_CHAOS_DB={database}"] if database != "mysql" else []
    words += ["make chaos", f"MINUTES={asked.minutes:g}", f"SEED={seed}"]
    more = ["--short"] if asked.short else []
    more += ["--once"] if asked.once else []
    more += [f'--faults "{asked.faults}"'] if asked.faults else []
    return " ".join([*words, f"ARGS='{' '.join(more)}'"] if more else words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", default="", help="default: a new one, which is printed")
    parser.add_argument("--faults", default="", help=f"only these, by commas: {', '.join(NAMES)}")
    parser.add_argument("--short", action="store_true", help="short leases and faults, few jobs")
    parser.add_argument(
        "--once", action="store_true", help="each fault once, up to three at a time, then end"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep histories and logs also of a good run"
    )
    asked = parser.parse_args()
    seed = asked.seed or secrets.token_hex(4)
    # Taken out: toc refuses variables that begin with TOC_ and are no setting.
    database = os.environ.pop("TOC_CHAOS_DB", "mysql")
    wanted = [name.strip() for name in asked.faults.split(",") if name.strip()]
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    directory = Path(tempfile.mkdtemp(prefix=f"toc-chaos-{seed}-"))
    say(f"seed {seed}, on {database}, in {directory}")
    outcome = chaos(
        directory, seed, asked.minutes * 60, SHORT if asked.short else LONG,
        faults=wanted, mariadb=database == "mariadb",
        acts=packed(chance(seed), choose_faults(wanted), 3) if asked.once else None,
    )  # fmt: skip
    for line in outcome.lines:
        say(line)
    for problem in (*outcome.troubles, *outcome.problems_of_restricted, *outcome.report.problems):
        say(str(problem))
    say(f"seed {seed}, on {database}: {'holds' if outcome.holds else 'BROKEN'}")
    if outcome.holds and not asked.keep:
        shutil.rmtree(directory)
    else:
        say(
            f"histories and logs are in {directory}; the same again: {again(asked, seed, database)}"
        )
    return not outcome.holds


if __name__ == "__main__":
    sys.exit(main())
