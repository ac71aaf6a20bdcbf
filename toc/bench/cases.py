"""What is measured. Each case fills the report; floor and toc take turns inside it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from toc.bench.floor import Floor
from toc.bench.load import by_database, planned, specs
from toc.bench.report import Check, Report, Target
from toc.bench.scratch import Scratch
from toc.center.center import TimeoutCenter
from toc.domain.ids import IdFactory
from toc.domain.job import Status
from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.store.databases import Databases
from toc.timer.scripts import Client
from toc.timer.slots import Slots
from toc.trial.child import Child
from toc.trial.figures import histogram, percentile
from toc.trial.rows import all_rows, connected
from toc.trial.worker import settings_line, wall_ms

FAR_MS = 600_000  # armed (below horizon + slack), and not due while the case runs
START_S = 60.0
LOAD_S_MAX = 120.0
LOOKS_QUIET = 4  # looks, half a second apart, between which the loader moved nothing


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


# ---- schedule


def schedule_many(bench: Bench) -> None:
    """Batches through `schedule_many` beside hand-built INSERTs and pipelined ZADDs."""
    options, rounds = bench.options, []
    written = 0
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = options.jobs if number else options.batch  # the first is to warm up
            floor = _floor_many(bench, jobs)
            first, due_ms = bench.biz_ids(jobs), wall_ms() + FAR_MS
            batches = [
                specs(first + at, min(options.batch, jobs - at), int(due_ms))
                for at in range(0, jobs, options.batch)
            ]
            started_s = time.perf_counter()
            for batch in batches:
                center.schedule_many(batch)
            ours = jobs / (time.perf_counter() - started_s)
            written += jobs
            if number:
                rounds.append((floor, ours))
                bench.tell(f"round {number}: {_pair(floor, ours)} jobs/s")
    name = "schedule_many"
    bench.report.add_rounds(
        name, f"{options.batch} a call", "jobs/s", rounds, Target("ratio", ">=", 0.6)
    )
    _check_statuses(bench, name, {Status.PENDING: written})


def _floor_many(bench: Bench, jobs: int) -> float | None:
    if bench.floor is None or bench.scratch.floor is None:
        return None
    rows = planned(bench.ids, bench.biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    size = bench.options.batch
    batches = [
        by_database(bench.scratch.floor, rows[at : at + size]) for at in range(0, jobs, size)
    ]
    started_s = time.perf_counter()
    for batch in batches:
        bench.floor.insert_many(batch)
    return jobs / (time.perf_counter() - started_s)


def schedule(bench: Bench) -> None:
    """One job per call beside INSERT, COMMIT, ZADD."""
    options = bench.options
    count = max(options.jobs // 10, 1)
    rates: list[tuple[float | None, float]] = []
    calls: dict[float, list[tuple[float | None, float]]] = {50: [], 99: []}
    written = 0
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = count if number else min(count, 100)
            floor_ms = _floor_one_by_one(bench, jobs)
            load = specs(bench.biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
            ours_ms = _timed([lambda job=job: center.schedule(**job) for job in load])  # type: ignore[misc]
            written += jobs
            if number:
                rates.append((_rate(floor_ms), jobs / sum(ours_ms) * 1000))
                for percent, found in calls.items():
                    found.append(
                        (
                            percentile(floor_ms, percent) if floor_ms else None,
                            percentile(ours_ms, percent),
                        )
                    )
                bench.tell(f"round {number}: {_pair(*rates[-1])} jobs/s")
    report, name = bench.report, "schedule"
    report.add_rounds(name, "one by one", "jobs/s", rates, Target("ratio", ">=", 0.7))
    for percent, found in calls.items():
        report.add_rounds(name, f"one call, p{percent:g}", "ms", found)
    _check_statuses(bench, name, {Status.PENDING: written})


def _floor_one_by_one(bench: Bench, jobs: int) -> list[float]:
    floor = bench.floor
    if floor is None:
        return []
    rows = planned(bench.ids, bench.biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    return _timed([lambda row=row: floor.insert(row) for row in rows])  # type: ignore[misc]


def _timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """How long each call took, in ms."""
    found = []
    for call in calls:
        started_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - started_s) * 1000)
    return found


# ---- drain


def drain(bench: Bench) -> None:
    """Jobs that are due at one instant, run by one worker process, beside the statements alone.

    toc's time runs from that instant, by the timer's clock, until the last job is settled.
    """
    options, name = bench.options, "drain"
    rounds = []
    with TimeoutCenter(bench.scratch.ours) as center, _worker(bench) as worker:
        # A warm-up: the first jobs of a process connect, compile and load scripts.
        _drain_ours(bench, center, worker, min(options.jobs, options.batch))
        for number in range(1, options.rounds + 1):
            floor = _drain_floor(bench)
            ours = _drain_ours(bench, center, worker, options.jobs)
            rounds.append((floor, ours))
            bench.tell(f"round {number}: {_pair(floor, ours)} jobs/s")
    bench.report.add_rounds(
        name,
        "one worker, due to settled",
        "jobs/s",
        rounds,
        Target("ratio", ">=", 0.5),
        Target("toc", ">=", 8000),
    )
    done = min(options.jobs, options.batch) + options.jobs * options.rounds
    _check_statuses(bench, name, {Status.DONE: done})


def _drain_floor(bench: Bench) -> float | None:
    if bench.floor is None or bench.scratch.floor is None:
        return None
    jobs, size = bench.options.jobs, bench.options.batch
    rows = planned(bench.ids, bench.biz_ids(jobs), jobs, int(bench.redis_ms()))
    for at in range(0, jobs, size):
        bench.floor.insert_many(by_database(bench.scratch.floor, rows[at : at + size]))
    started_s = time.perf_counter()
    settled = bench.floor.drain(size)
    rate = settled / (time.perf_counter() - started_s)
    bench.report.checks.append(
        Check("drain", f"the floor settled {settled:,} of {jobs:,} rows", settled == jobs)
    )
    return rate


def _drain_ours(bench: Bench, center: TimeoutCenter, worker: Child, jobs: int) -> float:
    offset_ms, _ = clock_offset(bench.scratch.client)
    # All must be armed before the instant: what is still being scheduled then is not a drain.
    due_ms = int(bench.redis_ms() + 1000 + jobs / 5)
    ids = center.schedule_many(specs(bench.biz_ids(jobs), jobs, due_ms))
    ahead = bench.redis_ms() < due_ms
    answer = worker.ask({"do": "finish", "count": jobs, "timeout_s": 120}, 180)
    started = Counter(start[0] for start in answer["starts"])
    name = "drain"
    bench.report.checks += [
        Check(name, f"each of {jobs:,} jobs reached the handler once", started == Counter(ids)),
        Check(name, "all were armed before their instant", ahead),
        Check(
            name,
            "none was early",
            all(at + offset_ms >= action for _, action, at in answer["starts"]),
        ),
    ]
    return jobs / (float(answer["settled_ms"]) + offset_ms - due_ms) * 1000


# ---- lateness


def lateness(bench: Bench) -> None:
    """A steady rate from this process to a worker's: handler start minus action_time."""
    options, name = bench.options, "lateness"
    offset_ms, unsure_ms = clock_offset(bench.scratch.client)
    jobs = round(options.rate * options.seconds)
    first = bench.biz_ids(jobs)
    asked: dict[int, int] = {}
    with TimeoutCenter(bench.scratch.ours) as center, _worker(bench) as worker:
        center.dead(1)  # connected before the clock runs
        started_s = time.perf_counter()
        for i in range(jobs):
            wait_s = started_s + i / options.rate - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            delay_ms = 2000 + first * 7919 * (i + 1) % 1000  # 2 to 3 s, the same in each run
            spec = specs(first + i, 1, int(wall_ms() + offset_ms) + delay_ms)[0]
            asked[center.schedule(**spec)] = i
        took_s = time.perf_counter() - started_s
        answer = worker.ask({"do": "finish", "count": jobs, "timeout_s": 60}, 120)
    late_ms = [at + offset_ms - action for _, action, at in answer["starts"]]
    report = bench.report
    started = Counter(start[0] for start in answer["starts"])
    report.checks += [
        Check(
            name, f"each of {jobs:,} jobs reached the handler once", started == Counter(list(asked))
        ),
        Check(
            name,
            f"none was early (clocks known to {unsure_ms:.2f} ms)",
            min(late_ms, default=0) >= -unsure_ms,
        ),
    ]
    _check_statuses(bench, name, {Status.DONE: jobs})
    if not late_ms:
        return
    for what, value, targets in (
        ("p50", percentile(late_ms, 50), (Target("toc", "<=", 5),)),
        ("p99", percentile(late_ms, 99), (Target("toc", "<=", 20),)),
        ("max", max(late_ms), ()),
        ("min", min(late_ms), ()),
    ):
        report.add_rounds(
            name, f"{what} at {options.rate:g} jobs/s", "ms", [(None, value)], *targets
        )
    report.add_rounds(
        name, "client's rate (floor: asked)", "jobs/s", [(options.rate, jobs / took_s)]
    )
    bench.tell(f"p50 {percentile(late_ms, 50):.1f} ms, p99 {percentile(late_ms, 99):.1f} ms")
    report.pictures["Lateness: handler start minus action_time"] = histogram(late_ms)


