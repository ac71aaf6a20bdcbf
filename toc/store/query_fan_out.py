"""Runs queries of people on many shards at once, over read-only connections with time limits.

These connections do not come from the pools of the verbs: queries and verbs never wait for each other's
connections. A session can only read (MySQL and MariaDB: READ ONLY transactions; SQLite: query_only), and each
statement sees the rows that were committed when it started. The server ends a statement that takes too long.
All statements of a `QueryFanOut` have the same NOW().
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from toc.domain.routing import Routing
from toc.errors import MYSQL_REFUSALS
from toc.runtime.clock import Clock
from toc.runtime.setting_groups import MysqlSettings
from toc.store.column_types import ms_of_sql_time, sql_time_of_ms
from toc.store.database_home import HomeConnections
from toc.store.driver_errors import AWAY, CLIENT_ERRORS, error_number, error_text
from toc.store.sessions import session_arguments

TICK_S = 0.2
_BACKSTOP_S = 5  # after the server's time limit the driver waits so long for an answer
_SQLITE_STEPS = 10_000  # SQLite's instructions between two time checks: under a millisecond
_COLLATION = "utf8mb4_bin"
_CONCAT_BYTES = 1_000_000  # MySQL cuts GROUP_CONCAT after 1,024

What = Literal["down", "refused", "schema", "time", "statement"]

_WHAT: Mapping[int, What] = {
    **dict.fromkeys(AWAY, "down"),  # too many connections, shutdown, killed, moved away, …
    **dict.fromkeys(MYSQL_REFUSALS, "refused"),
    **dict.fromkeys((1146, 1054, 1356), "schema"),  # no such table, no such column, a broken view
    # MySQL's time limit, MariaDB's time limit, too long a wait for a lock
    **dict.fromkeys((3024, 1969, 1205), "time"),
}
_WHAT_SQLITE: Mapping[str, What] = {
    "interrupted": "time", "no such": "schema", "unable to open": "down", "database is locked": "down",
    "disk I/O": "down", "file is not": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of a `QueryFanOut`.

    timeout_s: of one statement. whole_s: of all statements together. parallel: connections per database.
    bytes_max: the approximate size of one answer.
    """

    timeout_s: float
    whole_s: float
    parallel: int
    connect_timeout_s: int
    bytes_max: int = 64_000_000


