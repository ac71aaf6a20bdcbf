"""What all cases share: options, the two sides, the worker's process, checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from toc.bench.floor import Floor
from toc.bench.report import Check, Report
from toc.bench.scratch import Scratch
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.ids import IdFactory
from toc.domain.job import Status
from toc.runtime.clock import SystemClock
from toc.store.databases import Databases
from toc.store.finals import final_rows
from toc.timer.scripts import Client
from toc.trial.child import Child
from toc.trial.connected import connected
from toc.trial.worker import settings_line, wall_ms

FAR_MS = 600_000  # armed (below horizon + slack), and not due while a case runs
START_S = 60.0
CALL_JOBS = 5000


@dataclass(frozen=True)
class Options:
    """`jobs` a round; a tenth of them one by one, five times as many for the idle worker."""

    jobs: int = 20_000
    rate: float = 300.0
    seconds: float = 20.0
    batch: int = 500
    rounds: int = 3


@dataclass(slots=True)
class Bench:
    """What all cases share. `tell` hears what is going on."""

    scratch: Scratch
    databases: Databases  # toc's side, to look into
    floor: Floor | None
    options: Options
    report: Report
    tell: Callable[[str], None]
    ids: IdFactory = field(default_factory=lambda: IdFactory(SystemClock().wall_ms, 0))
    next_biz_id: int = 1

    def biz_ids(self, count: int) -> int:
        """The first of so many new business ids."""
        first = self.next_biz_id
        self.next_biz_id += count
        return first

    def redis_ms(self) -> float:
        """The timer's clock now, with its microseconds."""
        return _redis_ms(self.scratch.client)


@contextmanager
def opened(
    scratch: Scratch, options: Options, report: Report, tell: Callable[[str], None]
) -> Iterator[Bench]:
    """The two sides, connected."""
    with connected(scratch.ours) as databases:
        if scratch.floor is None:
            yield Bench(scratch, databases, None, options, report, tell)
            return
        with connected(scratch.floor) as bare:
            floor = Floor(scratch.floor, bare, scratch.client)
            try:
                yield Bench(scratch, databases, floor, options, report, tell)
            finally:
                floor.close()


def schedule_all(center: TimeoutCenter, jobs: Sequence[JobSpec]) -> list[int]:
    """In calls that stay below the limit of jobs per call."""
    return [
        job_id
        for at in range(0, len(jobs), CALL_JOBS)
        for job_id in center.schedule_many(jobs[at : at + CALL_JOBS])
    ]


def start_checks(
    case: str, ids: Sequence[int], answer: dict[str, Any], offset_ms: float, unsure_ms: float
) -> list[Check]:
    """What must hold of the handler starts that a worker has told."""
    starts = answer["starts"]
    once = Counter(start[0] for start in starts) == Counter(ids)
    least_ms = min((at + offset_ms - action_ms for _, action_ms, at in starts), default=0.0)
    how = f", as far as the clocks are known: {unsure_ms:.2f} ms" if unsure_ms else ""
    return [
        Check(case, f"each of {len(ids):,} jobs reached the handler once", once),
        Check(case, f"none was early{how}", least_ms >= -unsure_ms),
    ]


@contextmanager
def worker_process(bench: Bench, **changes: Any) -> Iterator[Child]:
    """A worker that is up, with these settings changed; see `toc.bench.worker` for what it answers to."""
    settings = bench.scratch.ours.model_copy(update=changes)
    with Child("toc.bench.worker", settings_line(settings)) as worker:
        worker.receive(START_S)
        yield worker


def clock_offset(client: Client) -> tuple[float, float]:
    """(Redis' clock minus this machine's, how far that may be off), in ms.

    (0, 0) when they cannot be told apart: then it is the same machine, and one clock.
    """
    best = (float("inf"), 0.0)
    for _ in range(20):
        before = wall_ms()
        server = _redis_ms(client)
        after = wall_ms()
        best = min(best, (after - before, server - (before + after) / 2))
    trip_ms, offset_ms = best
    return (0.0, 0.0) if abs(offset_ms) <= trip_ms / 2 else (offset_ms, trip_ms / 2)


def _redis_ms(client: Client) -> float:
    answer: Any = client.time()
    seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return float(int(seconds) * 1000 + int(micros) / 1000)


def pair(floor: float | None, ours: float) -> str:
    """Both sides of a round, to tell."""
    if floor is None:
        return f"toc {ours:,.0f}"
    return f"floor {floor:,.0f}, toc {ours:,.0f}, ratio {ours / floor:.2f}"


def check_statuses(bench: Bench, case: str, expected: dict[Status, int]) -> None:
    """Compares the rows with what must be there; then clears both sides for the next case."""
    found = Counter(row.status for row in final_rows(bench.databases))
    wanted = ", ".join(f"{n:,} {status.name.lower()}" for status, n in expected.items())
    bench.report.checks.append(
        Check(case, f"the database has {wanted} and nothing else", found == Counter(expected))
    )
    bench.scratch.clear()
