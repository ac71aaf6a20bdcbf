"""The compare as one would write it at first: both sides read into Python, by one thread."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from tests.bench.baseline import TOPIC
from toc.domain.times import datetime_of
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.timer import redis_keys
from toc.timer.redis_client import make_redis_client


def disagreements(settings: Settings) -> tuple[int, int]:
    """How many live rows within the horizon there are, and of how many the reminder differs or lacks."""
    clock = SystemClock()
    databases = Databases.from_settings(settings, clock, pool_size=1)
    client = make_redis_client(settings.redis_url, settings.connect_timeout_s)
    until_ms = clock.wall_ms() + settings.timer.arm_within_ms
    values = {"until": datetime_of(until_ms).replace(tzinfo=None)}
    rows: dict[int, int] = {}
    armed: dict[int, int] = {}
    try:
        for database in databases:
            for shard in database.shards:
                sql = text(
                    f"SELECT job_id, due_time FROM {database.job_table_name(shard)} "
                    "WHERE due_time IS NOT NULL AND due_time <= :until"
                )
                found = database.run_read(lambda c, sql=sql: c.execute(sql, values).all())  # type: ignore[misc]
                rows.update((row[0], row[1]) for row in found)
        for slot in range(settings.slot_amount_of(TOPIC)):
            entries: Any = client.zrange(
                redis_keys.store_queue_key(settings.namespace, TOPIC, slot), 0, -1, withscores=True
            )
            armed.update((int(member), int(score)) for member, score in entries)
    finally:
        databases.close()
        client.close()
    differing = sum(armed.get(job_id) != due_ms for job_id, due_ms in rows.items())
    return len(rows), differing + len(armed.keys() - rows.keys())
