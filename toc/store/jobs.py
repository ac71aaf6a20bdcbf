"""The verbs of clients: insert, get, find, cancel, reschedule, redrive.

Each changing verb is one guarded statement: it changes a row only in the status that it expects,
and otherwise says what is the case. By-business verbs look ids up with a plain read and then act by
primary key, so that no statement locks the unique index before the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BindParameter,
    Connection,
    CursorResult,
    Executable,
    Update,
    and_,
    bindparam,
    delete,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import gene_of
from toc.domain.job import ANSWER_OF_STATUS, Answer, DeadJob, Job, NewJob, Status
from toc.errors import DuplicateJob
from toc.store.catalogue import Catalogue
from toc.store.columns import Millis, db_now, signed64, sql_time
from toc.store.databases import Database, Databases, execute_on
from toc.store.duplicates import is_live_duplicate, is_primary_duplicate
from toc.store.events import Move, Record, record, successor_of
from toc.store.lent import lent
from toc.store.packets import (
    BYTES_MAX,
    Line,
    NotTogetherError,
    Statement,
)
from toc.store.prepared import Prepared
from toc.store.rows import JOB_COLUMNS, job_of, status_of
from toc.store.schema import JOB

c = JOB.c
OnDuplicate = Literal["keep", "replace", "error"]
ROWS_MAX = 1000  # per INSERT: well below SQLite's 32,766 variables
_TRIES_MAX = 10
_LIVE = [int(status) for status in Status if status.live]
_COLUMNS = "job_id, biz_id, biz_type, action_time, due_time, attribute, dedup_key"
# A row without a key, and one with. MySQL lets a value be a column to the left of it.
_MYSQL_ROWS = (
    "(%s, %s, %s, %s, action_time, %s, NULL)",
    "(%s, %s, %s, %s, action_time, %s, %s)",
)
_SQLITE_ROWS = ("(?, ?, ?, ?, ?, ?, NULL)", "(?, ?, ?, ?, ?, ?, ?)")


class Inserted(NamedTuple):
    """What became of one new job: `job_id` is the row that stands for it now."""

    job_id: int
    due_ms: int
    written: bool  # False: an older live job with its key was kept


class Jobs:
    """Client verbs over all shards. `fresh_id(gene)` draws a new id when one is taken.

    `actor`: in whose name jobs are changed; it stands in their events.
    """

    def __init__(
        self,
        databases: Databases,
        catalogue: Catalogue,
        fresh_id: Callable[[int], int],
        actor: str,
    ) -> None:
        self._databases = databases
        self._catalogue = catalogue
        self._fresh_id = fresh_id
        self.actor = actor
        self._packets = {each.index: _ChangePacket(each) for each in databases if not each.sqlite}

    # ---- insert

    def insert(
        self,
        jobs: Sequence[NewJob],
        on_duplicate: OnDuplicate,
        connection: Connection | None = None,
    ) -> list[Inserted]:
        """Inserts jobs of *one* database, in one transaction: its own, or the caller's `connection`.

        Answers in the order of `jobs`. Raises DuplicateJob for a held key with on_duplicate="error",
        or "replace" when the holder runs already: then nothing of the call is written.
        """
        routing = self._databases.routing
        database = self._databases.of_shard(routing.shard(gene_of(jobs[0].job_id)))
        by_shard: dict[int, list[int]] = defaultdict(list)
        for position, job in enumerate(jobs):
            by_shard[routing.shard(gene_of(job.job_id))].append(position)
        parts = [
            (shard, part) for shard in sorted(by_shard) for part in _parts(jobs, by_shard[shard])
        ]
        # A single row is a single statement, which commits itself; to replace one takes two.
        alone = connection is None and len(jobs) == 1 and on_duplicate != "replace"
        written = False  # perhaps: a run had come to its COMMIT

        def work(connection: Connection) -> list[Inserted]:
            nonlocal written
            answers: dict[int, Inserted] = {}
            for shard, positions in parts:
                writer = _ShardInsert(self, database, shard, on_duplicate, repeated=written)
                written = written or alone
                found = writer.insert(connection, [jobs[position] for position in positions])
                answers.update(zip(positions, found, strict=True))
            written = True
            return [answers[position] for position in range(len(jobs))]

        def together(line: Line) -> list[Inserted]:
            nonlocal written
            before, written = written, True
            packets = list(_packets(database, jobs, parts))
            try:
                line.send_transaction(packets, [], database.idle_transaction_s)
            except NotTogetherError as error:
                written = before or not error.undone
                raise
            return [Inserted(job.job_id, job.action_ms, written=True) for job in jobs]

        if connection is not None:
            with lent(connection, database, self._catalogue):
                return work(connection)
        # A key is often held already, and then a packet would have been for nothing.
        keyless = all(job.dedup_key is None for job in jobs)
        found = database.packet(together) if keyless and (alone or len(parts) > 1) else None
        if found is not None:
            return found
        return database.read(work) if alone else database.run(work)

    # ---- look

    def get(self, job_id: int) -> Job | None:
        """The job as its row stands now."""
        shard, database = self._home(job_id)
        query = select(*JOB_COLUMNS).where(c.job_id == job_id)
        row = database.read(lambda connection: execute_on(connection, shard, query).first())
        return None if row is None else job_of(row, self._catalogue.name(row.biz_type))

    def find(
        self, shard: int, biz_id: int, type_no: int | None, limit: int, dedup_key: str | None = None
    ) -> list[Job]:
        """Jobs of a business id, live and ended, newest first; at most `limit`."""
        query = select(*JOB_COLUMNS).where(c.biz_id == biz_id)
        if type_no is not None:
            query = query.where(c.biz_type == type_no)
        if dedup_key is not None:
            query = query.where(c.dedup_key == dedup_key)
        query = query.order_by(c.job_id.desc()).limit(limit)
        database = self._databases.of_shard(shard)
        rows = database.read(lambda connection: execute_on(connection, shard, query).all())
        return [job_of(row, self._catalogue.name(row.biz_type)) for row in rows]

    def live_ids(self, shard: int, biz_id: int, type_no: int, dedup_key: str | None) -> list[int]:
        """All live jobs of a business id and type (and key), however many there are, oldest first."""
        query = select(c.job_id).where(
            c.biz_id == biz_id, c.biz_type == type_no, c.status.in_(_LIVE)
        )
        if dedup_key is not None:
            query = query.where(c.dedup_key == dedup_key)
        database, found = self._databases.of_shard(shard), list[int]()
        while True:
            after = query.where(c.job_id > found[-1]) if found else query
            page = after.order_by(c.job_id).limit(ROWS_MAX)
            ids = database.read(lambda x, page=page: execute_on(x, shard, page).scalars().all())  # type: ignore[misc]
            found += ids
            if len(ids) < ROWS_MAX:
                return found

    # ---- guarded verbs

    def cancel(self, job_id: int, reason: str | None = None) -> Answer:
        """Pending -> cancelled. After "cancelled" no handler starts (I3)."""
        move = Move("cancel", Status.PENDING, Status.CANCELLED, self.actor, reason)
        return self._guarded(job_id, move, "cancelled", {})

    def reschedule(self, job_id: int, action_ms: int, reason: str | None = None) -> Answer:
        """Moves a pending job to another time; its attempts start anew."""
        move = self._move_to(action_ms, reason)
        return self._guarded(job_id, move, "rescheduled", {"at": action_ms})

    def redrive(self, job_id: int, action_ms: int, reason: str | None = None) -> Answer:
        """Dead -> pending at `action_ms`. "superseded" when a newer live job holds its key."""
        move = Move("redrive", Status.DEAD, Status.PENDING, self.actor, reason)
        try:
            return self._guarded(job_id, move, "redriven", {"at": action_ms})
        except IntegrityError as error:
            if is_live_duplicate(error):
                return Answer("superseded", job_id)
            raise

    def dead(self, limit: int, biz_type: str | None = None) -> list[DeadJob]:
        """Dead letters of all databases, newest first."""
        type_no = None if biz_type is None else self._catalogue.known(biz_type)
        if biz_type is not None and type_no is None:
            return []
        found: list[DeadJob] = []
        for database in self._databases:
            table = database.dead
            query = select(
                table.c.job_id,
                table.c.biz_id,
                table.c.biz_type,
                table.c.attempts,
                table.c.error,
                table.c.dead_time,
            )
            if type_no is not None:
                query = query.where(table.c.biz_type == type_no)
            query = query.order_by(table.c.dead_time.desc(), table.c.job_id.desc()).limit(limit)
            for row in database.read(lambda c, q=query: c.execute(q).all()):  # type: ignore[misc]
                found.append(DeadJob(row[0], row[1], self._catalogue.name(row[2]), *row[3:]))
        found.sort(key=lambda job: (job.dead_ms, job.job_id), reverse=True)
        return found[:limit]

    def _move_to(self, action_ms: int, reason: str | None) -> Move:
        to = f"to {sql_time(action_ms)} UTC"
        text = to if reason is None else f"{to}: {reason}"
        return Move("reschedule", Status.PENDING, Status.PENDING, self.actor, text)

    def _guarded(self, job_id: int, move: Move, answer: str, values: dict[str, Any]) -> Answer:
        answered = self._changed(job_id, move, answer, values)
        if answered == "already_cancelled" and move.from_status is Status.PENDING:
            # Its id did not fit, and a copy stands for it: who has the old id means the copy.
            successor = successor_of(self._home(job_id)[1], job_id)
            if successor is not None:
                return self._guarded(successor, move, answer, values)
        return answered

    def _changed(self, job_id: int, move: Move, answer: str, values: dict[str, Any]) -> Answer:
        shard, database = self._home(job_id)
        status, given = move.from_status, {"ids": [job_id], **values}

        def work(connection: Connection) -> Answer:
            for _ in range(_TRIES_MAX):
                if execute_on(connection, shard, _CHANGE[move.what], given).rowcount:
                    if status is Status.DEAD:
                        letter = database.dead.c.job_id == job_id
                        connection.execute(delete(database.dead).where(letter))
                    record(connection, database, shard, c.job_id == job_id, move)
                    return Answer(answer, job_id)
                row = execute_on(connection, shard, _LOOK, given).first()
                if row is None or row.status != status:
                    break  # else it came back between change and look, by a retry: once more
            return _answer(job_id, row)

        def together(line: Line) -> Answer:
            return self._packets[database.index].send(line, shard, job_id, move, answer, values)

        found = database.packet(together) if status is Status.PENDING else None
        return database.run(work) if found is None else found

    def _home(self, job_id: int) -> tuple[int, Database]:
        shard = self._databases.routing.shard(gene_of(job_id))
        return shard, self._databases.of_shard(shard)

    def draw_like(self, job_id: int) -> int:
        """A new id of the same shard and slot."""
        return self._fresh_id(gene_of(job_id))


def _change(from_status: Status, to_status: Status, *values: tuple[Any, Any]) -> Update:
    ids: BindParameter[Any] = bindparam("ids", expanding=True)
    return (
        update(JOB)
        .where(c.job_id.in_(ids), c.status == int(from_status))
        .values(dict([(c.status, int(to_status)), (c.gmt_modified, db_now()), *values]))
    )


_AT = bindparam("at", type_=Millis())
_ANEW = ((c.action_time, _AT), (c.due_time, _AT), (c.attempts, 0))
_CHANGE = {
    "cancel": _change(Status.PENDING, Status.CANCELLED, (c.due_time, None)),
    "reschedule": _change(Status.PENDING, Status.PENDING, *_ANEW),
    "redrive": _change(Status.DEAD, Status.PENDING, *_ANEW),
}
_LOOK = select(c.status, c.attempts).where(c.job_id.in_(bindparam("ids", expanding=True)))


class _ChangePacket:
    """A guarded change and its event, as one packet for a database."""

    def __init__(self, database: Database) -> None:
        dialect = database.engine.dialect
        self._database, self._record = database, Record(database)
        self._change = {what: Prepared(change, dialect) for what, change in _CHANGE.items()}
        self._look = Prepared(_LOOK, dialect)

    def send(
        self,
        line: Line,
        shard: int,
        job_id: int,
        move: Move,
        answer: str,
        values: Mapping[str, Any],
    ) -> Answer:
        """`answer` when it was changed, else what is the case."""
        table = self._database.job_table_name(shard)
        changes = [
            self._change[move.what].on(table, [job_id], **values),
            self._record.on(table, job_id, move),
        ]
        idle_s = self._database.idle_transaction_s
        changed, _ = line.send_transaction([changes], [], idle_s)
        if changed.rowcount:
            return Answer(answer, job_id)
        (looked,) = line.send([self._look.on(table, [job_id])])
        row = next(iter(looked.rows), None)
        if row is not None and row[0] == move.from_status:
            raise NotTogetherError  # it came back between change and look, by a retry: once more
        return _answer(job_id, row)


def _answer(job_id: int, row: Sequence[Any] | None) -> Answer:
    """What is the case, by (status, attempts)."""
    if row is None:
        return Answer("unknown")
    return Answer(ANSWER_OF_STATUS[status_of(row[0])], job_id, row[1])


class _ShardInsert:
    """Inserts rows into one shard: all in one statement, and one by one when a key is in the way."""

    def __init__(
        self,
        jobs: Jobs,
        database: Database,
        shard: int,
        on_duplicate: OnDuplicate,
        *,
        repeated: bool,
    ) -> None:
        self._jobs = jobs
        self._database = database
        self._shard = shard
        self._on_duplicate = on_duplicate
        # True in a second run after a lost answer: then a taken id may be taken by this very call.
        self._repeated = repeated

    def insert(self, connection: Connection, jobs: list[NewJob]) -> list[Inserted]:
        try:
            self._write(connection, jobs)
        except IntegrityError:
            # The failed statement is undone, the transaction goes on.
            return [self._insert_one(connection, job) for job in jobs]
        return [Inserted(job.job_id, job.action_ms, written=True) for job in jobs]

    def _insert_one(self, connection: Connection, job: NewJob) -> Inserted:
        for _ in range(_TRIES_MAX):
            try:
                self._write(connection, [job])
            except IntegrityError as error:
                if is_live_duplicate(error):
                    found = self._on_live(connection, job)
                elif is_primary_duplicate(error):
                    found = self._on_taken(connection, job)
                else:
                    raise
                if isinstance(found, Inserted):
                    return found
                job = found
            else:
                return Inserted(job.job_id, job.action_ms, written=True)
        raise AssertionError(f"no row for {job} after {_TRIES_MAX} tries")

    def _on_taken(self, connection: Connection, job: NewJob) -> Inserted | NewJob:
        same = and_(
            c.biz_id == job.biz_id, c.biz_type == job.type_no, c.action_time == job.action_ms
        )
        if self._repeated:
            mine = self._execute(
                connection, select(c.job_id).where(c.job_id == job.job_id, same)
            ).first()
            if mine:
                return Inserted(job.job_id, job.action_ms, written=True)
        return job._replace(job_id=self._jobs.draw_like(job.job_id))

    def _on_live(self, connection: Connection, job: NewJob) -> Inserted | NewJob:
        holder = self._execute(
            connection,
            select(c.job_id, c.status, c.due_time)
            .where(c.biz_id == job.biz_id, c.biz_type == job.type_no, c.live_key == job.dedup_key)
            # A locking read sees what is committed even in a caller's REPEATABLE READ.
            .with_for_update(read=True),
        ).first()
        if holder is None:  # it ended in between: try again
            return job
        if holder.job_id == job.job_id:
            return Inserted(job.job_id, job.action_ms, written=True)
        if self._on_duplicate == "keep":
            return Inserted(holder.job_id, holder.due_time, written=False)
        if self._on_duplicate == "replace" and holder.status == Status.PENDING:
            changed = self._execute(
                connection,
                update(JOB)
                .where(c.job_id == holder.job_id, c.status == int(Status.PENDING))
                .values(
                    action_time=job.action_ms,
                    due_time=job.action_ms,
                    attempts=0,
                    attribute=job.attribute,
                    gmt_modified=db_now(),
                ),
            ).rowcount
            if not changed:
                return job
            move = self._jobs._move_to(job.action_ms, "replaced by schedule()")  # noqa: SLF001 - same module
            its = c.job_id == holder.job_id
            record(connection, self._database, self._shard, its, move)
            return Inserted(holder.job_id, job.action_ms, written=True)
        raise DuplicateJob(
            holder.job_id,
            job.biz_id,
            self._jobs._catalogue.name(job.type_no),  # noqa: SLF001 - same module
            job.dedup_key or "",
            running=holder.status == Status.RUNNING,
        )

    def _execute(self, connection: Connection, statement: Executable) -> CursorResult[Any]:
        return execute_on(connection, self._shard, statement)

    def _write(self, connection: Connection, jobs: list[NewJob]) -> None:
        text, values = _insertion(self._database, self._shard, jobs)
        connection.exec_driver_sql(text, values)


def _insertion(database: Database, shard: int, jobs: Sequence[NewJob]) -> Statement:
    """An INSERT into one shard, and its values."""
    # Written out, not built by insert(): SQLAlchemy would go through executemany and its row by
    # row rendering, which costs a third of the speed (docs/performance.md). Values are bound.
    # What need not be bound is not: the driver escapes each value in Python.
    values: list[Any] = []
    rows: list[str] = []
    keyless, keyed = _SQLITE_ROWS if database.sqlite else _MYSQL_ROWS
    for job in jobs:
        when = sql_time(job.action_ms)
        if database.sqlite:
            values += (job.job_id, signed64(job.biz_id), job.type_no, when, when, job.attribute)
        else:
            values += (job.job_id, job.biz_id, job.type_no, when, job.attribute)
        if job.dedup_key is None:
            rows.append(keyless)
        else:
            rows.append(keyed)
            values.append(job.dedup_key)
    name = database.job_table_name(shard)
    text = f"INSERT INTO {name} ({_COLUMNS}) VALUES {', '.join(rows)}"  # noqa: S608
    return text, tuple(values)


def _bytes(job: NewJob) -> int:
    """Of its row in an INSERT, about."""
    return 150 + len(job.attribute or "")


def _parts(jobs: Sequence[NewJob], positions: Sequence[int]) -> Iterator[list[int]]:
    """As many of these jobs as one INSERT takes, and so on."""
    part: list[int] = []
    size = 0
    for position in positions:
        part.append(position)
        size += _bytes(jobs[position])
        if len(part) == ROWS_MAX or size >= BYTES_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part


def _packets(
    database: Database, jobs: Sequence[NewJob], parts: Sequence[tuple[int, list[int]]]
) -> Iterator[list[Statement]]:
    """The INSERTs of all parts, as many to a packet as fit."""
    packet: list[Statement] = []
    size = 0
    for shard, positions in parts:
        part = [jobs[position] for position in positions]
        packet.append(_insertion(database, shard, part))
        size += sum(map(_bytes, part))
        if size >= BYTES_MAX:
            yield packet
            packet, size = [], 0
    if packet:
        yield packet