# ---- idle


def idle(bench: Bench) -> None:
    """A worker with many armed jobs, none of them due: what it costs to wait."""
    options, client = bench.options, bench.scratch.client
    jobs, seconds = options.jobs * 5, max(options.seconds / 2, 1)
    name = "idle"
    with TimeoutCenter(bench.scratch.ours) as center:
        # Due over five minutes within the horizon: as a loader and clients really leave them.
        center.schedule_many(specs(bench.biz_ids(jobs), jobs, int(wall_ms()) + 550_000, 300_000))
    with _worker(bench) as worker:
        _await_loader(bench)
        sql_before, redis_before = _questions(bench), _calls(client)
        before = worker.ask({"do": "cpu"})
        time.sleep(seconds)
        after = worker.ask({"do": "cpu"})
        redis_after, sql_after = _calls(client), _questions(bench)
    passed_s = after["at_s"] - before["at_s"]
    share = (after["cpu_s"] - before["cpu_s"]) / passed_s * 100
    calls = {verb: n - redis_before.get(verb, 0) for verb, n in redis_after.items()}
    calls["info"] = calls.get("info", 0) - 1  # ours
    report = bench.report
    report.add_rounds(
        name, f"CPU of a core, {jobs:,} armed", "%", [(None, share)], Target("toc", "<", 2)
    )
    report.add_rounds(
        name, "Redis calls (scripts' too)", "1/s", [(None, sum(calls.values()) / passed_s)]
    )
    if sql_before is not None and sql_after is not None:
        # Two questions each are our own looks.
        report.add_rounds(
            name, "SQL statements", "1/s", [(None, max(sql_after - sql_before, 0) / passed_s)]
        )
    busiest = sorted(((n, verb) for verb, n in calls.items() if n > 0), reverse=True)[:8]
    report.pictures["Idle: Redis calls by command"] = [
        f"{verb:>16} {n / passed_s:>8.1f} /s" for n, verb in busiest
    ]
    bench.tell(f"{share:.2f} % of a core")
    _check_statuses(bench, name, {Status.PENDING: jobs})


