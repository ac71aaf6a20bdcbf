"""Rows that are wrong by themselves, whatever Redis holds: found, and repaired, by one condition each.

A job fires because somebody looks at its row, and finds the row by the index on (due_time, job_id). Nobody
finds a live row without a due_time. So the nightly run reads whole tables, in ranges of ids; the watch reads
only the rows that are due soon.

The condition that finds a defect is also in the WHERE of its repair: a row that was changed meanwhile stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from toc.domain.disagreements import Disagreement
from toc.domain.ids import JOB_ID_MAX, ROUTING_MASK, SEQUENCE_BITS
from toc.domain.job import Status
from toc.store.biz_types import read_known_types
from toc.store.column_types import db_now, db_now_plus, routing_hash_of_column
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.ended_jobs import EndedJobReader, IdRange
from toc.store.events import LETTER_COLUMNS, RepairEvent, record_repair_events
from toc.store.group_concat import parse_first_ids, select_concatenated_row
from toc.store.schema import JOB

c = JOB.c
D = Disagreement
Conditions = Mapping[Disagreement, ColumnElement[bool]]

ROWS_PER_READ = 500_000
IDS_MAX = 1000  # ids in one statement
LEASE_MS_MAX = 3_600_000
"""No setting makes a lease longer: a lease that ends later than this from now is nobody's, and is ended."""

_LIVE = c.status.in_([int(status) for status in Status if status.live])
_ENDED = c.status.in_([int(status) for status in Status if not status.live])
_LETTER_ERROR = "the dead letter was missing: the last error is not known"
_REPAIRED = {
    D.NEVER_DUE: "due_time was NULL, and is the action_time now",
    D.ENDED_BUT_DUE: "the job has ended, so due_time is NULL now",
    D.ENDLESS_LEASE: "the end of the lease was further ahead than any worker writes, and is now",
    D.NO_LETTER: "the job is dead and had no dead letter: it has one now",
}


class DefectiveRows(NamedTuple):
    """How many rows have each defect, and the ids of some."""

    counts: Mapping[Disagreement, int]
    ids: Mapping[Disagreement, Collection[int]]


