"""Changes of whole sets of jobs: finding them without holding up a shard, and changing a page of them.

A shard may have millions of rows, so no statement looks at all of them. A walk cuts it into windows of
rows that lie beside each other in one index, and each statement is for one window. Which index, the
condition decides: its ids or business ids, the live rows (`ix_due` has no others), the dead ones
(`toc_dead_job` has no others), else the primary key.

A change takes a page of ids and locks those that still match before it touches any, so that it knows
which rows it changed, whatever workers do meanwhile; their events are in the same transaction. Mostly all
of a page match still: a cancel, which need not know what it ends, takes that for granted, and back where
it is not so. Events end with the run's mark: a change whose COMMIT was not answered finds by it what it
has done already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from sqlalchemy.exc import DBAPIError, IntegrityError

from toc.domain.ids import gene_of
from toc.domain.job import Status
from toc.domain.routing import hash_of
from toc.errors import SchemaMismatch, StoreUnavailable
from toc.store.columns import Millis, db_now
from toc.store.conditions import Bounds, Condition, Renderer
from toc.store.databases import Database, Databases, execute_on
from toc.store.duplicates import is_live_duplicate
from toc.store.events import Move, record
from toc.store.schema import JOB, LIVE_INDEX, job_table_name

c = JOB.c
WINDOW_ROWS = 5000  # that one statement looks at
IDS_MAX = 500  # of a page, and of an IN list that finds rows
LETTERS = 10_000  # dead letters read at once, of all shards of a database
_BY_ID, _BY_DUE = "PRIMARY", "ix_due"


class Window(NamedTuple):
    """Rows of a shard that lie beside each other in an index."""

    shard: int
    rows: ColumnElement[bool]
    key: str  # the index's name


class Tally(NamedTuple):
    """Matching jobs of one type and status in a window; `reached`: those that can be changed.

    `example`: one of the latter; None: there is none.
    """

    type_no: int
    status: int
    matched: int
    reached: int
    example: int | None


class Moved(NamedTuple):
    """A job that was changed; `due_ms`: when it is due from now on, None: it has ended."""

    job_id: int
    type_no: int
    due_ms: int | None


class Changed(NamedTuple):
    """What a page came to. `before`: changed by an earlier process of the same run.

    `superseded`: dead jobs whose key is held by a newer one. All others had changed meanwhile.
    """

    done: list[Moved]
    before: int
    superseded: int


@dataclass(frozen=True, slots=True)
class Act:
    """What is done to each job of a run. `mark` ends the reason of the run's events, and of no others.

    `due_ms(present)` gives the new due_time from the present one; None ends the job.
    """

    move: Move
    mark: str
    due_ms: Callable[[int | None], int | None]


@dataclass(slots=True)
class Attempt:
    """Whether the change of a page went as far as its COMMIT: then it may have happened."""

    committing: bool = False


class _NotAllError(Exception):
    """Some of a page do not match any more; or none, since its COMMIT was not answered."""


class Sets:
    """The jobs that match `where`; of those, the ones that also match `reach` can be changed.

    `names`: the biz_types by number. Raises StoreUnavailable, and SchemaMismatch for a table or
    column that is not there.
    """

    def __init__(
        self, databases: Databases, names: Mapping[int, str], where: Condition, reach: Condition
    ) -> None:
        self._databases, self._where, self._reach = databases, where, reach
        self._renderer = Renderer(names, sqlite=databases[0].sqlite)

    # ---- windows

    def walk(
        self, database: Database, bounds: Bounds, passed: Callable[[], None]
    ) -> Iterator[Window]:
        """Windows that together hold all rows within `bounds`. `passed()` is called after each shard."""
        shards = [s for s in database.shards if bounds.shards is None or s in bounds.shards]
        if bounds.only_dead and bounds.job_ids is None and bounds.biz_ids is None:
            yield from self._by_letters(database, frozenset(shards))
            return
        for shard in shards:
            with naming(database, job_table_name(shard)):
                yield from self._windows(database, shard, bounds)
            passed()

    def _windows(self, database: Database, shard: int, bounds: Bounds) -> Iterator[Window]:
        routing = self._databases.routing
        if bounds.job_ids is not None:
            mine = [i for i in bounds.job_ids if routing.shard(gene_of(i)) == shard]
            for part in parts_of(sorted(mine), IDS_MAX):
                yield Window(shard, c.job_id.in_(part), _BY_ID)
        elif bounds.biz_ids is not None:
            mine = [i for i in bounds.biz_ids if routing.shard(hash_of(i)) == shard]
            for part in parts_of(sorted(mine), IDS_MAX):
                yield Window(shard, c.biz_id.in_(part), LIVE_INDEX)
        elif bounds.is_due or bounds.only_live:
            yield from self._by_due(database, shard, bounds)
        else:
            yield from self._by_id(database, shard)

    def _by_id(self, database: Database, shard: int) -> Iterator[Window]:
        # Jobs that are made from now on do not belong to it: so it ends.
        last = _scalar(database, shard, select(func.max(c.job_id)))
        after = -1
        while last is not None and after < last:
            query = (
                _hinted(select(c.job_id), _BY_ID)
                .where(c.job_id > after, c.job_id <= last)
                .order_by(c.job_id)
                .limit(1)
                .offset(WINDOW_ROWS - 1)
            )
            end = _scalar(database, shard, query)
            end = last if end is None else end
            yield Window(shard, and_(c.job_id > after, c.job_id <= end), _BY_ID)
            after = end

    def _by_due(self, database: Database, shard: int, bounds: Bounds) -> Iterator[Window]:
        last_ms = _scalar(database, shard, select(func.max(c.due_time)))
        if last_ms is None:
            return
        last_ms = min(last_ms, bounds.due_until_ms)
        after: tuple[int, int] | None = bounds.due_from_ms, -1
        while after is not None:
            after_ms, after_id = after
            rest = and_(
                c.due_time >= after_ms,
                c.due_time <= last_ms,
                or_(c.due_time > after_ms, c.job_id > after_id),
            )
            query = (
                _hinted(select(c.due_time, c.job_id), _BY_DUE)
                .where(rest)
                .order_by(c.due_time, c.job_id)
                .limit(1)
                .offset(WINDOW_ROWS - 1)
            )
            row: Any = database.read(lambda x, q=query: execute_on(x, shard, q).first())  # type: ignore[misc]
            if row is not None:
                until = or_(c.due_time < row[0], c.job_id <= row[1])
                rest = and_(rest, c.due_time <= row[0], until)
            yield Window(shard, rest, _BY_DUE)
            after = None if row is None else (row[0], row[1])

    def _by_letters(self, database: Database, shards: frozenset[int]) -> Iterator[Window]:
        """Each dead job has a letter: the shards need not be searched for them."""
        letter, after = database.dead.c.job_id, -1
        while True:
            query = select(letter).where(letter > after).order_by(letter).limit(LETTERS)
            with naming(database, database.dead.name):
                ids = database.read(lambda x, q=query: x.execute(q).scalars().all())  # type: ignore[misc]
            by_shard: dict[int, list[int]] = defaultdict(list)
            for job_id in ids:
                by_shard[self._databases.routing.shard(gene_of(job_id))].append(job_id)
            for shard in sorted(by_shard.keys() & shards):
                for part in parts_of(by_shard[shard], IDS_MAX):
                    yield Window(shard, c.job_id.in_(part), _BY_ID)
            if len(ids) < LETTERS:
                return
            after = ids[-1]

    # ---- looking

    def tally(self, window: Window) -> list[Tally]:
        """The matching jobs of a window, counted."""
        shard, rows, key = window
        reach = self._renderer.render(self._reach, shard)
        query = (
            _hinted(
                select(
                    c.biz_type,
                    c.status,
                    func.count(),
                    func.sum(case((reach, 1), else_=0)),
                    func.min(case((reach, c.job_id))),
                ),
                key,
            )
            .where(rows, self._renderer.render(self._where, shard))
            .group_by(c.biz_type, c.status)
        )
        found = self._read(shard, query)
        return [Tally(row[0], row[1], row[2], int(row[3]), row[4]) for row in found]

    def found(self, window: Window) -> dict[int, int]:
        """The jobs of a window that can be changed, with the numbers of their types."""
        shard, rows, key = window
        query = _hinted(select(c.job_id, c.biz_type), key).where(rows, *self._wanted(shard))
        return {row[0]: row[1] for row in self._read(shard, query)}

    def _read(self, shard: int, query: Select[Any]) -> Sequence[Any]:
        database = self._databases.of_shard(shard)
        with naming(database, job_table_name(shard)):
            return database.read(lambda connection: execute_on(connection, shard, query).all())

    def _wanted(self, shard: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return (
            self._renderer.render(self._where, shard),
            self._renderer.render(self._reach, shard),
        )

    # ---- changing

    def change(
        self, shard: int, jobs: Mapping[int, int], act: Act, attempt: Attempt, *, again: bool
    ) -> Changed:
        """Changes those of `jobs` (of one shard) that still match and are in reach, in one transaction.

        `jobs`: as `found`. `again`: this run may have been here before, in another process.
        """
        database = self._databases.of_shard(shard)
        ids = sorted(jobs)
        its = database.among(c.job_id, ids)
        tries = 0
        before: list[set[int]] = [] if again else [set()]  # what was changed before this call

        def cancel_all(connection: Connection) -> Changed:
            """No row is read: what is to be known of them is known, if all of them are changed."""
            nonlocal tries
            tries += 1
            _begin(connection, database)
            change = _guarded(act.move, its, due_time=None).where(*self._wanted(shard))
            if execute_on(connection, shard, _by_key(change)).rowcount != len(ids):
                raise _NotAllError
            record(connection, database, shard, its, act.move)
            attempt.committing = True
            return Changed([Moved(job_id, jobs[job_id], None) for job_id in ids], 0, 0)

        def work(connection: Connection) -> Changed:
            nonlocal tries
            tries += 1
            _begin(connection, database)
            marked: set[int] = set()
            if again or tries > 1:
                # A transaction whose client has gone may be at its COMMIT still: wait for its locks.
                execute_on(connection, shard, _lock(its))
                marked = _marked(connection, database, ids, act)
                before[:] = before or [marked]
            wanted = _lock(its, *self._wanted(shard))
            rows: Sequence[Any] = execute_on(connection, shard, wanted).all()
            todo = {row[0]: act.due_ms(row[2]) for row in rows if row[0] not in marked}
            done = _update(connection, shard, act.move, todo)
            if done:
                if act.move.from_status is Status.DEAD:
                    letters = database.dead
                    connection.execute(delete(letters).where(letters.c.job_id.in_(done)))
                record(connection, database, shard, database.among(c.job_id, done), act.move)
            types = {row[0]: row[1] for row in rows}
            moved = [Moved(job_id, types[job_id], todo[job_id]) for job_id in done]
            moved += _as_they_are(connection, shard, sorted(marked - before[0]))
            attempt.committing = attempt.committing or bool(done)
            return Changed(sorted(moved), len(before[0]), len(todo) - len(done))

        with naming(database, job_table_name(shard)):
            if act.move.to_status is Status.CANCELLED and not again:
                with suppress(_NotAllError):
                    return database.run(cancel_all)
            return database.run(work)


def names_of(databases: Databases) -> dict[int, str]:
    """The biz_types by number, as the first database that answers has them."""
    *others, last = databases.all
    for database in others:
        with suppress(StoreUnavailable):
            return _names(database)
    return _names(last)


def _names(database: Database) -> dict[int, str]:
    table = database.biz_type
    query = select(table.c.type_no, table.c.name)
    return {row[0]: row[1] for row in database.read(lambda x: x.execute(query).all())}


def parts_of(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Consecutive parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _hinted(query: Select[Any], key: str) -> Select[Any]:
    """Left to itself MySQL may think a walk of the whole shard cheaper."""
    for dialect in ("mysql", "mariadb"):
        query = query.with_hint(JOB, f"FORCE INDEX ({key})", dialect)
    return query


def _by_key(change: Update) -> Update:
    """The same as `_hinted` by job_id."""
    for dialect in ("mysql", "mariadb"):
        change = change.with_hint(f"FORCE INDEX ({_BY_ID})", JOB, dialect)
    return change


def _begin(connection: Connection, database: Database) -> None:
    if database.sqlite:  # it has no locks on rows; this is what BEGIN means elsewhere
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _guarded(move: Move, which: ColumnElement[bool], **values: Any) -> Update:
    given = {"status": int(move.to_status), "gmt_modified": db_now(), **values}
    return update(JOB).where(which, c.status == int(move.from_status)).values(given)


def _lock(*wanted: ColumnElement[bool]) -> Select[Any]:
    query = select(c.job_id, c.biz_type, c.due_time).where(*wanted)
    return _hinted(query, _BY_ID).order_by(c.job_id).with_for_update()


def _scalar(database: Database, shard: int, query: Select[Any]) -> int | None:
    found: int | None = database.read(lambda x: execute_on(x, shard, query).scalar())
    return found


def _marked(connection: Connection, database: Database, ids: Sequence[int], act: Act) -> set[int]:
    """Those that this run has changed, by its events."""
    event = database.event.c
    query = select(event.job_id).where(
        event.job_id.in_(ids),
        event.what == act.move.what,
        event.reason.endswith(act.mark, autoescape=True),
    )
    return set(connection.execute(query).scalars())


def _update(
    connection: Connection, shard: int, move: Move, due: Mapping[int, int | None]
) -> list[int]:
    """Changes locked rows to their new due times; returns those that it has changed."""
    if not due:
        return []
    try:
        return _update_all(connection, shard, move, due)
    except IntegrityError as error:
        if not is_live_duplicate(error):
            raise
    done: list[int] = []
    for job_id in sorted(due, reverse=True):  # of several with one key the newest comes to life
        try:
            done += _update_all(connection, shard, move, {job_id: due[job_id]})
        except IntegrityError as error:
            if not is_live_duplicate(error):
                raise
    return sorted(done)


def _update_all(
    connection: Connection, shard: int, move: Move, due: Mapping[int, int | None]
) -> list[int]:
    ids, times = sorted(due), set(due.values())
    when: Any = times.pop()
    if times:
        whens = {job_id: literal(due_ms, Millis()) for job_id, due_ms in due.items()}
        when = case(whens, value=c.job_id)
    values = {"due_time": when}
    if move.to_status is Status.PENDING:
        values |= {"action_time": when, "attempts": 0}
    change = _guarded(move, c.job_id.in_(ids), **values)
    changed = execute_on(connection, shard, change).rowcount
    if changed != len(ids):
        raise AssertionError(f"{changed} of {len(ids)} locked rows were changed")
    return ids


def _as_they_are(connection: Connection, shard: int, ids: Sequence[int]) -> Iterator[Moved]:
    if ids:
        query = select(c.job_id, c.biz_type, c.due_time).where(c.job_id.in_(ids))
        rows: Sequence[Any] = execute_on(connection, shard, query).all()
        yield from map(Moved._make, rows)


@contextmanager
def naming(database: Database, table: str) -> Iterator[None]:
    """What a server says of a table that somebody dropped or altered: in which database, and which."""
    try:
        yield
    except (StoreUnavailable, DBAPIError) as error:
        cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
        if isinstance(cause, DBAPIError) and not cause.connection_invalidated:
            words = [str(word) for word in getattr(cause.orig, "args", ())]
            if words[:1] in (["1146"], ["1054"], ["1176"]) or words[0].startswith("no such"):
                text = f"database {database.index}, table {table}: {words[-1]}"
                raise SchemaMismatch(text) from error
        raise
