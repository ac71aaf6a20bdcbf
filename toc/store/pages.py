"""Pages of live rows for the loader and the scanner, by (due_time, job_id): they never walk ended rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import or_, select

from toc.store.columns import db_now_plus
from toc.store.databases import Databases, execute_on
from toc.store.schema import JOB

c = JOB.c


class DueRow(NamedTuple):
    due_ms: int
    job_id: int
    type_no: int


class Pages:
    """Reads from the primary, a fresh transaction per page."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def due_after(
        self, shard: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[DueRow]:
        """Live rows (running ones too) with (due_time, job_id) > after and due_time <= until_ms."""
        return self._page(shard, after, until_ms, None, limit)

    def overdue(
        self,
        shard: int,
        after: tuple[int, int],
        grace_ms: int,
        types: Collection[int] | None,
        limit: int,
    ) -> list[DueRow]:
        """Live rows that are due for longer than `grace_ms`, by the database's clock, oldest first.

        `types`: only these type numbers; None: all.
        """
        return self._page(shard, after, db_now_plus(-grace_ms), types, limit)

    def _page(
        self,
        shard: int,
        after: tuple[int, int],
        until: Any,
        types: Collection[int] | None,
        limit: int,
    ) -> list[DueRow]:
        database = self._databases.of_shard(shard)
        after_ms, after_id = after
        query = (
            select(c.due_time, c.job_id, c.biz_type)
            .where(c.due_time >= after_ms, c.due_time <= until)
            .where(or_(c.due_time > after_ms, c.job_id > after_id))
            .order_by(c.due_time, c.job_id)
            .limit(limit)
        )
        if types is not None:
            query = query.where(c.biz_type.in_(sorted(types)))
        rows = database.read(lambda connection: execute_on(connection, shard, query).all())
        return [DueRow(*(int(value) for value in row)) for row in rows]