def _await_loader(bench: Bench) -> None:
    """Until the loader has gone through all shards: its first round is work, not idleness."""
    settings = bench.scratch.ours
    slots = Slots(
        settings.redis_url, settings.namespace, SystemClock(), timeout_s=settings.connect_timeout_s
    )
    wanted = range(settings.slots_of("default"))
    end_s, quiet = time.monotonic() + LOAD_S_MAX, 0
    seen: dict[int, dict[int, str]] = {}
    try:
        while quiet < LOOKS_QUIET:
            if time.monotonic() > end_s:
                raise TocError(f"the loader did not come to rest within {LOAD_S_MAX:g} s")
            time.sleep(0.5)
            marks = slots.marks("default", wanted)
            quiet = quiet + 1 if marks == seen and all(marks.values()) else 0
            seen = marks
    finally:
        slots.close()


def _calls(client: Client) -> Counter[str]:
    """Calls so far by command; of a cluster, of all its nodes."""
    info: dict[str, Any] = client.info("commandstats")
    nodes = [info] if any(key.startswith("cmdstat_") for key in info) else list(info.values())
    found: Counter[str] = Counter()
    for node in nodes:
        for key, value in node.items():
            found[key.removeprefix("cmdstat_")] += int(value["calls"])
    return found


def _questions(bench: Bench) -> int | None:
    """Statements that the first database's server has answered so far; None on SQLite."""
    database = bench.databases[0]
    if database.sqlite:
        return None
    row = database.run(lambda c: c.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one())
    return int(row[1])


# ---- small things


@contextmanager
def _worker(bench: Bench) -> Iterator[Child]:
    with Child("toc.bench.worker", settings_line(bench.scratch.ours)) as worker:
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


def _rate(calls_ms: Sequence[float]) -> float | None:
    return len(calls_ms) / sum(calls_ms) * 1000 if calls_ms else None


def _pair(floor: float | None, ours: float) -> str:
    if floor is None:
        return f"toc {ours:,.0f}"
    return f"floor {floor:,.0f}, toc {ours:,.0f}, ratio {ours / floor:.2f}"


def _check_statuses(bench: Bench, case: str, expected: dict[Status, int]) -> None:
    """Compares the rows with what must be there; then clears both sides for the next case."""
    found = Counter(row.status for row in all_rows(bench.databases).values())
    wanted = ", ".join(f"{n:,} {status.name.lower()}" for status, n in expected.items())
    bench.report.checks.append(
        Check(case, f"the database has {wanted} and nothing else", found == Counter(expected))
    )
    bench.scratch.clear()


CASES: dict[str, Callable[[Bench], None]] = {
    "schedule_many": schedule_many,
    "schedule": schedule,
    "drain": drain,
    "lateness": lateness,
    "idle": idle,
}
