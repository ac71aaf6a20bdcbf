"""The dashboard on a large database: how long each page takes, what it reads, and what fifty viewers cost.

python -m tests.bench.dashboard --jobs 10000000 --shards 64

On a MySQL and a Redis of its own. Prints two tables: the time to answer each page, and the rows that MySQL
read for it; processor time and the lateness of jobs, without viewers and with them. Jobs that are due later
than the timer's horizon have no reminder in Redis, as always.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from sqlalchemy import Engine, create_engine, text

from tests.servers.mysql import start_mysql
from tests.servers.redis import start_redis
from toc.bench.child_node import settings_message
from toc.bench.child_process import ChildProcess
from toc.bench.lateness import RateClient, due_times_s
from toc.bench.statistics import percentile
from toc.center.center import TimeoutCenter
from toc.dashboard.site import PAGES
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypes

TYPES = tuple(f"bench.type{number}" for number in range(8))
RUN_TYPE = "bench.run"  # the type whose jobs run while people look
SHOP = 7  # a business with many jobs
SHOP_JOBS = 2000
BATCH = 20_000
MONTH_S = 30 * 86_400
DEAD_PART = 500  # one job in so many is dead
REFRESH_S = 5.0
ANSWER_S = 100.0
WARM_S = 6.0  # the dashboard's threads have read everything once


class PageTimes(NamedTuple):
    """One address. Times in ms at the client; `rows`: that MySQL read for one answer, without the first."""

    address: str
    status: int
    first_ms: float
    p50_ms: float
    most_ms: float
    rows: float


class Load(NamedTuple):
    """A time with some viewers. `cpu`: of the web process, in cores; lateness of jobs in ms."""

    viewers: int
    cpu: float
    p50_ms: float
    p99_ms: float
    most_ms: float
    answers: int


class DashboardBench:
    """The servers and the rows."""

    def __init__(self, stack: ExitStack, folder: Path, jobs: int, shards: int) -> None:
        self._jobs, self._began_s = jobs, time.monotonic()
        mysql = start_mysql(folder / "mysql", "--innodb-buffer-pool-size=2G", "--skip-log-bin")
        stack.callback(mysql.stop)
        redis = start_redis(folder / "redis")
        stack.callback(redis.stop)
        self._engine: Engine = create_engine(mysql.url)
        stack.callback(self._engine.dispose)
        self._sql("CREATE DATABASE bench")
        self.settings = Settings(
            databases=(mysql.url.rstrip("/") + "/bench",), redis_url=redis.url, namespace="bench",
            shards=shards, web={"port": 0},
        )  # fmt: skip
        migrate.upgrade(self.settings)
        self._declare_types()
        self._center = stack.enter_context(TimeoutCenter(self.settings))

    def fill(self) -> None:
        """Pending jobs over a month; then 40 % of them are done, 10 % cancelled, and some dead."""
        now = datetime.now(UTC)
        self._center.schedule_many(

                {
                    "biz_id": SHOP, "action_time": now + timedelta(hours=2), "dedup_key": f"k{number}",
                    "biz_type": TYPES[0],
                }
                for number in range(SHOP_JOBS)

        )  # fmt: skip
        for at in range(SHOP_JOBS, self._jobs, BATCH):
            jobs = [
                {
                    "biz_id": 1000 + n, "action_time": now + timedelta(hours=2, seconds=n * 7919 % MONTH_S),
                    "attribute": {"reason": "unpaid"}, "biz_type": TYPES[at // BATCH % len(TYPES)],
                }
                for n in range(at, min(at + BATCH, self._jobs))
            ]  # fmt: skip
            self._center.schedule_many(jobs)
        self.tell(f"{self._jobs:,} jobs scheduled")
        for table in self._tables:
            self._end_some(table)
        self._sql("ANALYZE TABLE " + ", ".join(self._tables))
        self.tell("40 % are done, 10 % cancelled, 0.2 % dead")

    def _end_some(self, table: str) -> None:
        hashed = "CRC32(job_id)"
        ended = "due_time = NULL, attempts = 1"
        self._sql(
            f"UPDATE {table} SET status = {Status.DEAD.value}, {ended} WHERE {hashed} % {DEAD_PART} = 0"
        )
        self._sql(
            "INSERT INTO bench.toc_dead_job (job_id, biz_id, type_no, attempts, error, dead_time) "
            "SELECT job_id, biz_id, type_no, attempts, "
            f"ELT(1 + {hashed} % 3, 'TimeoutError: no answer', 'KeyError: sku', 'ValueError: amount'), "
            f"UTC_TIMESTAMP(3) - INTERVAL {hashed} % 86400 SECOND "
            f"FROM {table} WHERE status = {Status.DEAD.value}"
        )
        for status, first, last in ((Status.DONE, 0, 3), (Status.CANCELLED, 4, 4)):
            self._sql(
                f"UPDATE {table} SET status = {status.value}, {ended} "
                f"WHERE status = 0 AND {hashed} % 10 BETWEEN {first} AND {last}"
            )

    @property
    def _tables(self) -> list[str]:
        return [f"bench.toc_job_{shard:04d}" for shard in range(self.settings.shards)]

    def _declare_types(self) -> None:
        databases = Databases.from_settings(self.settings, SystemClock())
        try:
            types = DeclaredTypes(databases, DatabaseMetadata(databases).types, 100)
            for name in (*TYPES, RUN_TYPE):
                types.change(name, lambda _, name=name: DeclaredType.from_fields(name, {}), "bench")  # type: ignore[misc]
        finally:
            databases.close()

    def measure_pages(self, times: int) -> list[PageTimes]:
        """Asks each page alone, first when the server has just started."""
        job_id = self._center.find(SHOP, biz_type=TYPES[0])[0].job_id
        found = []
        for address in page_addresses(str(job_id)):
            first = {"biz_type": RUN_TYPE} | settings_message(self.settings)
            with ChildProcess("tests.bench.dashboard_server", first) as child:
                url = child.receive_message(ANSWER_S)["url"]
                with httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False) as client:
                    found.append(self._measure_page(client, address, times))
        return found

    def _measure_page(self, client: httpx.Client, address: str, times: int) -> PageTimes:
        first_ms, status = _timed_get(client, address)
        time.sleep(WARM_S)
        # What the dashboard's thread and others read meanwhile is subtracted.
        quiet_rows = self._rows_read_during(lambda: time.sleep(REFRESH_S)) / REFRESH_S
        taken: list[float] = []

        def ask() -> None:
            taken.extend(_timed_get(client, address)[0] for _ in range(times))

        began_s = time.monotonic()
        rows = self._rows_read_during(ask) - quiet_rows * (time.monotonic() - began_s)
        return PageTimes(
            address, status, first_ms, percentile(taken, 50), max(taken), max(0.0, rows / times)
        )

    def _rows_read_during(self, act: Any) -> int:
        before = self._rows_read()
        of_reading = self._rows_read() - before
        act()
        return self._rows_read() - before - 2 * of_reading

    def _rows_read(self) -> int:
        with self._engine.connect() as connection:
            rows = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Handler_read%'")).all()
        return sum(int(value) for _, value in rows)

    def measure_viewers(self, viewers: Sequence[int], seconds: float, rate: float) -> list[Load]:
        """Jobs run at a steady rate while so many people look at the page Now."""
        return [self._measure_load(each, seconds, rate) for each in viewers]

    def _measure_load(self, viewers: int, seconds: float, rate: float) -> Load:
        message = settings_message(self.settings)
        with (
            ChildProcess("tests.bench.dashboard_server", message) as web,
            ChildProcess("toc.bench.worker", message | {"biz_types": [RUN_TYPE]}) as worker,
        ):
            url = web.receive_message(ANSWER_S)["url"]
            worker.receive_message(ANSWER_S)
            with looking_at(url, viewers) as answers:
                time.sleep(WARM_S)
                before_s, began_s, seen = _cpu_s(web), time.monotonic(), len(answers)
                due = list(itertools.islice(due_times_s("random", rate), round(rate * seconds)))
                first = 10**9 * (1 + viewers) + int(time.time()) % 10**6
                RateClient(self._center, 0.0).schedule_jobs(due, first, RUN_TYPE, rate)
                cpu = (_cpu_s(web) - before_s) / (time.monotonic() - began_s)
                seen = len(answers) - seen
            _wait_until_started(worker, len(due))
            worker.send_message({"do": "take"})
            starts = worker.receive_message(ANSWER_S)["starts"]
        late = [at_ms - action_ms for _, action_ms, at_ms in starts]
        return Load(viewers, cpu, percentile(late, 50), percentile(late, 99), max(late), seen)

    def _sql(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(statement))

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {what}", flush=True)  # noqa: T201


def page_addresses(job_id: str) -> Iterator[str]:
    """Each page that can be looked at, and filters of the page Jobs."""
    for page in PAGES:
        if page.method == "GET" and page.scope is not None:
            path = page.path.replace("{job_id}", job_id).replace("{biz_type}", TYPES[0])
            if "{" not in path:
                yield path
    yield f"/ui/jobs?biz_id={SHOP}"
    yield f"/ui/jobs?biz_id={SHOP}&type={TYPES[0]}"
    yield f"/ui/jobs?type={TYPES[1]}"
    yield f"/ui/jobs?type={TYPES[1]}&status=dead"
    yield f"/ui/jobs?type={TYPES[1]}&status=pending"


def _timed_get(client: httpx.Client, address: str) -> tuple[float, int]:
    began_s = time.perf_counter()
    answer = client.get(address)
    return (time.perf_counter() - began_s) * 1000, answer.status_code


class looking_at:  # noqa: N801 - reads as a verb
    """Open pages: each asks again REFRESH_S after its answer. Gives the times of all answers, in ms."""

    def __init__(self, url: str, viewers: int) -> None:
        self._url, self._viewers, self._over = url, viewers, threading.Event()
        self._pool = ThreadPoolExecutor(max(1, viewers))
        self._answers: list[float] = []

    def __enter__(self) -> list[float]:
        self._watching = [
            self._pool.submit(self._look, number / max(1, self._viewers) * REFRESH_S)
            for number in range(self._viewers)
        ]
        return self._answers

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for each in self._watching:
            each.result()

    def _look(self, after_s: float) -> None:
        self._over.wait(after_s)
        with httpx.Client(base_url=self._url, timeout=ANSWER_S, trust_env=False) as client:
            while not self._over.is_set():
                took_ms, status = _timed_get(client, "/ui/")
                if status != 200:
                    raise AssertionError(f"the page Now answered {status}")
                self._answers.append(took_ms)
                self._over.wait(REFRESH_S)


def _cpu_s(child: ChildProcess) -> float:
    child.send_message({})
    found: float = child.receive_message(ANSWER_S)["cpu_s"]
    return found


def _wait_until_started(worker: ChildProcess, jobs: int) -> None:
    deadline_s = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline_s:
        worker.send_message({"do": "count"})
        if worker.receive_message(ANSWER_S)["started"] >= jobs:
            return
        time.sleep(0.1)
    raise AssertionError(f"not all of {jobs} jobs started within {ANSWER_S} s")


def format_pages(pages: Sequence[PageTimes]) -> str:
    lines = [
        "| page | status | first ms | p50 ms | most ms | rows read |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {re.sub('[0-9]{12,}', '{job_id}', page.address)} | {page.status} | {page.first_ms:.0f} "
        f"| {page.p50_ms:.1f} | {page.most_ms:.1f} | {page.rows:,.0f} |"
        for page in pages
    ]
    return "\n".join(lines)


def format_loads(loads: Sequence[Load]) -> str:
    lines = [
        "| viewers | answers | cores of the web process | of a core each | late p50 ms | p99 ms | most ms |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {load.viewers} | {load.answers} | {load.cpu:.3f} "
        f"| {100 * load.cpu / max(1, load.viewers):.2f} % "
        f"| {load.p50_ms:.1f} | {load.p99_ms:.1f} | {load.most_ms:.1f} |"
        for load in loads
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.dashboard")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--times", type=int, default=20, help="how often each page is asked")
    parser.add_argument("--viewers", type=int, nargs="*", default=[0, 50])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long people look")
    parser.add_argument("--rate", type=float, default=200.0, help="jobs a second meanwhile")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toc-dashboard-")))
        bench = DashboardBench(stack, folder, given.jobs, given.shards)
        bench.fill()
        pages = bench.measure_pages(given.times)
        print(format_pages(pages), flush=True)  # noqa: T201
        loads = bench.measure_viewers(given.viewers, given.seconds, given.rate)
        print(format_loads(loads))  # noqa: T201
    return 0 if all(page.status == 200 for page in pages) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
