"""Reads rows of a shard to compare them with Redis: pages of live rows, ids of suspicious rows, full rows.

Decoding rows is the expensive part of reading them in Python (5 s of 6.8 for a million rows with pymysql,
measured). So the server returns a page as one row, with two texts of numbers, by GROUP_CONCAT
over the index on (due_time, job_id) alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, case, func, or_, select

from toc.domain.disagreements import ComparedRow
from toc.domain.ids import ROUTING_MASK, SEQUENCE_BITS
from toc.domain.job import Status
from toc.errors import SettingsError
from toc.store.column_types import millis_of_column, routing_hash_of_column
from toc.store.databases import Databases, execute_on_shard
from toc.store.job_rows import after_due_key_condition, due_or_lease_end, status_from_number
from toc.store.schema import JOB

c = JOB.c
IDS_MAX = 1000  # ids in one SELECT by primary key
_PACKED_BYTES_MAX = 16 * 2**20  # four times 200,000 numbers of 20 bytes; MariaDB's packet size


class LiveRowPage(NamedTuple):
    """Live rows by (due_time, job_id): three lists of the same length. types: empty unless requested."""

    ids: list[int]
    due_ms: list[int]
    types: list[int]


class SuspiciousRows(NamedTuple):
    """Ids of suspicious rows. moved: jobs never tried whose due_time differs from action_time.

    misfits: rows in the table of another shard, or whose job_id does not fit the biz_id.
    """

    moved: list[int]
    moved_count: int
    misfits: list[int]
    misfit_count: int


@dataclass(frozen=True, slots=True)
class ReconcileReads:
    """Reads rows from the primary servers, to compare them with Redis; changes nothing."""

    databases: Databases

    def read_live_pages(
        self, shard: int, until_ms: int, limit: int, *, typed: bool
    ) -> Iterator[LiveRowPage]:
        """Yields all live rows due until `until_ms` in pages of `limit`; the last page has fewer, maybe none.

        typed: also reads the types, which are not in the index.
        """
        after: tuple[int, int] | None = None
        while True:
            page = self._read_live_page(shard, after, until_ms, limit, typed=typed)
            yield page
            if len(page.ids) < limit:
                return
            last_ms = max(page.due_ms)
            # The order is that of the index, but no server guarantees an order in GROUP_CONCAT.
            ids = zip(page.ids, page.due_ms, strict=True)
            after = last_ms, max(job_id for job_id, due_ms in ids if due_ms == last_ms)

    def find_suspicious_rows(self, shard: int, until_ms: int, limit: int) -> SuspiciousRows:
        """Suspicious live rows due until `until_ms`; ids of at most `limit` of each kind."""
        shards = self.databases.routing.shards
        routing_bits = c.job_id.bitwise_rshift(SEQUENCE_BITS).bitwise_and(ROUTING_MASK)
        moved = and_(c.status == int(Status.PENDING), c.attempts == 0, c.due_time != c.action_time)
        misfit = or_(
            routing_hash_of_column(c.biz_id).bitwise_and(ROUTING_MASK) != routing_bits,
            routing_bits.bitwise_and(shards - 1) != shard,
        )
        # No LIMIT: with a LIMIT, MySQL reads each row through the index; a scan of the table is three times
        # as fast. GROUP_CONCAT cuts off the ids beyond its maximum length.
        query = select(
            *(
                part
                for odd in (moved, misfit)
                for part in (
                    func.sum(case((odd, 1), else_=0)),
                    func.group_concat(case((odd, c.job_id))),
                )
            )
        ).where(c.due_time <= until_ms, or_(moved, misfit))

        moved_count, moved_ids, misfit_count, misfit_ids = self._select_concatenated_row(
            query, shard
        )
        return SuspiciousRows(
            _parse_first_ids(moved_ids, limit), int(moved_count or 0),
            _parse_first_ids(misfit_ids, limit), int(misfit_count or 0),
        )  # fmt: skip

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

        count, *texts = self._select_concatenated_row(query, shard)
        numbers = [list(map(int, text.split(","))) if text else [] for text in texts]
        if any(len(column) != count for column in numbers):
            raise SettingsError(
                f"reconcile.page: {limit} rows are more than database "
                f"{self.databases.routing.database_index(shard)} sends in one packet (max_allowed_packet)"
            )
        return LiveRowPage(numbers[0], numbers[1], numbers[2] if typed else [])

    def _select_concatenated_row(self, query: Select[Any], shard: int) -> Any:
        """Runs a query with GROUP_CONCAT, and returns its only row."""

        def raise_limit_and_select(connection: Connection) -> Any:
            _raise_group_concat_limit(connection)
            return execute_on_shard(connection, shard, query).one()

        return self.databases.database_of_shard(shard).run_read(raise_limit_and_select)


def _parse_first_ids(text: str | None, limit: int) -> list[int]:
    return [] if text is None else [int(job_id) for job_id in text.split(",", limit)[:limit]]


def _raise_group_concat_limit(connection: Connection) -> None:
    """Raises the maximum length of GROUP_CONCAT: 1,024 bytes or 1 MiB by default."""
    if connection.dialect.name != "sqlite" and "toc_packed" not in connection.info:
        connection.exec_driver_sql(f"SET SESSION group_concat_max_len = {_PACKED_BYTES_MAX}")
        connection.info["toc_packed"] = True
