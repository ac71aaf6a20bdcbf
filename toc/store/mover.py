"""Moves a database to another MySQL server while clients and workers go on: the steps of `toc move`.

During the whole move the new server replicates the old one (by GTID). The steps, in this order:

1. *guard*: only replication writes on the new server (super_read_only, or its schema is READ ONLY);
   *note*: `moving_to = <the new server's uuid>` in the old server's `toc_meta` names the fence's purpose;
2. *fence*: the old server's schema becomes READ ONLY. This waits a limited time for open transactions;
3. *end*: the application's sessions there are killed: new ones find the fence, readers too;
4. *wait*: the new server executes all transactions that the old one had when it was fenced;
5. *stop*: replication from the old server stops;
6. *open*: the new server accepts writes. There are none: it is not the home yet;
7. *home*: one row in its `toc_meta`, `home = its server_uuid`. This is the switch (`database_home`);
8. *forget*: the new server forgets the old one as its source.

Every step first reads the present state. So after a crash between any two steps, `start_or_resume` finishes
the move and `undo` reverts it. Up to the seventh step everything can be reverted, and is when a step fails:
guard the new server, *then* lift the fence of the old one. From the seventh step on nothing is reverted.
`start_or_resume` and `undo` hold a lock on both servers. The session that holds the lock on the new server
also opens it: a mover that lost the lock cannot open the new server after another process has lifted the
fence.

The fence is local to one server: it is not written to the binary log (sql_log_bin = 0). If it were, it would
fence the new server and all replicas, and lifting it there would later lift it on the old one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect, make_url

from toc.errors import MYSQL_REFUSALS, SettingsError, StoreUnavailable, TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import MysqlSettings
from toc.runtime.urls import database_url
from toc.store.archive_status import ARCHIVED
from toc.store.database_home import FENCED_SQL, HOME, MOVING_TO
from toc.store.reconcile_status import RECONCILED
from toc.store.sessions import session_arguments

CONNECT_S, ANSWER_S = 5, 60
LOCK_WAIT_S = 1  # of one try to fence; meanwhile writes to the schema may wait
LAG_S_MAX = 1.0
GUARD_S = 10.0
PAUSE_S_MAX = 10.0

_LOCK_WAIT, _INTERRUPTED, _NO_SUCH_THREAD = 1205, 1317, 1094

MOVED_ROWS = frozenset({HOME, MOVING_TO, RECONCILED, ARCHIVED})
"""Rows of `toc_meta` in which the two servers may differ."""


class MoveStopped(TocError):
    """A move was refused, or was started and reverted; if it was not reverted, the text says so."""

    code = "move_stopped"


StepListener = Callable[[str, str], None]
"""Called after each step with its name and its result."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The replication of the old server by the new one. error: the last error of its two threads."""

    name: str
    receives: bool
    applies: bool
    error: str

    @property
    def runs(self) -> bool:
        return self.receives and self.applies