class RowDefects:
    """Finds defective rows on the primary servers, and repairs them. Raises StoreUnavailable.

    lease_ms_max: a lease that ends later than this from now is a defect. `actor`, `run_id`: written into
    events.
    """

    def __init__(
        self, databases: Databases, lease_ms_max: int, actor: str = "", run_id: str | None = None
    ) -> None:
        self._databases, self._lease_ms_max = databases, lease_ms_max
        self._actor, self._run_id = actor, run_id

    def find_defective_rows(
        self, shard: int, limit: int, *, until_ms: int | None = None
    ) -> DefectiveRows:
        """Defective rows of a shard; ids of at most `limit` for each defect.

        until_ms: only rows that are due by then, by the index; None: the whole table, and dead letters.
        """
        counts, ids = defaultdict[D, int](int), defaultdict[D, list[int]](list)

        def add(kind: Disagreement, count: int, found: Collection[int]) -> None:
            counts[kind] += count
            ids[kind] += list(found)[: limit - len(ids[kind])]

        conditions = self._conditions(shard)
        for rows in self._parts(shard, until_ms):
            for kind, count, found in self._find_in_part(shard, rows, conditions, limit):
                add(kind, count, found)
        if until_ms is None:
            lone = self._find_lone_letters(shard)
            add(D.LONE_LETTER, len(lone), lone)
        return DefectiveRows(counts, ids)

    def defects_of_jobs(self, shard: int, ids: Collection[int]) -> dict[int, set[Disagreement]]:
        """The present defects of these jobs in a shard, except MOVED and MISFIT, which depend on more."""
        found = defaultdict[int, set[D]](set)
        conditions = {
            kind: condition
            for kind, condition in self._conditions(shard).items()
            if kind not in (D.MOVED, D.MISFIT)
        }
        flags = [case((condition, 1), else_=0) for condition in conditions.values()]
        wanted = sorted(ids)
        for start in range(0, len(wanted), IDS_MAX):
            some = wanted[start : start + IDS_MAX]
            query = select(c.job_id, *flags).where(c.job_id.in_(some), or_(*conditions.values()))
            for job_id, *is_so in self._databases.select(query, shard):
                found[job_id] |= {
                    kind for kind, flag in zip(conditions, is_so, strict=True) if flag
                }
            for job_id in self._find_lone_letters(shard, some):
                found[job_id].add(D.LONE_LETTER)
        return found

    def repair_jobs(self, kind: Disagreement, shard: int, ids: Collection[int]) -> set[int]:
        """Repairs a defect of some jobs, in one transaction, with their events; returns the repaired jobs."""
        database = self._databases.database_of_shard(shard)

        def repair_and_record(connection: Connection) -> set[int]:
            changed = {
                job_id
                for job_id in sorted(ids)
                if execute_on_shard(
                    connection, shard, self._repair_statement(kind, database, shard, job_id)
                ).rowcount
            }
            if changed and kind in _REPAIRED:
                reasons = dict.fromkeys(changed, f"{kind}: {_REPAIRED[kind]}")
                repair = RepairEvent(reasons, self._actor, self._run_id)
                record_repair_events(connection, database, shard, repair)
            return changed

        return database.run_transaction(repair_and_record)

    # ---- inside

    def _conditions(self, shard: int) -> Conditions:
        database, routing = self._databases.database_of_shard(shard), self._databases.routing
        routing_bits = c.job_id.bitwise_rshift(SEQUENCE_BITS).bitwise_and(ROUTING_MASK)
        return {
            D.NEVER_DUE: and_(_LIVE, c.due_time.is_(None)),
            D.UNKNOWN_STATUS: c.status.not_in([int(status) for status in Status]),
            D.UNKNOWN_TYPE: and_(
                _LIVE, c.type_no.not_in(sorted(read_known_types([database]).names))
            ),
            D.ENDED_BUT_DUE: and_(_ENDED, c.due_time.is_not(None)),
            D.ENDLESS_LEASE: _lease_ends_after(self._lease_ms_max),
            D.NO_LETTER: _has_no_letter(database),
            D.MOVED: and_(
                c.status == int(Status.PENDING), c.attempts == 0, c.due_time != c.action_time
            ),
            D.MISFIT: and_(
                _LIVE,
                or_(
                    routing_hash_of_column(c.biz_id).bitwise_and(ROUTING_MASK) != routing_bits,
                    routing_bits.bitwise_and(routing.shards - 1) != shard,
                ),
            ),
        }

    def _parts(self, shard: int, until_ms: int | None) -> Iterator[ColumnElement[bool]]:
        """Conditions that split the rows to read into parts that a server reads within seconds."""
        if until_ms is not None:
            yield c.due_time <= until_ms
            return
        reader = EndedJobReader(self._databases)
        for part in reader.split_id_range(shard, IdRange(0, JOB_ID_MAX), ROWS_PER_READ):
            # A person can write larger ids than toc makes.
            is_last = part.end == JOB_ID_MAX
            yield c.job_id >= part.first if is_last else c.job_id.between(part.first, part.end - 1)

    def _find_in_part(
        self, shard: int, rows: ColumnElement[bool], conditions: Conditions, limit: int
    ) -> Iterator[tuple[Disagreement, int, list[int]]]:
        # No LIMIT: with a LIMIT, MySQL reads each row through the index; a scan of the table is three times
        # as fast. GROUP_CONCAT cuts off the ids beyond its maximum length.
        query = select(
            *(
                value
                for condition in conditions.values()
                for value in (
                    func.sum(case((condition, 1), else_=0)),
                    func.group_concat(case((condition, c.job_id))),
                )
            )
        ).where(rows, or_(*conditions.values()))
        found = select_concatenated_row(self._databases, query, shard)
        for kind, count, ids in zip(conditions, found[::2], found[1::2], strict=True):
            if count:
                yield kind, int(count), parse_first_ids(ids, limit)

    def _find_lone_letters(self, shard: int, ids: Collection[int] | None = None) -> list[int]:
        """Dead letters of jobs of a shard that has no dead row for them. `ids`: only of these jobs."""
        database, shards = self._databases.database_of_shard(shard), self._databases.routing.shards
        letter = database.dead.c.job_id
        routing_bits = letter.bitwise_rshift(SEQUENCE_BITS).bitwise_and(ROUTING_MASK)
        query = select(letter).where(
            routing_bits.bitwise_and(shards - 1) == shard, _has_no_dead_row(database)
        )
        if ids is not None:
            query = query.where(letter.in_(ids))
        return [job_id for (job_id,) in self._databases.select(query, shard)]

    def _repair_statement(
        self, kind: Disagreement, database: Database, shard: int, job_id: int
    ) -> Executable:
        if kind is D.LONE_LETTER:
            letter = database.dead.c.job_id
            return delete(database.dead).where(letter == job_id, _has_no_dead_row(database))
        if kind is D.NO_LETTER:
            values = select(
                c.job_id, c.biz_id, c.biz_text, c.tenant, c.type_no, c.attempts, literal(_LETTER_ERROR),
                db_now(),
            ).where(c.job_id == job_id, _has_no_letter(database))  # fmt: skip
            return insert(database.dead).from_select(LETTER_COLUMNS, values)
        if kind is D.ENDLESS_LEASE:
            ends = _lease_ends_after(LEASE_MS_MAX)
            return update(JOB).where(c.job_id == job_id, ends).values(lease_end_time=db_now())
        due_time = c.action_time if kind is D.NEVER_DUE else None
        its = c.job_id == job_id, self._conditions(shard)[kind]
        return update(JOB).where(*its).values(due_time=due_time)


def _lease_ends_after(from_now_ms: int) -> ColumnElement[bool]:
    return and_(c.status == int(Status.RUNNING), c.lease_end_time > db_now_plus(from_now_ms))


def _has_no_letter(database: Database) -> ColumnElement[bool]:
    letter = exists().where(database.dead.c.job_id == c.job_id)
    return and_(c.status == int(Status.DEAD), ~letter)


def _has_no_dead_row(database: Database) -> ColumnElement[bool]:
    row = exists().where(c.job_id == database.dead.c.job_id, c.status == int(Status.DEAD))
    return ~row.correlate(database.dead)
