"""Runs queries of people on many shards at once, over read-only connections with time limits.

These connections do not come from the pools of the verbs: queries and verbs never wait for each other's
connections. A session can only read (MySQL and MariaDB: READ ONLY transactions; SQLite: query_only), and each
statement sees the rows that were committed when it started. The server ends a statement that takes too long.
All statements of a `FanOut` have the same NOW().
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
_BACKSTOP_S = 5  # beyond the server's time limit: for a server that does not answer at all
_SQLITE_STEPS = 10_000  # of its virtual machine between two time checks: under a millisecond
_COLLATION = "utf8mb4_bin"
_CONCAT_BYTES = 1_000_000  # MySQL cuts GROUP_CONCAT after 1,024

What = Literal["down", "refused", "schema", "time", "statement"]

_WHAT: Mapping[int, What] = {
    **dict.fromkeys(AWAY, "down"),  # too many connections, shutdown, killed, moved away, …
    **dict.fromkeys(MYSQL_REFUSALS, "refused"),
    **dict.fromkeys((1146, 1054, 1356), "schema"),  # no such table, no such column, a broken view
    **dict.fromkeys((3024, 1969, 1205), "time"),  # MySQL's limit, MariaDB's, a lock
}
_WHAT_SQLITE: Mapping[str, What] = {
    "interrupted": "time", "no such": "schema", "unable to open": "down", "database is locked": "down",
    "disk I/O": "down", "file is not": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a `FanOut`.

    timeout_s: of one statement. whole_s: of all statements together. parallel: connections per database.
    bytes_max: the approximate size of one answer.
    """

    timeout_s: float
    whole_s: float
    parallel: int
    connect_timeout_s: int
    bytes_max: int = 64_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """A statement for one database. table: the table that it reads. place: returned with the reply."""

    place: int
    database: int
    table: str
    sql: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reply:
    """The rows of a question. digits: decimal places of each column; None: the server declares none."""

    question: Question
    rows: list[tuple[Any, ...]]
    digits: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class QuestionFailure:
    """A question without a reply. is_whole: the database answers no question at all."""

    question: Question
    what: What
    text: str
    is_whole: bool = False

    @property
    def line(self) -> str:
        """The failure in one line, with the database, the table and the reason."""
        where = f"database {self.question.database}"
        if not self.is_whole and self.question.table:
            where += f", table {self.question.table}"
        return f"{where}: {self.text}"


class FanOut:
    """Runs questions on the databases. moving: URLs of new servers by index (see `database_home`).

    functions(now_ms): functions by name, which SQLite gets.
    """

    def __init__(
        self,
        urls: Sequence[str],
        routing: Routing,
        clock: Clock,
        limits: Limits,
        functions: Callable[[int], Mapping[str, Callable[..., Any]]],
        moving: Mapping[int, str] | None = None,
        mysql: MysqlSettings | None = None,
    ) -> None:
        self._clock, self._limits = clock, limits
        self._deadline_s = clock.monotonic_s() + limits.whole_s
        moving, mysql = moving or {}, mysql or MysqlSettings()
        self._databases = [
            _Database(index, url, moving.get(index), mysql, routing, clock, limits, functions)
            for index, url in enumerate(urls)
        ]
        self.sqlite = self._databases[0].sqlite
        self.bytes_max = limits.bytes_max

    def close(self) -> None:
        for database in self._databases:
            database.close()

    def fix_now(self, databases: Sequence[int]) -> QuestionFailure | None:
        """Sets NOW() of all further statements to the time of the first of these databases that answers."""
        failure = None
        for index in databases:
            found = self.ask_one(Question(0, index, "", "SELECT UTC_TIMESTAMP(3)", {}))
            if isinstance(found, Reply):
                for database in self._databases:
                    database.now_ms = ms_of_sql_time(found.rows[0][0])
                return None
            failure = failure or found
        return failure

    def ask_one(self, question: Question) -> Reply | QuestionFailure:
        """Runs one statement in this thread."""
        database = self._databases[question.database]
        connection = database.connected(question)
        if isinstance(connection, QuestionFailure):
            return connection
        with contextlib.closing(connection):
            return database.answer(connection, question, self._deadline_s)

    def ask(
        self, questions: Sequence[Question], tick: Callable[[], None]
    ) -> Generator[Reply | QuestionFailure]:
        """Yields the replies as they arrive; calls `tick()` every TICK_S while there is none.

        Closing the iterator cancels the questions that were not started. Statements that run on servers
        end by their time limits.
        """
        replies: queue.Queue[Reply | QuestionFailure] = queue.Queue(
            maxsize=len(self._databases) * 4
        )
        stop = threading.Event()

        def put(reply: Reply | QuestionFailure) -> None:
            while not stop.is_set():
                with contextlib.suppress(queue.Full):
                    return replies.put(reply, timeout=TICK_S)
            return None

        def answer_all(database: _Database, todo: deque[Question]) -> None:
            with contextlib.closing(database.answers(todo, self._deadline_s)) as answers:
                while not stop.is_set() and (reply := next(answers, None)) is not None:
                    put(reply)

        for database in self._databases:
            todo = deque(one for one in questions if one.database == database.index)
            for _ in range(min(self._limits.parallel, len(todo))):
                threading.Thread(
                    target=answer_all, args=(database, todo), daemon=True, name="toc-asking"
                ).start()
        left = len(questions)
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


