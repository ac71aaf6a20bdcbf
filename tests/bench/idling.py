"""What a worker costs that has nothing to do yet."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy import text

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    FAR_MS,
    BenchContext,
    check_statuses_and_clear,
    schedule_in_batches,
    start_worker_processes,
)
from toc.bench.job_specs import make_job_specs
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.timer.lua_scripts import Client
from toc.timer.reminders import Reminders

SPREAD_MS = 250_000  # all within the horizon: loaded, armed, not due
WEEK_MS = 7 * 86_400_000
SECONDS_MAX = 60.0
LOAD_S_MAX = 120.0
LOOKS_QUIET = 4  # looks, half a second apart, between which the loader moved nothing


def idle(bench: BenchContext) -> None:
    """A worker with many armed jobs, none of them due: what it costs to wait."""
    options, client = bench.options, bench.scratch.client
    jobs, seconds = options.jobs * 5, min(max(options.seconds / 2, 1), SECONDS_MAX)
    name = "idle"
    report = bench.report
    with TimeoutCenter(bench.scratch.settings) as center:
        for what, due_ms in (
            ("Redis' memory per far job", wall_ms() + WEEK_MS),
            ("Redis' memory per armed job", wall_ms() + FAR_MS),
        ):
            before = _redis_memory_bytes(client)
            schedule_in_batches(
                center, make_job_specs(bench.reserve_biz_ids(jobs), jobs, int(due_ms), SPREAD_MS)
            )
            each = max(0, _redis_memory_bytes(client) - before) / jobs
            report.add_measurement(name, what, "bytes", [(None, each)])
    with start_worker_processes(bench, 1) as workers:
        _wait_for_loader(bench)
        sql_before = _count_statements(bench)
        began_s, (cpu_before_s,) = time.monotonic(), workers.read_cpu_s()
        time.sleep(seconds)
        passed_s, (cpu_after_s,) = time.monotonic() - began_s, workers.read_cpu_s()
        sql_after = _count_statements(bench)
        calls, by_scripts = _count_calls(client, seconds / 2)
    share = (cpu_after_s - cpu_before_s) / passed_s * 100
    report.add_measurement(name, f"CPU of a core, {jobs:,} armed", "%", [(None, share)])
    if calls:
        per_s = sum(calls.values()) / (seconds / 2)
        report.add_measurement(name, "Redis calls", "1/s", [(None, per_s)])
        inside = by_scripts / (seconds / 2)
        report.add_measurement(name, "commands inside its scripts", "1/s", [(None, inside)])
    if sql_before is not None and sql_after is not None:
        # Two questions each are our own looks.
        report.add_measurement(
            name, "SQL statements", "1/s", [(None, max(sql_after - sql_before, 0) / passed_s)]
        )
    report.pictures["Idle: Redis calls"] = [
        f"{verb:>16} {2 * n / seconds:>8.1f} /s" for verb, n in calls.most_common(8)
    ]
    bench.tell(f"{share:.2f} % of a core")
    check_statuses_and_clear(bench, name, {Status.PENDING: 2 * jobs})


def _wait_for_loader(bench: BenchContext) -> None:
    """Waits until the loader has read all shards once: that round is work, not idleness."""
    settings = bench.scratch.settings
    reminders = Reminders.from_settings(settings, SystemClock())
    wanted = range(settings.slot_amount_of("default"))
    end_s, quiet = time.monotonic() + LOAD_S_MAX, 0
    seen: list[dict[int, str]] = []
    try:
        while quiet < LOOKS_QUIET:
            if time.monotonic() > end_s:
                raise TocError(f"the loader did not come to rest within {LOAD_S_MAX:g} s")
            time.sleep(0.5)
            marks = [found.by_shard for found in reminders.read_marks("default", wanted).values()]
            quiet = quiet + 1 if marks == seen and all(marks) else 0
            seen = marks
    finally:
        reminders.close()


def _count_calls(client: Client, seconds: float) -> tuple[Counter[str], int]:
    """What clients ask for during so many seconds, by command; and how many commands scripts ran.

    Nothing of a cluster: its nodes would have to be listened to one by one.
    """
    found: Counter[str] = Counter()
    by_scripts = 0
    if isinstance(client, RedisCluster):
        return found, by_scripts
    end_s = time.monotonic() + seconds
    with client.monitor() as monitor, suppress(RedisTimeoutError):  # nothing at all is asked
        while time.monotonic() < end_s:
            command = monitor.next_command()
            if command["client_type"] == "lua":
                by_scripts += 1
            else:
                found[command["command"].partition(" ")[0].lower()] += 1
    return found, by_scripts


def _redis_memory_bytes(client: Client) -> int:
    """Bytes that Redis uses; of a cluster, all its masters together."""
    cluster = isinstance(client, RedisCluster)
    where = {"target_nodes": RedisCluster.PRIMARIES} if cluster else {}
    info: dict[str, Any] = client.info("memory", **where)
    nodes = [info] if "used_memory" in info else list(info.values())
    return sum(int(node["used_memory"]) for node in nodes)


def _count_statements(bench: BenchContext) -> int | None:
    """Statements that the first database's server has answered so far; None on SQLite."""
    database = bench.scratch.databases[0]
    if database.sqlite:
        return None
    row = database.run_transaction(
        lambda c: c.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one()
    )
    return int(row[1])
