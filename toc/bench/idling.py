"""What a worker costs that has nothing to do yet."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from redis.cluster import RedisCluster
from sqlalchemy import text

from toc.bench.common import (
    FAR_MS,
    Bench,
    check_statuses,
    schedule_all,
    worker_processes,
)
from toc.bench.load import specs
from toc.bench.report import Target
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.timer.scripts import Client
from toc.timer.slots import Slots
from toc.trial.worker import wall_ms

SPREAD_MS = 250_000  # all within the horizon: loaded, armed, not due
WEEK_MS = 7 * 86_400_000
SECONDS_MAX = 60.0
LOAD_S_MAX = 120.0
LOOKS_QUIET = 4  # looks, half a second apart, between which the loader moved nothing


def idle(bench: Bench) -> None:
    """A worker with many armed jobs, none of them due: what it costs to wait."""
    options, client = bench.options, bench.scratch.client
    jobs, seconds = options.jobs * 5, min(max(options.seconds / 2, 1), SECONDS_MAX)
    name = "idle"
    report = bench.report
    with TimeoutCenter(bench.scratch.ours) as center:
        for what, due_ms, most in (
            ("Redis' memory per far job", wall_ms() + WEEK_MS, 2),
            ("Redis' memory per armed job", wall_ms() + FAR_MS, 130),
        ):
            before = _memory(client)
            schedule_all(center, specs(bench.biz_ids(jobs), jobs, int(due_ms), SPREAD_MS))
            each = max(0, _memory(client) - before) / jobs
            report.add_rounds(name, what, "bytes", [(None, each)], Target("toc", "<=", most))
    with worker_processes(bench, 1) as workers:
        _await_loader(bench)
        sql_before, redis_before = _questions(bench), _calls(client)
        began_s, (cpu_before_s,) = time.monotonic(), workers.cpu_s()
        time.sleep(seconds)
        passed_s, (cpu_after_s,) = time.monotonic() - began_s, workers.cpu_s()
        redis_after, sql_after = _calls(client), _questions(bench)
    share = (cpu_after_s - cpu_before_s) / passed_s * 100
    calls = {verb: n - redis_before.get(verb, 0) for verb, n in redis_after.items()}
    calls["info"] = calls.get("info", 0) - 1  # ours
    report.add_rounds(
        name, f"CPU of a core, {jobs:,} armed", "%", [(None, share)], Target("toc", "<", 1)
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
    check_statuses(bench, name, {Status.PENDING: 2 * jobs})


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
    cluster = isinstance(client, RedisCluster)
    where = {"target_nodes": RedisCluster.ALL_NODES} if cluster else {}
    info: dict[str, Any] = client.info("commandstats", **where)
    nodes = [info] if any(key.startswith("cmdstat_") for key in info) else list(info.values())
    found: Counter[str] = Counter()
    for node in nodes:
        for key, value in node.items():
            found[key.removeprefix("cmdstat_")] += int(value["calls"])
    return found


def _memory(client: Client) -> int:
    """Bytes that Redis uses; of a cluster, all its masters together."""
    cluster = isinstance(client, RedisCluster)
    where = {"target_nodes": RedisCluster.PRIMARIES} if cluster else {}
    info: dict[str, Any] = client.info("memory", **where)
    nodes = [info] if "used_memory" in info else list(info.values())
    return sum(int(node["used_memory"]) for node in nodes)


def _questions(bench: Bench) -> int | None:
    """Statements that the first database's server has answered so far; None on SQLite."""
    database = bench.databases[0]
    if database.sqlite:
        return None
    row = database.run(lambda c: c.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one())
    return int(row[1])
