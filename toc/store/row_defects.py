"""Rows that are wrong by themselves, whatever Redis holds: found, and repaired, by one condition each.

A job fires because somebody looks at its row, and finds the row by the index on (due_time, job_id). Nobody
finds a live row without a due_time. So the nightly run reads whole tables, in ranges of ids; the watch reads
only the rows that are due soon.

The condition that finds a defect is also in the WHERE of its repair: a row that was changed meanwhile stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
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
    true,
    update,
)

from toc.domain.disagreements import Disagreement
from toc.domain.ids import JOB_ID_MAX, ROUTING_MASK, SEQUENCE_BITS
from toc.domain.job import Status
from toc.runtime.setting_groups import LEASE_S_MAX
from toc.store.biz_types import read_known_types
from toc.store.column_types import (
    DatetimeAsMillis,
    db_now,
    later_of_db_now_plus,
    routing_hash_of_column,
)
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.ended_jobs import EndedJobReader, IdRange
from toc.store.events import LETTER_COLUMNS, RepairEvent, record_repair_events
from toc.store.group_concat import parse_first_ids, select_concatenated_row
from toc.store.reconcile_reads import split_live_rows
from toc.store.schema import JOB

c = JOB.c
D = Disagreement
Conditions = Mapping[Disagreement, ColumnElement[bool]]

ROWS_PER_READ = 500_000
IDS_MAX = 1000  # ids in one statement
LEASE_MS_MAX = LEASE_S_MAX * 1000

_LIVE = c.status.in_([int(status) for status in Status if status.live])
_ENDED = c.status.in_([int(status) for status in Status if not status.live])
_NOT_DEAD = [int(status) for status in Status if status is not Status.DEAD]
_NEVER_DUE = and_(_LIVE, c.due_time.is_(None))
_ENDED_BUT_DUE = and_(_ENDED, c.due_time.is_not(None))
_LETTER_ERROR = "the dead letter was missing: the last error is not known"
_REPAIRED = {
    D.NEVER_DUE: "due_time was NULL, and is the action_time now",
    D.ENDED_BUT_DUE: "the job has ended, so due_time is NULL now",
    D.ENDLESS_LEASE: "the end of the lease was further ahead than any worker writes, and is now",
    D.NO_LETTER: "the job is dead and had no dead letter: it has one now",
    D.LONE_LETTER: "the job is not dead, so its dead letter is deleted, which said",
}


class DefectiveRows(NamedTuple):
    """How many rows have each defect, and the ids of some."""

    counts: Mapping[Disagreement, int]
    ids: Mapping[Disagreement, Collection[int]]


class RowDefects:
    """Finds defective rows on the primary servers, and repairs them. Raises StoreUnavailable.

    lease_ms_max: a lease that ends later than this from now is a defect. time_ms(): another server's time; of
    this time and the database's, the later one counts, because leases are right while one clock is behind.
    `actor`, `run_id`: written into events.
    """

    def __init__(
        self,
        databases: Databases,
        lease_ms_max: int,
        time_ms: Callable[[], int] = lambda: 0,
        *,
        actor: str = "",
        run_id: str | None = None,
    ) -> None:
        self._databases, self._lease_ms_max, self._time_ms = databases, lease_ms_max, time_ms
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

        for rows in self._parts(shard, until_ms):
            conditions = self._conditions(shard)
            for kind, count, found in self._find_in_part(shard, rows, conditions, limit):
                add(kind, count, found)
        if until_ms is None:
            lone = self._find_lone_letters(shard, limit)
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
            for job_id in self._find_lone_letters(shard, IDS_MAX, some):
                found[job_id].add(D.LONE_LETTER)
        return found

    def repair_jobs(self, kind: Disagreement, shard: int, ids: Collection[int]) -> set[int]:
        """Repairs a defect of some jobs, in one transaction, with their events; returns the repaired jobs."""
        database, time_ms = self._databases.database_of_shard(shard), self._time_ms()

        def repair_and_record(connection: Connection) -> set[int]:
            reasons: dict[int, str] = {}
            for job_id in sorted(ids):
                # The row's lock: neither a redrive nor another repair is half done while this looks.
                row = select(c.status).where(c.job_id == job_id).with_for_update()
                execute_on_shard(connection, shard, row).all()
                words = _REPAIRED[kind]
                if kind is D.LONE_LETTER:
                    letter = select(database.dead.c.error).where(database.dead.c.job_id == job_id)
                    words = f"{words}: {connection.scalar(letter)}"
                change = _repair_statement(kind, database, job_id, time_ms)
                if execute_on_shard(connection, shard, change).rowcount:
                    reasons[job_id] = f"{kind}: {words}"
            if reasons:
                repair = RepairEvent(reasons, self._actor, self._run_id)
                record_repair_events(connection, database, shard, repair)
            return set(reasons)

        return database.run_transaction(repair_and_record)

    # ---- inside

    def _conditions(self, shard: int) -> Conditions:
        database, routing = self._databases.database_of_shard(shard), self._databases.routing
        routing_bits = c.job_id.bitwise_rshift(SEQUENCE_BITS).bitwise_and(ROUTING_MASK)
        return {
            D.NEVER_DUE: _NEVER_DUE,
            D.UNKNOWN_STATUS: c.status.not_in([int(status) for status in Status]),
            D.UNKNOWN_TYPE: and_(
                _LIVE, c.type_no.not_in(sorted(read_known_types([database]).names))
            ),
            D.ENDED_BUT_DUE: _ENDED_BUT_DUE,
            D.ENDLESS_LEASE: _lease_ends_after(self._lease_ms_max, self._time_ms()),
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
            after: ColumnElement[bool] = true()
            for due_ms in split_live_rows(self._databases, shard, until_ms, ROWS_PER_READ):
                yield and_(after, c.due_time <= due_ms)
                after = c.due_time > due_ms
            yield and_(after, c.due_time <= until_ms)
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

    def _find_lone_letters(
        self, shard: int, limit: int, ids: Collection[int] | None = None
    ) -> list[int]:
        """Some dead letters of jobs of a shard that has no dead row for them. `ids`: only of these jobs."""
        database, shards = self._databases.database_of_shard(shard), self._databases.routing.shards
        letter = database.dead.c.job_id
        routing_bits = letter.bitwise_rshift(SEQUENCE_BITS).bitwise_and(ROUTING_MASK)
        query = (
            select(letter)
            .where(routing_bits.bitwise_and(shards - 1) == shard, _has_no_dead_row(database))
            .limit(limit)
        )
        if ids is not None:
            query = query.where(letter.in_(ids))
        return [job_id for (job_id,) in self._databases.select(query, shard)]


def _repair_statement(
    kind: Disagreement, database: Database, job_id: int, time_ms: int
) -> Executable:
    """The statement that repairs a defect, if the row still has the defect."""
    its = c.job_id == job_id
    if kind is D.LONE_LETTER:
        return delete(database.dead).where(
            database.dead.c.job_id == job_id, exists().where(its, c.status.in_(_NOT_DEAD))
        )
    if kind is D.NO_LETTER:
        values = select(
            c.job_id, c.biz_id, c.biz_text, c.tenant, c.type_no, c.attempts, literal(_LETTER_ERROR),
            db_now(),
        ).where(its, _has_no_letter(database))  # fmt: skip
        return insert(database.dead).from_select(LETTER_COLUMNS, values)
    if kind is D.ENDLESS_LEASE:
        ends = _lease_ends_after(LEASE_MS_MAX, time_ms)
        change = update(JOB).where(its, ends)
        return change.values(lease_end_time=db_now(), gmt_modified=db_now())
    if kind is D.NEVER_DUE:
        change = update(JOB).where(its, _NEVER_DUE)
        return change.values(due_time=c.action_time, gmt_modified=db_now())
    # gmt_modified stays: it says when the job ended, which retention and the archive go by.
    return update(JOB).where(its, _ENDED_BUT_DUE).values(due_time=None)


def _lease_ends_after(from_now_ms: int, time_ms: int) -> ColumnElement[bool]:
    latest = later_of_db_now_plus(from_now_ms, literal(time_ms, DatetimeAsMillis()))
    return and_(c.status == int(Status.RUNNING), c.lease_end_time > latest)


def _has_no_letter(database: Database) -> ColumnElement[bool]:
    letter = exists().where(database.dead.c.job_id == c.job_id)
    return and_(c.status == int(Status.DEAD), ~letter)


def _has_no_dead_row(database: Database) -> ColumnElement[bool]:
    row = exists().where(c.job_id == database.dead.c.job_id, c.status == int(Status.DEAD))
    return ~row.correlate(database.dead)
