"""The verbs of workers: claim, take over, settle. Invariants I2, I3, I5 and I7 stand on these statements.

A claim is one UPDATE that takes pending, due rows under a token, then COMMIT, then a read: the
attempt is on record before anybody looks at the row. A settle changes only a row that still runs
under its claim's token; a stale worker changes nothing. The lease is in the row, by the database's
clock: `due_time` of a running row is the moment from which anybody may take it over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Update,
    and_,
    bindparam,
    case,
    delete,
    insert,
    select,
    update,
)

from toc.domain.ids import gene_of
from toc.domain.job import Status
from toc.store.columns import Millis, db_now, db_now_plus
from toc.store.databases import Database, Databases, execute_on
from toc.store.events import Move, record
from toc.store.packets import Line, NotTogetherError, Statement
from toc.store.prepared import Prepared
from toc.store.rows import JOB_COLUMNS, status_of
from toc.store.schema import JOB

c = JOB.c
ERROR_CHARS_MAX = 4000
LOOK_AT_ONCE = 240  # shards, by one statement
_NO_TYPE = 0  # types are numbered from 1; prepared text cannot hold an empty IN ()


class Kind(StrEnum):
    """How a handler run is settled."""

    DONE = "done"
    RETRY = "retry"  # tried again at due_ms
    SNOOZE = "snooze"  # not an attempt; action_time moves to due_ms
    GIVE_BACK = "give_back"  # never started; not an attempt
    DROP = "drop"  # needs no action any more: cancelled by its handler
    BURY = "bury"  # dead, with a dead letter


_STATUS_AFTER = {
    Kind.DONE: Status.DONE,
    Kind.RETRY: Status.PENDING,
    Kind.SNOOZE: Status.PENDING,
    Kind.GIVE_BACK: Status.PENDING,
    Kind.DROP: Status.CANCELLED,
    Kind.BURY: Status.DEAD,
}


class Outcome(NamedTuple):
    """What one claimed job came to, to be settled under `token`."""

    job_id: int
    token: str
    kind: Kind
    due_ms: int = 0  # retry and snooze: when next
    error: str = ""  # retry, drop, bury: why; the dead letter's text


class Seen(NamedTuple):
    """A row as the read after the claim found it. Times in milliseconds since 1970 UTC."""

    job_id: int
    biz_id: int
    type_no: int
    status: Status
    action_ms: int
    attribute: str | None
    due_ms: int | None
    attempts: int
    token: str | None
    dedup_key: str | None
    claimed_ms: int | None
    overdue: bool  # due_time has passed, by the database's clock


class Claims:
    """Worker verbs, each for one database and one transaction.

    `lease_ms` gives the lease of each type number; rows of other types are left alone unless
    `lease_other_ms` is given (a node whose registry has a handler for every type).
    """

    def __init__(
        self, databases: Databases, lease_ms: Mapping[int, int], lease_other_ms: int | None = None
    ) -> None:
        self._databases = databases
        types = None if lease_other_ms is not None else sorted(lease_ms)
        lease_end = db_now_plus(
            case(dict(lease_ms), value=c.biz_type, else_=lease_other_ms or 0)
            if lease_ms
            else lease_other_ms or 0
        )
        claim_at = _claim(c.due_time <= bindparam("now"), types, lease_end)
        claim_now = _claim(c.due_time <= db_now(), types, lease_end)
        dialect = databases[0].engine.dialect
        self._claim_at, self._claim_now = Prepared(claim_at, dialect), Prepared(claim_now, dialect)
        self._look = Prepared(_LOOK, dialect)
        self._done = Prepared(_SETTLE[Kind.DONE], dialect)
        self._take_over = (
            update(JOB).where(*_STILL, c.due_time <= db_now()).values(**_claimed(lease_end))
        )

    # ---- claim

    def claim(
        self,
        database: Database,
        ids_by_shard: Mapping[int, Sequence[int]],
        token: str,
        now_ms: int | None,
    ) -> dict[int, Seen]:
        """Takes what is pending and due, commits, and reads all rows. Missing ids are gone.

        `now_ms`: the time that found the jobs due (Redis' TIME from pop); None: the database's.
        A row whose `token` is this one is claimed. Repeating the call with the same token is safe.
        """
        parts = [(shard, sorted(ids_by_shard[shard])) for shard in sorted(ids_by_shard)]

        claims: list[Statement] = []
        for shard, ids in parts:
            table = database.job_table_name(shard)
            if now_ms is None:
                claims.append(self._claim_now.on(table, ids, token=token))
            else:
                claims.append(self._claim_at.on(table, ids, token=token, now=now_ms))

        def take(connection: Connection) -> None:
            for text, values in claims:
                connection.exec_driver_sql(text, values)

        def take_and_look(connection: Connection) -> dict[int, Seen]:
            take(connection)
            return self._rows(connection, database, parts)

        tables = [(database.job_table_name(shard), ids) for shard, ids in parts]
        looks = [
            self._look.on_all(tables[at : at + LOOK_AT_ONCE])
            for at in range(0, len(tables), LOOK_AT_ONCE)
        ]

        def take_and_look_together(line: Line) -> dict[int, Seen]:
            answers = line.send_transaction([claims], looks, database.idle_transaction_s)
            answers = answers[len(claims) :]
            return self._seen(row for answer in answers for row in answer.rows)

        found = database.packet(take_and_look_together)
        if found is not None:
            return found
        if len(parts) == 1:  # one statement commits itself, and the look follows on its connection
            return database.read(take_and_look)
        # Several share a commit, which is the dear part.
        database.run(take)
        return database.read(lambda connection: self._rows(connection, database, parts))

    def take_over(
        self, database: Database, shard: int, job_id: int, seen: str, token: str
    ) -> Seen | None:
        """Claims one running job whose lease is over, as it was seen. None: somebody else was faster.

        One whose row is locked by another transaction is left to it.
        """

        reason = f"the lease of {seen} was over"
        move = Move("take_over", Status.RUNNING, Status.RUNNING, _process_of(token), reason)

        def take(connection: Connection) -> None:
            values = {"id": job_id, "seen": seen, "token": token}
            if not _is_free(connection, shard, job_id):
                return
            if execute_on(connection, shard, self._take_over, values).rowcount:
                record(connection, database, shard, c.job_id == job_id, move)

        database.run(take)
        parts = [(shard, [job_id])]
        row = database.read(lambda connection: self._rows(connection, database, parts)).get(job_id)
        return (
            row if row is not None and row.status is Status.RUNNING and row.token == token else None
        )

    def bury_lost(
        self, database: Database, shard: int, job_id: int, seen: str, error: str, actor: str
    ) -> bool:
        """Ends a running job whose lease is over and whose attempts are used up; not a locked one."""
        move = Move(Kind.BURY, Status.RUNNING, Status.DEAD, _process_of(actor), error)

        def work(connection: Connection) -> bool:
            if not _is_free(connection, shard, job_id):
                return False
            if not execute_on(connection, shard, _BURY_LOST, {"id": job_id, "seen": seen}).rowcount:
                return False
            _write_dead_letter(connection, database, shard, job_id, error)
            record(connection, database, shard, c.job_id == job_id, move)
            return True

        return database.run(work)

    # ---- settle

    def settle(self, database: Database, outcomes: Sequence[Outcome]) -> set[tuple[int, str]]:
        """Records outcomes in one transaction. Returns the (job_id, token) pairs that held.

        A pair that is missing was stale: its row runs under another token, or has ended.
        """
        routing = self._databases.routing
        groups: dict[tuple[int, Kind, str], list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            groups[(routing.shard(gene_of(outcome.job_id)), outcome.kind, outcome.token)].append(
                outcome
            )
        # Shard by shard and ids ascending: two settlers never wait for each other crosswise.
        ordered = [(key, sorted(groups[key], key=lambda o: o.job_id)) for key in sorted(groups)]

        def work(connection: Connection) -> set[tuple[int, str]]:
            held: set[tuple[int, str]] = set()
            for (shard, kind, token), group in ordered:
                ids = self._settle_group(connection, database, shard, kind, token, group)
                held.update((job_id, token) for job_id in ids)
            return held

        kinds = {kind for _, kind, _ in groups}
        if kinds == {Kind.DONE}:
            together = partial(self._done_together, database=database, groups=ordered)
            found = database.packet(together)
            if found is not None:
                return found
        alone = len(ordered) == 1 and kinds <= _ONE_STATEMENT
        return database.read(work) if alone else database.run(work)

    def _done_together(
        self,
        line: Line,
        database: Database,
        groups: Sequence[tuple[tuple[int, Kind, str], list[Outcome]]],
    ) -> set[tuple[int, str]]:
        ids = [[outcome.job_id for outcome in group] for _, group in groups]
        changes = [
            self._done.on(database.job_table_name(shard), some, token=token)
            for ((shard, _, token), _), some in zip(groups, ids, strict=True)
        ]
        answers = line.send_transaction([changes], [], database.idle_transaction_s)
        if any(answer.rowcount != len(some) for answer, some in zip(answers, ids, strict=True)):
            # Some are stale, or this repeats it. One by one it is seen which are as we left them.
            raise NotTogetherError
        return {(outcome.job_id, outcome.token) for _, group in groups for outcome in group}

    def _rows(
        self, connection: Connection, database: Database, parts: list[tuple[int, list[int]]]
    ) -> dict[int, Seen]:
        return self._seen(
            row
            for shard, ids in parts
            for row in self._look.run(
                connection, database.job_table_name(shard), ids
            ).cursor.fetchall()
        )

    def _seen(self, rows: Iterable[tuple[Any, ...]]) -> dict[int, Seen]:
        """By id. `rows`: as the driver gives them."""
        found: dict[int, Seen] = {}
        for facts in self._look.converted(rows):
            facts[3], facts[-1] = status_of(facts[3]), bool(facts[-1])
            found[facts[0]] = Seen._make(facts)
        return found

    def _settle_group(
        self,
        connection: Connection,
        database: Database,
        shard: int,
        kind: Kind,
        token: str,
        group: list[Outcome],
    ) -> set[int]:
        ids = [outcome.job_id for outcome in group]
        if kind is Kind.DONE:
            changed = self._done.run(
                connection, database.job_table_name(shard), ids, token=token
            ).rowcount
        elif kind is Kind.GIVE_BACK:
            values = {"ids": ids, "token": token}
            changed = execute_on(connection, shard, _SETTLE[kind], values).rowcount
        else:  # each has a time, a reason and an event of its own
            changed = 0
            for outcome in group:
                changed += self._settle_one(connection, database, shard, outcome)
        if changed == len(ids):
            held = set(ids)
        else:
            # Some are stale, or this repeats a settle whose answer was lost: then the row stands as we
            # left it, still under our token.
            mine = and_(c.job_id.in_(ids), c.worker == token, c.status == int(_STATUS_AFTER[kind]))
            held = set(execute_on(connection, shard, select(c.job_id).where(mine)).scalars())
        return held

    def _settle_one(
        self, connection: Connection, database: Database, shard: int, outcome: Outcome
    ) -> int:
        """How many rows it changed: 1, or 0."""
        job_id, kind = outcome.job_id, outcome.kind
        values: dict[str, Any] = {"ids": [job_id], "token": outcome.token}
        if kind in (Kind.RETRY, Kind.SNOOZE):
            values["due"] = outcome.due_ms
        changed = execute_on(connection, shard, _SETTLE[kind], values).rowcount
        if not changed or kind is Kind.SNOOZE:
            return changed
        if kind is Kind.BURY:
            _write_dead_letter(connection, database, shard, job_id, outcome.error)
        actor = _process_of(outcome.token)
        move = Move(kind, Status.RUNNING, _STATUS_AFTER[kind], actor, outcome.error)
        record(connection, database, shard, c.job_id == job_id, move)
        return changed


def _process_of(token: str) -> str:
    """host:pid, which a claim's token begins with: the actor of its events."""
    return ":".join(token.split(":", 2)[:2])


# ---- statements on any shard

_STILL = (
    c.job_id == bindparam("id"),
    c.status == int(Status.RUNNING),
    c.worker == bindparam("seen"),
)
"""The row runs under this token still."""


def _claimed(lease_end: Any) -> dict[str, Any]:
    return {
        "status": int(Status.RUNNING),
        "worker": bindparam("token"),
        "attempts": c.attempts + 1,
        "due_time": lease_end,
        "claim_time": db_now(),
        "gmt_modified": db_now(),
    }


def _claim(due: Any, types: list[int] | None, lease_end: Any) -> Update:
    ours = [] if types is None else [c.biz_type.in_(types or [_NO_TYPE])]
    return (
        update(JOB)
        .where(
            c.job_id.in_(bindparam("ids", expanding=True)),
            c.status == int(Status.PENDING),
            due,
            *ours,
        )
        .values(**_claimed(lease_end))
    )


def _settle(kind: Kind, *values: tuple[Any, Any]) -> Update:
    """MySQL sees values that are already set: what another value reads must come after it."""
    return (
        update(JOB)
        .where(
            c.job_id.in_(bindparam("ids", expanding=True)),
            c.status == int(Status.RUNNING),
            c.worker == bindparam("token"),
        )
        .ordered_values((c.status, int(_STATUS_AFTER[kind])), (c.gmt_modified, db_now()), *values)
    )


_DUE = bindparam("due", type_=Millis())
_UNTRIED = case((c.attempts == 1, c.action_time), else_=db_now())
_SETTLE = {
    Kind.DONE: _settle(Kind.DONE, (c.due_time, None)),
    Kind.DROP: _settle(Kind.DROP, (c.due_time, None)),
    Kind.BURY: _settle(Kind.BURY, (c.due_time, None)),
    Kind.RETRY: _settle(Kind.RETRY, (c.due_time, _DUE)),
    Kind.SNOOZE: _settle(
        Kind.SNOOZE, (c.action_time, _DUE), (c.due_time, _DUE), (c.attempts, c.attempts - 1)
    ),
    Kind.GIVE_BACK: _settle(Kind.GIVE_BACK, (c.due_time, _UNTRIED), (c.attempts, c.attempts - 1)),
}
_ONE_STATEMENT = {Kind.DONE, Kind.GIVE_BACK}
"""Kinds whose group is settled by a single statement, which needs no transaction around it."""

_BURY_LOST = (
    update(JOB)
    .where(*_STILL, c.due_time <= db_now())
    .values(status=int(Status.DEAD), due_time=None, gmt_modified=db_now())
)
_FREE = select(c.job_id).where(c.job_id == bindparam("id")).with_for_update(skip_locked=True)
_LOOK = select(*JOB_COLUMNS, c.due_time <= db_now()).where(
    c.job_id.in_(bindparam("ids", expanding=True))
)


def _is_free(connection: Connection, shard: int, job_id: int) -> bool:
    """Locks a row unless another transaction has; what may be done to it is the caller's guard.

    It may be of the process that is the reason why the lease was lost, and stand still: whoever
    waits for it keeps the suspects behind this one waiting too.
    """
    return execute_on(connection, shard, _FREE, {"id": job_id}).first() is not None


def _write_dead_letter(
    connection: Connection, database: Database, shard: int, job_id: int, error: str
) -> None:
    dead = database.dead
    connection.execute(delete(dead).where(dead.c.job_id == job_id))  # of an earlier life
    query = select(c.biz_id, c.biz_type, c.attempts).where(c.job_id == job_id)
    facts = execute_on(connection, shard, query).one()
    connection.execute(
        insert(dead).values(
            job_id=job_id,
            biz_id=facts.biz_id,
            biz_type=facts.biz_type,
            attempts=facts.attempts,
            error=error[:ERROR_CHARS_MAX],
            dead_time=db_now(),
        )
    )
