"""Moves a database to another MySQL server while clients and workers go on: the steps of `toc move`.

During the whole move the new server replicates the old one (by GTID). The steps, in this order:

1. *guard*: only replication writes on the new server (super_read_only, or its schema is READ ONLY);
   *note*: `moving_to = <the new server's uuid>` in the old server's `toc_meta` names the fence's purpose;
2. *fence*: the old server's schema becomes READ ONLY. The step waits a limited time for open transactions;
3. *end*: the application's sessions on the old server are killed; new sessions, also of readers, find the
   fence;
4. *wait*: the new server executes all transactions that the old one had when it was fenced;
5. *stop*: replication from the old server stops;
6. *open*: the new server accepts writes. Nobody writes yet: the server is not the home;
7. *home*: one row in the new server's `toc_meta`, `home = its server_uuid`: the switch (`database_home`);
8. *forget*: the new server forgets the old one as its source.

Every step first reads the present state. So after a crash between any two steps, `start_or_resume` finishes
the move and `undo` reverts the move. If a step before the seventh fails, the move is reverted: guard the new
server, *then* lift the fence of the old server. From the seventh step on nothing is reverted.
`start_or_resume` and `undo` hold a lock on both servers. The session that holds the lock on the new server
also opens it: a mover that lost the lock cannot open the new server after another process has lifted the
fence.

The fence is local to one server: the statement is not written to the binary log (sql_log_bin = 0). A fence in
the binary log would also fence the new server and all replicas, and later its end would reach the old server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from toc.errors import TocError
from toc.store.archive_status import MARKS
from toc.store.database_home import HOME, MOVING_TO
from toc.store.move_server_session import (
    ANSWER_S,
    LAG_S_MAX,
    MoveServerSession,
    MoveStopped,
    StatementRefused,
)
from toc.store.nightly_status import NIGHTLY
from toc.store.reconcile_status import RECONCILED

GUARD_S = 10.0
PAUSE_S_MAX = 10.0

_LOCK_WAIT, _INTERRUPTED, _NO_SUCH_THREAD = 1205, 1317, 1094

MOVED_ROWS = frozenset({HOME, MOVING_TO, RECONCILED, NIGHTLY, *MARKS})
"""Rows of `toc_meta` in which the two servers may differ."""


StepListener = Callable[[str, str], None]
"""Called after each step with its name and its result."""


Probe = Callable[[MoveServerSession], MoveServerSession]
"""Opens a session of the application's own account on a server."""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a move. pause_ms: from the fence to the switch; None: an earlier run made the switch."""

    pause_ms: int | None
    killed: int
    verified: Sequence[str]


