"""Deleting what has ended, page by page of the primary key.

There is no index on "when it ended": it would cost every job two more writes. A pass walks the shard
by its primary key instead, from the oldest job on, and stops where jobs are too young to be deleted
(their ids say when they were made). What it passes over is what lives for long, which is little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, delete, exists, select

from toc.domain.ids import first_id_of
from toc.domain.job import Status
from toc.store.archived import Standing, standing
from toc.store.databases import Database, Databases, execute_on
from toc.store.schema import JOB

c = JOB.c
_ENDED = [int(status) for status in Status if not status.live]


class OldRow(NamedTuple):
    """`changed_ms`: for an ended job, when it ended; by the database's clock."""

    job_id: int
    type_no: int
    status: int
    changed_ms: int

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @property
    def dead(self) -> bool:
        return self.status == Status.DEAD


@dataclass(frozen=True, slots=True)
class Purges:
    """The statements of one purger."""

    databases: Databases

    def archived(self, database: Database) -> Standing | None:
        """How far the archive of a database is; None: it was never archived."""
        return standing(database)

    def page(self, shard: int, after: int, made_before_ms: int, limit: int) -> list[OldRow]:
        """Jobs of a shard made before a moment, by id, from beyond `after` on."""
        query = (
            select(c.job_id, c.biz_type, c.status, c.gmt_modified)
            .where(c.job_id > after, c.job_id < first_id_of(made_before_ms))
            .order_by(c.job_id)
            .limit(limit)
        )
        database = self.databases.of_shard(shard)
        rows = database.read(lambda connection: execute_on(connection, shard, query).all())
        return [OldRow._make(row) for row in rows]

    def delete(self, shard: int, rows: Sequence[OldRow]) -> int:
        """Deletes those of these ended rows that nobody has changed since; how many that were."""
        database = self.databases.of_shard(shard)
        ids = sorted(row.job_id for row in rows)
        dead = sorted(row.job_id for row in rows if row.dead)
        # A dead job that was redriven in between lives, or has ended again, later.
        newest_ms = max(row.changed_ms for row in rows)
        guard = (c.job_id.in_(ids), c.status.in_(_ENDED), c.gmt_modified <= newest_ms)
        letters = database.dead

        def work(connection: Connection) -> int:
            deleted = execute_on(connection, shard, delete(JOB).where(*guard)).rowcount
            if dead:
                gone = ~exists(select(c.job_id).where(c.job_id == letters.c.job_id))
                mine = letters.c.job_id.in_(dead)
                execute_on(connection, shard, delete(letters).where(mine, gone))
            return deleted

        return (database.run if dead else database.read)(work)

    def delete_events(
        self, database: Database, after: int, before_ms: int, now_ms: int, limit: int
    ) -> tuple[int, int | None]:
        """Looks at the next `limit` events by id, beyond `after`, and deletes those before a moment.

        How many it deleted, and where to go on; None: all that follow are younger. (An event from the
        future, of a clock that was ahead, says nothing about those behind it.)
        """
        event = database.event
        query = (
            select(event.c.event_id, event.c.event_time)
            .where(event.c.event_id > after)
            .order_by(event.c.event_id)
            .limit(limit)
        )
        rows = database.read(lambda connection: connection.execute(query).all())
        old = [event_id for event_id, at_ms in rows if at_ms < before_ms]
        if old:
            database.read(lambda x: x.execute(delete(event).where(event.c.event_id.in_(old))))
        younger = not old and any(before_ms <= at_ms <= now_ms for _, at_ms in rows)
        more = len(rows) == limit and not younger
        return len(old), rows[-1][0] if more else None
