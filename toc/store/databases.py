"""Connections to the databases that hold the shards.

Every connection of toc runs READ COMMITTED: under REPEATABLE READ a locking read of deleted ids locks
the gap at the end of the table, and all inserts of the shard would wait for that lock.

`Database.run_verb(verb)` runs a verb whose statements are known beforehand (see `verb`). A transaction whose
statements depend on each other's results is `Database.run_transaction(work)`: begin, `work(connection)`,
commit. `Database.run_read(work)` is for reads that need no transaction.
Deadlocks, lock wait timeouts and lost connections are retried a few times: each of toc's verbs can be
repeated, because the guard or the ids of the verb make the second run harmless. A caller's own transaction is
not run here: a deadlock rolls back the whole transaction, and only the caller can repeat that.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Engine,
    Executable,
    Select,
    bindparam,
    create_engine,
    event,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from toc.domain.routing import Routing, routing_hash_of
from toc.errors import StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.payload_codecs import PayloadCodecs
from toc.runtime.private_files import on_sqlite_connect
from toc.runtime.server_clock import ServerClock
from toc.runtime.setting_groups import MysqlSettings
from toc.runtime.settings import Settings
from toc.store import schema
from toc.store.column_types import db_now, ms_of_sql_time, sql_time_of_ms
from toc.store.compiled_statement import IdList, id_list_to_sql
from toc.store.database_home import FENCE_ERRORS, HomeConnections
from toc.store.driver_errors import (
    DEADLOCK,
    LOCK_ERRORS,
    LOST_ERRORS,
    error_number,
    error_text,
    hide_values,
    translate_error,
)
from toc.store.first_check import FirstCheck
from toc.store.pipelined_executor import PacketFailedError, PipelinedExecutor
from toc.store.sessions import session_arguments, set_idle_transaction_limit
from toc.store.sqlite_writers import refuse_self_deadlock
from toc.store.verb import PlainExecutor, Statement, Verb

C = TypeVar("C")
T = TypeVar("T")

TRIES_MAX = 5
DEADLOCK_TRIES_MAX = 12
"""A deadlock ends at once, so a try costs little; callers of one key can meet in several of them."""

SHARD = "toc_shard"
"""The execution option that names the shard of a statement on `schema.JOB`."""


def execute_on_shard(
    connection: Connection,
    shard: int,
    statement: Executable,
    values: Mapping[str, Any] | None = None,
) -> CursorResult[Any]:
    """Runs a statement that is written for `schema.JOB` on the table of one shard."""
    return connection.execute(statement, values, execution_options={SHARD: shard})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections to one database. pool_size: the size of each of its two pools.

    idle_transaction_s: the server ends a session that is idle within a transaction for longer.
    """

    pool_size: int = 16
    connect_timeout_s: int = 3
    read_timeout_s: int = 30
    idle_transaction_s: int = 10