@dataclass(frozen=True, slots=True)
class DatabaseQuery:
    """A SELECT for one database. table: the table that it reads. place: a number to sort replies by."""

    place: int
    database: int
    table: str
    sql: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The rows of a query that succeeded.

    digits: decimal places of each column; None: the server declares no number.
    """

    query: DatabaseQuery
    rows: list[tuple[Any, ...]]
    digits: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """The error of a query. is_whole: the database can run no query at all."""

    query: DatabaseQuery
    what: What
    text: str
    is_whole: bool = False

    @property
    def description(self) -> str:
        """The failure in one line, with the database, the table and the reason."""
        where = f"database {self.query.database}"
        if not self.is_whole and self.query.table:
            where += f", table {self.query.table}"
        return f"{where}: {self.text}"


class QueryFanOut:
    """Runs queries on the databases. moving: URLs of new servers by index (see `database_home`).

    functions(now_ms): the SQL functions that SQLite gets, by name.
    """

    def __init__(
        self,
        urls: Sequence[str],
        routing: Routing,
        clock: Clock,
        limits: QueryLimits,
        functions: Callable[[int], Mapping[str, Callable[..., Any]]],
        moving: Mapping[int, str] | None = None,
        mysql: MysqlSettings | None = None,
    ) -> None:
        self._clock, self._limits = clock, limits
        self._deadline_s = clock.monotonic_s() + limits.whole_s
        moving, mysql = moving or {}, mysql or MysqlSettings()
        self._databases = [
            _ReadOnlyDatabase(
                index, url, moving.get(index), mysql, routing, clock, limits, functions
            )
            for index, url in enumerate(urls)
        ]
        self.sqlite = self._databases[0].sqlite
        self.bytes_max = limits.bytes_max

    def close(self) -> None:
        for database in self._databases:
            database.close()

    def set_common_now(self, databases: Sequence[int]) -> QueryFailure | None:
        """Sets NOW() of all further statements to the time of the first of these databases that answers."""
        failure = None
        for index in databases:
            found = self.run_query(DatabaseQuery(0, index, "", "SELECT UTC_TIMESTAMP(3)", {}))
            if isinstance(found, QueryRows):
                for database in self._databases:
                    database.now_ms = ms_of_sql_time(found.rows[0][0])
                return None
            failure = failure or found
        return failure

    def run_query(self, query: DatabaseQuery) -> QueryRows | QueryFailure:
        """Runs one query in this thread."""
        database = self._databases[query.database]
        connection = database.open_connection(query)
        if isinstance(connection, QueryFailure):
            return connection
        with contextlib.closing(connection):
            return database.run_query_on_connection(connection, query, self._deadline_s)

    def run_queries(
        self, queries: Sequence[DatabaseQuery], tick: Callable[[], None]
    ) -> Generator[QueryRows | QueryFailure]:
        """Runs queries in threads and yields the replies; calls `tick()` every TICK_S while no reply arrives.

        Closing the iterator cancels the queries that were not started. Queries that run on servers end by
        their time limits.
        """
        replies: queue.Queue[QueryRows | QueryFailure] = queue.Queue(
            maxsize=len(self._databases) * 4
        )
        stop = threading.Event()

        def put_reply(reply: QueryRows | QueryFailure) -> None:
            while not stop.is_set():
                with contextlib.suppress(queue.Full):
                    return replies.put(reply, timeout=TICK_S)
            return None

        def run_queries_of_database(
            database: _ReadOnlyDatabase, todo: deque[DatabaseQuery]
        ) -> None:
            with contextlib.closing(database.run_queued_queries(todo, self._deadline_s)) as answers:
                while not stop.is_set() and (reply := next(answers, None)) is not None:
                    put_reply(reply)

        for database in self._databases:
            todo = deque(one for one in queries if one.database == database.index)
            for _ in range(min(self._limits.parallel, len(todo))):
                threading.Thread(
                    target=run_queries_of_database,
                    args=(database, todo),
                    daemon=True,
                    name="toc-asking",
                ).start()
        left = len(queries)
        try:
            while left:
                try:
                    reply = replies.get(timeout=TICK_S)
                except queue.Empty:
                    tick()
                    continue
                left -= 1
                yield reply
        finally:
            stop.set()


class _ReadOnlyDatabase:
    """One database, with read-only connections."""

    def __init__(
        self,
        index: int,
        url: str,
        moving: str | None,
        mysql: MysqlSettings,
        routing: Routing,
        clock: Clock,
        limits: QueryLimits,
        functions: Callable[[int], Mapping[str, Callable[..., Any]]],
    ) -> None:
        self.index = index
        self.now_ms: int | None = clock.time_for_servers_ms()
        self._clock, self._limits, self._functions = clock, limits, functions
        self._facts = routing.meta_values() | {"database": str(index)}
        parsed = make_url(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        self._file = parsed.database if self.sqlite else None
        wait_s = math.ceil(limits.timeout_s) + _BACKSTOP_S
        arguments: dict[str, Any] = {"timeout": limits.timeout_s}
        if not self.sqlite:
            arguments = session_arguments(parsed, mysql, limits.connect_timeout_s, wait_s)
        self._engine: Engine = create_engine(
            parsed,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            connect_args=arguments,
        )
        self._home: HomeConnections | None = None
        self._is_mariadb = False
        if self.sqlite:
            event.listen(self._engine, "connect", self._prepare_sqlite)
            return
        new = None if moving is None else make_url(moving)
        self._home = HomeConnections(index, parsed, new, arguments, clock)
        self._home.attach_engine(self._engine)
        event.listen(self._engine, "connect", self._prepare_mysql)

    def close(self) -> None:
        if self._home is not None:
            self._home.close()

    def open_connection(self, query: DatabaseQuery) -> Connection | QueryFailure:
        """Opens a connection to this database and sets its limits."""
        if self._file is not None and not Path(self._file).is_file():
            text = "does not answer: there is no such file; run `toc migrate` to create it"
            return QueryFailure(query, "down", text, is_whole=True)
        try:
            connection = self._engine.connect().execution_options(stream_results=True)
            try:
                self._check_routing(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        except SQLAlchemyError as error:
            return replace(_failure_from_error(query, error), is_whole=True)
        except _WrongDatabaseError as error:
            return QueryFailure(query, "schema", str(error), is_whole=True)

    def run_queued_queries(
        self, todo: deque[DatabaseQuery], deadline_s: float
    ) -> Generator[QueryRows | QueryFailure]:
        """Runs the queries of `todo` one by one on one connection. Other threads may do the same."""
        with contextlib.ExitStack() as stack:
            connection: Connection | QueryFailure | None = None
            while (query := _pop_next_query(todo)) is not None:
                if connection is None:
                    connection = self.open_connection(query)
                    if isinstance(connection, Connection):
                        stack.callback(connection.close)
                if isinstance(connection, QueryFailure):
                    # The database is not tried again for each of its tables.
                    yield replace(connection, query=query)
                    continue
                reply = self.run_query_on_connection(connection, query, deadline_s)
                yield reply
                if isinstance(reply, QueryFailure) and reply.what == "down":
                    connection = None  # the next query opens a new connection

    def run_query_on_connection(
        self, connection: Connection, query: DatabaseQuery, deadline_s: float
    ) -> QueryRows | QueryFailure:
        """Runs one query on an open connection, within its time and size limits."""
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            return QueryFailure(query, "time", "was not run: all queries together took too long")
        limit_s = min(self._limits.timeout_s, left_s)
        raw = connection.connection.driver_connection
        try:
            with self._limit_query_time(connection, limit_s):
                result = connection.execute(text(query.sql), dict(query.values))
                described = result.cursor.description if result.cursor is not None else ()
                rows, size = list[tuple[Any, ...]](), 0
                for row in result:  # row by row: an answer that is too large is not read to its end
                    rows.append(tuple(row))
                    size += row_size_bytes(row)
                    if size > self._limits.bytes_max:
                        self._discard_unread_rows(connection, raw, result)
                        text_of_limit = describe_size_limit(self._limits.bytes_max)
                        return QueryFailure(query, "statement", text_of_limit)
        except SQLAlchemyError as error:
            _stop_driver_reading(raw)
            failure = _failure_from_error(query, error)
            if failure.what == "time":
                return QueryFailure(query, "time", f"took longer than {limit_s:.3g} s")
            return failure
        return QueryRows(query, rows, tuple(column[5] for column in described))

    # ---- sessions

    def _discard_unread_rows(
        self, connection: Connection, raw: Any, result: CursorResult[Any]
    ) -> None:
        """Discards the rows of a result that were not read."""
        if self.sqlite:
            result.close()
        else:
            _stop_driver_reading(raw)
            connection.invalidate()
            connection.rollback()

    def _check_routing(self, connection: Connection) -> None:
        """Raises _WrongDatabaseError if the database was set up with other values than the settings have."""
        sql = "SELECT name, value FROM toc_meta WHERE name IN ('hash', 'shards', 'databases', 'database')"
        for name, value in connection.execute(text(sql)):
            if self._facts[name] != value:
                raise _WrongDatabaseError(
                    f"was set up with {name} = {value}, the settings say {self._facts[name]}"
                )

    @contextlib.contextmanager
    def _limit_query_time(self, connection: Connection, limit_s: float) -> Iterator[None]:
        if not self.sqlite:
            if limit_s < self._limits.timeout_s:
                connection.exec_driver_sql(f"SET SESSION {self._time_limit_assignment(limit_s)}")
            yield
            return
        raw: Any = connection.connection.driver_connection
        until_s = self._clock.monotonic_s() + limit_s
        raw.set_progress_handler(lambda: self._clock.monotonic_s() > until_s, _SQLITE_STEPS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    def _time_limit_assignment(self, seconds: float) -> str:
        if self._is_mariadb:
            return f"max_statement_time = {seconds:.3f}"
        return f"max_execution_time = {math.ceil(seconds * 1000)}"

    def _prepare_mysql(self, raw: Any, record: Any) -> None:
        with contextlib.closing(raw.cursor()) as cursor:
            cursor.execute("SELECT VERSION()")
            self._is_mariadb = "mariadb" in str(cursor.fetchone()[0]).lower()
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.execute(
                # Literals are compared like the columns: byte by byte.
                f"SET SESSION collation_connection = '{_COLLATION}', sql_mode = 'STRICT_TRANS_TABLES', "
                f"group_concat_max_len = {_CONCAT_BYTES}, "
                f"lock_wait_timeout = {math.ceil(self._limits.timeout_s)}, "
                f"{self._time_limit_assignment(self._limits.timeout_s)}"
            )
            if self.now_ms is not None:
                cursor.execute(f"SET SESSION timestamp = {self.now_ms / 1000:.3f}")

    def _prepare_sqlite(self, raw: Any, record: Any) -> None:
        now_ms = self._clock.wall_ms() if self.now_ms is None else self.now_ms
        with contextlib.closing(raw.cursor()) as cursor:
            cursor.execute("PRAGMA query_only = ON")
            cursor.execute("PRAGMA case_sensitive_like = ON")
        for name, call in self._functions(now_ms).items():
            if isinstance(call, type):
                raw.create_aggregate(name, -1, call)
            else:
                raw.create_function(name, -1, call, deterministic=True)
        raw.create_function("UTC_TIMESTAMP", 1, lambda digits: sql_time_of_ms(now_ms))


def _pop_next_query(todo: deque[DatabaseQuery]) -> DatabaseQuery | None:
    with contextlib.suppress(IndexError):
        return todo.popleft()
    return None


def _stop_driver_reading(raw: Any) -> None:
    """Keeps pymysql from reading the rest of an answer, from a connection that may be lost."""
    answer = getattr(raw, "_result", None)
    if answer is not None:
        answer.unbuffered_active = False


def row_size_bytes(row: Sequence[Any]) -> int:
    """The approximate size of a row in bytes."""
    return sum(len(value) + 8 if isinstance(value, str) else 8 for value in row)


def describe_size_limit(bytes_max: int) -> str:
    mb = f"{bytes_max / 1e6:g} MB"
    return f"answers more than {mb}: name fewer columns, or a smaller LIMIT, or allow more (--limit-mb)"


class _WrongDatabaseError(Exception):
    """The settings describe another database."""


def _failure_from_error(query: DatabaseQuery, error: SQLAlchemyError) -> QueryFailure:
    number, shown = error_number(error), error_text(error)
    what: What
    if number is None:
        what = next((each for part, each in _WHAT_SQLITE.items() if part in shown), "statement")
    elif number in CLIENT_ERRORS or number == 0:
        what = "down"
    else:
        what = _WHAT.get(number, "statement")
    return QueryFailure(query, what, f"does not answer: {shown}" if what == "down" else shown)