class _Database:
    """Connections to one database."""

    def __init__(
        self,
        index: int,
        url: str,
        moving: str | None,
        mysql: MysqlSettings,
        routing: Routing,
        clock: Clock,
        limits: Limits,
        functions: Callable[[int], Mapping[str, Callable[..., Any]]],
    ) -> None:
        self.index = index
        self.now_ms: int | None = clock.fixed_time_ms()
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

    def connected(self, question: Question) -> Connection | QuestionFailure:
        """Opens a connection to this database and sets its limits."""
        if self._file is not None and not Path(self._file).is_file():
            text = "does not answer: there is no such file; run `toc migrate` to create it"
            return QuestionFailure(question, "down", text, is_whole=True)
        try:
            connection = self._engine.connect().execution_options(stream_results=True)
            try:
                self._check(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        except SQLAlchemyError as error:
            return replace(_failure(question, error), is_whole=True)
        except _WrongError as error:
            return QuestionFailure(question, "schema", str(error), is_whole=True)

    def answers(
        self, todo: deque[Question], deadline_s: float
    ) -> Generator[Reply | QuestionFailure]:
        """Runs questions one by one, on one connection. Other threads take questions from `todo`, too."""
        with contextlib.ExitStack() as stack:
            connection: Connection | QuestionFailure | None = None
            while (question := _take_next(todo)) is not None:
                if connection is None:
                    connection = self.connected(question)
                    if isinstance(connection, Connection):
                        stack.callback(connection.close)
                if isinstance(connection, QuestionFailure):
                    # The database is not tried again for each of its tables.
                    yield replace(connection, question=question)
                    continue
                reply = self.answer(connection, question, deadline_s)
                yield reply
                if isinstance(reply, QuestionFailure) and reply.what == "down":
                    connection = None  # the next question tries a new one

    def answer(
        self, connection: Connection, question: Question, deadline_s: float
    ) -> Reply | QuestionFailure:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            return QuestionFailure(question, "time", "was not asked: all together took too long")
        limit_s = min(self._limits.timeout_s, left_s)
        raw = connection.connection.driver_connection
        try:
            with self._limited(connection, limit_s):
                result = connection.execute(text(question.sql), dict(question.values))
                described = result.cursor.description if result.cursor is not None else ()
                rows, size = list[tuple[Any, ...]](), 0
                for row in result:  # row by row: an answer that is too large is not read to its end
                    rows.append(tuple(row))
                    size += bytes_of(row)
                    if size > self._limits.bytes_max:
                        self._discard_rest(connection, raw, result)
                        text_of_limit = too_large(self._limits.bytes_max)
                        return QuestionFailure(question, "statement", text_of_limit)
        except SQLAlchemyError as error:
            _leave_rest_unread(raw)
            failure = _failure(question, error)
            if failure.what == "time":
                return QuestionFailure(question, "time", f"took longer than {limit_s:.3g} s")
            return failure
        return Reply(question, rows, tuple(column[5] for column in described))

    # ---- sessions

    def _discard_rest(self, connection: Connection, raw: Any, result: CursorResult[Any]) -> None:
        """Discards the rest of an answer."""
        if self.sqlite:
            result.close()
        else:
            _leave_rest_unread(raw)
            connection.invalidate()
            connection.rollback()

    def _check(self, connection: Connection) -> None:
        """Raises _WrongError when the database was set up with other numbers than the settings have."""
        sql = "SELECT name, value FROM toc_meta WHERE name IN ('hash', 'shards', 'databases', 'database')"
        for name, value in connection.execute(text(sql)):
            if self._facts[name] != value:
                raise _WrongError(
                    f"was set up with {name} = {value}, the settings say {self._facts[name]}"
                )

    @contextlib.contextmanager
    def _limited(self, connection: Connection, limit_s: float) -> Iterator[None]:
        if not self.sqlite:
            if limit_s < self._limits.timeout_s:
                connection.exec_driver_sql(f"SET SESSION {self._limit(limit_s)}")
            yield
            return
        raw: Any = connection.connection.driver_connection
        until_s = self._clock.monotonic_s() + limit_s
        raw.set_progress_handler(lambda: self._clock.monotonic_s() > until_s, _SQLITE_STEPS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    def _limit(self, seconds: float) -> str:
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
                f"{self._limit(self._limits.timeout_s)}"
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


def _take_next(todo: deque[Question]) -> Question | None:
    with contextlib.suppress(IndexError):
        return todo.popleft()
    return None


def _leave_rest_unread(raw: Any) -> None:
    """Keeps pymysql from reading the rest of an answer, from a connection that may be lost."""
    answer = getattr(raw, "_result", None)
    if answer is not None:
        answer.unbuffered_active = False


def bytes_of(row: Sequence[Any]) -> int:
    """The approximate size of a row in bytes."""
    return sum(len(value) + 8 if isinstance(value, str) else 8 for value in row)


def too_large(bytes_max: int) -> str:
    mb = f"{bytes_max / 1e6:g} MB"
    return f"answers more than {mb}: name fewer columns, or a smaller LIMIT, or allow more (--limit-mb)"


class _WrongError(Exception):
    """The settings describe another database."""


def _failure(question: Question, error: SQLAlchemyError) -> QuestionFailure:
    number, shown = error_number(error), error_text(error)
    what: What
    if number is None:
        what = next((each for part, each in _WHAT_SQLITE.items() if part in shown), "statement")
    elif number in CLIENT_ERRORS or number == 0:
        what = "down"
    else:
        what = _WHAT.get(number, "statement")
    return QuestionFailure(question, what, f"does not answer: {shown}" if what == "down" else shown)
