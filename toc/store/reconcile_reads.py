"""Reads rows of a shard to compare them with Redis: pages of live rows, and full rows.

The server returns a page as one row, with two texts of numbers, by GROUP_CONCAT over the index on
(due_time, job_id) alone (see `group_concat`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select

from toc.domain.disagreements import ComparedRow
from toc.domain.ids import JOB_ID_MAX
from toc.errors import SettingsError
from toc.store.column_types import millis_of_column
from toc.store.databases import Databases
from toc.store.group_concat import select_concatenated_row
from toc.store.job_rows import after_due_key_condition, due_or_lease_end, status_from_number
from toc.store.schema import JOB

c = JOB.c
IDS_MAX = 1000  # ids in one SELECT by primary key


class LiveRowPage(NamedTuple):
    """Live rows by (due_time, job_id): three lists of the same length. types: empty unless requested."""

    ids: list[int]
    due_ms: list[int]
    types: list[int]


def split_live_rows(databases: Databases, shard: int, until_ms: int, rows: int) -> list[int]:
    """Due times, ascending, between which `rows` or a few more live rows are due; by the index alone."""
    found: list[int] = []
    while True:
        query = select(c.due_time).where(c.due_time <= until_ms)
        if found:
            query = query.where(c.due_time > found[-1])
        query = query.order_by(c.due_time).offset(rows).limit(1)
        due_ms = databases.database_of_shard(shard).scalar(query, shard)
        if due_ms is None:
            return found
        found.append(due_ms)


@dataclass(frozen=True, slots=True)
class ReconcileReads:
    """Reads rows from the primary servers, to compare them with Redis; changes nothing."""

    databases: Databases

    def read_live_pages(
        self, shard: int, after_ms: int | None, until_ms: int, limit: int, *, typed: bool
    ) -> Iterator[LiveRowPage]:
        """Yields all live rows due later than `after_ms` (None: no bound) and until `until_ms`.

        In pages of `limit`; the last page has fewer rows, maybe none. typed: also reads the types, which are
        not in the index.
        """
        after = None if after_ms is None else (after_ms, JOB_ID_MAX)
        while True:
            page = self._read_live_page(shard, after, until_ms, limit, typed=typed)
            yield page
            if len(page.ids) < limit:
                return
            last_ms = max(page.due_ms)
            # The order is that of the index, but no server guarantees an order in GROUP_CONCAT.
            ids = zip(page.ids, page.due_ms, strict=True)
            after = last_ms, max(job_id for job_id, due_ms in ids if due_ms == last_ms)

    def count_live_rows_due_after(self, shard: int, beyond_ms: int) -> int:
        """How many live rows are due later than `beyond_ms`."""
        query = select(func.count()).select_from(JOB).where(c.due_time > beyond_ms)
        return int(self.databases.database_of_shard(shard).scalar(query, shard))

    def read_full_rows(self, shard: int, ids: Collection[int]) -> Iterator[ComparedRow]:
        """Yields the rows of these ids in a shard's table."""
        columns = (
            c.job_id, c.biz_id, c.type_no, c.status, c.action_time, due_or_lease_end, c.attempts,
            c.claim_time,
        )  # fmt: skip
        wanted = sorted(ids)
        for start in range(0, len(wanted), IDS_MAX):
            query = select(*columns).where(c.job_id.in_(wanted[start : start + IDS_MAX]))
            for row in self.databases.select(query, shard):
                yield ComparedRow._make([*row[:3], status_from_number(row[3]), *row[4:], shard])

    def _read_live_page(
        self, shard: int, after: tuple[int, int] | None, until_ms: int, limit: int, *, typed: bool
    ) -> LiveRowPage:
        columns = [c.job_id, c.due_time, *([c.type_no] if typed else [])]
        rows = (
            select(*columns)
            .where(
                c.due_time <= until_ms, *(() if after is None else after_due_key_condition(*after))
            )
            .order_by(c.due_time, c.job_id)
            .limit(limit)
            .subquery()
        )
        packed = [
            func.group_concat(rows.c.job_id),
            func.group_concat(millis_of_column(rows.c.due_time)),
        ]
        if typed:
            packed.append(func.group_concat(rows.c.type_no))
        query = select(func.count(), *packed)

        count, *texts = select_concatenated_row(self.databases, query, shard)
        numbers = [list(map(int, text.split(","))) if text else [] for text in texts]
        if any(len(column) != count for column in numbers):
            raise SettingsError(
                f"reconcile.page: {limit} rows are more than database "
                f"{self.databases.routing.database_index(shard)} sends in one packet (max_allowed_packet)"
            )
        return LiveRowPage(numbers[0], numbers[1], numbers[2] if typed else [])
