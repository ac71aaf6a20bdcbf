"""Connections to the databases that hold the shards.

Every connection of toc runs READ COMMITTED: under REPEATABLE READ a locking read of ids that are
gone locks the gap at the end of the table, and all inserts of the shard would wait for it.

Every transaction is `Database.run(work)`: it begins, calls `work(connection)` and commits;
`Database.read(work)` is for statements that stand for themselves; `Database.packet(together)` is the fast
way for either, and what does not go that way goes the other. Deadlocks and lock waits repeat
them a few times; so does a connection that was lost, because each of toc's verbs can be repeated (its
guard or its ids make the second time harmless). A caller's own transaction never comes here: a
deadlock has rolled it back as a whole, and only he can repeat it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Engine,
    Executable,
    MetaData,
    bindparam,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from toc.domain.routing import Routing, hash_of
from toc.errors import StoreUnavailable, TocError
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store import schema
from toc.store.columns import ms_of_sql_time, sql_time
from toc.store.idle import end_idle_sessions
from toc.store.moving import Home
from toc.store.packets import LOST_ERRORS, Line, NotTogetherError
from toc.store.prepared import Ids, text_of_ids

C = TypeVar("C")
T = TypeVar("T")

TRIES_MAX = 5
_LOCK_ERRORS = {1205, 1213}  # lock wait timeout, deadlock
LOCK_WAIT_S = 5  # for a row, and for a table that somebody changes


CHECK_AGAIN_S_MAX = (
    3.0  # a check that failed is not made again for as long as it took, at most this
)

SHARD = "toc_shard"
"""The execution option that says which shard a statement on `schema.JOB` means."""


def execute_on(
    connection: Connection,
    shard: int,
    statement: Executable,
    values: Mapping[str, Any] | None = None,
) -> CursorResult[Any]:
    """Runs a statement that is written on `schema.JOB` on one shard."""
    return connection.execute(statement, values, execution_options={SHARD: shard})


class Database:
    """One database: its engine and the tables of its shards."""

    def __init__(
        self,
        index: int,
        url: str,
        shards: range,
        clock: Clock,
        rng: random.Random,
        *,
        moving: str | None,
        pool_size: int,
        connect_timeout_s: int,
        read_timeout_s: int,
        idle_transaction_s: int,
    ) -> None:
        self.index = index
        self.shards = shards
        self.idle_transaction_s = idle_transaction_s
        self._clock, self._rng = clock, rng
        self._check: Callable[[Database], None] | None = None
        self._check_lock = threading.Lock()
        self._checker: int | None = None  # the thread that checks
        self._met: tuple[TocError, float] | None = (
            None  # by the last check, and until when it counts
        )
        parsed = make_url(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        self._takes_packets = self._takes_ids = parsed.get_driver_name() == "pymysql"
        # SQLite has one writer. Threads of this process take turns here, fairly and at once; its own
        # way is to sleep and try again, up to 100 ms at a time.
        self._turn: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.sqlite else contextlib.nullcontext()
        )
        options: dict[str, Any] = {"pool_size": pool_size, "max_overflow": 0}
        if self.sqlite:
            options["connect_args"] = {"timeout": read_timeout_s}
        else:
            options["pool_recycle"] = 3600  # below any server's wait_timeout default (8 h)
            options["connect_args"] = {
                "connect_timeout": connect_timeout_s,
                "read_timeout": read_timeout_s,
                "write_timeout": read_timeout_s,
            }
            if self._takes_packets:
                # DATETIME straight to milliseconds: half the cost of reading a row otherwise.
                options["connect_args"]["conv"] = {
                    **conversions,
                    FIELD_TYPE.DATETIME: ms_of_sql_time,
                    Ids: text_of_ids,
                }
                # Rows that a guard finds count as changed, as SQLAlchemy has it; see `packets`.
                flags = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
                options["connect_args"]["client_flag"] = flags
        # Two pools. `engine` is for transactions; every use is a `begin()` block that ends by COMMIT or
        # ROLLBACK, so the pool's own ROLLBACK on return would be a round trip for nothing.
        # `single` is for one statement that commits itself: one round trip where a transaction has two;
        # and for packets, which bring their own BEGIN and COMMIT.
        self.engine: Engine = create_engine(
            parsed,
            pool_reset_on_return=None,
            pool_use_lifo=True,  # few that are busy, rather than many that have been idle for long
            **options,
        )
        self.single: Engine = create_engine(
            parsed, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True, **options
        )
        self._home: Home | None = None
        if not self.sqlite:
            new = None if moving is None else make_url(moving)
            self._home = Home(index, parsed, new, options["connect_args"], clock)
            for engine in (self.engine, self.single):
                self._home.serve(engine)
        # Qualified names: a caller's connection to the same server may stand in another schema.
        metadata = MetaData(schema=None if self.sqlite else parsed.database)
        self.meta = schema.meta_table(metadata)
        self.biz_type = schema.biz_type_table(metadata)
        self.dead = schema.dead_table(metadata)
        self.event = schema.event_table(metadata)
        quote = self.engine.dialect.identifier_preparer.quote_identifier
        prefix = "" if self.sqlite else f"{quote(str(parsed.database))}."
        self._any_shard = quote(schema.ANY_SHARD)
        self._names = {shard: prefix + quote(schema.job_table_name(shard)) for shard in shards}
        for engine in (self.engine, self.single):
            event.listen(engine, "before_cursor_execute", self.name_shard, retval=True)
            event.listen(engine, "connect", self._prepare_sqlite if self.sqlite else _prepare_mysql)
            if clock.frozen_ms() is not None and not self.sqlite:
                event.listen(engine, "before_cursor_execute", self._freeze_mysql)
        if not self.sqlite:
            end_idle_sessions(self.engine, idle_transaction_s)

    def job_table_name(self, shard: int) -> str:
        """The quoted, qualified name of a shard's table."""
        return self._names[shard]

    def among(self, column: ColumnElement[int], ids: Sequence[int]) -> ColumnElement[bool]:
        """`column IN (ids)`, for this database's own connections; at least one.

        Bound one by one, many ids cost SQLAlchemy and the driver four times as much.
        """
        if not self._takes_ids:
            return column.in_(ids)
        return column.in_([bindparam(None, Ids(ids), type_=BigInteger)])

    def name_shard(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        many: bool,
    ) -> tuple[str, Any]:
        """Puts the shard's name into a statement on `schema.JOB`. Values are bound: it meets names only."""
        shard = context.execution_options.get(SHARD) if context is not None else None
        if shard is not None:
            statement = statement.replace(self._any_shard, self._names[shard])
        return statement, parameters

    def run(self, work: Callable[[Connection], T]) -> T:
        """One transaction: `work(connection)`, then COMMIT. Raises StoreUnavailable when it cannot be had."""
        return self._repeated(partial(_attempt, self.engine.begin, work))

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` where each statement stands for itself: reads, or one single change."""
        return self._repeated(partial(_attempt, self.single.connect, work))

    def packet(self, together: Callable[[Line], T]) -> T | None:
        """`together(line)`: in packets.

        None when it did not go together, or the driver has no packets: then it has to be done otherwise.
        """
        if not self._takes_packets:
            return None
        try:
            return self._repeated(partial(_attempt, self._line, together))
        except NotTogetherError as error:
            if error.refused:
                self._takes_packets = False
            return None

    def _line(self) -> Line:
        line, frozen = Line(self.single), self._clock.frozen_ms()
        if frozen is not None:  # tests only
            line.send([(_timestamp_sql(frozen), ())])
        return line

    def check_first(self, check: Callable[[Database], None]) -> None:
        """From now on `check(self)` must have passed once before anything is asked of this database."""
        self._check = check

    @property
    def is_unchecked(self) -> bool:
        """It has not answered since this process started."""
        return self._check is not None

    def _be_checked(self) -> None:
        if self._checker == threading.get_ident():  # the check itself asks
            return
        self._raise_what_was_met()
        with self._check_lock:
            self._raise_what_was_met()
            check = self._check
            if check is None:
                return
            self._checker, began_s = threading.get_ident(), self._clock.monotonic_s()
            try:
                check(self)
                self._check = None
            except TocError as error:
                # One that hangs must not keep each of those who wait for as long as the first.
                now_s = self._clock.monotonic_s()
                self._met = error, now_s + min(now_s - began_s, CHECK_AGAIN_S_MAX)
                raise
            finally:
                self._checker = None

    def _raise_what_was_met(self) -> None:
        """The error of the last check, for a while."""
        if self._met is not None:
            error, until_s = self._met
            if self._clock.monotonic_s() < until_s:
                raise error.with_traceback(None)
            self._met = None

    def _repeated(self, attempt: Callable[[], T]) -> T:
        if self._check is not None:
            self._be_checked()
        for tries in range(1, TRIES_MAX + 1):
            try:
                with self._turn:
                    return attempt()
            except (OperationalError, InterfaceError) as error:
                repeat = self._may_repeat(error, tries)
                if not repeat:
                    raise StoreUnavailable(self.index, error) from error
                if repeat == "lock":
                    self._clock.sleep_s(self._rng.uniform(0, 0.01 * 2**tries))
            except PoolTimeout as error:
                raise StoreUnavailable(self.index, error) from error
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise StoreUnavailable(self.index, error) from error
                raise
        raise AssertionError("unreachable")

    def _may_repeat(self, error: DBAPIError, tries: int) -> str:
        code = _number(error)
        if code in _LOCK_ERRORS or (self.sqlite and "locked" in str(code)):
            return "lock" if tries < TRIES_MAX else ""
        # A pooled connection that died while idle: the pool is emptied by now, the next one is new.
        lost = error.connection_invalidated or code in LOST_ERRORS
        return "lost" if lost and tries < 2 else ""

    def now_ms(self) -> int:
        """The database's clock, in milliseconds since 1970 UTC."""

        def read(connection: Connection) -> int:
            sql = "SELECT toc_now(0)" if self.sqlite else "SELECT UTC_TIMESTAMP(3)"
            value = connection.execute(text(sql)).scalar_one()
            return value if isinstance(value, int) else ms_of_sql_time(value)

        return self.read(read)

    def warm(self, singles: int, transactions: int) -> None:
        """Opens connections ahead of their use: a new one takes tens of milliseconds (TLS, log-in)."""
        # A database that is away is connected to later, by its first use.
        with contextlib.suppress(DBAPIError), contextlib.ExitStack() as held:
            for _ in range(singles):
                held.enter_context(self.single.connect())
            for _ in range(transactions):
                held.enter_context(self.engine.connect())

    def close(self) -> None:
        if self._home is not None:
            self._home.close()
        self.engine.dispose()
        self.single.dispose()

    def lend_clock(self, connection: Connection) -> None:
        """Lets a caller's connection run statements that read the database's clock."""
        if self.sqlite:
            self._give_clock(connection.connection.driver_connection)

    def _give_clock(self, raw: Any) -> None:
        clock = self._clock

        def toc_now(plus_ms: int) -> str:
            frozen = clock.frozen_ms()
            return sql_time((clock.wall_ms() if frozen is None else frozen) + plus_ms)

        raw.create_function("toc_now", 1, toc_now)
        # biz_ids are unsigned; SQLite has the signed number with the same 64 bits.
        raw.create_function("toc_hash", 1, lambda n: hash_of(n % 2**64), deterministic=True)

    def _prepare_sqlite(self, raw: Any, record: Any) -> None:
        self._give_clock(raw)
        cursor = raw.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # a COMMIT is as durable as the disk (I1)
        cursor.close()

    def _freeze_mysql(self, connection: Any, cursor: Any, *statement: Any) -> None:
        frozen = self._clock.frozen_ms()
        if frozen is not None:  # tests only: UTC_TIMESTAMP follows the session's TIMESTAMP
            cursor.execute(_timestamp_sql(frozen))


def _prepare_mysql(raw: Any, record: Any) -> None:
    cursor = raw.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute(
        f"SET SESSION time_zone = '+00:00', lock_wait_timeout = {LOCK_WAIT_S}, "
        f"innodb_lock_wait_timeout = {LOCK_WAIT_S}"
    )
    cursor.close()


def _number(error: DBAPIError) -> Any:
    """The server's number of the error; SQLite has a text."""
    return error.orig.args[0] if error.orig is not None and error.orig.args else None


def _timestamp_sql(ms: int) -> str:
    return f"SET TIMESTAMP = {ms / 1000:.3f}"


def _attempt(
    connect: Callable[[], contextlib.AbstractContextManager[C]], work: Callable[[C], T]
) -> T:
    with connect() as connection:
        return work(connection)


class Databases:
    """All databases, by index, and the way from a shard to its database."""

    def __init__(
        self,
        urls: Sequence[str],
        routing: Routing,
        clock: Clock,
        *,
        moving: Mapping[int, str] | None = None,
        rng: random.Random | None = None,
        pool_size: int = 16,
        connect_timeout_s: int = 3,
        read_timeout_s: int = 30,
        idle_transaction_s: int = 10,
    ) -> None:
        self.routing = routing
        self.clock = clock
        rng = rng or random.Random()  # noqa: S311 - spreads retries, keeps no secrets
        self.all = [
            Database(
                index,
                url,
                routing.shards_of_database(index),
                clock,
                rng,
                moving=(moving or {}).get(index),
                pool_size=pool_size,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
                idle_transaction_s=idle_transaction_s,
            )
            for index, url in enumerate(urls)
        ]

    @classmethod
    def of(cls, settings: Settings, clock: Clock, *, pool_size: int | None = None) -> Databases:
        """Those of the settings; with another pool_size if one is given."""
        return cls(
            settings.databases,
            settings.routing,
            clock,
            moving=settings.moving,
            pool_size=pool_size or settings.pool_size,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            idle_transaction_s=settings.idle_transaction_s,
        )

    def __iter__(self) -> Iterator[Database]:
        return iter(self.all)

    def __getitem__(self, index: int) -> Database:
        return self.all[index]

    def now_ms(self) -> int:
        """The clock of the first database that answers. Raises StoreUnavailable when none does."""
        *others, last = sorted(self.all, key=lambda database: database.is_unchecked)
        for database in others:
            with contextlib.suppress(StoreUnavailable):
                return database.now_ms()
        return last.now_ms()

    def of_shard(self, shard: int) -> Database:
        return self.all[self.routing.database(shard)]

    def close(self) -> None:
        for database in self.all:
            database.close()
