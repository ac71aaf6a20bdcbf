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
from toc.runtime.urls import database_url
from toc.store.database_home import FENCED_SQL, HOME
from toc.store.sessions import session_arguments

CONNECT_S, ANSWER_S = 5, 60
LOCK_WAIT_S = 1  # of one try to fence; meanwhile writes to the schema may wait
LAG_S_MAX = 1.0


class MoveStopped(TocError):
    """A move was refused, or was started and reverted; if it was not reverted, the text says so."""

    code = "move_stopped"


class StatementRefused(MoveStopped):
    """One of the servers refused a statement. number: the error number of the server or the driver."""

    def __init__(self, server: MoveServer, error: Exception) -> None:
        self.number = error.args[0] if error.args else None
        hint = ""
        if self.number in MYSQL_REFUSALS:
            hint = f"; TOC_MOVE_{server.role.upper()}_URL may name another account"
        super().__init__(f"database {server.index}: the {server.role} server: {error}{hint}")


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

    # ---- statements

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
            raise StatementRefused(self, error) from error

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

    # ---- the state of the server

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
        """Writes a row of toc_meta."""
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

    def only_replication_writes(self) -> bool:
        """Whether only replication can write on this server."""
        return self.is_on("super_read_only") or self.is_fenced()

    def lag_s(self, old: MoveServer) -> float | None:
        """The seconds that this server needs for all that the old one has executed; None: over LAG_S_MAX."""
        began_s = self.clock.monotonic_s()
        if not self.wait_for_gtids(old.executed_gtids(), LAG_S_MAX):
            return None
        return self.clock.monotonic_s() - began_s

    def describe_oldest_transaction(self) -> str:
        """Describes the oldest open transaction of the server; "": none is older than a second."""
        sql = (
            "SELECT trx_mysql_thread_id AS session, TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS age_s "
            "FROM information_schema.INNODB_TRX ORDER BY trx_started LIMIT 1"
        )
        for row in self.rows(sql):
            if row["age_s"] >= 1:
                return f"the oldest is open for {row['age_s']} s, in session {row['session']}"
        return ""

    def read_tables(self) -> Mapping[str, str]:
        """The tables of the schema, and the first column of the primary key of each."""
        sql = (
            "SELECT TABLE_NAME AS name, COLUMN_NAME AS first FROM information_schema.STATISTICS "
            "WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY' AND SEQ_IN_INDEX = 1"
        )
        return {row["name"]: row["first"] for row in self.rows(sql, self.schema)}

    def application_sessions(self) -> list[dict[str, Any]]:
        """The sessions of others in the schema."""
        return [
            row
            for row in self.rows("SHOW FULL PROCESSLIST")
            if row["db"] == self.schema and row["Id"] != self.session
        ]

    # ---- changes

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
            with suppress(StatementRefused):
                self.run("DO RELEASE_LOCK(%s)", name)


def schema_of(url: str) -> str:
    """The schema that a URL of the settings names."""
    return make_url(url).database or ""