Probe = Callable[["MoveServer"], "MoveServer"]
"""Opens a session of the application's own account on a server."""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a move. pause_ms: from the fence to the switch; None: an earlier run did that."""

    pause_ms: int | None
    killed: int
    verified: Sequence[str]


class MoveServer:
    """One session on one of the two servers, kept for the whole command: it holds the lock.

    role: "old" or "new". It never reconnects by itself. Raises StoreUnavailable, SettingsError
    (a login that is refused) and MoveStopped, with the database's index and the role in the text.
    """

    def __init__(
        self,
        index: int,
        role: str,
        url: str,
        schema: str,
        clock: Clock | None = None,
        mysql: MysqlSettings | None = None,
    ) -> None:
        try:
            parsed = database_url(url, f"the URL of the {role} server", needs_database=False)
        except ValueError as error:
            raise SettingsError(f"database {index}: {error}") from None
        if parsed.get_backend_name() != "mysql":
            raise SettingsError(f"database {index}: the URL of the {role} server must be mysql")
        self.index, self.role, self.schema = index, role, schema
        self.clock = clock or SystemClock()
        self.at = f"{parsed.host}:{parsed.port or 3306}"
        # No default schema, so that its sessions are not counted as the application's.
        self._url = parsed._replace(database=None)
        kind: Any = parsed.get_dialect()
        self.dialect: Dialect = kind(dbapi=kind.import_dbapi())
        self._arguments = session_arguments(self._url, mysql or MysqlSettings())
        self._raw = self._connect()
        try:
            self._read_identity()
        except BaseException:
            self.close()
            raise

    def _read_identity(self) -> None:
        version = str(self.value("SELECT VERSION()"))
        if "mariadb" in version.lower():
            raise MoveStopped(
                f"database {self.index}: the {self.role} server is MariaDB {version}, which cannot make "
                f"one schema read-only: only MySQL databases can be moved like this"
            )
        self.session: int = self.value("SELECT CONNECTION_ID()")
        self.uuid = str(self.value("SELECT @@server_uuid"))
        self.version = tuple(int(part) for part in re.findall(r"\d+", version)[:3])

    # ---- talking

    def _connect(self) -> Any:
        arguments, named = self.dialect.create_connect_args(self._url)
        times = {"connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S}
        try:
            raw = self.dialect.connect(*arguments, **{**named, **self._arguments, **times})
        except self._errors as error:
            text = f"the {self.role} server, {self.at}: {error}"
            if error.args and error.args[0] in MYSQL_REFUSALS:
                raise SettingsError(f"database {self.index}: {text}") from error
            raise StoreUnavailable(self.index, ConnectionError(text)) from error
        self.dialect.set_isolation_level(raw, "AUTOCOMMIT")
        return raw

    @property
    def _errors(self) -> type[Exception]:
        found: type[Exception] = self.dialect.loaded_dbapi.Error
        return found

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Runs one statement; returns its rows as dictionaries by column name."""
        try:
            cursor = self._raw.cursor()
            try:
                cursor.execute(sql, values or None)
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall() if names]
            finally:
                cursor.close()
        except self._errors as error:
            raise _StatementRefused(self, error) from error

    def value(self, sql: str, *values: object) -> Any:
        """The only value of the only row."""
        (row,) = self.rows(sql, *values)
        (found,) = row.values()
        return found

    def run(self, sql: str, *values: object) -> None:
        self.rows(sql, *values)

    def close(self) -> None:
        with suppress(Exception):
            self._raw.close()

    # ---- looking

    @property
    def quoted(self) -> str:
        return self.dialect.identifier_preparer.quote_identifier(self.schema)

    def is_fenced(self) -> bool:
        """Whether its schema is READ ONLY."""
        return bool(self.value(FENCED_SQL.replace("DATABASE()", "%s"), self.schema))

    def is_declared_home(self) -> bool:
        """Whether this server has been declared the home; it may have been fenced since."""
        return self.read_meta().get(HOME) == self.uuid

    def read_meta(self) -> dict[str, str]:
        """The rows of `toc_meta`; none if the table does not exist."""
        there = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        if not self.value(there, self.schema, "toc_meta"):
            return {}
        rows = self.rows(f"SELECT name, value FROM {self.quoted}.toc_meta")  # noqa: S608
        return {row["name"]: row["value"] for row in rows}

    def write_meta(self, name: str, value: str) -> None:
        """Writes a row of the catalogue."""
        table = f"{self.quoted}.toc_meta"
        self.run(f"REPLACE INTO {table} (name, value) VALUES (%s, %s)", name, value)  # noqa: S608

    def variables(self, *names: str) -> dict[str, str]:
        """Global variables, without those that this version does not have."""
        marks = ", ".join(["%s"] * len(names))
        found = self.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", *names)
        return {row["Variable_name"]: row["Value"] for row in found}

    def is_on(self, variable: str) -> bool:
        return self.variables(variable).get(variable) == "ON"

    def executed_gtids(self) -> str:
        """The transactions that this server has executed: a GTID set."""
        return str(self.value("SELECT @@GLOBAL.gtid_executed")).replace("\n", "")

    def replication_channel(self, source_uuid: str) -> Channel | None:
        """Its replication of that server; None: it does not replicate it."""
        for row in self.rows("SHOW REPLICA STATUS"):
            if row["Source_UUID"] == source_uuid:
                error = str(row["Last_IO_Error"] or row["Last_SQL_Error"]).partition("\n")[0]
                running = row["Replica_IO_Running"] == "Yes", row["Replica_SQL_Running"] == "Yes"
                return Channel(row["Channel_Name"], *running, error)
        return None

    def start_replication(self, source_uuid: str) -> None:
        """Starts replication from that server, if it has been stopped."""
        channel = self.replication_channel(source_uuid)
        if channel is not None and not channel.runs:
            self.run("START REPLICA FOR CHANNEL %s", channel.name)

    def wait_for_gtids(self, wanted: str, seconds: float) -> bool:
        """Waits until this server has executed a GTID set. False: it has not after so many seconds."""
        sql = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
        return bool(self.value(sql, wanted, round(max(0.001, seconds), 3)) == 0)

    def application_sessions(self) -> list[dict[str, Any]]:
        """The sessions of others in the schema."""
        return [
            row
            for row in self.rows("SHOW FULL PROCESSLIST")
            if row["db"] == self.schema and row["Id"] != self.session
        ]

    # ---- acting

    @contextmanager
    def without_binlog(self) -> Iterator[None]:
        """A context whose statements are not written to the binary log."""
        self.run("SET SESSION sql_log_bin = 0")
        try:
            yield
        finally:
            self.run("SET SESSION sql_log_bin = 1")

    def set_fence(self, on: bool) -> None:
        """Sets or lifts the fence: one try, with a short lock wait."""
        with self.without_binlog():
            self.run(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
            self.run(f"ALTER DATABASE {self.quoted} READ ONLY = {int(on)}")

    @contextmanager
    def interrupt_after(self, seconds: float) -> Iterator[None]:
        """Interrupts this session's statement, from another session, if it still runs after `seconds`."""

        def interrupt() -> None:
            with suppress(Exception):
                raw = self._connect()
                raw.cursor().execute(f"KILL QUERY {self.session}")
                raw.close()

        timer = threading.Timer(max(0.0, seconds), interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join(CONNECT_S + ANSWER_S)  # a late one must not hit the next statement

    @contextmanager
    def hold_move_lock(self) -> Iterator[None]:
        """Holds the lock of movers. It ends with the session. Raises MoveStopped if it is taken."""
        name = f"toc_move_{self.index}_{self.schema}"[:64]
        if self.value("SELECT GET_LOCK(%s, 0)", name) != 1:
            raise MoveStopped(
                f"database {self.index}: another `toc move` holds the lock {name} on the {self.role} server"
            )
        try:
            yield
        finally:
            with suppress(_StatementRefused):
                self.run("DO RELEASE_LOCK(%s)", name)


class Mover:
    """The steps of a move, on two open sessions. on_step: called after each step.

    probe(server): opens a session of the application's own account on that server.
    """

    def __init__(
        self,
        old: MoveServer,
        new: MoveServer,
        probe: Probe,
        on_step: StepListener = lambda step, text: None,
    ) -> None:
        self._old, self._new, self._probe, self._report_step = old, new, probe, on_step
        self._clock = old.clock
        self.index = old.index

    def start_or_resume(
        self, check: Callable[[], None], pause_max_s: float = PAUSE_S_MAX
    ) -> MoveResult:
        """Moves the database, or finishes a move that was started. `check` raises MoveStopped to refuse it.

        Raises MoveStopped; then everything has been reverted unless the text says otherwise.
        """
        with self._lock_both_servers():
            pause_ms, killed = None, 0
            if not self._new.is_declared_home():
                if not self._old.is_fenced():
                    check()
                    self._prepare()
                pause_ms, killed = self._switch_to_new_server(pause_max_s)
            return self._finish(pause_ms, killed)

    def undo(self) -> None:
        """Reverts a move that was started. Raises MoveStopped once the new server has been declared home."""
        with self._lock_both_servers():
            if self._new.is_declared_home():
                raise MoveStopped(
                    f"database {self.index}: the new server was declared home: jobs are written there. "
                    f"To go back, move it back: the old server becomes a replica of the new one"
                )
            self._undo_steps()

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
                f"database {self.index}: the new server was its home once, and it has moved on from there: "
                f"make it a replica of the old one first"
            )
        if old.is_fenced() and old.read_meta().get(MOVING_TO) != new.uuid:
            raise MoveStopped(
                f"database {self.index}: the old server is fenced, and not for a move to this new server: "
                f"the database has moved, or is moving, to another one"
            )

    # ---- up to the switch

    def _prepare(self) -> None:
        """The steps that need no pause of writes."""
        self._block_other_writers()
        self._record_purpose()
        lag_s = measure_lag_s(self._old, self._new)
        if lag_s is None:
            raise MoveStopped(
                f"database {self.index}: the new server is more than {LAG_S_MAX:g} s behind: wait until it "
                f"has caught up, or until there is less load"
            )
        self._report_step("catch_up", f"the new server is {lag_s * 1000:.0f} ms behind")

    def _block_other_writers(self) -> None:
        """Only replication writes on the new server."""
        if not only_replication_writes(self._new):
            self._set_fence_within(self._new, True, self._clock.monotonic_s() + GUARD_S)
        self._report_step("guard", "only replication writes on the new server")

    def _record_purpose(self) -> None:
        """Writes down which move the fence is for, so that another move neither lifts it nor continues."""
        self._old.write_meta(MOVING_TO, self._new.uuid)
        self._report_step("note", "the old server's catalogue names the new one")

    def _switch_to_new_server(self, pause_max_s: float) -> tuple[int, int]:
        """The steps from the fence to the switch; returns the pause in ms and how many sessions it killed."""
        began_s = self._clock.monotonic_s()
        until_s = began_s + pause_max_s
        try:
            self._fence_old_server(began_s + pause_max_s / 2)
            killed = self._end_sessions()
            self._wait_for_new_server(until_s)
            self._stop_replication()
            self._allow_writes(until_s)
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

    def _set_fence_within(self, server: MoveServer, on: bool, until_s: float) -> None:
        """Tries until `until_s`. Between two tries, statements that waited for the lock go on."""
        while True:
            left_s = until_s - self._clock.monotonic_s()
            try:
                with server.interrupt_after(left_s):
                    server.set_fence(on)
                return
            except _StatementRefused as error:
                if error.number not in (_LOCK_WAIT, _INTERRUPTED):
                    raise
                if self._clock.monotonic_s() >= until_s:
                    raise MoveStopped(
                        f"database {self.index}: transactions on the {server.role} server stay open: "
                        f"{describe_oldest_transaction(server) or 'ended just now'}"
                    ) from error

    def _end_sessions(self) -> int:
        """Kills the application's sessions on the old server; its new sessions find the fence."""
        killed = 0
        for session in self._old.application_sessions():
            try:
                self._old.run(f"KILL {session['Id']}")
                killed += 1
            except _StatementRefused as error:
                if error.number != _NO_SUCH_THREAD:
                    self._report_step("end", f"session {session['Id']} stays: {error}")
        self._report_step("end", f"{killed} sessions on the old server killed")
        return killed

    def _wait_for_new_server(self, until_s: float) -> None:
        wanted = self._old.executed_gtids()
        self._new.start_replication(self._old.uuid)  # an earlier run may have stopped it
        if not self._new.wait_for_gtids(wanted, until_s - self._clock.monotonic_s()):
            raise MoveStopped(
                f"database {self.index}: the new server did not catch up within the longest pause allowed"
            )
        self._report_step("wait", "the new server has everything")

    def _stop_replication(self) -> None:
        channel = self._new.replication_channel(self._old.uuid)
        if channel is not None:
            self._new.run("STOP REPLICA FOR CHANNEL %s", channel.name)
        self._report_step("stop", "replication is stopped")

    def _allow_writes(self, until_s: float) -> None:
        for variable in ("super_read_only", "read_only"):
            if self._new.is_on(variable):
                self._new.run(f"SET GLOBAL {variable} = 0")
        if self._new.is_fenced():
            self._set_fence_within(self._new, False, until_s)
        self._report_step("open", "the new server takes writes")

    def _declare_home(self) -> None:
        """The switch. If its answer is lost, nothing is reverted before its result is known."""
        # If the old server has crashed since, a replica without the fence may have been promoted.
        if not self._old.is_fenced():
            raise MoveStopped(f"database {self.index}: somebody has lifted the fence")
        self._new.write_meta(HOME, self._new.uuid)

    # ---- back

    def _undo_after_error(self, error: BaseException) -> None:
        try:
            declared = self._new.is_declared_home()
            if not declared:
                self._undo_steps()
        except TocError as another:
            raise MoveStopped(
                f"{error}; and it could not be taken back: {another}. The old server may be fenced: "
                f"run `toc move {self.index} --go` again, or --undo"
            ) from error
        if declared:  # only the answer was lost
            raise MoveStopped(
                f"{error}; but the new server is home: `toc move {self.index} --go` again finishes it"
            ) from error

    def _undo_steps(self) -> None:
        self._block_other_writers()
        self._new.start_replication(self._old.uuid)
        if self._old.is_fenced():
            # Readers may delay this for a moment; there are no writers.
            self._set_fence_within(self._old, False, self._clock.monotonic_s() + ANSWER_S)
        self._report_step("undo", "the old server takes writes again")

    # ---- after the switch

    def _finish(self, pause_ms: int | None, killed: int) -> MoveResult:
        channel = self._new.replication_channel(self._old.uuid)
        if channel is not None:
            if channel.receives or channel.applies:
                self._new.run("STOP REPLICA FOR CHANNEL %s", channel.name)
            self._new.run("RESET REPLICA ALL FOR CHANNEL %s", channel.name)
            self._report_step("forget", "the new server has forgotten the old one")
        killed += self._end_sessions()
        return MoveResult(pause_ms, killed, list(self._verify()))

    def _verify(self) -> Iterator[str]:
        """Checks both servers with the application's account. Raises MoveStopped."""
        old, new = self._probe(self._old), self._probe(self._new)
        try:
            self._verify_writes(old, new)
            yield "writes go to the new server, the old one refuses them"
            yield self._compare_newest_rows(old, new)
        finally:
            old.close()
            new.close()

    def _verify_writes(self, old: MoveServer, new: MoveServer) -> None:
        # Changes no row, and is refused on a server that accepts no writes.
        table = min(name for name in read_tables(new) if name.startswith("toc_job_"))
        sql = f"UPDATE {new.quoted}.{table} SET job_id = job_id WHERE job_id = 0"  # noqa: S608
        new.run(sql)
        with suppress(_StatementRefused):
            old.run(sql)
            raise MoveStopped(
                f"database {self.index}: the old server takes writes, and the new one is home: "
                f"ALTER DATABASE {old.quoted} READ ONLY = 1 there, at once"
            )

    def _compare_newest_rows(self, old: MoveServer, new: MoveServer) -> str:
        """Checks that the newest row of each table of the old server is on the new one.

        Purging does not delete rows that are so new.
        """
        there, compared = read_tables(new), 0
        for table, key in read_tables(old).items():
            newest = old.value(f"SELECT MAX({key}) FROM {old.quoted}.{table}")  # noqa: S608
            found = there.get(table) == key and (
                newest is None
                or new.value(
                    f"SELECT COUNT(*) FROM {new.quoted}.{table} WHERE {key} = %s",  # noqa: S608
                    newest,
                )
            )
            if not found:
                raise MoveStopped(
                    f"database {self.index}: {table}: the new server lacks {key} {newest}"
                )
            compared += 1
        return f"the newest row of each of {compared} tables is there"


class _StatementRefused(MoveStopped):
    """One of the servers refused a statement. number: the error number of the server or the driver."""

    def __init__(self, server: MoveServer, error: Exception) -> None:
        self.number = error.args[0] if error.args else None
        hint = ""
        if self.number in MYSQL_REFUSALS:
            hint = f"; TOC_MOVE_{server.role.upper()}_URL may name another account"
        super().__init__(f"database {server.index}: the {server.role} server: {error}{hint}")


def schema_of(url: str) -> str:
    """The schema that a URL of the settings names."""
    return make_url(url).database or ""


def only_replication_writes(new: MoveServer) -> bool:
    """Whether only replication can write on the new server."""
    return new.is_on("super_read_only") or new.is_fenced()


def measure_lag_s(old: MoveServer, new: MoveServer) -> float | None:
    """How long the new server needs for all that the old one has executed, in s; None: over LAG_S_MAX."""
    began_s = old.clock.monotonic_s()
    if not new.wait_for_gtids(old.executed_gtids(), LAG_S_MAX):
        return None
    return old.clock.monotonic_s() - began_s


def describe_oldest_transaction(server: MoveServer) -> str:
    """Describes the oldest transaction of the server; "": none is older than a second."""
    sql = (
        "SELECT trx_mysql_thread_id AS session, TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS age_s "
        "FROM information_schema.INNODB_TRX ORDER BY trx_started LIMIT 1"
    )
    for row in server.rows(sql):
        if row["age_s"] >= 1:
            return f"the oldest is open for {row['age_s']} s, in session {row['session']}"
    return ""


def read_tables(server: MoveServer) -> Mapping[str, str]:
    """The tables of the schema, and the first column of the primary key of each."""
    sql = (
        "SELECT TABLE_NAME AS name, COLUMN_NAME AS first FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY' AND SEQ_IN_INDEX = 1"
    )
    return {row["name"]: row["first"] for row in server.rows(sql, server.schema)}
