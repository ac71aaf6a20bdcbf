"""The statements of workers: claim, renew, take over, settle. Invariants I2, I3, I5 and I7 depend on these
statements.

A claim is one UPDATE that sets pending, due rows to running under a token, then COMMIT, then a SELECT: the
attempt is committed before the worker reads the row. A settle changes only a row that still runs under the
token of the claim, so a stale worker changes nothing. The lease is in the row, by the database's clock: from
the `lease_end_time` of a running row on, any worker may take the job over. A renewal moves it, if the row
still runs under the token of the claim (ADR 31). A claim leaves `due_time` as it is, so that no index changes
(ADR 32).

No clock is trusted alone: a claim by Redis' time must be due by the database's clock too, and the database's
clock counts only within the bounds that this process keeps for that clock (see `runtime.server_clock`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Update,
    and_,
    bindparam,
    case,
    or_,
    select,
    update,
)

from toc.domain.claim_tokens import ALONE, process_of_token, remove_alone_mark
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.errors import StoreUnavailable
from toc.runtime.server_clock import TimeBounds
from toc.store.column_types import DatetimeAsMillis, db_now, db_now_plus, later_of_db_now_plus
from toc.store.compiled_statement import IDS, CompiledStatement, compile_once
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.events import DeadLetterStatement, EventStatement, TransitionEvent
from toc.store.job_rows import JOB_COLUMNS, due_or_lease_end, status_from_number
from toc.store.schema import JOB
from toc.store.verb import Executor, Statement, StatementResult, Verb, run_statements

c = JOB.c
SHARDS_PER_SELECT_MAX = 240  # shards that one SELECT reads
SKEW_MS = 1000  # how far Redis' clock may be ahead of the database's clock
_Part = tuple[str, Sequence[int]]
"""A table, and ids of its rows."""
HeldRows = Literal["claim", "leave", "claim closed"]
_NO_TYPE = 0  # types are numbered from 1; prepared text cannot hold an empty IN ()


class OutcomeKind(StrEnum):
    """The kinds of outcome of a handler run."""

    DONE = "done"
    RETRY = "retry"  # failed; the next attempt is at due_ms
    SNOOZE = "snooze"  # no attempt is counted; action_time moves to due_ms
    GIVE_BACK = "give_back"  # not started, or cancelled as its process stops; no attempt is counted
    DROP = "drop"  # the handler cancels the job: no action is needed any more
    BURY = "bury"  # the job becomes dead, with a dead letter


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

    `previous_token`: only if a take-over is given back: the token under which the job ran before. Settling
    restores the row: the job runs under that token, the lease is over, and the attempt does not count. If the
    row became pending instead, the job would run beside other jobs again, although its lease was lost once
    (I7).
    """

    job_id: int
    token: str
    kind: OutcomeKind
    due_ms: int = 0  # retry and snooze: the next due time
    error: str = ""  # retry, drop, bury: the reason; the text of a dead letter
    previous_token: str = ""  # give_back
    document: str = ""  # what the handler has told, for the column `result`; "": the column stays


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
    biz_text: str | None
    tenant: str | None
    trace: str | None
    priority: int
    overdue: bool  # due_ms has passed, by the database's clock within its believed bounds


class RenewedLeases(NamedTuple):
    """The result of a renewal: claims, (job_id, token) each.

    valid: the lease was extended. lost: the row is pending, runs under another token, or has ended otherwise
    than as done. A claim is in neither set if another transaction has locked the row, or if the row is done
    under this token (`toc.complete`).
    """

    valid: set[tuple[int, str]]
    lost: set[tuple[int, str]]


