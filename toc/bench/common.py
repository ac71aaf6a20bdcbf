"""Parts that all benchmark cases use: options, the system under test, worker processes, checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sqlalchemy import func, select

from toc.bench.child_node import settings_message, wall_ms
from toc.bench.child_process import ChildProcess
from toc.bench.job_specs import BIZ_TYPE
from toc.bench.report import BenchCheck, BenchReport
from toc.bench.scratch_databases import STOCK_FROM, ScratchDatabases
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status
from toc.store.databases import Database, execute_on_shard
from toc.store.schema import JOB
from toc.timer.lua_scripts import Client

FAR_MS = 600_000  # armed (below horizon + slack), and not due while a case runs
START_S = 60.0
CALL_JOBS = 5000
POLL_S = 0.01  # short against a drain of seconds, and long enough not to disturb it
QUIET_S = 0.3  # a job that runs twice would start within this time
CLIENTS = 8  # threads that schedule in parallel


class Baseline(Protocol):
    """A program that does the same work with the bare drivers. All rates are in jobs per second."""

    def schedule_many(self, jobs: int) -> float: ...

    def schedule(self, jobs: int) -> list[float]:
        """The duration of each call in ms."""

    def schedule_in_threads(self, clients: int, each: int) -> float: ...

    def cancel(self, jobs: int, *, events: bool) -> float:
        """Cancels jobs one by one. `events`: also writes an event for each job, as toc does."""

    def cancel_in_bulk(self, jobs: int, *, events: bool) -> float: ...

    def drain(self, jobs: int) -> float: ...

    def lateness(self, rate: float, due_s: Sequence[float]) -> list[float]:
        """How late each job's row is read, in ms. `due_s`: when jobs are due, in seconds from some moment."""

    def clear(self) -> None:
        """Empties the tables and queues of the baseline."""


@dataclass(frozen=True)
class BenchOptions:
    """`jobs`: in each round; a tenth of it for calls with one job. `batch`: jobs per call of schedule_many.

    `rates`: jobs per second of the lateness case. `due`: how its due times are spread
    (`lateness.due_times_s`). `seconds`: its duration. `clients`: threads that schedule; `workers`: processes
    (None: the default of each case).
    """

    jobs: int = 20_000
    rates: tuple[float, ...] = (300.0, 2000.0)
    due: str = "even"
    seconds: float = 20.0
    batch: int = 500
    rounds: int = 3
    clients: int | None = None
    workers: int | None = None


@dataclass(slots=True)
class BenchContext:
    """The context of a bench case. `tell` gets lines of progress. `baseline`: None without a comparison."""

    scratch: ScratchDatabases
    options: BenchOptions
    report: BenchReport
    tell: Callable[[str], None]
    baseline: Baseline | None = None
    next_biz_id: int = 1

    def reserve_biz_ids(self, count: int) -> int:
        """Reserves so many new business ids; returns the first."""
        first = self.next_biz_id
        self.next_biz_id += count
        return first

    def redis_time_ms(self) -> float:
        """The timer's clock now, with its microseconds."""
        return read_redis_time_ms(self.scratch.client)


def schedule_in_batches(center: TimeoutCenter, jobs: Sequence[JobSpec]) -> list[int]:
    """Schedules the jobs in calls below the limit of jobs per call."""
    return [
        job_id
        for at in range(0, len(jobs), CALL_JOBS)
        for job_id in center.schedule_many(jobs[at : at + CALL_JOBS])
    ]


# ---- workers


class WorkerResults(NamedTuple):
    """The results of the workers. `starts`: job_id, action_time, handler start; all times in ms."""

    settled_ms: float
    starts: list[tuple[int, int, float]]
    memory_mb: float  # the peak of the largest process


class WorkerProcesses:
    """Running worker processes; every question goes to all of them."""

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = children

    def wait_until_settled(
        self, count: int, timeout_s: float, then: Callable[[], None] = lambda: None
    ) -> WorkerResults:
        """Waits until `count` handlers have started and all jobs are settled, at most `timeout_s`.

        Then calls `then`.
        """
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            answers = self._ask_all_workers("count")
            started = sum(answer["started"] for answer in answers)
            if started >= count and not any(answer["in_flight"] for answer in answers):
                break
            time.sleep(POLL_S)
        settled_ms = wall_ms()
        then()
        time.sleep(QUIET_S)
        answers = self._ask_all_workers("take")
        starts = [(*start,) for answer in answers for start in answer["starts"]]
        memory_mb = max(answer["memory_kb"] for answer in answers) / 1000
        return WorkerResults(settled_ms, starts, memory_mb)

    def read_cpu_s(self) -> list[float]:
        """The CPU time of each process so far."""
        return [answer["cpu_s"] for answer in self._ask_all_workers("cpu")]

    def _ask_all_workers(self, command: str) -> list[dict[str, Any]]:
        for child in self._children:
            child.send_message({"do": command})
        return [child.receive_message(START_S) for child in self._children]


