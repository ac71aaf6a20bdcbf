"""The guarded changes that reconciliation makes to rows, and the trace of what it does to reminders.

As every verb of toc they change a row only while it stands as it was seen: whoever was there in
between, a client or a worker, has the last word. The event is in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import GENE_MASK, SEQUENCE_BITS, SEQUENCE_MASK, gene_of
from toc.domain.job import Status
from toc.domain.routing import hash_of
from toc.store.columns import Millis, db_now, sql_time
from toc.store.databases import Database, Databases, execute_on
from toc.store.duplicates import is_live_duplicate, is_primary_duplicate
from toc.store.events import STANDS, Move, record, remark
from toc.store.rows import status_of
from toc.store.schema import JOB, job_table_name

c = JOB.c
REPAIR = "repair"
"""`what` of the events of repairs. A repair of a reminder leaves the status as it is."""

TRIES_MAX = 10
_BY_HAND = "cancel it, and schedule it anew"
_COPIED = (
    c.gmt_create, c.biz_id, c.biz_type, c.action_time, c.attribute, c.attempts, c.worker,
    c.dedup_key, c.claim_time,
)  # fmt: skip


class Shifted(NamedTuple):
    """A pending job, never tried, whose due_time is not its action_time, as it was seen."""

    job_id: int
    action_ms: int
    due_ms: int


class Rehomed(NamedTuple):
    """What became of a misfit. `job_id`: the row that stands for it now; None: nothing was done.

    why: nothing was done. is_over: and nothing is left to do.
    """

    job_id: int | None
    type_no: int = 0
    due_ms: int = 0
    why: str = ""
    is_over: bool = False


class Mending:
    """`actor`: stands in events.

    Raises StoreUnavailable. Thread-safe.
    """

    def __init__(self, databases: Databases, actor: str) -> None:
        self._databases, self._actor = databases, actor

    def note(self, reasons: Mapping[int, Mapping[int, str]]) -> None:
        """Leaves an event for each of some jobs (by shard) that are not changed; a transaction per database.

        A COMMIT whose answer was lost is repeated: then a job has two.
        """
        shards = sorted(reasons)
        for index, some in groupby(shards, key=self._databases.routing.database):
            database, mine = self._databases[index], list(some)

            def work(
                connection: Connection, database: Database = database, mine: list[int] = mine
            ) -> None:
                for shard in mine:
                    remark(connection, database, shard, reasons[shard], REPAIR, self._actor)

            database.run(work)

    def realign(self, shifted: Mapping[int, Sequence[Shifted]]) -> set[tuple[int, int]]:
        """Sets due_time to action_time: what the business said, whoever's hand has moved the job.

        One transaction. `shifted`: by shard, all of one database. Answers (shard, job_id) of those that
        it has changed: the others do not stand any more as they were seen.
        """
        database = self._databases.of_shard(min(shifted))

        def work(connection: Connection) -> set[tuple[int, int]]:
            changed = set()
            for shard in sorted(shifted):
                reasons = {}
                for job in sorted(shifted[shard]):
                    values = {"id": job.job_id, "action": job.action_ms, "due": job.due_ms}
                    if execute_on(connection, shard, _REALIGN, values).rowcount:
                        reasons[job.job_id] = f"moved: due_time was {sql_time(job.due_ms)} UTC"
                if reasons:
                    remark(connection, database, shard, reasons, REPAIR, self._actor)
                changed |= {(shard, job_id) for job_id in reasons}
            return changed

        return database.run(work)

    def rehome(self, shard: int, job_id: int) -> Rehomed:
        """Puts a pending job where by-business verbs and workers look for it: a copy, under an id that fits.

        The row lies in the table of `shard`, whatever its id says. The copy has the id's time and
        sequence with the right gene: where the old row comes back to life, by whoever's hand, it is found
        there and taken as it is. Never tried, it is due at its action_time. The old row is cancelled.

        That is one transaction; across two databases there is none, and whoever cancelled the old row
        between the two commits would be told so while the copy lived on (I3). Such a job is left to a
        person. `successor_of` leads who has the old id to the copy.
        """
        for _ in range(TRIES_MAX):
            try:
                return _Rehoming(self._databases, self._actor, shard, job_id).run()
            except IntegrityError as error:
                if is_live_duplicate(error):
                    return Rehomed(None, why="a live job holds its key")
                if not is_primary_duplicate(error):
                    raise
                # Somebody took the id after the look. With the next look it has an owner.
        raise AssertionError(f"no id for a copy of job {job_id} after {TRIES_MAX} tries")


class _Rehoming:
    """One job's way home."""

    def __init__(self, databases: Databases, actor: str, shard: int, job_id: int) -> None:
        self._databases, self._actor, self._shard, self._job_id = databases, actor, shard, job_id
        self._database = databases.of_shard(shard)
        # Of the last try: what the old row's event says, and the answer.
        self._words, self._rehomed = "", Rehomed(None)

    def run(self) -> Rehomed:
        return self._database.run(self._work)

    def _work(self, connection: Connection) -> Rehomed:
        _begin(connection, self._database)
        query = select(c.status, c.due_time, *_COPIED).where(c.job_id == self._job_id)
        row = execute_on(connection, self._shard, query.with_for_update()).one_or_none()
        if row is None:
            return Rehomed(None, why="it is gone", is_over=True)
        shard, gene = self._shard_of(row.biz_id), hash_of(row.biz_id) & GENE_MASK
        home = self._databases.of_shard(shard)
        nothing = self._no_work(connection, status_of(row.status), shard, gene)
        if nothing is not None:
            return nothing
        due_ms = row.due_time if row.attempts and row.due_time is not None else row.action_time
        # First: in one table, two live rows with one key would be refused.
        self._cancel(connection)
        new_id = self._copy(connection, home, shard, gene, row, due_ms)
        self._words = f"{STANDS}{new_id} in {job_table_name(shard)} stands for it now"
        move = Move("cancel", Status.PENDING, Status.CANCELLED, self._actor, self._words)
        record(connection, self._database, self._shard, c.job_id == self._job_id, move)
        self._rehomed = Rehomed(new_id, row.biz_type, due_ms)
        return self._rehomed

    def _no_work(
        self, connection: Connection, status: Status, shard: int, gene: int
    ) -> Rehomed | None:
        """The answer where there is nothing to do, or nothing that may be done."""
        if status is Status.RUNNING:
            return Rehomed(None, why="it is running: repaired when it is pending again")
        if status is not Status.PENDING:
            # This is the second try of a transaction that was committed: its answer was lost.
            if self._words and _has_event(
                connection, self._database, self._job_id, "cancel", self._words
            ):
                return self._rehomed
            return Rehomed(None, why="it has ended meanwhile", is_over=True)
        if gene_of(self._job_id) == gene and shard == self._shard:
            return Rehomed(None, why="it fits by now", is_over=True)
        home = self._databases.of_shard(shard)
        if home is not self._database:
            return Rehomed(None, why=f"it belongs into database {home.index}: {_BY_HAND}")
        return None

    def _cancel(self, connection: Connection) -> None:
        values = {"id": self._job_id}
        if not execute_on(connection, self._shard, _CANCEL, values).rowcount:
            raise AssertionError(f"job {self._job_id} was locked while it was pending")

    def _copy(
        self,
        connection: Connection,
        home: Database,
        shard: int,
        gene: int,
        row: Row[Any],
        due_ms: int,
    ) -> int:
        """Inserts the copy unless it is there already; its id."""
        words = f"misfit: stands for job {self._job_id} in {job_table_name(self._shard)}"
        for new_id in _ids_like(self._job_id, gene):
            query = select(*_COPIED).where(c.job_id == new_id)
            there = execute_on(connection, shard, query).one_or_none()
            if there is None:
                values = {column.name: getattr(row, column.name) for column in _COPIED}
                values |= {"job_id": new_id, "status": int(Status.PENDING), "due_time": due_ms}
                execute_on(connection, shard, insert(JOB).values(**values, gmt_modified=db_now()))
                remark(connection, home, shard, {new_id: words}, REPAIR, self._actor)
                return new_id
            if _is_same(there, row) or _has_event(connection, home, new_id, REPAIR, words):
                return new_id
        raise AssertionError(f"no free id like {self._job_id}")

    def _shard_of(self, biz_id: int) -> int:
        return self._databases.routing.shard(hash_of(biz_id))