class Claims:
    """The statements of workers; each method works on one database, in one transaction.

    `lease_ms`: how long a claim, a take-over and a renewal are valid. `types`: only rows of these type
    numbers are claimed.
    """

    def __init__(self, databases: Databases, lease_ms: int, types: Iterable[int] = ()) -> None:
        self._databases = databases
        self._lease_ms = lease_ms
        self._dialect = dialect = databases[0].engine.dialect
        self._select_claimed = compile_once(_SELECT_CLAIMED, dialect)
        self._select_rows = compile_once(_SELECT_ROWS, dialect)
        self._select_settled = compile_once(_SELECT_SETTLED, dialect)
        self._settles = {kind: compile_once(each, dialect) for kind, each in _SETTLE.items()}
        self._write_document = compile_once(_WRITE_DOCUMENT, dialect)
        self._undo_take_over = compile_once(_UNDO_TAKE_OVER, dialect)
        self._replace_token = compile_once(_REPLACE_TOKEN, dialect)
        self._bury_expired = compile_once(_BURY_EXPIRED, dialect)
        self._events = {database.index: EventStatement(database) for database in databases}
        self._letters = {database.index: DeadLetterStatement(database) for database in databases}
        self._take_over = compile_once(_TAKE_OVER, dialect)
        self._renew = compile_once(_RENEW, dialect)
        self.set_claimed_types(types)

    def set_claimed_types(
        self, types: Iterable[int], held: Collection[int] = (), closed: Collection[int] = ()
    ) -> None:
        """Sets the types whose rows are claimed from now on. A new set of types takes milliseconds.

        `held`: types that are claimed only if their ids were popped from their hold topic, or found by a
        scanner. `closed`: types of which no row is claimed now.
        """
        types = set(types)
        numbers = types.difference(closed)  # guard: claim-open-types
        self._claim_before = self._compile_claim(_LATEST, numbers)
        self._claim_due = self._claim_closed = self._compile_claim(_NOW, numbers)
        if closed:
            self._claim_closed = self._compile_claim(_NOW, types)
        self._claim_before_shared = self._claim_before
        if not numbers.isdisjoint(held):
            self._claim_before_shared = self._compile_claim(_LATEST, numbers.difference(held))

    def _compile_claim(self, latest: ColumnElement[int], types: Iterable[int]) -> CompiledStatement:
        return compile_once(_claim_statement(latest, tuple(sorted(types))), self._dialect)

    # ---- claim

    def claim_jobs(
        self,
        database: Database,
        ids_by_shard: Mapping[int, Sequence[int]],
        token: str,
        now_ms: int | None,
        held_rows: HeldRows = "claim",
    ) -> dict[int, ClaimedRow]:
        """Claims the rows that are pending and due, commits, and returns the rows of all ids, by id.

        `held_rows`: "leave": rows of held types are not claimed, because these ids were popped from a topic
        of several types. "claim closed": rows of closed types are claimed too; only without `now_ms`.

        A row is returned even if it was not claimed; an id without a row was deleted.

        `now_ms`: the time by which the jobs were due (Redis' TIME from pop); None: the database's time.
        A row that is not due by the database's clock as well (within SKEW_MS) is not claimed.
        A returned row with this `token` is claimed. Repeating the call with the same token is safe.
        """
        parts = [
            (database.job_table_name(shard), sorted(ids))
            for shard, ids in sorted(ids_by_shard.items())
        ]
        bounds = database.server_clock.statement_bounds()
        statement = self._claim_due if held_rows != "claim closed" else self._claim_closed
        if now_ms is not None:
            statement = self._claim_before if held_rows == "claim" else self._claim_before_shared
        until_ms = bounds.due_ms
        if now_ms is not None:
            until_ms = min(now_ms, until_ms)  # guard: claim-bound
        values = {"token": token, "until": until_ms, "lease_from": bounds.from_ms}
        values["lease_ms"] = self._lease_ms
        claims = [statement.bind(table, ids, **values) for table, ids in parts]

        def read_rows(results: list[StatementResult], executor: Executor) -> dict[int, ClaimedRow]:
            found = self._to_claimed_rows(results[len(claims) :], token)
            if len(found) < sum(len(ids) for _, ids in parts):
                left = [(table, [i for i in ids if i not in found]) for table, ids in parts]
                selects = self._row_selects([part for part in left if part[1]], bounds)
                found |= self._to_rows(executor.send_autocommit(selects))
            return found

        selects = _split_union(self._select_claimed, parts, token=token)
        return database.run_verb(Verb(claims, selects, read_rows))

    # ---- read

    def read_rows(
        self, database: Database, ids_by_shard: Mapping[int, Sequence[int]]
    ) -> dict[int, ClaimedRow]:
        """Reads rows by id, whatever their status; an id without a row is left out. Changes nothing."""
        selects = self._selects_of_shards(database, ids_by_shard)
        results = database.run_read(lambda connection: run_statements(connection, selects))
        return self._to_rows(results)

    def _selects_of_shards(
        self, database: Database, ids_by_shard: Mapping[int, Sequence[int]]
    ) -> list[Statement]:
        parts = [
            (database.job_table_name(shard), sorted(ids))
            for shard, ids in sorted(ids_by_shard.items())
        ]
        return self._row_selects(parts, database.server_clock.statement_bounds())

    # ---- renew

    def renew_leases(
        self,
        database: Database,
        claims: Sequence[tuple[int, str]],
        lease_ms: int | None = None,
    ) -> RenewedLeases:
        """Extends the leases of claims, (job_id, token) each, in one transaction.

        `lease_ms`: to so long from now; None: the length that this object was made with. A row that another
        transaction has locked, perhaps the handler's own, is left out: the renewal of the other leases must
        not wait for this lock. The call may be repeated.
        """
        lease_ms = self._lease_ms if lease_ms is None else lease_ms
        renewed = self._renew_under_tokens(database, claims, lease_ms)
        late = [claim for claim in renewed.lost if claim[1].endswith(ALONE)]
        if late:  # ":alone" may have been removed from the tokens in these rows
            unmarked = [(job_id, remove_alone_mark(token)) for job_id, token in late]
            again = self._renew_under_tokens(database, unmarked, lease_ms)
            valid = renewed.valid | {(job_id, token + ALONE) for job_id, token in again.valid}
            lost = renewed.lost.difference(late)
            lost |= {(job_id, token + ALONE) for job_id, token in again.lost}
            return RenewedLeases(valid, lost)
        return renewed

    def _renew_under_tokens(
        self, database: Database, claims: Sequence[tuple[int, str]], lease_ms: int
    ) -> RenewedLeases:
        routing = self._databases.routing
        ids_of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for job_id, token in claims:
            ids_of[routing.shard_of_hash(routing_bits_of(job_id)), token].append(job_id)
        from_ms = database.server_clock.statement_bounds().from_ms
        values = {"lease_from": from_ms, "lease_ms": lease_ms}

        def renew_unlocked_rows(connection: Connection) -> RenewedLeases:
            valid: set[tuple[int, str]] = set()
            known: set[tuple[int, str]] = set()
            for (shard, token), ids in sorted(ids_of.items()):
                free, locked = _lock_without_waiting(connection, shard, sorted(ids))
                known |= {(job_id, token) for job_id in ids if job_id not in locked}
                if free:
                    table, some = database.job_table_name(shard), sorted(free)
                    renew = self._renew.bind(table, some, token=token, **values)
                    status = int(Status.RUNNING)
                    select = self._select_settled.bind(table, some, token=token, status=status)
                    _, rows = run_statements(connection, [renew, select])
                    running = {job_id for (job_id,) in rows.rows}
                    valid |= {(job_id, token) for job_id in running}
                    rest = sorted(free - running)
                    if rest:
                        # A handler that has called `toc.complete` may go on: its claim is not lost.
                        done = int(Status.DONE)
                        ended = self._select_settled.bind(table, rest, token=token, status=done)
                        (rows,) = run_statements(connection, [ended])
                        known -= {(job_id, token) for (job_id,) in rows.rows}
            return RenewedLeases(valid, known - valid)

        return database.run_transaction(renew_unlocked_rows)

    # ---- take over

    def take_over_job(
        self,
        database: Database,
        shard: int,
        job_id: int,
        seen_token: str,
        token: str,
        before_commit: Callable[[], None] = lambda: None,
        lease_ms: int | None = None,
    ) -> ClaimedRow | None:
        """Claims one running job whose lease is over and that still runs under `seen_token`.

        `lease_ms`: the length of the new lease; None: the length that this object was made with.

        None: another process was faster, or another transaction has locked the row. `before_commit()` is
        called before the COMMIT is sent: if this method raises without that call, nothing is committed, now
        or later. Raises StoreUnavailable if the row is locked, and the lock may belong to this call's first
        try, whose COMMIT was sent and whose answer was lost.
        """
        sent = False  # True: a COMMIT was sent, and may take effect at any time
        table, bounds = database.job_table_name(shard), database.server_clock.statement_bounds()
        reason = f"the lease of {seen_token} was over"
        running, actor = Status.RUNNING, process_of_token(token)
        times = {"lease_until": bounds.lease_ms, "lease_from": bounds.from_ms}
        times["lease_ms"] = self._lease_ms if lease_ms is None else lease_ms
        changes = [
            self._take_over.bind(table, [job_id], seen=seen_token, token=token, **times),
            self._events[database.index].bind(
                table, job_id, TransitionEvent("take_over", running, running, actor, reason)
            ),
        ]

        def take_over_row(connection: Connection) -> None:
            nonlocal sent
            free, _ = _lock_without_waiting(connection, shard, [job_id])
            if not free and sent:
                text = f"the answer of a COMMIT was lost, and job {job_id} is locked"
                raise StoreUnavailable(database.index, TimeoutError(text))
            if free and run_statements(connection, changes)[0].rowcount:
                sent = True
                before_commit()

        database.run_transaction(take_over_row)
        # After a lost answer the caller gives the job back: see `Outcome.previous_token`.
        reads = self._row_selects([(table, [job_id])], bounds)
        results = database.run_read(lambda connection: run_statements(connection, reads))
        row = self._to_rows(results).get(job_id)
        is_ours = row is not None and row.status is running and row.token == token
        return row if is_ours else None

    def replace_claim_token(
        self, database: Database, shard: int, job_id: int, seen_token: str, token: str
    ) -> bool:
        """Replaces the token of a running job, to add or remove ":alone" at its end.

        If a job was taken over alone, ":alone" must be removed before other jobs run at the same time.
        Changes nothing if the row no longer runs under `seen_token`. False: another transaction (perhaps the
        handler's own) has locked the row; this method does not wait for the lock.
        """
        table = database.job_table_name(shard)
        change = self._replace_token.bind(table, [job_id], seen=seen_token, token=token)
        _, locked = _change_row_unless_locked(database, shard, job_id, [change])
        return not locked

    def bury_expired_job(
        self, database: Database, shard: int, job_id: int, seen_token: str, error: str, actor: str
    ) -> bool:
        """Sets a running job to dead if its lease is over. The caller knows that its attempts are used up.

        False: the row is locked, or does not run under `seen_token` any more.
        """
        table, lease_ms = (
            database.job_table_name(shard),
            database.server_clock.statement_bounds().lease_ms,
        )
        transition = TransitionEvent(
            "bury", Status.RUNNING, Status.DEAD, process_of_token(actor), error
        )
        changes = [
            self._bury_expired.bind(table, [job_id], seen=seen_token, lease_until=lease_ms),
            self._events[database.index].bind(table, job_id, transition),
            self._letters[database.index].bind(table, job_id, error),
        ]
        changed, _ = _change_row_unless_locked(database, shard, job_id, changes)
        return changed

    def _row_selects(self, parts: Sequence[_Part], bounds: TimeBounds) -> list[Statement]:
        """The statements that read rows, whether they are claimed or not. `parts`: tables and their ids."""
        return _split_union(self._select_rows, parts, lease_until=bounds.lease_ms)

    def _to_claimed_rows(
        self, results: Iterable[StatementResult], token: str
    ) -> dict[int, ClaimedRow]:
        """Converts the rows of `_SELECT_CLAIMED`, which run under `token`, by id."""
        rows = (row for result in results for row in result.rows)
        return {
            row[0]: ClaimedRow._make((*row[:3], Status.RUNNING, *row[3:7], token, *row[7:], False))
            for row in self._select_claimed.convert_rows(rows)
        }

    def _to_rows(self, results: Iterable[StatementResult]) -> dict[int, ClaimedRow]:
        """Converts the rows of `_SELECT_ROWS`, by id."""
        found: dict[int, ClaimedRow] = {}
        rows = (row for result in results for row in result.rows)
        for values in self._select_rows.convert_rows(rows):
            values[3], values[-1] = status_from_number(values[3]), bool(values[-1])
            found[values[0]] = ClaimedRow._make(values)
        return found

    # ---- settle

    def settle_jobs(
        self, database: Database, outcomes: Sequence[Outcome], locked: set[int] | None = None
    ) -> set[tuple[int, str]]:
        """Writes outcomes in one transaction. Returns the (job_id, token) pairs that were settled.

        A pair that is missing was stale: the row runs under another token, or has ended. If `locked` is
        given, rows that another transaction has locked are skipped, and their ids are added to `locked`.
        """
        held = self._settle_groups(database, outcomes, locked)
        if len(held) < len(outcomes):
            # An outcome is not stale if only ":alone" was removed from the token in the row.
            late = [o for o in outcomes if o.token.endswith(ALONE) and o[:2] not in held]
            if late:
                unmarked = [o._replace(token=remove_alone_mark(o.token)) for o in late]
                held |= {
                    (i, token + ALONE)
                    for i, token in self._settle_groups(database, unmarked, locked)
                }
        return held

    def settle_job_with(
        self, database: Database, outcome: Outcome, work: Callable[[Connection], None]
    ) -> bool:
        """Settles one outcome, and calls `work(connection)` in the same transaction, before its COMMIT.

        `work` may be called again after an answer was lost. False: the outcome was stale, `work` was not
        called.
        """
        shard = self._databases.routing.shard_of_hash(routing_bits_of(outcome.job_id))

        def settle_and_work(connection: Connection, settled_as: Outcome) -> bool:
            group = self._make_group_settle(database, shard, [settled_as])
            *_, rest = run_statements(connection, [*group.changes, group.select_settled()])
            if rest.rows:
                work(connection)
            return bool(rest.rows)

        if database.run_transaction(partial(settle_and_work, settled_as=outcome)):
            return True
        if not outcome.token.endswith(ALONE):
            return False
        unmarked = outcome._replace(token=remove_alone_mark(outcome.token))
        return database.run_transaction(partial(settle_and_work, settled_as=unmarked))

    def _settle_groups(
        self, database: Database, outcomes: Sequence[Outcome], locked: set[int] | None
    ) -> set[tuple[int, str]]:
        routing = self._databases.routing
        by_group: dict[tuple[int, OutcomeKind, str], list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            shard = routing.shard_of_hash(routing_bits_of(outcome.job_id))
            by_group[(shard, outcome.kind, outcome.token)].append(outcome)
        # Ordered by shard and id: two transactions never deadlock on each other's rows.
        groups = [(shard, sorted(group)) for (shard, *_), group in sorted(by_group.items())]
        if locked is None:
            settles = [self._make_group_settle(database, shard, group) for shard, group in groups]
            return database.run_verb(_make_settle_verb(settles))

        def settle_unlocked_rows(connection: Connection) -> set[tuple[int, str]]:
            settled: set[tuple[int, str]] = set()
            for shard, group in groups:
                free, busy = _lock_without_waiting(
                    connection, shard, [outcome.job_id for outcome in group]
                )
                locked.update(busy)
                part = [outcome for outcome in group if outcome.job_id in free]
                if part:
                    settle = self._make_group_settle(database, shard, part)
                    *_, rest = run_statements(
                        connection, [*settle.changes, settle.select_settled()]
                    )
                    settled |= settle.settled_pairs(rest)
            return settled

        return database.run_transaction(settle_unlocked_rows)

    def _make_group_settle(
        self, database: Database, shard: int, outcomes: Sequence[Outcome]
    ) -> _GroupSettle:
        """Makes the settle of `outcomes`, which must have the same kind and token."""
        first = outcomes[0]
        token, kind, previous_token = first.token, first.kind, first.previous_token
        table, ids = database.job_table_name(shard), [outcome.job_id for outcome in outcomes]
        if kind in (OutcomeKind.DONE, OutcomeKind.GIVE_BACK) and not previous_token:
            changes = [
                self._bind_document(table, outcome.job_id, token, outcome.document)
                for outcome in outcomes
                if outcome.document
            ]
            changes.append(self._settles[kind].bind(table, ids, token=token))
        else:  # each outcome of another kind has its own time, reason and event
            changes = [
                statement
                for outcome in outcomes
                for statement in self._outcome_statements(database, table, outcome)
            ]
        # No two jobs share the token of a take-over, so the group is one job.
        after = Status.RUNNING if previous_token else _STATUS_AFTER[kind]
        select_settled = partial(
            self._select_settled.bind, table, ids, token=previous_token or token, status=int(after)
        )
        return _GroupSettle(outcomes, changes, select_settled)

    def _outcome_statements(
        self, database: Database, table: str, outcome: Outcome
    ) -> Iterator[Statement]:
        """The statements that settle one outcome and write its event."""
        ids, kind = [outcome.job_id], outcome.kind
        after, what = _STATUS_AFTER[kind], str(kind)
        values: dict[str, Any] = {"token": outcome.token}
        if outcome.previous_token:
            after, what = Status.RUNNING, "undo_take_over"
            until_ms = database.server_clock.statement_bounds().lease_ms
            values |= {"seen": outcome.previous_token, "until": until_ms}
            yield self._undo_take_over.bind(table, ids, **values)
        else:
            if outcome.document:
                yield self._bind_document(table, outcome.job_id, outcome.token, outcome.document)
            if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZE):
                values["due"] = outcome.due_ms
            yield self._settles[kind].bind(table, ids, **values)
        if kind is OutcomeKind.SNOOZE:
            return
        actor = process_of_token(outcome.token)
        ends = not outcome.previous_token
        transition = TransitionEvent(
            what, Status.RUNNING, after, actor, outcome.error, ends_attempt=ends
        )
        yield self._events[database.index].bind(table, outcome.job_id, transition)
        if kind is OutcomeKind.BURY:
            yield self._letters[database.index].bind(table, outcome.job_id, outcome.error)

    # ---- progress

    def write_documents(
        self, database: Database, documents: Sequence[tuple[int, str, str]]
    ) -> None:
        """Writes what handlers have told about running jobs: (job_id, token, document) each.

        One transaction. A row that does not run under its token, or that another transaction has locked, is
        left as it is.
        """
        by_shard: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
        routing = self._databases.routing
        for each in documents:
            by_shard[routing.shard_of_hash(routing_bits_of(each[0]))].append(each)

        def write_unlocked_rows(connection: Connection) -> None:
            for shard, some in sorted(by_shard.items()):
                table = database.job_table_name(shard)
                free, _ = _lock_without_waiting(connection, shard, sorted(it[0] for it in some))
                changes = [
                    self._bind_document(table, *each) for each in sorted(some) if each[0] in free
                ]
                if changes:
                    run_statements(connection, changes)

        database.run_transaction(write_unlocked_rows)

    def _bind_document(self, table: str, job_id: int, token: str, document: str) -> Statement:
        unmarked = remove_alone_mark(token)
        return self._write_document.bind(
            table, [job_id], token=token, unmarked=unmarked, document=document
        )


