"""What all cases share: options, both sides, worker processes, checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import func, select

from toc.bench.floor import Floor
from toc.bench.report import BenchCheck, BenchReport
from toc.bench.scratch import STOCK_FROM, Scratch
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.ids import IdFactory
from toc.domain.job import Status
from toc.runtime.clock import SystemClock
from toc.store.databases import Database, Databases, execute_on
from toc.store.schema import JOB
from toc.timer.scripts import Client
from toc.trial.child import Child
from toc.trial.connected import open_databases
from toc.trial.worker import settings_line, wall_ms

FAR_MS = 600_000  # armed (below horizon + slack), and not due while a case runs
START_S = 60.0
CALL_JOBS = 5000
POLL_S = 0.01  # short against a drain of seconds, and long enough not to disturb it
QUIET_S = 0.3  # a job that runs twice would start within this time
CLIENTS = 8  # threads that schedule in parallel
DRAINERS = 2  # threads of the drain's floor: one works in Python while the other waits for a server


@dataclass(frozen=True)
class Options:
    """The options. `jobs`: a round; a tenth of it one by one, five times as many armed, ten times as many in
    the crowd.

    `rates`: jobs per second of the lateness case. `due`: their spread (`lateness.due_times_s`). `clients`:
    threads that schedule; `workers`: processes (None: each case's default). `pending`: rows that are in the
    tables before anything is measured, due next year.
    """

    jobs: int = 20_000
    rates: tuple[float, ...] = (300.0, 2000.0)
    due: str = "even"
    seconds: float = 20.0
    batch: int = 500
    rounds: int = 3
    clients: int | None = None
    workers: int | None = None
    pending: int = 0


@dataclass(slots=True)
class Bench:
    """What all cases share. `tell` is called with progress lines. `floors`: one per thread; none on
    SQLite.
    """

    scratch: Scratch
    databases: Databases  # toc's side, to look into
    floors: Sequence[Floor]
    options: Options
    report: BenchReport
    tell: Callable[[str], None]
    ids: IdFactory = field(default_factory=lambda: IdFactory(SystemClock().wall_ms, 0))
    next_biz_id: int = 1

    @property
    def floor(self) -> Floor | None:
        """The first floor, for cases with one thread."""
        return next(iter(self.floors), None)

    def reserve_biz_ids(self, count: int) -> int:
        """Reserves so many new business ids; returns the first."""
        first = self.next_biz_id
        self.next_biz_id += count
        return first

    def redis_ms(self) -> float:
        """The timer's clock now, with its microseconds."""
        return _redis_ms(self.scratch.client)


@contextmanager
def open_bench(
    scratch: Scratch, options: Options, report: BenchReport, tell: Callable[[str], None]
) -> Iterator[Bench]:
    """Connects both sides."""
    with open_databases(scratch.ours) as databases:
        if scratch.floor is None:
            yield Bench(scratch, databases, (), options, report, tell)
            return
        with open_databases(scratch.floor) as bare, ExitStack() as stack:
            floors = [
                stack.enter_context(closing(Floor(scratch.floor, bare, scratch.client)))
                for _ in range(max(DRAINERS, options.clients or CLIENTS))
            ]
            yield Bench(scratch, databases, floors, options, report, tell)


def schedule_all(center: TimeoutCenter, jobs: Sequence[JobSpec]) -> list[int]:
    """Schedules the jobs in calls below the limit of jobs per call."""
    return [
        job_id
        for at in range(0, len(jobs), CALL_JOBS)
        for job_id in center.schedule_many(jobs[at : at + CALL_JOBS])
    ]


def check_starts(
    case: str, ids: Sequence[int], ran: WorkerResults, offset_ms: float, unsure_ms: float
) -> list[BenchCheck]:
    """Checks on the starts that workers have reported: each job once, none early."""
    once = Counter(job_id for job_id, *_ in ran.starts) == Counter(ids)
    least_ms = min((at + offset_ms - action_ms for _, action_ms, at in ran.starts), default=0.0)
    how = f", as far as the clocks are known: {unsure_ms:.2f} ms" if unsure_ms else ""
    return [
        BenchCheck(case, f"each of {len(ids):,} jobs reached the handler once", once),
        BenchCheck(case, f"none was early{how}", least_ms >= -unsure_ms),
    ]


class WorkerResults(NamedTuple):
    """The results of the workers. `starts`: job_id, action_time, handler start; all times in ms."""

    settled_ms: float
    starts: list[tuple[int, int, float]]
    memory_mb: float  # the peak of the largest process


class Workers:
    """Running worker processes; all are asked together."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def wait_until_settled(
        self, count: int, timeout_s: float, then: Callable[[], None] = lambda: None
    ) -> WorkerResults:
        """Waits until `count` handlers have started and all is settled, or for timeout_s; then calls
        `then`.
        """
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            answers = self._ask({"do": "look"})
            started = sum(answer["started"] for answer in answers)
            if started >= count and not any(answer["in_flight"] for answer in answers):
                break
            time.sleep(POLL_S)
        settled_ms = wall_ms()
        then()
        time.sleep(QUIET_S)
        answers = self._ask({"do": "take"})
        starts = [(*start,) for answer in answers for start in answer["starts"]]
        memory_mb = max(answer["memory_kb"] for answer in answers) / 1000
        return WorkerResults(settled_ms, starts, memory_mb)

    def cpu_s(self) -> list[float]:
        """The CPU time of each process so far."""
        return [answer["cpu_s"] for answer in self._ask({"do": "cpu"})]

    def _ask(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        for child in self._children:
            child.send(line)
        return [child.receive(START_S) for child in self._children]


@contextmanager
def worker_processes(bench: Bench, count: int, **changes: Any) -> Iterator[Workers]:
    """Starts workers with these settings changed; `toc.bench.worker` has their commands."""
    settings = bench.scratch.ours.model_copy(update=changes)
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child("toc.bench.worker", settings_line(settings)))
            for _ in range(count)
        ]
        for child in children:
            child.receive(START_S)
        yield Workers(children)


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


class Rates:
    """Rounds of (floor, toc) in jobs per second; each is reported when it is added."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.rounds: list[tuple[float | None, float]] = []

    def add(self, floor: float | None, ours: float) -> None:
        self.rounds.append((floor, ours))
        self._bench.tell(f"round {len(self.rounds)}: {pair_words(floor, ours)} jobs/s")


def time_each_ms(calls: Iterable[Callable[[], object]]) -> list[float]:
    """The duration of each call, in ms."""
    found = []
    for call in calls:
        started_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - started_s) * 1000)
    return found


