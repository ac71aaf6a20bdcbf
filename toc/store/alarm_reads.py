"""What alarms read: new failures and deaths in the events, late rows; and which node reads them.

One node of all looks: it holds a lease in `toc_meta` of database 0. How far the events of a database were
read is in `toc_meta` of that database, so the next holder goes on there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.job import Status
from toc.store.databases import Database, Databases
from toc.store.due_pages import SHARDS_PER_QUERY_MAX, DuePages, DueRow, TypesExcept
from toc.store.meta_values import write_meta_value

HOLDER, MARK = "alarm_holder", "alarm_mark"
"""Rows of `toc_meta`: in database 0, which node looks and until when; in each, the first event not yet read.
"""
EVENTS_MAX = 10_000  # of a database and a look; of more, the oldest are left out
LATE_ROWS_MAX = 100  # of a shard and a look, the oldest
RETRY = "retry"


class FailureEvent(NamedTuple):
    """A job that failed (`is_dead`: for the last time), and the first line of its error."""

    job_id: int
    is_dead: bool
    error: str


def hold_alarms(database: Database, holder: str, lease_ms: int) -> bool:
    """Takes or renews the lease of the node that looks; False: another node has it. `database`: number 0.

    Raises StoreUnavailable.
    """
    now_ms = database.now_ms()
    wanted = json.dumps({"holder": holder, "until_ms": now_ms + lease_ms})
    meta = database.meta

    def change(connection: Connection) -> bool:
        known = connection.scalar(select(meta.c.value).where(meta.c.name == HOLDER))
        if known is None:
            try:
                connection.execute(insert(meta), {"name": HOLDER, "value": wanted})
            except IntegrityError:  # another node was first
                return False
            return True
        if not _may_take(known, holder, now_ms):
            return False
        # The old value in the condition: of two nodes that read the same, one changes it.
        same = (meta.c.name == HOLDER, meta.c.value == known)
        return bool(connection.execute(update(meta).where(*same).values(value=wanted)).rowcount)

    return database.run_transaction(change)


def _may_take(value: str, holder: str, now_ms: int) -> bool:
    try:
        found = json.loads(value)
        return found["holder"] == holder or int(found["until_ms"]) <= now_ms
    except (ValueError, KeyError, TypeError):  # a person or another release has written the row
        return True


def read_mark(database: Database) -> int | None:
    """The first event that alarms have not read; None: alarms have never read events."""
    meta = database.meta.c
    value = database.run_read(
        lambda connection: connection.scalar(select(meta.value).where(meta.name == MARK))
    )
    return int(value) if value is not None and value.isdecimal() else None


def write_mark(database: Database, event_id: int) -> None:
    """Records that all events below `event_id` were read."""
    database.run_transaction(
        lambda connection: write_meta_value(connection, database, MARK, str(event_id))
    )


def next_event_id(database: Database) -> int:
    """One more than the highest id of an event."""
    event = database.event.c
    rows = database.select(select(event.event_id).order_by(event.event_id.desc()).limit(1))
    return int(rows[0][0]) + 1 if rows else 1


def read_failures(database: Database, first: int, end: int) -> list[FailureEvent]:
    """The failures among the events from `first` on and below `end`, of the newest EVENTS_MAX."""
    event, dead = database.event.c, int(Status.DEAD)
    query = (
        select(event.job_id, event.to_status, event.reason)
        .where(
            event.event_id >= max(first, end - EVENTS_MAX),
            event.event_id < end,
            event.from_status == int(Status.RUNNING),
            (event.to_status == dead) | (event.what == RETRY),
        )
        .order_by(event.event_id)
    )
    return [
        FailureEvent(int(job_id), to_status == dead, (reason or "").partition("\n")[0])
        for job_id, to_status, reason in database.select(query)
    ]


def read_late_rows(
    databases: Databases, database: Database, late_ms: int, paused: Collection[int]
) -> Iterator[DueRow]:
    """The oldest rows of each shard that are due for longer than `late_ms`, without paused types."""
    pages = DuePages(databases)
    types = TypesExcept(frozenset(paused)) if paused else None
    for shards in _in_parts(sorted(database.shards)):
        for shard in sorted(pages.find_overdue_shards(dict.fromkeys(shards, late_ms))):
            yield from pages.read_overdue_rows(shard, (0, 0), late_ms, types, LATE_ROWS_MAX)


def _in_parts(shards: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(shards), SHARDS_PER_QUERY_MAX):
        yield shards[at : at + SHARDS_PER_QUERY_MAX]