class _GroupSettle(NamedTuple):
    """The settle of outcomes of one shard, kind and token.

    select_settled() makes a statement that selects the rows in the state after the changes: rows that this
    try settled, or an earlier try whose answer was lost.
    """

    outcomes: Sequence[Outcome]
    changes: Sequence[Statement]
    select_settled: Callable[[], Statement]

    def settled_pairs(self, selected: StatementResult) -> set[tuple[int, str]]:
        """The (job_id, token) pairs that were settled, from the result of `select_settled`."""
        return {(job_id, self.outcomes[0].token) for (job_id,) in selected.rows}


def _make_settle_verb(groups: Sequence[_GroupSettle]) -> Verb[set[tuple[int, str]]]:
    """Makes the verb that settles groups; its result is the (job_id, token) pairs that were settled."""
    # Done rows do not change any more: they are selected after the COMMIT, and only if the counts differ.
    # Other rows may be claimed again after the COMMIT, so these are selected in the transaction.
    changes: list[Statement] = []
    ends: list[int] = []
    for group in groups:
        changes += group.changes
        if group.outcomes[0].kind is not OutcomeKind.DONE:
            changes.append(group.select_settled())
        ends.append(len(changes))

    def collect_settled_pairs(
        results: Sequence[StatementResult], executor: Executor
    ) -> set[tuple[int, str]]:
        settled: set[tuple[int, str]] = set()
        for group, end in zip(groups, ends, strict=True):
            last = results[end - 1]
            if group.outcomes[0].kind is not OutcomeKind.DONE:
                settled |= group.settled_pairs(last)
            elif last.rowcount == len(group.outcomes):
                settled |= {outcome[:2] for outcome in group.outcomes}
            else:
                settled |= group.settled_pairs(*executor.send_autocommit([group.select_settled()]))
        return settled

    return Verb(changes, (), collect_settled_pairs)