class DatabaseMover:
    """The steps of a move, on two open sessions. on_step: called after each step.

    probe(server): opens a session of the application's own account on that server.
    """

    def __init__(
        self,
        old: MoveServerSession,
        new: MoveServerSession,
        probe: Probe,
        on_step: StepListener = lambda step, text: None,
    ) -> None:
        self._old, self._new, self._probe, self._report_step = old, new, probe, on_step
        self._clock = old.clock
        self.index = old.index

    def start_or_resume(
        self, check: Callable[[], None], pause_max_s: float = PAUSE_S_MAX
    ) -> MoveResult:
        """Moves the database, or finishes a move that was started. `check` raises MoveStopped to refuse
        the move.

        Raises MoveStopped; then everything has been reverted unless the text says otherwise.
        """
        with self._lock_both_servers():
            pause_ms, killed = None, 0
            if not self._new.is_declared_home():
                if not self._old.is_fenced():
                    check()
                    self._prepare_move()
                pause_ms, killed = self._fence_and_switch(pause_max_s)
            return self._finish_move(pause_ms, killed)

    def undo(self) -> None:
        """Reverts a move that was started. Raises MoveStopped once the new server has been declared home."""
        with self._lock_both_servers():
            if self._new.is_declared_home():
                raise MoveStopped(
                    f"database {self.index}: the new server was declared home: jobs are written there. "
                    f"To go back, move it back: the old server becomes a replica of the new one"
                )
            self._undo_fence()

    @contextmanager
    def _lock_both_servers(self) -> Iterator[None]:
        """Holds the locks of both servers. Raises MoveStopped for another mover or another move."""
        old, new = self._old, self._new
        if old.uuid == new.uuid:
            raise MoveStopped(f"database {self.index}: databases and moving name the same server")
        with old.hold_move_lock(), new.hold_move_lock():
            self._refuse_other_move()
            yield

    def _refuse_other_move(self) -> None:
        """Raises MoveStopped if another move has left a fence or a home."""
        old, new = self._old, self._new
        if new.is_declared_home() and new.is_fenced():
            raise MoveStopped(
                f"database {self.index}: the new server was the home of the database, and the database has "
                f"moved on from there: make the new server a replica of the old server first"
            )
        if old.is_fenced() and old.read_meta().get(MOVING_TO) != new.uuid:
            raise MoveStopped(
                f"database {self.index}: the old server is fenced, and not for a move to this new server: "
                f"the database has moved, or is moving, to another one"
            )

    # ---- up to the switch

    def _prepare_move(self) -> None:
        """Runs the steps before the pause of writes."""
        self._block_other_writers()
        self._record_fence_purpose()
        lag_s = self._new.measure_lag_s(self._old)
        if lag_s is None:
            raise MoveStopped(
                f"database {self.index}: the new server is more than {LAG_S_MAX:g} s behind: wait until it "
                f"has caught up, or until there is less load"
            )
        self._report_step("catch_up", f"the new server is {lag_s * 1000:.0f} ms behind")

    def _block_other_writers(self) -> None:
        """Makes sure that only replication writes on the new server."""
        if not self._new.only_replication_may_write():
            self._set_fence_within(self._new, True, self._clock.monotonic_s() + GUARD_S)
        self._report_step("guard", "only replication writes on the new server")

    def _record_fence_purpose(self) -> None:
        """Records for which move the fence is, so that another move neither lifts it nor continues."""
        self._old.write_meta(MOVING_TO, self._new.uuid)
        self._report_step("note", "toc_meta of the old server names the new server")

    def _fence_and_switch(self, pause_max_s: float) -> tuple[int, int]:
        """Runs the steps from the fence to the switch; returns the pause in ms and the killed sessions."""
        began_s = self._clock.monotonic_s()
        until_s = began_s + pause_max_s
        try:
            self._fence_old_server(began_s + pause_max_s / 2)
            killed = self._kill_application_sessions()
            self._wait_until_new_server_catches_up(until_s)
            self._stop_replication()
            self._allow_writes_on_new(until_s)
            self._declare_home()
        except BaseException as error:
            self._undo_after_error(error)
            raise
        pause_ms = round((self._clock.monotonic_s() - began_s) * 1000)
        self._report_step("home", f"declared after {pause_ms} ms")
        return pause_ms, killed

    def _fence_old_server(self, until_s: float) -> None:
        if not self._old.is_fenced():
            self._set_fence_within(self._old, True, until_s)
        self._report_step("fence", "the old server takes no more writes")

    def _set_fence_within(self, server: MoveServerSession, on: bool, until_s: float) -> None:
        """Tries to set or lift the fence until `until_s`. Between two tries, statements that wait can run."""
        while True:
            left_s = until_s - self._clock.monotonic_s()
            try:
                with server.interrupt_statement_after(left_s):
                    server.set_fence(on)
                return
            except StatementRefused as error:
                if error.number not in (_LOCK_WAIT, _INTERRUPTED):
                    raise
                if self._clock.monotonic_s() >= until_s:
                    raise MoveStopped(
                        f"database {self.index}: transactions on the {server.role} server stay open: "
                        f"{server.describe_oldest_transaction() or 'ended just now'}"
                    ) from error

    def _kill_application_sessions(self) -> int:
        """Kills the application's sessions on the old server; its new sessions find the fence."""
        killed = 0
        for session in self._old.read_application_sessions():
            try:
                self._old.run_statement(f"KILL {session['Id']}")
                killed += 1
            except StatementRefused as error:
                if error.number != _NO_SUCH_THREAD:
                    self._report_step("end", f"session {session['Id']} stays: {error}")
        self._report_step("end", f"{killed} sessions on the old server killed")
        return killed

    def _wait_until_new_server_catches_up(self, until_s: float) -> None:
        wanted = self._old.read_executed_gtids()
        self._new.start_replication(self._old.uuid)  # an earlier run may have stopped it
        if not self._new.wait_for_gtids(wanted, until_s - self._clock.monotonic_s()):
            raise MoveStopped(
                f"database {self.index}: the new server did not catch up within the longest pause allowed"
            )
        self._report_step("wait", "the new server has all transactions of the old server")

    def _stop_replication(self) -> None:
        channel = self._new.read_replication_channel(self._old.uuid)
        if channel is not None:
            self._new.run_statement("STOP REPLICA FOR CHANNEL %s", channel.name)
        self._report_step("stop", "replication is stopped")

    def _allow_writes_on_new(self, until_s: float) -> None:
        for variable in ("super_read_only", "read_only"):
            if self._new.is_variable_on(variable):
                self._new.run_statement(f"SET GLOBAL {variable} = 0")
        if self._new.is_fenced():
            self._set_fence_within(self._new, False, until_s)
        self._report_step("open", "the new server takes writes")

    def _declare_home(self) -> None:
        """Makes the switch. If the answer is lost, nothing is reverted before the result is known."""
        # If the old server has crashed since, a replica without the fence may have been promoted.
        if not self._old.is_fenced():
            raise MoveStopped(
                f"database {self.index}: somebody has lifted the fence of the old server"
            )
        self._new.write_meta(HOME, self._new.uuid)

    # ---- back

    def _undo_after_error(self, error: BaseException) -> None:
        try:
            declared = self._new.is_declared_home()
            if not declared:
                self._undo_fence()
        except TocError as another:
            raise MoveStopped(
                f"{error}; and the move could not be taken back: {another}. The old server may be fenced: "
                f"run `toc move {self.index} --go` again, or --undo"
            ) from error
        if declared:  # only the answer was lost
            raise MoveStopped(
                f"{error}; but the new server is home: `toc move {self.index} --go` again finishes it"
            ) from error

    def _undo_fence(self) -> None:
        self._block_other_writers()
        self._new.start_replication(self._old.uuid)
        if self._old.is_fenced():
            # Readers may delay this for a moment; there are no writers.
            self._set_fence_within(self._old, False, self._clock.monotonic_s() + ANSWER_S)
        self._report_step("undo", "the old server takes writes again")

    # ---- after the switch

    def _finish_move(self, pause_ms: int | None, killed: int) -> MoveResult:
        channel = self._new.read_replication_channel(self._old.uuid)
        if channel is not None:
            if channel.receives or channel.applies:
                self._new.run_statement("STOP REPLICA FOR CHANNEL %s", channel.name)
            self._new.run_statement("RESET REPLICA ALL FOR CHANNEL %s", channel.name)
            self._report_step("forget", "the new server has forgotten the old one")
        killed += self._kill_application_sessions()
        return MoveResult(pause_ms, killed, list(self._verify_both_servers()))

    def _verify_both_servers(self) -> Iterator[str]:
        """Checks both servers with the application's account. Raises MoveStopped."""
        old, new = self._probe(self._old), self._probe(self._new)
        try:
            self._verify_only_new_writable(old, new)
            yield "writes go to the new server, the old one refuses them"
            yield self._compare_newest_rows(old, new)
        finally:
            old.close()
            new.close()

    def _verify_only_new_writable(self, old: MoveServerSession, new: MoveServerSession) -> None:
        # Changes no row, and is refused on a server that accepts no writes.
        table = min(name for name in new.read_tables() if name.startswith("toc_job_"))
        sql = f"UPDATE {new.quoted_schema}.{table} SET job_id = job_id WHERE job_id = 0"  # noqa: S608
        new.run_statement(sql)
        with suppress(StatementRefused):
            old.run_statement(sql)
            raise MoveStopped(
                f"database {self.index}: the old server takes writes, and the new one is home: "
                f"ALTER DATABASE {old.quoted_schema} READ ONLY = 1 there, at once"
            )

    def _compare_newest_rows(self, old: MoveServerSession, new: MoveServerSession) -> str:
        """Checks that the newest row of each table of the old server is on the new one.

        The purge deletes no row that is so new.
        """
        there, compared = new.read_tables(), 0
        for table, key in old.read_tables().items():
            newest = old.read_value(f"SELECT MAX({key}) FROM {old.quoted_schema}.{table}")  # noqa: S608
            found = there.get(table) == key and (
                newest is None
                or new.read_value(
                    f"SELECT COUNT(*) FROM {new.quoted_schema}.{table} WHERE {key} = %s",  # noqa: S608
                    newest,
                )
            )
            if not found:
                raise MoveStopped(
                    f"database {self.index}: {table}: the new server lacks {key} {newest}"
                )
            compared += 1
        return f"the newest row of each of {compared} tables is there"
