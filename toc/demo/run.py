"""One demo: a temporary directory, a private Redis, two processes, and the check."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from toc.bench.child_node import settings_message, wall_ms
from toc.bench.child_process import ChildProcess
from toc.demo.orders import MAX_ATTEMPTS
from toc.demo.pages import serve_pages
from toc.demo.view import DemoTally
from toc.domain.job import Status
from toc.node.dev_servers import DevDirectory, PrivateRedis
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import LimitSettings, ScannerSettings, TimerSettings, WorkerSettings
from toc.runtime.settings import Settings, load_settings
from toc.runtime.web_settings import WebSettings
from toc.store import migrate
from toc.store.databases import Databases, execute_on_shard
from toc.store.schema import JOB
from toc.testing.checker import check
from toc.testing.final_rows import rows
from toc.testing.history import Entry, Tail
from toc.testing.judge import Rules
from toc.testing.report import Report

DATABASES, SHARDS = 4, 16  # SQLite has one writer per file; with four, processes rarely meet
TICK_S = 0.25
START_S = 60.0
END_S_MAX = 40.0  # jobs that have not ended so long after the client's last call are lost
QUIET_S = 0.5  # a job that runs twice would start within this time

OnTick = Callable[[DemoTally, float], None]
"""Called every tick with the figures so far and the seconds that have passed."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The number of orders, the length of the demo and the seed of its times."""

    orders: int
    seconds: float
    seed: int = 42


def run_demo(plan: DemoOptions, on_tick: OnTick) -> Report:
    """Runs client and worker, then the check; leaves nothing behind.

    Raises ChildProcessFailed and DevServersError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="toc-demo-") as name,
        DevDirectory(Path(name)) as directory,
        PrivateRedis(directory.path),
    ):
        settings = _make_demo_settings(directory)
        migrate.upgrade(settings)
        with closing(Databases.from_settings(settings, SystemClock())) as databases:
            with serve_pages(settings) as address:
                tally = DemoTally(wall_ms(), address)
                entries = _run_client_and_worker(
                    plan, settings, directory.path, databases, tally, on_tick
                )
            return check([entries, rows(settings)], Rules(max_attempts=MAX_ATTEMPTS))


def _make_demo_settings(directory: DevDirectory) -> Settings:
    """The default settings; the user's settings of timer, scanner, worker, limits and web do not count."""
    parts: dict[str, Any] = {
        "timer": TimerSettings(),
        "scanner": ScannerSettings(),
        "worker": WorkerSettings(),
        "limits": LimitSettings(),
        "web": WebSettings(port=0, dashboard_read_only=True),  # a change would break the check
    }
    return load_settings(
        databases=tuple(f"sqlite:///{directory.path}/toc_{index}.db" for index in range(DATABASES)),
        redis_url=directory.load_dev_settings().redis_url,
        shards=SHARDS,
        namespace="demo",
        topics={},
        **{name: part.model_dump() for name, part in parts.items()},
    )


def _run_client_and_worker(
    plan: DemoOptions,
    settings: Settings,
    directory: Path,
    databases: Databases,
    tally: DemoTally,
    on_tick: OnTick,
) -> list[Entry]:
    """Runs client and worker until all jobs have ended; returns the entries of their journals."""
    journals = {name: directory / f"{name}.journal" for name in ("client", "worker")}
    tails = [Tail(path) for path in journals.values()]
    entries: list[Entry] = []

    def update_tally(started_s: float) -> None:
        new = [entry for tail in tails for entry in tail.read()]
        entries.extend(new)
        tally.count_entries(new)
        on_tick(tally, time.monotonic() - started_s)

    first = settings_message(settings)
    make_orders = {"orders": plan.orders, "seconds": plan.seconds, "seed": plan.seed}
    with (
        ChildProcess("toc.demo.worker", first | {"journal": str(journals["worker"])}) as worker,
        ChildProcess(
            "toc.demo.client", first | make_orders | {"journal": str(journals["client"])}
        ) as client,
    ):
        worker.receive_message(START_S)
        client.receive_message(START_S)
        started_s, tally.started_ms = time.monotonic(), wall_ms()
        client.send_message({"go": True})
        while not client.has_answered():
            time.sleep(TICK_S)
            update_tally(started_s)
        client.receive_message(START_S)  # raises if the client has failed
        end_s = time.monotonic() + END_S_MAX
        while _count_live_rows(databases) and time.monotonic() < end_s:
            time.sleep(TICK_S)
            update_tally(started_s)
        time.sleep(QUIET_S)
        update_tally(started_s)
    update_tally(started_s)  # the last entries of the worker
    return entries


def _count_live_rows(databases: Databases) -> int:
    query = (
        select(func.count())
        .select_from(JOB)
        .where(JOB.c.status.in_((int(Status.PENDING), int(Status.RUNNING))))
    )
    return sum(
        database.run_transaction(
            lambda c, shard=shard: execute_on_shard(c, shard, query).scalar_one()  # type: ignore[misc]
        )
        for database in databases
        for shard in database.shards
    )