# ---- statements on any shard

_RUNS_UNDER_SEEN = (
    c.job_id.in_(IDS),
    c.status == int(Status.RUNNING),
    c.claim_token == bindparam("seen"),
)
"""Conditions: the row still runs under the token `seen`."""
_RUNS_UNDER_TOKEN = (
    c.job_id.in_(IDS),
    c.status == int(Status.RUNNING),
    c.claim_token == bindparam("token"),
)
"""Conditions: the row runs under the token `token`."""
_BELIEVED_UNTIL = bindparam("lease_until", type_=DatetimeAsMillis())
_LEASE_IS_OVER = (
    due_or_lease_end <= db_now(),
    due_or_lease_end <= _BELIEVED_UNTIL,  # guard: lease-over-believed
)


_LEASE_END = later_of_db_now_plus(
    bindparam("lease_ms", type_=Integer),
    bindparam("lease_from", type_=DatetimeAsMillis()),
)
_NOW = db_now()
_LATEST = db_now_plus(SKEW_MS)  # guard: claim-skew


def _claim_column_values() -> dict[str, Any]:
    return {
        "status": int(Status.RUNNING),
        "claim_token": bindparam("token"),
        "attempts": c.attempts + 1,
        "lease_end_time": _LEASE_END,
        "claim_time": db_now(),
        "gmt_modified": db_now(),
    }