@contextmanager
def start_worker_processes(
    bench: BenchContext, count: int, biz_types: Sequence[str] = (BIZ_TYPE,), **changes: Any
) -> Iterator[WorkerProcesses]:
    """Starts workers with handlers for these types; `changes`: settings that differ from the benchmark's."""
    settings = bench.scratch.settings.model_copy(update=changes)
    first = settings_message(settings) | {"biz_types": biz_types}
    with ExitStack() as stack:
        children = [
            stack.enter_context(ChildProcess("toc.bench.worker", first)) for _ in range(count)
        ]
        for child in children:
            child.receive_message(START_S)
        yield WorkerProcesses(children)


# ---- clocks and durations


def measure_clock_offset(client: Client) -> tuple[float, float]:
    """(Redis' clock minus this machine's, how far that may be off), in ms.

    (0, 0) when they cannot be distinguished: then it is the same machine, and one clock.
    """
    best = (float("inf"), 0.0)
    for _ in range(20):
        before = wall_ms()
        server = read_redis_time_ms(client)
        after = wall_ms()
        best = min(best, (after - before, server - (before + after) / 2))
    trip_ms, offset_ms = best
    return (0.0, 0.0) if abs(offset_ms) <= trip_ms / 2 else (offset_ms, trip_ms / 2)


def read_redis_time_ms(client: Client) -> float:
    answer: Any = client.time()
    seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    return float(int(seconds) * 1000 + int(micros) / 1000)


def time_each_call_ms(calls: Iterable[Callable[[], object]]) -> list[float]:
    """The duration of each call, in ms."""
    found = []
    for call in calls:
        started_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - started_s) * 1000)
    return found


def time_in_threads_s(works: Sequence[Callable[[], object]]) -> float:
    """Runs each function in a thread of its own; returns the seconds until all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        started_s = time.perf_counter()
        for future in [pool.submit(work) for work in works]:
            future.result()
        return time.perf_counter() - started_s


class RateRounds:
    """Rounds of (baseline, toc) in jobs per second; each is printed when it is added."""

    def __init__(self, bench: BenchContext) -> None:
        self._bench = bench
        self.rounds: list[tuple[float | None, float]] = []

    def add_round(self, baseline: float | None, ours: float) -> None:
        self.rounds.append((baseline, ours))
        self._bench.tell(f"round {len(self.rounds)}: {format_round(baseline, ours)} jobs/s")


def format_round(baseline: float | None, ours: float) -> str:
    """The rates of baseline and toc in one round, as a text."""
    if baseline is None:
        return f"toc {ours:,.0f}"
    return f"baseline {baseline:,.0f}, toc {ours:,.0f}, ratio {ours / baseline:.2f}"


# ---- checks


def check_starts(
    case: str, ids: Sequence[int], ran: WorkerResults, offset_ms: float, unsure_ms: float
) -> list[BenchCheck]:
    """Checks on the starts that workers have recorded: each job once, none early."""
    once = Counter(job_id for job_id, *_ in ran.starts) == Counter(ids)
    least_ms = min((at + offset_ms - action_ms for _, action_ms, at in ran.starts), default=0.0)
    how = f", as far as the clocks are known: {unsure_ms:.2f} ms" if unsure_ms else ""
    return [
        BenchCheck(case, f"each of {len(ids):,} jobs reached the handler once", once),
        BenchCheck(case, f"none was early{how}", least_ms >= -unsure_ms),
    ]


def check_statuses_and_clear(bench: BenchContext, case: str, expected: dict[Status, int]) -> None:
    """Checks that the databases have so many jobs of each status; then clears them for the next case."""
    found: Counter[Status] = Counter()
    for database in bench.scratch.databases:
        for shard in database.shards:
            found.update(_count_by_status(database, shard))
    wanted = ", ".join(f"{n:,} {status.name.lower()}" for status, n in expected.items())
    bench.report.checks.append(
        BenchCheck(case, f"the database has {wanted} and nothing else", found == Counter(expected))
    )
    bench.scratch.clear_tables_and_queues()
    if bench.baseline is not None:
        bench.baseline.clear()


def _count_by_status(database: Database, shard: int) -> dict[Status, int]:
    query = (
        select(JOB.c.status, func.count()).where(JOB.c.biz_id < STOCK_FROM).group_by(JOB.c.status)
    )
    rows: Any = database.run_read(
        lambda connection: execute_on_shard(connection, shard, query).all()
    )
    return {Status(status): count for status, count in rows}