def _ids_like(job_id: int, gene: int) -> Iterable[int]:
    """Ids with the time of this one and another gene: its own sequence first, then the next ones."""
    low = GENE_MASK << SEQUENCE_BITS | SEQUENCE_MASK
    for step in range(SEQUENCE_MASK + 1):
        yield job_id & ~low | gene << SEQUENCE_BITS | (job_id + step) & SEQUENCE_MASK


def _is_same(there: Row[Any], row: Row[Any]) -> bool:
    """Whether two rows are the same wish of the business."""
    return all(
        getattr(there, column.name) == getattr(row, column.name)
        for column in (c.biz_id, c.biz_type, c.action_time, c.attribute, c.dedup_key)
    )


def _has_event(
    connection: Connection, database: Database, job_id: int, what: str, reason: str
) -> bool:
    event = database.event.c
    query = select(event.event_id).where(
        event.job_id == job_id, event.what == what, event.reason == reason
    )
    return connection.execute(query.limit(1)).first() is not None


def _begin(connection: Connection, database: Database) -> None:
    """SQLite has no locks on rows; this is what BEGIN means elsewhere."""
    if database.sqlite:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


_REALIGN = (
    update(JOB)
    .where(
        c.job_id == bindparam("id"),
        c.status == int(Status.PENDING),
        c.attempts == 0,
        # As it was seen: a client who has rescheduled the job since then knows better.
        c.action_time == bindparam("action", type_=Millis()),
        c.due_time == bindparam("due", type_=Millis()),
        c.due_time != c.action_time,
    )
    .values(due_time=c.action_time, gmt_modified=db_now())
)
_CANCEL = (
    update(JOB)
    .where(c.job_id == bindparam("id"), c.status == int(Status.PENDING))
    .values(status=int(Status.CANCELLED), due_time=None, gmt_modified=db_now())
)