@lru_cache(maxsize=256)
def _claim_statement(latest: ColumnElement[int], types: tuple[int, ...]) -> Update:
    return (
        update(JOB)
        .where(
            c.job_id.in_(IDS),
            c.status == int(Status.PENDING),  # guard: claim-pending
            c.due_time <= bindparam("until", type_=DatetimeAsMillis()),  # guard: claim-until
            c.due_time <= latest,  # guard: claim-due
            c.type_no.in_(types or [_NO_TYPE]),
        )
        .values(**_claim_column_values())
    )


def _settle_statement(kind: OutcomeKind, *values: tuple[Any, Any]) -> Update:
    """Makes the UPDATE that settles outcomes of one kind.

    MySQL evaluates SET from left to right: a column is set after the expressions that read it.
    """
    return (
        update(JOB)
        .where(
            c.job_id.in_(IDS),
            c.status == int(Status.RUNNING),
            c.claim_token == bindparam("token"),  # guard: settle-token
        )
        .ordered_values((c.status, int(_STATUS_AFTER[kind])), (c.gmt_modified, db_now()), *values)
    )


_DUE = bindparam("due", type_=DatetimeAsMillis())
_UNTIL = bindparam("until", type_=DatetimeAsMillis())
# The database's clock, limited by the bound `until` of this process.
_BELIEVED_NOW = case((db_now() <= _UNTIL, db_now()), else_=_UNTIL)
_ONE_ATTEMPT_LESS = (c.attempts, c.attempts - 1)
_SET: dict[OutcomeKind, list[tuple[Any, Any]]] = {
    OutcomeKind.DONE: [(c.due_time, None)],
    OutcomeKind.DROP: [(c.due_time, None)],
    OutcomeKind.BURY: [(c.due_time, None)],
    OutcomeKind.RETRY: [(c.due_time, _DUE)],
    OutcomeKind.SNOOZE: [(c.action_time, _DUE), (c.due_time, _DUE), _ONE_ATTEMPT_LESS],
    OutcomeKind.GIVE_BACK: [_ONE_ATTEMPT_LESS],  # its due_time is the one of before the claim
}
_SETTLE = {kind: _settle_statement(kind, *values) for kind, values in _SET.items()}
_UNDO_TAKE_OVER = (
    update(JOB)
    .where(*_RUNS_UNDER_TOKEN)
    .values(
        claim_token=bindparam("seen"),
        attempts=c.attempts - 1,
        lease_end_time=_BELIEVED_NOW,
        gmt_modified=db_now(),
    )
)
_TAKE_OVER = (
    update(JOB)
    .where(
        *_RUNS_UNDER_SEEN,  # guard: take-over-seen
        *_LEASE_IS_OVER,  # guard: take-over-lease
    )
    .values(**_claim_column_values())
)
_RENEW = (
    update(JOB).where(*_RUNS_UNDER_TOKEN).values(lease_end_time=_LEASE_END, gmt_modified=db_now())
)
_BURY_EXPIRED = (
    update(JOB)
    .where(*_RUNS_UNDER_SEEN, *_LEASE_IS_OVER)
    .values(status=int(Status.DEAD), due_time=None, gmt_modified=db_now())
)
_REPLACE_TOKEN = (
    update(JOB)
    .where(*_RUNS_UNDER_SEEN)
    .values(claim_token=bindparam("token"), gmt_modified=db_now())
)
_WRITE_DOCUMENT = (
    update(JOB)
    .where(
        c.job_id.in_(IDS),
        c.status == int(Status.RUNNING),
        or_(c.claim_token == bindparam("token"), c.claim_token == bindparam("unmarked")),
    )
    .values(result=bindparam("document"), gmt_modified=db_now())
)
_SELECT_PRESENT = select(c.job_id).where(c.job_id.in_(IDS))
_TRY_LOCK = _SELECT_PRESENT.with_for_update(skip_locked=True)
_SELECT_SETTLED = _SELECT_PRESENT.where(
    c.claim_token == bindparam("token"), c.status == bindparam("status", type_=Integer)
)
# Most rows that are read after a claim are claimed: their status and token are known.
_SELECT_CLAIMED = select(
    c.job_id, c.biz_id, c.type_no, c.action_time, c.attribute, c.lease_end_time, c.attempts,
    c.dedup_key, c.claim_time, c.biz_text, c.tenant, c.trace, c.priority,
).where(*_RUNS_UNDER_TOKEN)  # fmt: skip
_SELECT_ROWS = select(*JOB_COLUMNS, and_(*_LEASE_IS_OVER)).where(c.job_id.in_(IDS))


