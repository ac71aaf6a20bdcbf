"""A session on one of the two MySQL servers of a move: the queries and statements that the steps need."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect, make_url

from toc.errors import MYSQL_REFUSALS, SettingsError, StoreUnavailable, TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.setting_groups import MysqlSettings
from toc.runtime.urls import parse_database_url
from toc.store.database_home import FENCED_SQL, HOME
from toc.store.sessions import session_arguments

CONNECT_S, ANSWER_S = 5, 60
# How long one try to fence waits for locks; meanwhile writes to the schema may wait.
LOCK_WAIT_S = 1
LAG_S_MAX = 1.0


class MoveStopped(TocError):
    """A move was refused, or was started and reverted; if it was not reverted, the text says so."""

    code = "move_stopped"


class StatementRefused(MoveStopped):
    """One of the servers refused a statement. number: the error number of the server or the driver."""

    def __init__(self, server: MoveServerSession, error: Exception) -> None:
        self.number = error.args[0] if error.args else None
        hint = ""
        if self.number in MYSQL_REFUSALS:
            hint = f"; TOC_MOVE_{server.role.upper()}_URL may name another account"
        super().__init__(f"database {server.index}: the {server.role} server: {error}{hint}")


@dataclass(frozen=True, slots=True)
class ReplicationChannel:
    """The replication of the old server by the new one. error: the last error of its two threads."""

    name: str
    receives: bool
    applies: bool
    error: str

    @property
    def is_running(self) -> bool:
        return self.receives and self.applies


class MoveServerSession:
    """One session on one of the two servers of a move.

    The session is kept for the whole command, because it holds the lock of moves; it never reconnects.
    role: "old" or "new". Raises StoreUnavailable, SettingsError (a login that is refused) and MoveStopped,
    with the database's index and the role in the text.
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
            parsed = parse_database_url(url, f"the URL of the {role} server", needs_database=False)
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
        version = str(self.read_value("SELECT VERSION()"))
        if "mariadb" in version.lower():
            raise MoveStopped(
                f"database {self.index}: the {self.role} server is MariaDB {version}, which cannot make "
                f"one schema read-only: only MySQL databases can be moved like this"
            )
        self.session: int = self.read_value("SELECT CONNECTION_ID()")
        self.uuid = str(self.read_value("SELECT @@server_uuid"))
        self.version = tuple(int(part) for part in re.findall(r"\d+", version)[:3])

    # ---- statements

    def _connect(self) -> Any:
        arguments, named = self.dialect.create_connect_args(self._url)
        times = {"connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S}
        try:
            raw = self.dialect.connect(*arguments, **{**named, **self._arguments, **times})
        except self._driver_error_class as error:
            text = f"the {self.role} server, {self.at}: {error}"
            if error.args and error.args[0] in MYSQL_REFUSALS:
                raise SettingsError(f"database {self.index}: {text}") from error
            raise StoreUnavailable(self.index, ConnectionError(text)) from error
        self.dialect.set_isolation_level(raw, "AUTOCOMMIT")
        return raw

    @property
    def _driver_error_class(self) -> type[Exception]:
        found: type[Exception] = self.dialect.loaded_dbapi.Error
        return found

    def read_rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Runs one statement; returns its rows as dictionaries by column name."""
        try:
            cursor = self._raw.cursor()
            try:
                cursor.execute(sql, values or None)
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall() if names]
            finally:
                cursor.close()
        except self._driver_error_class as error:
            raise StatementRefused(self, error) from error

    def read_value(self, sql: str, *values: object) -> Any:
        """The only value of the only row."""
        (row,) = self.read_rows(sql, *values)
        (found,) = row.values()
        return found

    def run_statement(self, sql: str, *values: object) -> None:
        self.read_rows(sql, *values)

    def close(self) -> None:
        with suppress(Exception):
            self._raw.close()

    # ---- the state of the server

    @property
    def quoted_schema(self) -> str:
        return self.dialect.identifier_preparer.quote_identifier(self.schema)

    def is_fenced(self) -> bool:
        """Whether the schema is READ ONLY on this server."""
        return bool(self.read_value(FENCED_SQL.replace("DATABASE()", "%s"), self.schema))

    def is_declared_home(self) -> bool:
        """Whether this server has been declared the home; it may have been fenced since."""
        return self.read_meta().get(HOME) == self.uuid

    def read_meta(self) -> dict[str, str]:
        """The rows of `toc_meta`; none if the table does not exist."""
        there = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        if not self.read_value(there, self.schema, "toc_meta"):
            return {}
        rows = self.read_rows(f"SELECT name, value FROM {self.quoted_schema}.toc_meta")  # noqa: S608
        return {row["name"]: row["value"] for row in rows}

    def write_meta(self, name: str, value: str) -> None:
        """Writes a row of `toc_meta`."""
        table = f"{self.quoted_schema}.toc_meta"
        self.run_statement(f"REPLACE INTO {table} (name, value) VALUES (%s, %s)", name, value)  # noqa: S608

    def read_variables(self, *names: str) -> dict[str, str]:
        """Reads global variables. A variable that this version does not have is left out."""
        marks = ", ".join(["%s"] * len(names))
        found = self.read_rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", *names)
        return {row["Variable_name"]: row["Value"] for row in found}

    def is_variable_on(self, variable: str) -> bool:
        return self.read_variables(variable).get(variable) == "ON"

    def read_executed_gtids(self) -> str:
        """The transactions that this server has executed: a GTID set."""
        return str(self.read_value("SELECT @@GLOBAL.gtid_executed")).replace("\n", "")

    def read_replication_channel(self, source_uuid: str) -> ReplicationChannel | None:
        """How this server replicates the server `source_uuid`; None: no replication from there."""
        for row in self.read_rows("SHOW REPLICA STATUS"):
            if row["Source_UUID"] == source_uuid:
                error = str(row["Last_IO_Error"] or row["Last_SQL_Error"]).partition("\n")[0]
                running = row["Replica_IO_Running"] == "Yes", row["Replica_SQL_Running"] == "Yes"
                return ReplicationChannel(row["Channel_Name"], *running, error)
        return None

    def start_replication(self, source_uuid: str) -> None:
        """Starts the replication from the server `source_uuid` again, if it has stopped."""
        channel = self.read_replication_channel(source_uuid)
        if channel is not None and not channel.is_running:
            self.run_statement("START REPLICA FOR CHANNEL %s", channel.name)

    def wait_for_gtids(self, wanted: str, seconds: float) -> bool:
        """Waits until this server has executed a GTID set. False: not within `seconds`."""
        sql = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
        return bool(self.read_value(sql, wanted, round(max(0.001, seconds), 3)) == 0)

    def only_replication_may_write(self) -> bool:
        """Whether only replication can write on this server."""
        return self.is_variable_on("super_read_only") or self.is_fenced()

    def measure_lag_s(self, old: MoveServerSession) -> float | None:
        """How many seconds this server needs to execute all transactions of `old`; None: over LAG_S_MAX."""
        began_s = self.clock.monotonic_s()
        if not self.wait_for_gtids(old.read_executed_gtids(), LAG_S_MAX):
            return None
        return self.clock.monotonic_s() - began_s

    def describe_oldest_transaction(self) -> str:
        """Describes the oldest open transaction of the server; "": none is older than a second."""
        sql = (
            "SELECT trx_mysql_thread_id AS session, TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS age_s "
            "FROM information_schema.INNODB_TRX ORDER BY trx_started LIMIT 1"
        )
        for row in self.read_rows(sql):
            if row["age_s"] >= 1:
                return f"the oldest is open for {row['age_s']} s, in session {row['session']}"
        return ""

    def read_tables(self) -> Mapping[str, str]:
        """The tables of the schema, and the first column of the primary key of each."""
        sql = (
            "SELECT TABLE_NAME AS name, COLUMN_NAME AS first FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY' AND SEQ_IN_INDEX = 1"
        )
        return {row["name"]: row["first"] for row in self.read_rows(sql, self.schema)}

    def read_application_sessions(self) -> list[dict[str, Any]]:
        """Reads the sessions of the schema, without this session."""
        return [
            row
            for row in self.read_rows("SHOW FULL PROCESSLIST")
            if row["db"] == self.schema and row["Id"] != self.session
        ]

    # ---- changes

    @contextmanager
    def without_binlog(self) -> Iterator[None]:
        """A context whose statements are not written to the binary log."""
        self.run_statement("SET SESSION sql_log_bin = 0")
        try:
            yield
        finally:
            self.run_statement("SET SESSION sql_log_bin = 1")

    def set_fence(self, on: bool) -> None:
        """Makes the schema READ ONLY, or writable if not `on`: one try, with a short lock wait."""
        with self.without_binlog():
            self.run_statement(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
            self.run_statement(f"ALTER DATABASE {self.quoted_schema} READ ONLY = {int(on)}")

    @contextmanager
    def interrupt_statement_after(self, seconds: float) -> Iterator[None]:
        """Interrupts this session's statement, from another session, if it still runs after `seconds`."""

        def kill_running_statement() -> None:
            with suppress(Exception):
                raw = self._connect()
                raw.cursor().execute(f"KILL QUERY {self.session}")
                raw.close()

        timer = threading.Timer(max(0.0, seconds), kill_running_statement)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join(CONNECT_S + ANSWER_S)  # a late KILL must not hit the next statement

    @contextmanager
    def hold_move_lock(self) -> Iterator[None]:
        """Holds the lock of moves, at most until the session ends. Raises MoveStopped if it is taken."""
        name = f"toc_move_{self.index}_{self.schema}"[:64]
        if self.read_value("SELECT GET_LOCK(%s, 0)", name) != 1:
            raise MoveStopped(
                f"database {self.index}: another `toc move` holds the lock {name} on the {self.role} server"
            )
        try:
            yield
        finally:
            with suppress(StatementRefused):
                self.run_statement("DO RELEASE_LOCK(%s)", name)


def schema_of_url(url: str) -> str:
    """The schema that a URL of the settings names."""
    return make_url(url).database or ""
