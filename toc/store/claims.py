"""The verbs of workers: claim, take over, settle. Invariants I2, I3, I5 and I7 stand on these statements.

A claim is one UPDATE that sets pending, due rows to running under a token, then COMMIT, then a read: the
attempt is committed before anybody reads the row. A settle changes only a row that still runs
under its claim's token; a stale worker changes nothing. The lease is in the row, by the database's
clock: `due_time` of a running row is the time from which any worker may take it over.

No clock is trusted alone: Redis' time counts only as far as the database's clock agrees, and the database's
clock only within the bounds that this process keeps for it (see `runtime.server_clock`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from toc.domain.tokens import ALONE, process_of, without_mark
from toc.errors import StoreUnavailable
from toc.runtime.server_clock import TimeBounds
from toc.store.columns import Millis, db_now, db_now_plus
from toc.store.databases import Database, Databases, execute_on
from toc.store.events import Transition, record_events
from toc.store.pipeline import PipelinedConnection, PipelineUnsupportedError
from toc.store.prepared import PreparedStatement
from toc.store.rows import JOB_COLUMNS, status_from_number
from toc.store.schema import JOB

c = JOB.c
ERROR_CHARS_MAX = 4000
SHARDS_PER_SELECT_MAX = 240  # shards, by one statement
SKEW_MS = 1000  # how far Redis' clock may be ahead of the database's and still be believed
_NO_TYPE = 0  # types are numbered from 1; prepared text cannot hold an empty IN ()


class OutcomeKind(StrEnum):
    """How a handler run is settled."""

    DONE = "done"
    RETRY = "retry"  # tried again at due_ms
    SNOOZE = "snooze"  # not an attempt; action_time moves to due_ms
    GIVE_BACK = "give_back"  # never started, or stopped with its process; not an attempt
    DROP = "drop"  # needs no action any more: cancelled by its handler
    BURY = "bury"  # dead, with a dead letter


_STATUS_AFTER = {
    OutcomeKind.DONE: Status.DONE,
    OutcomeKind.RETRY: Status.PENDING,
    OutcomeKind.SNOOZE: Status.PENDING,
    OutcomeKind.GIVE_BACK: Status.PENDING,
    OutcomeKind.DROP: Status.CANCELLED,
    OutcomeKind.BURY: Status.DEAD,
}


class Outcome(NamedTuple):
    """The outcome of one claimed job, to be settled under `token`.

    `previous_token`: only when a take-over is given back: the token that the job was taken over from.
    Settling restores the row: it runs under that token, its lease is over, and the attempt does not count.
    If it became pending instead, it would share a batch again, and that it was lost would be forgotten (I7).
    """

    job_id: int
    token: str
    kind: OutcomeKind
    due_ms: int = 0  # retry and snooze: when next
    error: str = ""  # retry, drop, bury: why; the dead letter's text
    previous_token: str = ""  # give_back


class ClaimedRow(NamedTuple):
    """A row as read after the claim. Times in milliseconds since 1970 UTC."""

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
    overdue: bool  # due_time has passed, by the database's clock within its believed bounds


class Claims:
    """Worker verbs, each for one database and one transaction.

    `lease_ms`: the lease of each type number; rows of other types are not claimed.
    """

    def __init__(self, databases: Databases, lease_ms: Mapping[int, int]) -> None:
        self._databases = databases
        self._dialect = databases[0].engine.dialect
        self._select_claimed = PreparedStatement(_SELECT_CLAIMED, self._dialect)
        self._settle_done = PreparedStatement(_SETTLE[OutcomeKind.DONE], self._dialect)
        self.set_lease_times(lease_ms)

    def set_lease_times(self, lease_ms: Mapping[int, int]) -> None:
        """From now on rows of these types are claimed. Takes a few milliseconds: it compiles statements."""
        lease_end = db_now_plus(
            _lease_expression(lease_ms), bindparam("lease_from", type_=Millis())
        )
        types = sorted(lease_ms)
        latest = db_now_plus(SKEW_MS)  # guard: claim-skew
        claim_at = _claim_statement(latest, types, lease_end)
        claim_now = _claim_statement(db_now(), types, lease_end)
        self._claim_before = PreparedStatement(claim_at, self._dialect)
        self._claim_due = PreparedStatement(claim_now, self._dialect)
        self._take_over = (
            update(JOB)
            .where(
                *_RUNS_UNDER_SEEN,  # guard: take-over-seen
                *_LEASE_IS_OVER,  # guard: take-over-lease
            )
            .values(**_claim_values(lease_end))
        )

    # ---- claim

    def claim(
        self,
        database: Database,
        ids_by_shard: Mapping[int, Sequence[int]],
        token: str,
        now_ms: int | None,
    ) -> dict[int, ClaimedRow]:
        """Claims the pending and due rows, commits, and reads all rows, by id. Missing ids are deleted rows.

        `now_ms`: the time by which the jobs were found due (Redis' TIME from pop); None: the database's.
        A row that is not due by the database's clock as well (within SKEW_MS) is not claimed.
        A returned row with this `token` is claimed. Repeating the call with the same token is safe.
        """
        parts = [(shard, sorted(ids_by_shard[shard])) for shard in sorted(ids_by_shard)]

        bounds = database.server_clock.bounds()
        statement = self._claim_before if now_ms is not None else self._claim_due
        until_ms = bounds.due_ms
        if now_ms is not None:
            until_ms = min(now_ms, until_ms)  # guard: claim-bound
        values = {"token": token, "until": until_ms, "lease_from": bounds.from_ms}
        claims = [
            statement.bind(database.job_table_name(shard), ids, **values) for shard, ids in parts
        ]

        def claim_rows(connection: Connection) -> None:
            for text, values in claims:
                connection.exec_driver_sql(text, values)

        def claim_and_read(connection: Connection) -> dict[int, ClaimedRow]:
            claim_rows(connection)
            return self._read_rows(connection, database, parts, bounds)

        tables = [(database.job_table_name(shard), ids) for shard, ids in parts]
        reads = [
            self._select_claimed.bind_union(
                tables[at : at + SHARDS_PER_SELECT_MAX], lease_until=bounds.lease_ms
            )
            for at in range(0, len(tables), SHARDS_PER_SELECT_MAX)
        ]

        def claim_and_read_in_packet(line: PipelinedConnection) -> dict[int, ClaimedRow]:
            answers = line.send_transaction([claims], reads, database.idle_transaction_s)
            answers = answers[len(claims) :]
            return self._to_claimed_rows(row for answer in answers for row in answer.rows)

        found = database.run_pipelined(claim_and_read_in_packet)
        if found is not None:
            return found
        if len(parts) == 1:  # one statement commits itself; the read follows on the same connection
            return database.read(claim_and_read)
        # Several statements share one commit, which is the expensive part.
        database.run_transaction(claim_rows)
        return database.read(
            lambda connection: self._read_rows(connection, database, parts, bounds)
        )

    def take_over(
        self,
        database: Database,
        shard: int,
        job_id: int,
        seen_token: str,
        token: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> ClaimedRow | None:
        """Claims one running job whose lease is over and that still runs under `seen_token`.

        None: another process was faster, or another transaction has locked the row. `before_commit()` is
        called before the COMMIT is sent: if this method raises and it was not called, nothing has been
        committed, and nothing will be. Raises StoreUnavailable when the row is locked and the lock may be
        that of this call's first try: its COMMIT was sent, and the answer was lost.
        """
        sent = False  # True: a COMMIT was sent, and may take effect at any time

        reason = f"the lease of {seen_token} was over"
        transition = Transition(
            "take_over", Status.RUNNING, Status.RUNNING, process_of(token), reason
        )

        bounds = database.server_clock.bounds()
        values = {
            "id": job_id, "seen": seen_token, "token": token,
            "lease_until": bounds.lease_ms, "lease_from": bounds.from_ms,
        }  # fmt: skip

        def take_over_row(connection: Connection) -> None:
            nonlocal sent
            if not _try_lock(connection, shard, job_id):
                if sent:
                    text = f"the answer of a COMMIT was lost, and job {job_id} is locked"
                    raise StoreUnavailable(database.index, TimeoutError(text))
                return
            if execute_on(connection, shard, self._take_over, values).rowcount:
                record_events(connection, database, shard, c.job_id == job_id, transition)
                sent = True
                before_commit()

        database.run_transaction(take_over_row)
        # After a lost answer the caller gives the job back: see `Outcome.previous_token`.
        parts = [(shard, [job_id])]
        row = database.read(lambda x: self._read_rows(x, database, parts, bounds)).get(job_id)
        return (
            row if row is not None and row.status is Status.RUNNING and row.token == token else None
        )

    def replace_token(
        self, database: Database, shard: int, job_id: int, seen_token: str, token: str
    ) -> bool:
        """Replaces the token of a running job, to add or remove the mark ":alone".

        The token must lose its mark before other jobs run at the same time as one taken over alone. Changes
        nothing when the row no longer runs under `seen_token`. False: another transaction (perhaps the
        handler's own) has locked the row; this method does not wait for it.
        """
        values = {"id": job_id, "seen": seen_token, "token": token}

        def work(connection: Connection) -> bool:
            free, locked = _try_lock_all(connection, shard, [job_id])
            if free:
                execute_on(connection, shard, _REPLACE_TOKEN, values)
            return not locked

        return database.run_transaction(work)

    def bury_expired(
        self, database: Database, shard: int, job_id: int, seen_token: str, error: str, actor: str
    ) -> bool:
        """Sets a running job to dead whose lease is over and whose attempts are used up.

        False: the row is locked, or does not run under `seen_token` any more.
        """
        transition = Transition(
            OutcomeKind.BURY, Status.RUNNING, Status.DEAD, process_of(actor), error
        )
        lease_ms = database.server_clock.bounds().lease_ms
        values = {"id": job_id, "seen": seen_token, "lease_until": lease_ms}

        def work(connection: Connection) -> bool:
            if not _try_lock(connection, shard, job_id):
                return False
            if not execute_on(connection, shard, _BURY_EXPIRED, values).rowcount:
                return False
            _write_dead_letter(connection, database, shard, job_id, error)
            record_events(connection, database, shard, c.job_id == job_id, transition)
            return True

        return database.run_transaction(work)

    # ---- settle

    def settle(
        self, database: Database, outcomes: Sequence[Outcome], locked: set[int] | None = None
    ) -> set[tuple[int, str]]:
        """Writes outcomes in one transaction. Returns the (job_id, token) pairs that were settled.

        A pair that is missing was stale: its row runs under another token, or has ended. `locked`: if given,
        rows that another transaction has locked are skipped, and their ids are added to this set.
        """
        held = self._settle(database, outcomes, locked)
        if len(held) < len(outcomes):  # a row whose token has lost its mark ":alone" is not stale
            late = [o for o in outcomes if o.token.endswith(ALONE) and o[:2] not in held]
            if late:
                unmarked = [o._replace(token=without_mark(o.token)) for o in late]
                held |= {
                    (i, token + ALONE) for i, token in self._settle(database, unmarked, locked)
                }
        return held

    def _settle(
        self, database: Database, outcomes: Sequence[Outcome], locked: set[int] | None
    ) -> set[tuple[int, str]]:
        routing = self._databases.routing
        groups: dict[tuple[int, OutcomeKind, str], list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            groups[(routing.shard(gene_of(outcome.job_id)), outcome.kind, outcome.token)].append(
                outcome
            )
        # Ordered by shard and id: two transactions never deadlock on each other's rows.
        ordered = [(key, sorted(groups[key], key=lambda o: o.job_id)) for key in sorted(groups)]

        def work(connection: Connection) -> set[tuple[int, str]]:
            held: set[tuple[int, str]] = set()
            for (shard, kind, token), together in ordered:
                group = together
                if locked is not None:
                    ids = {outcome.job_id for outcome in group}
                    free, busy = _try_lock_all(connection, shard, sorted(ids))
                    locked.update(busy)
                    group = [outcome for outcome in group if outcome.job_id in free]
                    if not group:
                        continue
                ids = self._settle_group(connection, database, shard, kind, token, group)
                held.update((job_id, token) for job_id in ids)
            return held

        kinds = {kind for _, kind, _ in groups}
        single = kinds <= _ONE_STATEMENT and not any(outcome.previous_token for outcome in outcomes)
        single = single and locked is None
        if kinds == {OutcomeKind.DONE} and locked is None:
            together = partial(self._settle_done_in_packet, database=database, groups=ordered)
            found = database.run_pipelined(together)
            if found is not None:
                return found
        return (
            database.read(work) if len(ordered) == 1 and single else database.run_transaction(work)
        )

    def _settle_done_in_packet(
        self,
        line: PipelinedConnection,
        database: Database,
        groups: Sequence[tuple[tuple[int, OutcomeKind, str], list[Outcome]]],
    ) -> set[tuple[int, str]]:
        ids = [[outcome.job_id for outcome in group] for _, group in groups]
        changes = [
            self._settle_done.bind(database.job_table_name(shard), some, token=token)
            for ((shard, _, token), _), some in zip(groups, ids, strict=True)
        ]
        answers = line.send_transaction([changes], [], database.idle_transaction_s)
        if any(answer.rowcount != len(some) for answer, some in zip(answers, ids, strict=True)):
            # Some are stale, or this is a retry. The statement-by-statement path finds out which.
            raise PipelineUnsupportedError
        return {(outcome.job_id, outcome.token) for _, group in groups for outcome in group}

    def _read_rows(
        self,
        connection: Connection,
        database: Database,
        parts: list[tuple[int, list[int]]],
        bounds: TimeBounds,
    ) -> dict[int, ClaimedRow]:
        return self._to_claimed_rows(
            row
            for shard, ids in parts
            for row in self._select_claimed.execute(
                connection, database.job_table_name(shard), ids, lease_until=bounds.lease_ms
            ).cursor.fetchall()
        )

    def _to_claimed_rows(self, rows: Iterable[tuple[Any, ...]]) -> dict[int, ClaimedRow]:
        """Converts the driver's rows to ClaimedRow, by id."""
        found: dict[int, ClaimedRow] = {}
        for values in self._select_claimed.convert_rows(rows):
            values[3], values[-1] = status_from_number(values[3]), bool(values[-1])
            found[values[0]] = ClaimedRow._make(values)
        return found

    def _settle_group(
        self,
        connection: Connection,
        database: Database,
        shard: int,
        kind: OutcomeKind,
        token: str,
        group: list[Outcome],
    ) -> set[int]:
        ids = [outcome.job_id for outcome in group]
        if kind is OutcomeKind.DONE:
            changed = self._settle_done.execute(
                connection, database.job_table_name(shard), ids, token=token
            ).rowcount
        elif (
            kind is OutcomeKind.GIVE_BACK and not group[0].previous_token
        ):  # a take-over has its token for itself: its group is one job
            until_ms = database.server_clock.bounds().due_ms
            values = {"ids": ids, "token": token, "until": until_ms}
            changed = execute_on(connection, shard, _SETTLE[kind], values).rowcount
        else:  # each outcome has its own time, reason and event
            changed = 0
            for outcome in group:
                changed += self._settle_one(connection, database, shard, outcome)
        if changed == len(ids):
            held = set(ids)
        else:
            # Some are stale, or this is the retry of a settle whose answer was lost: then the row is as that
            # try left it, under our token.
            after, worker = _STATUS_AFTER[kind], token
            if group[0].previous_token:
                after, worker = Status.RUNNING, group[0].previous_token
            mine = and_(c.job_id.in_(ids), c.worker == worker, c.status == int(after))
            held = set(execute_on(connection, shard, select(c.job_id).where(mine)).scalars())
        return held

    def _settle_one(
        self, connection: Connection, database: Database, shard: int, outcome: Outcome
    ) -> int:
        """Settles one outcome; returns how many rows were changed: 1 or 0."""
        job_id, kind = outcome.job_id, outcome.kind
        values: dict[str, Any] = {"ids": [job_id], "token": outcome.token}
        if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZE):
            values["due"] = outcome.due_ms
        statement, move = _SETTLE[kind], Transition(kind, Status.RUNNING, _STATUS_AFTER[kind], "")
        if outcome.previous_token:
            values |= {
                "seen": outcome.previous_token,
                "until": database.server_clock.bounds().lease_ms,
            }
            statement, move = (
                _UNDO_TAKE_OVER,
                Transition("undo_take_over", Status.RUNNING, Status.RUNNING, ""),
            )
        changed = execute_on(connection, shard, statement, values).rowcount
        if not changed or kind is OutcomeKind.SNOOZE:
            return changed
        if kind is OutcomeKind.BURY:
            _write_dead_letter(connection, database, shard, job_id, outcome.error)
        move = replace(move, actor=process_of(outcome.token), reason=outcome.error)
        record_events(connection, database, shard, c.job_id == job_id, move)
        return changed


# ---- statements on any shard

_RUNS_UNDER_SEEN = (
    c.job_id == bindparam("id"),
    c.status == int(Status.RUNNING),
    c.worker == bindparam("seen"),
)
"""Conditions: the row still runs under the token `seen`."""
_LEASE_IS_OVER = (
    c.due_time <= db_now(),
    c.due_time <= bindparam("lease_until", type_=Millis()),  # guard: lease-over-believed
)


def _claim_values(lease_end: Any) -> dict[str, Any]:
    return {
        "status": int(Status.RUNNING),
        "worker": bindparam("token"),
        "attempts": c.attempts + 1,
        "due_time": lease_end,
        "claim_time": db_now(),
        "gmt_modified": db_now(),
    }


def _lease_expression(lease_ms: Mapping[int, int]) -> Any:
    """An SQL expression of the lease by type, in ms. The most frequent lease is its ELSE."""
    if not lease_ms:
        return 0
    most = Counter(lease_ms.values()).most_common(1)[0][0]
    named = {number: ms for number, ms in lease_ms.items() if ms != most}
    return case(named, value=c.biz_type, else_=most) if named else most


def _claim_statement(now: Any, types: list[int], lease_end: Any) -> Update:
    return (
        update(JOB)
        .where(
            c.job_id.in_(bindparam("ids", expanding=True)),
            c.status == int(Status.PENDING),  # guard: claim-pending
            c.due_time <= bindparam("until", type_=Millis()),  # guard: claim-until
            c.due_time <= now,  # guard: claim-due
            c.biz_type.in_(types or [_NO_TYPE]),
        )
        .values(**_claim_values(lease_end))
    )


def _settle_statement(kind: OutcomeKind, *values: tuple[Any, Any]) -> Update:
    """An UPDATE of one outcome kind.

    MySQL evaluates SET from left to right: a column is set after the expressions that read it.
    """
    return (
        update(JOB)
        .where(
            c.job_id.in_(bindparam("ids", expanding=True)),
            c.status == int(Status.RUNNING),
            c.worker == bindparam("token"),  # guard: settle-token
        )
        .ordered_values((c.status, int(_STATUS_AFTER[kind])), (c.gmt_modified, db_now()), *values)
    )


_DUE = bindparam("due", type_=Millis())
_UNTIL = bindparam("until", type_=Millis())
_BELIEVED_NOW = case(
    (db_now() <= _UNTIL, db_now()), else_=_UNTIL
)  # not later than the clock is believed
_DUE_AFTER_GIVE_BACK = case((c.attempts == 1, c.action_time), else_=_BELIEVED_NOW)
_SETTLE = {
    OutcomeKind.DONE: _settle_statement(OutcomeKind.DONE, (c.due_time, None)),
    OutcomeKind.DROP: _settle_statement(OutcomeKind.DROP, (c.due_time, None)),
    OutcomeKind.BURY: _settle_statement(OutcomeKind.BURY, (c.due_time, None)),
    OutcomeKind.RETRY: _settle_statement(OutcomeKind.RETRY, (c.due_time, _DUE)),
    OutcomeKind.SNOOZE: _settle_statement(
        OutcomeKind.SNOOZE, (c.action_time, _DUE), (c.due_time, _DUE), (c.attempts, c.attempts - 1)
    ),
    OutcomeKind.GIVE_BACK: _settle_statement(
        OutcomeKind.GIVE_BACK, (c.due_time, _DUE_AFTER_GIVE_BACK), (c.attempts, c.attempts - 1)
    ),
}
_UNDO_TAKE_OVER = (
    update(JOB)
    .where(
        c.job_id.in_(bindparam("ids", expanding=True)),
        c.status == int(Status.RUNNING),
        c.worker == bindparam("token"),
    )
    .values(
        worker=bindparam("seen"),
        attempts=c.attempts - 1,
        due_time=_BELIEVED_NOW,
        gmt_modified=db_now(),
    )
)
_ONE_STATEMENT = {OutcomeKind.DONE, OutcomeKind.GIVE_BACK}
"""Kinds whose group is settled by a single autocommit statement."""

_BURY_EXPIRED = (
    update(JOB)
    .where(*_RUNS_UNDER_SEEN, *_LEASE_IS_OVER)
    .values(status=int(Status.DEAD), due_time=None, gmt_modified=db_now())
)
_REPLACE_TOKEN = (
    update(JOB).where(*_RUNS_UNDER_SEEN).values(worker=bindparam("token"), gmt_modified=db_now())
)
_TRY_LOCK = select(c.job_id).where(c.job_id == bindparam("id")).with_for_update(skip_locked=True)
_SELECT_PRESENT = select(c.job_id).where(c.job_id.in_(bindparam("ids", expanding=True)))
_TRY_LOCK_ALL = _SELECT_PRESENT.with_for_update(skip_locked=True)
_SELECT_CLAIMED = select(*JOB_COLUMNS, and_(*_LEASE_IS_OVER)).where(
    c.job_id.in_(bindparam("ids", expanding=True))
)


def _try_lock(connection: Connection, shard: int, job_id: int) -> bool:
    """Locks a row without waiting; False: another transaction has locked it. Checks no status.

    The other transaction may belong to the process that lost the lease, and hang: waiting for it would
    delay the other lost jobs too.
    """
    return execute_on(connection, shard, _TRY_LOCK, {"id": job_id}).first() is not None


def _try_lock_all(
    connection: Connection, shard: int, ids: Sequence[int]
) -> tuple[set[int], set[int]]:
    """Locks rows without waiting: (locked now, locked by others). Ids in neither set have no row."""
    free = set(execute_on(connection, shard, _TRY_LOCK_ALL, {"ids": ids}).scalars())
    rest = [job_id for job_id in ids if job_id not in free]
    locked = execute_on(connection, shard, _SELECT_PRESENT, {"ids": rest}).scalars() if rest else ()
    return free, set(locked)


def _write_dead_letter(
    connection: Connection, database: Database, shard: int, job_id: int, error: str
) -> None:
    dead = database.dead
    connection.execute(delete(dead).where(dead.c.job_id == job_id))  # from before a redrive
    query = select(c.biz_id, c.biz_type, c.attempts).where(c.job_id == job_id)
    job = execute_on(connection, shard, query).one()
    connection.execute(
        insert(dead).values(
            job_id=job_id,
            biz_id=job.biz_id,
            biz_type=job.biz_type,
            attempts=job.attempts,
            error=error[:ERROR_CHARS_MAX],
            dead_time=db_now(),
        )
    )