class Database:
    """One database: its two connection pools and the tables of its shards.

    `engine` is for transactions; every use is a `begin()` block that ends with COMMIT or ROLLBACK.
    `autocommit_engine` is for single statements, which need one round trip where a transaction needs more,
    and for packets, which contain their own BEGIN and COMMIT.
    """

    def __init__(
        self,
        index: int,
        url: str,
        shards: range,
        clock: Clock,
        rng: random.Random,
        *,
        moving: str | None,
        mysql: MysqlSettings,
        limits: ConnectionLimits,
        payload_codecs: PayloadCodecs,
    ) -> None:
        self.index, self.shards = index, shards
        self.payload_codecs = payload_codecs
        self.idle_transaction_s = limits.idle_transaction_s
        self._read_timeout_s = limits.read_timeout_s
        self._clock, self._rng = clock, rng
        self.server_clock = ServerClock(clock)
        """This process' bounds of the database's clock."""
        self._first_check: FirstCheck | None = None
        parsed = make_url(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        self.is_local = parsed.host in (None, "", "localhost", "127.0.0.1", "::1")
        """Whether the database is on this machine: a file, a socket or the loopback address."""
        self._supports_packets = self._binds_id_lists = parsed.get_driver_name() == "pymysql"
        # SQLite allows one writer. Threads of this process wait for each other on this lock; SQLite itself
        # would sleep and retry, up to 100 ms at a time.
        self._writer_turn: AbstractContextManager[Any] = (
            threading.Lock() if self.sqlite else nullcontext()
        )
        arguments = self._driver_arguments(parsed, mysql, limits)
        self.engine, self.autocommit_engine = self._create_both_engines(parsed, arguments, limits)
        self._database_home: HomeConnections | None = None
        if not self.sqlite:
            new = None if moving is None else make_url(moving)
            self._database_home = HomeConnections(index, parsed, new, arguments, clock)
        self._define_tables(parsed)
        for engine in (self.engine, self.autocommit_engine):
            self._register_listeners(engine)
        if not self.sqlite:
            set_idle_transaction_limit(self.engine, limits.idle_transaction_s)

    def _driver_arguments(
        self, url: URL, mysql: MysqlSettings, limits: ConnectionLimits
    ) -> dict[str, Any]:
        if self.sqlite:
            # The driver keeps the texts of statements; those of large INSERTs are all different.
            return {"timeout": limits.read_timeout_s, "cached_statements": 16}
        arguments = session_arguments(url, mysql, limits.connect_timeout_s, limits.read_timeout_s)
        if self._supports_packets:
            # The driver converts DATETIME to milliseconds directly: this halves the cost of reading a row.
            converters = {FIELD_TYPE.DATETIME: ms_of_sql_time, IdList: id_list_to_sql}
            arguments["conv"] = {**conversions, **converters}
            # rowcount is the number of rows found, as in SQLAlchemy; packets: see `pipelined_executor`.
            arguments["client_flag"] = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
        return arguments

    def _create_both_engines(
        self, url: URL, arguments: dict[str, Any], limits: ConnectionLimits
    ) -> tuple[Engine, Engine]:
        """Makes the engine for transactions, and the one that commits each statement."""
        options: dict[str, Any] = {
            "pool_size": limits.pool_size, "max_overflow": 0, "connect_args": arguments,
        }  # fmt: skip
        if not self.sqlite:
            options["pool_recycle"] = 3600  # s; below the default wait_timeout of any server (8 h)
        engine = create_engine(
            url,
            pool_reset_on_return=None,  # each use ends with COMMIT or ROLLBACK
            pool_use_lifo=True,  # few busy connections rather than many long-idle ones
            **options,
        )
        autocommit = {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}
        return engine, create_engine(url, **autocommit, **options)

    def _define_tables(self, url: URL) -> None:
        # Qualified names: a caller's connection to the same server may use another default schema.
        tables = schema.tables_of_database(None if self.sqlite else url.database)
        self.meta = tables["toc_meta"]
        self.biz_type = tables["toc_biz_type"]
        self.dead = tables["toc_dead_job"]
        self.event = tables["toc_event"]
        self.purge = tables["toc_purge"]
        self.token = tables["toc_token"]
        self.audit = tables["toc_audit"]
        self.declared_type = tables["toc_declared_type"]
        self.pause = tables["toc_pause"]
        self.webhook = tables["toc_webhook"]
        self.arrival = tables["toc_arrival"]
        self.recurring = tables["toc_recurring"]
        self.occurrence = tables["toc_occurrence"]
        self.mass_change = tables["toc_mass_change"]
        quote = self.engine.dialect.identifier_preparer.quote_identifier
        prefix = "" if self.sqlite else f"{quote(str(url.database))}."
        self._job_table_names = {
            shard: prefix + quote(schema.job_table_name(shard)) for shard in self.shards
        }

    def _register_listeners(self, engine: Engine) -> None:
        event.listen(
            engine,
            "before_cursor_execute",
            self.make_table_name_listener(engine.dialect),
            retval=True,
        )
        event.listen(
            engine, "handle_error", lambda context: hide_values(context.sqlalchemy_exception)
        )
        if self.sqlite:
            event.listen(engine, "do_connect", on_sqlite_connect)
            event.listen(engine, "connect", self._configure_sqlite)
            return
        assert self._database_home is not None  # noqa: S101 - only SQLite has none
        self._database_home.attach_engine(engine)
        if self._clock.time_for_servers_ms() is not None:
            event.listen(engine, "before_cursor_execute", self._set_mysql_session_time)

    def job_table_name(self, shard: int) -> str:
        """The quoted, qualified name of a shard's table."""
        return self._job_table_names[shard]

    def build_id_filter(
        self, column: ColumnElement[int], ids: Sequence[int]
    ) -> ColumnElement[bool]:
        """Builds the condition `column IN (ids)` for this database's own connections; `ids` must not be
        empty.

        The ids are bound as one value: separate values cost SQLAlchemy and the driver four times as much.
        """
        if not self._binds_id_lists:
            return column.in_(ids)
        return column.in_([bindparam(None, IdList(ids), type_=BigInteger)])

    def make_table_name_listener(self, dialect: Dialect) -> Callable[..., tuple[str, Any]]:
        """Makes a listener that puts the shard's table name into a statement on `schema.JOB`.

        Values are bound, so the listener replaces names only. `dialect`: that of the connection, which may
        use ANSI quotes. The table name is in backticks, which MySQL and MariaDB accept in any sql_mode.
        """
        any_shard = dialect.identifier_preparer.quote_identifier(schema.ANY_SHARD)

        def replace_table_placeholder(
            connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
        ) -> tuple[str, Any]:
            shard = context.execution_options.get(SHARD) if context is not None else None
            if shard is not None:
                statement = statement.replace(any_shard, self._job_table_names[shard])
            return statement, parameters

        return replace_table_placeholder

    def run_transaction(self, work: Callable[[Connection], T]) -> T:
        """Runs `work(connection)` in one transaction, then commits.

        Raises StoreUnavailable when the database is unavailable, StatementFailed when the server refuses a
        statement, and IntegrityError of the driver for a duplicate of toc's own keys.
        """
        self._refuse_self_deadlock()
        return self._run_with_retries(partial(_connect_and_run, self.engine.begin, work))

    def run_read(self, work: Callable[[Connection], T]) -> T:
        """Runs the reads of `work(connection)` in autocommit mode: each statement is its own transaction."""
        return self._run_with_retries(
            partial(_connect_and_run, self.autocommit_engine.connect, work)
        )

    def select(self, query: Select[Any], shard: int | None = None) -> Sequence[Any]:
        """All rows of a query. `shard`: the shard that a query on `schema.JOB` reads."""
        return self.run_read(
            lambda connection: connection.execute(query, execution_options={SHARD: shard}).all()
        )

    def scalar(self, query: Select[Any], shard: int | None = None) -> Any:
        """The first value of the first row of a query; None: no row. Arguments as of `select`."""
        rows = self.select(query, shard)
        return rows[0][0] if rows else None

    def execute(self, statement: Executable, values: Mapping[str, Any] | None = None) -> int:
        """Runs a single changing statement in autocommit mode; returns the number of rows that matched."""
        return self.run_autocommit(
            lambda connection: connection.execute(statement, values).rowcount
        )

    def read_pages_by_id(
        self, query: Select[Any], shard: int, rows: int, after: int = -1
    ) -> Iterator[Sequence[Any]]:
        """Yields pages of a query on `schema.JOB`, ordered by job_id, with job_id > `after`.

        The first column must be job_id. Each page has `rows` rows; the last page has fewer, maybe none.
        """
        job_id = schema.JOB.c.job_id
        while True:
            page = self.select(query.where(job_id > after).order_by(job_id).limit(rows), shard)
            yield page
            if len(page) < rows:
                return
            after = page[-1][0]

    def lock_sqlite_file(self, connection: Connection) -> None:
        """Takes the write lock of SQLite (which has no row locks) before reads. No effect on MySQL."""
        if self.sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def run_autocommit(self, work: Callable[[Connection], T]) -> T:
        """Runs `work(connection)`, a single changing statement, in autocommit mode."""
        self._refuse_self_deadlock()
        return self.run_read(work)

    def _refuse_self_deadlock(self) -> None:
        if self.sqlite:
            refuse_self_deadlock(str(self.engine.url.database))

    def run_verb(self, verb: Verb[T]) -> T:
        """Runs a verb with the pipelined executor; if that fails, with the plain executor.

        Raises as `run_transaction` does.
        """
        answer = self.run_pipelined(verb)
        if answer is not None:
            return answer
        self._refuse_self_deadlock()
        plain = partial(PlainExecutor, self.engine, self.autocommit_engine)
        return self._run_with_retries(partial(_connect_and_run, plain, verb.run))

    def run_pipelined(self, verb: Verb[T]) -> T | None:
        """Runs a verb with the pipelined executor alone.

        None: a packet failed, or the driver, the server or a proxy does not support packets.
        """
        if not self._supports_packets:
            return None
        connect = self._open_pipelined_connection
        try:
            return self._run_with_retries(partial(_connect_and_run, connect, verb.run))
        except PacketFailedError as error:
            if error.refused:
                self._supports_packets = False
            if error.undone:
                verb.tries -= 1
            return None

    def _open_pipelined_connection(self) -> PipelinedExecutor:
        connection = PipelinedExecutor(self.autocommit_engine, self.idle_transaction_s)
        for_servers_ms = self._clock.time_for_servers_ms()
        if for_servers_ms is not None:  # tests only
            connection.send_autocommit([Statement(_timestamp_sql(for_servers_ms))])
        return connection

    def require_check_before_use(self, check: Callable[[Database], None]) -> None:
        """From now on `check(self)` must pass once before any other statement runs on this database."""
        self._first_check = FirstCheck(partial(check, self), self._clock)

    @property
    def is_first_check_pending(self) -> bool:
        """Whether this database has not passed its first check since this process started."""
        return self._first_check is not None

    def _run_with_retries(self, attempt: Callable[[], T]) -> T:
        if self._first_check is not None and self._first_check.run_until_passed():
            self._first_check = None
        began_s = self._clock.monotonic_s()
        for tries in range(1, DEADLOCK_TRIES_MAX + 1):
            try:
                with self._writer_turn:
                    return attempt()
            except PoolTimeout as error:
                raise StoreUnavailable(self.index, error) from error
            except DBAPIError as error:
                repeat = self._retry_reason(error, tries, began_s)
                if not repeat:
                    failure = translate_error(self.index, error)
                    if failure is None:
                        raise
                    raise failure from error
                if repeat == "lock":
                    self._clock.sleep_s(self._rng.uniform(0, 0.01 * 2 ** min(tries, TRIES_MAX)))
        raise AssertionError("unreachable")

    def _retry_reason(self, error: DBAPIError, tries: int, began_s: float) -> str:
        if not isinstance(error, OperationalError | InterfaceError):
            return ""
        number = error_number(error)
        if self.sqlite and "locked" in error_text(error):
            # SQLite raises this error at once if the snapshot was too old, otherwise after its time-out.
            waited_s = self._clock.monotonic_s() - began_s
            return "lock" if tries < TRIES_MAX and waited_s < self._read_timeout_s else ""
        if number in LOCK_ERRORS:
            most = DEADLOCK_TRIES_MAX if number == DEADLOCK else TRIES_MAX
            return "lock" if tries < most else ""
        # A pooled connection died while idle: the pool has been emptied, the next connection is new. During a
        # move of the database, that one may meet the fence of the old server, or be killed by the mover: then
        # there is a third.
        lost = error.connection_invalidated or number in LOST_ERRORS
        may_move = self._database_home is not None and self._database_home.may_move
        return "lost" if lost and tries < (3 if may_move or number in FENCE_ERRORS else 2) else ""

    def now_ms(self) -> int:
        """The database's clock, in milliseconds since 1970 UTC."""

        now_ms: int = self.scalar(select(db_now()))
        return now_ms

    def open_connections(self, singles: int, transactions: int) -> None:
        """Opens connections before they are needed: a connection takes tens of milliseconds (TLS, log-in)."""
        # If the database is unavailable, the first use connects.
        with suppress(DBAPIError), ExitStack() as held:
            for _ in range(singles):
                held.enter_context(self.autocommit_engine.connect())
            for _ in range(transactions):
                held.enter_context(self.engine.connect())

    def close(self) -> None:
        if self._database_home is not None:
            self._database_home.close()
        self.engine.dispose()
        self.autocommit_engine.dispose()

    def add_sqlite_functions(self, connection: Connection) -> None:
        """Adds toc's SQL functions to a caller's SQLite connection; does nothing on other databases."""
        if self.sqlite:
            self._add_sqlite_functions(connection.connection.dbapi_connection)

    def _add_sqlite_functions(self, raw: Any) -> None:
        clock = self._clock

        def toc_now(plus_ms: int, least: str = "") -> str:
            for_servers_ms = clock.time_for_servers_ms()
            now_ms = clock.wall_ms() if for_servers_ms is None else for_servers_ms
            return sql_time_of_ms(max(now_ms, ms_of_sql_time(least) if least else 0) + plus_ms)

        raw.create_function("toc_now", -1, toc_now)  # with one argument or two
        # biz_ids are unsigned; SQLite has the signed number with the same 64 bits.
        raw.create_function("toc_hash", 1, lambda n: routing_hash_of(n % 2**64), deterministic=True)
        raw.create_function("toc_crc32", 1, lambda t: zlib.crc32(t.encode()), deterministic=True)

    def _configure_sqlite(self, raw: Any, record: Any) -> None:
        self._add_sqlite_functions(raw)
        cursor = raw.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # a COMMIT is as durable as the disk (I1)
        cursor.close()

    def _set_mysql_session_time(self, connection: Any, cursor: Any, *statement: Any) -> None:
        for_servers_ms = self._clock.time_for_servers_ms()
        if for_servers_ms is not None:  # tests only: UTC_TIMESTAMP follows the session's TIMESTAMP
            cursor.execute(_timestamp_sql(for_servers_ms))


def _timestamp_sql(ms: int) -> str:
    return f"SET TIMESTAMP = {ms / 1000:.3f}"


def _connect_and_run(connect: Callable[[], AbstractContextManager[C]], work: Callable[[C], T]) -> T:
    with connect() as connection:
        return work(connection)


class Databases:
    """All databases of toc, by index; `database_of_shard` finds the database of a shard."""

    def __init__(
        self,
        urls: Sequence[str],
        routing: Routing,
        clock: Clock,
        *,
        moving: Mapping[int, str] | None = None,
        mysql: MysqlSettings | None = None,
        rng: random.Random | None = None,
        limits: ConnectionLimits | None = None,
        payload_codecs: PayloadCodecs | None = None,
    ) -> None:
        self.routing = routing
        self.clock = clock
        self.payload_codecs = payload_codecs or PayloadCodecs()
        rng = rng or random.Random()  # noqa: S311 - spreads retries, keeps no secrets
        self.all = [
            Database(
                index,
                url,
                routing.shards_of_database(index),
                clock,
                rng,
                moving=(moving or {}).get(index),
                mysql=mysql or MysqlSettings(),
                limits=limits or ConnectionLimits(),
                payload_codecs=self.payload_codecs,
            )
            for index, url in enumerate(urls)
        ]

    @classmethod
    def from_settings(
        cls, settings: Settings, clock: Clock, *, pool_size: int | None = None
    ) -> Databases:
        """Makes the databases of the settings. `pool_size`: replaces the setting if given."""
        limits = ConnectionLimits(
            pool_size or settings.pool_size,
            settings.connect_timeout_s,
            settings.read_timeout_s,
            settings.idle_transaction_s,
        )
        databases, routing = settings.databases, settings.routing
        return cls(
            databases, routing, clock, moving=settings.moving, mysql=settings.mysql, limits=limits,
            payload_codecs=PayloadCodecs(settings.codecs),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Database]:
        return iter(self.all)

    def __getitem__(self, index: int) -> Database:
        return self.all[index]

    def now_ms(self) -> int:
        """The time of the first database that answers, in ms. Raises StoreUnavailable if none answers."""
        *others, last = sorted(self.all, key=lambda database: database.is_first_check_pending)
        for database in others:
            with suppress(StoreUnavailable):
                return database.now_ms()
        return last.now_ms()

    def database_of_shard(self, shard: int) -> Database:
        return self.all[self.routing.database_index(shard)]

    def select(self, query: Select[Any], shard: int) -> Sequence[Any]:
        """All rows of a query on `schema.JOB`, from the table of a shard."""
        return self.database_of_shard(shard).select(query, shard)

    def close(self) -> None:
        for database in self.all:
            database.close()
