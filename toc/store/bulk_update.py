"""Changes many jobs that match a condition, page by page.

A shard may have millions of rows, so no statement reads all of them: each statement reads one window of
neighbouring rows of an index. The condition determines the index: the primary key for job ids, the unique
index for business ids, `ix_due` (contains only live rows) if only live rows match, the table `toc_dead_job`
if only dead rows match, otherwise the primary key.

A change first locks the jobs of a page that still match, so workers cannot change these rows meanwhile. The
same transaction writes an event for each changed job. Usually all jobs of a page still match: a cancel, which
needs no data of the rows, assumes this, and rolls back if some jobs do not. The events have the id of the
run: after a COMMIT whose answer was lost, a retry finds by these events which jobs are already changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Update,
    and_,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.store.column_types import DatetimeAsMillis, db_now
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.driver_errors import explain_missing_table, is_live_duplicate
from toc.store.events import TransitionEvent, record_transition_events
from toc.store.job_rows import after_due_key_condition
from toc.store.row_conditions import Condition, ConditionBounds, ConditionRenderer
from toc.store.schema import JOB, LIVE_INDEX, job_table_name

c = JOB.c
WINDOW_ROWS = 5000  # rows that one statement reads
IDS_MAX = 500  # ids of a page, and of an IN list that finds rows
DEAD_LETTERS_MAX = 10_000  # dead letters that one statement reads, of all shards of a database
_BY_ID, _BY_DUE = "PRIMARY", "ix_due"
_MYSQL = ("mysql", "mariadb")  # dialects


class RowWindow(NamedTuple):
    """Neighbouring rows of a shard in one index."""

    shard: int
    rows: ColumnElement[bool]
    key: str  # the index's name


class MatchCount(NamedTuple):
    """The number of matching jobs of one type and status in a window.

    changeable: how many of these jobs can be changed. example: the id of such a job; None: no job can.
    """

    type_no: int
    status: int
    matched: int
    changeable: int
    example: int | None


class ChangedJob(NamedTuple):
    """A job that was changed; `due_ms`: its new due time; None: the job has ended."""

    job_id: int
    type_no: int
    due_ms: int | None


class PageResult(NamedTuple):
    """The result of changing one page. Jobs of the page that are not counted here no longer matched.

    before: the number of jobs that an earlier process of the same run had changed. superseded: the number of
    dead jobs whose key a newer job holds.
    """

    done: list[ChangedJob]
    before: int
    superseded: int


@dataclass(frozen=True, slots=True)
class BulkChange:
    """The change that a run makes to each job.

    due_ms(old_due_ms): the new due_time; None ends the job.
    """

    move: TransitionEvent
    due_ms: Callable[[int | None], int | None]


@dataclass(slots=True)
class CommitProgress:
    """`committing`: the COMMIT of a page was reached, so the change may have taken effect."""

    committing: bool = False


class _SomeNotMatchingError(Exception):
    """Some jobs of a page no longer match; perhaps a try whose answer was lost has changed these jobs."""


class BulkUpdate:
    """Reads and changes the jobs that match `where`; only jobs that also match `changeable` are changed.

    `names`: the biz_types by number. Raises StoreUnavailable, and SchemaMismatch for a missing table
    or column.
    """

    def __init__(
        self,
        databases: Databases,
        names: Mapping[int, str],
        where: Condition,
        changeable: Condition,
    ) -> None:
        self._databases, self._where, self._changeable = databases, where, changeable
        self._renderer = ConditionRenderer(names, sqlite=databases[0].sqlite)

    # ---- windows

    def split_into_windows(
        self, database: Database, bounds: ConditionBounds, on_shard_done: Callable[[], None]
    ) -> Iterator[RowWindow]:
        """Yields windows that contain all rows within `bounds`. Calls `on_shard_done()` after each shard."""
        shards = [s for s in database.shards if bounds.shards is None or s in bounds.shards]
        if bounds.matches_only_dead and bounds.job_ids is None and bounds.biz_ids is None:
            yield from self._windows_of_dead_letters(database, frozenset(shards))
            return
        for shard in shards:
            with explain_missing_table(database.index, job_table_name(shard)):
                yield from self._windows_of_shard(database, shard, bounds)
            on_shard_done()

    def _windows_of_shard(
        self, database: Database, shard: int, bounds: ConditionBounds
    ) -> Iterator[RowWindow]:
        routing = self._databases.routing
        if bounds.job_ids is not None:
            mine = [i for i in bounds.job_ids if routing.shard_of_hash(routing_bits_of(i)) == shard]
            for part in split_into_chunks(sorted(mine), IDS_MAX):
                yield RowWindow(shard, c.job_id.in_(part), _BY_ID)
        elif bounds.biz_ids is not None:
            mine = [i for i in bounds.biz_ids if routing.shard_of_hash(routing_hash_of(i)) == shard]
            for part in split_into_chunks(sorted(mine), IDS_MAX):
                yield RowWindow(shard, c.biz_id.in_(part), LIVE_INDEX)
        elif bounds.is_due or bounds.matches_only_live:
            yield from self._windows_by_due(database, shard, bounds)
        else:
            yield from self._windows_by_id(database, shard)

    def _windows_by_id(self, database: Database, shard: int) -> Iterator[RowWindow]:
        # The last id is read once: jobs made later are not included, so the loop ends.
        last = database.scalar(select(func.max(c.job_id)), shard)
        after = -1
        while last is not None and after < last:
            query = (
                _force_index(select(c.job_id), _BY_ID)
                .where(c.job_id > after, c.job_id <= last)
                .order_by(c.job_id)
                .limit(1)
                .offset(WINDOW_ROWS - 1)
            )
            end = database.scalar(query, shard)
            end = last if end is None else end
            yield RowWindow(shard, and_(c.job_id > after, c.job_id <= end), _BY_ID)
            after = end

    def _windows_by_due(
        self, database: Database, shard: int, bounds: ConditionBounds
    ) -> Iterator[RowWindow]:
        last_ms = database.scalar(select(func.max(c.due_time)), shard)
        if last_ms is None:
            return
        last_ms = min(last_ms, bounds.due_until_ms)
        after: tuple[int, int] | None = bounds.due_from_ms, -1
        while after is not None:
            rest = and_(c.due_time <= last_ms, *after_due_key_condition(*after))
            query = (
                _force_index(select(c.due_time, c.job_id), _BY_DUE)
                .where(rest)
                .order_by(c.due_time, c.job_id)
                .limit(1)
                .offset(WINDOW_ROWS - 1)
            )
            (last,) = database.select(query, shard) or (None,)
            if last is not None:
                until = or_(c.due_time < last[0], c.job_id <= last[1])
                rest = and_(rest, c.due_time <= last[0], until)
            yield RowWindow(shard, rest, _BY_DUE)
            after = last

    def _windows_of_dead_letters(
        self, database: Database, shards: frozenset[int]
    ) -> Iterator[RowWindow]:
        """Yields the ids of dead jobs in windows of at most IDS_MAX ids.

        The ids come from the dead letters, which each dead job has: no job table is searched.
        """
        letter, after = database.dead.c.job_id, -1
        while True:
            query = select(letter).where(letter > after).order_by(letter).limit(DEAD_LETTERS_MAX)
            with explain_missing_table(database.index, database.dead.name):
                ids = [job_id for (job_id,) in database.select(query)]
            by_shard: dict[int, list[int]] = defaultdict(list)
            for job_id in ids:
                by_shard[self._databases.routing.shard_of_hash(routing_bits_of(job_id))].append(
                    job_id
                )
            for shard in sorted(by_shard.keys() & shards):
                for part in split_into_chunks(by_shard[shard], IDS_MAX):
                    yield RowWindow(shard, c.job_id.in_(part), _BY_ID)
            if len(ids) < DEAD_LETTERS_MAX:
                return
            after = ids[-1]

    # ---- reads

    def count_matching_jobs(self, window: RowWindow) -> list[MatchCount]:
        """Counts the matching jobs of a window, by type and status."""
        shard, rows, key = window
        changeable = self._renderer.render_condition(self._changeable, shard)
        query = (
            _force_index(
                select(
                    c.type_no,
                    c.status,
                    func.count(),
                    func.sum(case((changeable, 1), else_=0)),
                    func.min(case((changeable, c.job_id))),
                ),
                key,
            )
            .where(rows, self._renderer.render_condition(self._where, shard))
            .group_by(c.type_no, c.status)
        )
        found = self._select_from_shard(shard, query)
        return [MatchCount(row[0], row[1], row[2], int(row[3]), row[4]) for row in found]

    def find_changeable_jobs(self, window: RowWindow) -> dict[int, int]:
        """The matching jobs of a window that can be changed: job_id -> type number."""
        shard, rows, key = window
        query = _force_index(select(c.job_id, c.type_no), key).where(
            rows, *self._render_conditions(shard)
        )
        return {row[0]: row[1] for row in self._select_from_shard(shard, query)}

    def _select_from_shard(self, shard: int, query: Select[Any]) -> Sequence[Any]:
        database = self._databases.database_of_shard(shard)
        with explain_missing_table(database.index, job_table_name(shard)):
            return database.select(query, shard)

    def _render_conditions(self, shard: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return (
            self._renderer.render_condition(self._where, shard),
            self._renderer.render_condition(self._changeable, shard),
        )

    # ---- changes

    def change_page(
        self,
        shard: int,
        jobs: Mapping[int, int],
        change: BulkChange,
        progress: CommitProgress,
        *,
        may_be_repeat: bool,
    ) -> PageResult:
        """Changes those of `jobs` (of one shard) that still match and can be changed, in one transaction.

        jobs: as `find_changeable_jobs` returns them. may_be_repeat: another process of this run may have
        changed some of these jobs already.
        """
        database, ids = self._databases.database_of_shard(shard), sorted(jobs)
        in_page = database.build_id_filter(c.job_id, ids)
        conditions = self._render_conditions(shard)
        tries = 0
        # The jobs of the page that this run had changed before this call; None: not known yet.
        before: set[int] | None = None if may_be_repeat else set()

        def delete_letters(connection: Connection, changed: Sequence[int]) -> None:
            if change.move.from_status is Status.DEAD:
                letters = database.dead
                connection.execute(delete(letters).where(letters.c.job_id.in_(changed)))

        def cancel_whole_page(connection: Connection) -> PageResult:
            """Cancels all jobs of the page without reading the rows; raises if some were not changed."""
            nonlocal tries
            tries += 1
            database.lock_sqlite_file(connection)
            update = _guarded_update(change.move, in_page, due_time=None).where(*conditions)
            if execute_on_shard(connection, shard, _force_primary_key(update)).rowcount != len(ids):
                raise _SomeNotMatchingError
            delete_letters(connection, ids)
            record_transition_events(connection, database, shard, in_page, change.move)
            progress.committing = True
            return PageResult([ChangedJob(job_id, jobs[job_id], None) for job_id in ids], 0, 0)

        def change_matching_jobs(connection: Connection) -> PageResult:
            nonlocal tries, before
            tries += 1
            database.lock_sqlite_file(connection)
            marked: set[int] = set()
            if may_be_repeat or tries > 1:
                # A try whose connection was lost may still be committing: wait until its locks are released.
                execute_on_shard(connection, shard, _locking_select(in_page))
                marked = _find_already_changed(connection, database, ids, change)
            if before is None:
                before = marked
            query = _locking_select(in_page, *conditions)
            rows: Sequence[Any] = execute_on_shard(connection, shard, query).all()
            todo = {row[0]: change.due_ms(row[2]) for row in rows if row[0] not in marked}
            done = _update_locked_rows(connection, shard, change.move, todo)
            if done:
                delete_letters(connection, done)
                changed = database.build_id_filter(c.job_id, done)
                record_transition_events(connection, database, shard, changed, change.move)
            types = {row[0]: row[1] for row in rows}
            moved = [ChangedJob(job_id, types[job_id], todo[job_id]) for job_id in done]
            moved += _read_changed_jobs(connection, shard, sorted(marked - before))
            progress.committing = progress.committing or bool(done)
            return PageResult(sorted(moved), len(before), len(todo) - len(done))

        with explain_missing_table(database.index, job_table_name(shard)):
            if change.move.to_status is Status.CANCELLED and not may_be_repeat:
                with suppress(_SomeNotMatchingError):
                    return database.run_transaction(cancel_whole_page)
            return database.run_transaction(change_matching_jobs)


def split_into_chunks(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Consecutive slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _force_index(query: Select[Any], key: str) -> Select[Any]:
    """Adds FORCE INDEX: otherwise MySQL may choose a scan of the whole shard."""
    for dialect in _MYSQL:
        query = query.with_hint(JOB, f"FORCE INDEX ({key})", dialect)
    return query


def _force_primary_key(change: Update) -> Update:
    for dialect in _MYSQL:
        change = change.with_hint(f"FORCE INDEX ({_BY_ID})", JOB, dialect)
    return change


def _guarded_update(move: TransitionEvent, which: ColumnElement[bool], **values: Any) -> Update:
    given = {"status": int(move.to_status), "gmt_modified": db_now(), **values}
    return update(JOB).where(which, c.status == int(move.from_status)).values(given)


def _locking_select(*wanted: ColumnElement[bool]) -> Select[Any]:
    query = select(c.job_id, c.type_no, c.due_time).where(*wanted)
    return _force_index(query, _BY_ID).order_by(c.job_id).with_for_update()


def _find_already_changed(
    connection: Connection, database: Database, ids: Sequence[int], change: BulkChange
) -> set[int]:
    """Finds, by the events of this run, the ids that the run has already changed."""
    event = database.event.c
    query = select(event.job_id).where(
        event.job_id.in_(ids), event.what == change.move.what, event.run_id == change.move.run_id
    )
    return set(connection.execute(query).scalars())


def _update_locked_rows(
    connection: Connection, shard: int, move: TransitionEvent, due: Mapping[int, int | None]
) -> list[int]:
    """Sets locked rows to their new due times; returns the ids of the changed ones, sorted."""
    try:
        return _update_due_times(connection, shard, move, due) if due else []
    except IntegrityError as error:
        if not is_live_duplicate(error):
            raise
    if len(due) == 1:
        return []
    done: list[int] = []
    # The newest job first: of several jobs with the same key the newest becomes live.
    for job_id in sorted(due, reverse=True):
        done += _update_locked_rows(connection, shard, move, {job_id: due[job_id]})
    return sorted(done)


def _update_due_times(
    connection: Connection, shard: int, move: TransitionEvent, due: Mapping[int, int | None]
) -> list[int]:
    ids, times = sorted(due), set(due.values())
    when: Any = times.pop()
    if times:
        whens = {job_id: literal(due_ms, DatetimeAsMillis()) for job_id, due_ms in due.items()}
        when = case(whens, value=c.job_id)
    values = {"due_time": when}
    if move.to_status is Status.PENDING:
        values |= {"action_time": when, "attempts": 0}
    change = _guarded_update(move, c.job_id.in_(ids), **values)
    changed = execute_on_shard(connection, shard, change).rowcount
    if changed != len(ids):
        raise AssertionError(f"{changed} of {len(ids)} locked rows were changed")
    return ids


def _read_changed_jobs(
    connection: Connection, shard: int, ids: Sequence[int]
) -> Iterator[ChangedJob]:
    if ids:
        query = select(c.job_id, c.type_no, c.due_time).where(c.job_id.in_(ids))
        rows: Sequence[Any] = execute_on_shard(connection, shard, query).all()
        yield from map(ChangedJob._make, rows)