def run_in_threads_s(works: Sequence[Callable[[], object]]) -> float:
    """Runs each in a thread of its own; returns the seconds until all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        started_s = time.perf_counter()
        for future in [pool.submit(work) for work in works]:
            future.result()
        return time.perf_counter() - started_s


def pair_words(floor: float | None, ours: float) -> str:
    """Both sides of a round in words."""
    if floor is None:
        return f"toc {ours:,.0f}"
    return f"floor {floor:,.0f}, toc {ours:,.0f}, ratio {ours / floor:.2f}"


def check_statuses(bench: Bench, case: str, expected: dict[Status, int]) -> None:
    """Compares the rows with what must be there; then clears both sides for the next case."""
    found: Counter[Status] = Counter()
    for database in bench.databases:
        for shard in database.shards:
            found.update(_count_by_status(database, shard))
    wanted = ", ".join(f"{n:,} {status.name.lower()}" for status, n in expected.items())
    bench.report.checks.append(
        BenchCheck(case, f"the database has {wanted} and nothing else", found == Counter(expected))
    )
    bench.scratch.clear()


def _count_by_status(database: Database, shard: int) -> dict[Status, int]:
    """How many jobs of the benchmark a table has, by status."""
    ours = JOB.c.biz_id < STOCK_FROM
    query = select(JOB.c.status, func.count()).where(ours).group_by(JOB.c.status)
    rows: Any = database.read(lambda connection: execute_on(connection, shard, query).all())
    return {Status(status): count for status, count in rows}