def _split_union(
    select: CompiledStatement, parts: Sequence[_Part], **values: Any
) -> list[Statement]:
    """The statements that select rows of many tables, up to SHARDS_PER_SELECT_MAX tables each."""
    size = SHARDS_PER_SELECT_MAX
    return [select.bind_union(parts[at : at + size], **values) for at in range(0, len(parts), size)]


def _lock_without_waiting(
    connection: Connection, shard: int, ids: Sequence[int]
) -> tuple[set[int], set[int]]:
    """Locks rows without waiting: (ids locked now, ids locked by others). Ids in neither set have no row.

    Another transaction that has locked a row may belong to the process that lost the lease, and hang: waiting
    for its end would delay the other jobs too.
    """
    free = set(execute_on_shard(connection, shard, _TRY_LOCK, {"ids": ids}).scalars())
    rest = [job_id for job_id in ids if job_id not in free]
    locked = (
        execute_on_shard(connection, shard, _SELECT_PRESENT, {"ids": rest}).scalars()
        if rest
        else ()
    )
    return free, set(locked)


def _change_row_unless_locked(
    database: Database, shard: int, job_id: int, changes: Sequence[Statement]
) -> tuple[bool, bool]:
    """Runs changes of a row in a transaction, unless the row is locked by another: (changed, locked)."""

    def lock_and_change(connection: Connection) -> tuple[bool, bool]:
        free, locked = _lock_without_waiting(connection, shard, [job_id])
        return bool(free and run_statements(connection, changes)[0].rowcount), bool(locked)

    return database.run_transaction(lock_and_change)
