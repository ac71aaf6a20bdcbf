"""The home of a database: the server of its URL, or after a move the new server.

The switch of a move (`database_mover`) is one row: the new server is *declared home* by the row `home =
<its own server_uuid>` in its `toc_meta`, while its schema accepts writes. A copy of that row on another
server has no effect, so replicas, backups and the old server never match. The schema of the old server is
made READ ONLY (*fenced*) before that: the two servers never accept writes at the same time.

Processes with the setting `moving.N` poll for that row in a thread of their own: no caller waits for the new
server before the move. Each new connection to a MySQL server checks whether the schema is fenced. A
connection to a fenced schema is not used, not even for reads, which could be stale: the caller waits a short
time for the end of the move, then gets a retryable error. If the fence refuses a statement, toc empties the
database's pools and retries the statement, as after a lost connection: after a fail-over the old server may
still run, read-only, and a session on the old server would not see new data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import URL, Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext

from toc.runtime.clock import Clock
from toc.runtime.service import Service

log = logging.getLogger(__name__)

FENCE_ERRORS = frozenset({1290, 1836, 3989})
"""Error numbers of a refused write: the server, InnoDB or the schema is read-only."""

SCHEMA_READ_ONLY = 3989
HOME, MOVING_TO = "home", "moving_to"
"""Names of rows of `toc_meta`; the values are a server_uuid. `home`: of the server to which the database has
moved. `moving_to`, on the old server: of the server to which a move has begun."""

# MariaDB has no read-only schemas and ignores the versioned comment.
FENCED_SQL = """SELECT 0 /*!80022 + EXISTS (
    SELECT 1 FROM information_schema.SCHEMATA_EXTENSIONS
     WHERE SCHEMA_NAME = DATABASE() AND INSTR(OPTIONS, 'READ ONLY=1') > 0) */"""
# A former home, from which the database has moved away, is fenced and keeps its row `home`.
HOME_SQL = f"""SELECT EXISTS (SELECT 1 FROM toc_meta WHERE name = '{HOME}' AND value = @@server_uuid)
    AND NOT ({FENCED_SQL})"""  # noqa: S608

POLL_S = 0.5  # the time between two polls of the new server
FENCED_POLL_S = 0.05  # the time between two polls while the old server is fenced and callers wait
AWAY_POLL_S = 2.0  # the time to the next poll after a poll without an answer
FIRST_POLL_WAIT_S = 1.0  # how long the first connections of a process wait for the first poll
# How long a process waits for the end of a fence; after that callers get the error at once.
FENCED_S_MAX = 3.0


def is_fence_error(error: BaseException | None) -> bool:
    """Whether a driver's error says that a write was refused: the server or the schema is read-only."""
    return bool(error and error.args and error.args[0] in FENCE_ERRORS)


class HomeConnections:
    """Opens the connections of one database's engines, to the server that is its home.

    new: the URL of the server to which the database moves; None: no move. arguments: for the driver, in
    addition to those of the URL.
    """

    def __init__(
        self, index: int, old: URL, new: URL | None, arguments: Mapping[str, Any], clock: Clock
    ) -> None:
        self._index, self._old, self._new, self._arguments = index, old, new, arguments
        self._watch = (
            None if new is None else DatabaseMovePoller(index, self._connect_to_server, clock)
        )
        self._engines: list[Engine] = []

    def attach_engine(self, engine: Engine) -> None:
        """Makes this object open all connections of the engine from now on."""
        self._engines.append(engine)
        event.listen(engine, "do_connect", self._connect_to_home)
        event.listen(engine, "handle_error", self._empty_pools_after_fence_error)
        if self._watch is not None:
            # Connections in use are returned to the old pool and discarded with it.
            self._watch.call_when_moved(engine.dispose)

    @property
    def may_move(self) -> bool:
        """Whether the settings name a server to which this database moves."""
        return self._watch is not None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.signal_stop()

    def _empty_pools_after_fence_error(self, context: ExceptionContext) -> None:
        """Empties all pools after an error that says that the server is fenced (READ ONLY for a move)."""
        if is_fence_error(context.original_exception):
            context.is_disconnect = True  # empties the pool of the failed connection
            for engine in self._engines:
                if engine is not context.engine:
                    engine.dispose()

    def _connect_to_home(
        self, dialect: Dialect, record: Any, arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        """Opens a driver connection. Raises the driver's errors, and for a fenced server error 3989."""
        watch = self._watch
        if watch is None:
            raw = _close_if_fenced(self._connect_to_server(dialect, new=False))
            if raw is None:
                hint = f"if so, the settings lack moving.{self._index}"
                raise self._fence_error(
                    dialect, f"has moved, or is moving, away from there; {hint}"
                )
            return raw
        watch.start_polling(dialect)
        while not watch.moved:
            raw = _close_if_fenced(self._connect_to_server(dialect, new=False))
            if raw is not None:
                return raw
            if not watch.wait_for_fence_end():
                raise self._fence_error(
                    dialect, "is moving, and the new server is not its home yet"
                )
        raw = _close_if_fenced(self._connect_to_server(dialect, new=True))
        if raw is None:
            raise self._fence_error(dialect, "has moved on from its new server")
        return raw

    def _connect_to_server(self, dialect: Dialect, *, new: bool) -> Any:
        url = self._new if new and self._new is not None else self._old
        arguments, named = dialect.create_connect_args(url)
        return dialect.connect(*arguments, **{**named, **self._arguments})

    def _fence_error(self, dialect: Dialect, why: str) -> Exception:
        text = f"schema {self._old.database} is read-only: database {self._index} {why}"
        error: Exception = dialect.loaded_dbapi.OperationalError(SCHEMA_READ_ONLY, text)
        return error


class ServerConnector(Protocol):
    """Opens a driver connection to the old server or to the new one."""

    def __call__(self, dialect: Dialect, *, new: bool) -> Any: ...


class DatabaseMovePoller(Service):
    """Polls whether the new server of a database has been declared its home, until this has happened.

    While the old server is fenced, this thread polls also the old server, for all waiting callers.
    """

    def __init__(self, index: int, reach: ServerConnector, clock: Clock) -> None:
        super().__init__(f"toc-move-{index}")
        self._index, self._connect_to_server, self._clock = index, reach, clock
        self.moved = False
        self._dialect: Dialect | None = None
        # This thread's own connections. The key: True for the new server, False for the old server.
        self._connections: dict[bool, Any] = {}
        self._first_poll_done = threading.Event()
        self._change = threading.Condition()
        # When this process found the old server fenced; None: it is not fenced, as far as known.
        self._fenced_since_s: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def call_when_moved(self, listener: Callable[[], None]) -> None:
        """Registers a `listener` that the polling thread calls when the database has moved."""
        self._listeners.append(listener)

    def start_polling(self, dialect: Dialect) -> None:
        """Starts polling; the first call waits up to FIRST_POLL_WAIT_S for the first poll."""
        if self._first_poll_done.is_set():
            return
        self._dialect = dialect
        self.start()
        self._first_poll_done.wait(FIRST_POLL_WAIT_S)
        self._first_poll_done.set()

    def wait_for_fence_end(self) -> bool:
        """Waits until the database has moved or the fence is lifted. False: the wait took too long.

        FENCED_S_MAX counts, for all waiting callers, from the time at which this process first met the fence.
        """
        with self._change:
            if self.moved:
                return True
            now_s = self._clock.monotonic_s()
            if self._fenced_since_s is None:
                self._fenced_since_s = now_s
            left_s = self._fenced_since_s + FENCED_S_MAX - now_s
            if left_s <= 0:
                return False
            self.wake()
            return self._change.wait(left_s)

    def run_once(self) -> float:
        """Polls the servers once; returns the seconds until the next poll."""
        if (
            self._fenced_since_s is not None
            and self._query_server_bool(FENCED_SQL, new=False) is False
        ):
            with self._change:  # the fence was lifted
                self._fenced_since_s = None
                self._change.notify_all()
        moved = self._query_server_bool(HOME_SQL, new=True)
        if moved:
            self._record_move_and_call_listeners()
        self._first_poll_done.set()
        if self._has_waiting_callers():
            return FENCED_POLL_S
        return AWAY_POLL_S if moved is None else POLL_S

    def _has_waiting_callers(self) -> bool:
        since_s = self._fenced_since_s
        return since_s is not None and self._clock.monotonic_s() < since_s + FENCED_S_MAX

    def _query_server_bool(self, sql: str, *, new: bool) -> bool | None:
        """Runs a query with a boolean result on the old or the new server; None: an error."""
        assert self._dialect is not None  # noqa: S101 - polling has begun
        try:
            if new not in self._connections:
                self._connections[new] = raw = self._connect_to_server(self._dialect, new=new)
                # AUTOCOMMIT: a process that is frozen between two polls must hold no locks.
                self._dialect.set_isolation_level(raw, "AUTOCOMMIT")
            return _query_bool(self._connections[new], sql)
        except self._dialect.loaded_dbapi.Error as error:
            self._close_connection(new)
            which = "new" if new else "old"
            self._log_throttle.warning(which, "%s: the %s server: %s", self.name, which, error)
            return None

    def _record_move_and_call_listeners(self) -> None:
        log.info("database %d is at home on its new server from now on", self._index)
        with self._change:
            self.moved = True
            self._change.notify_all()
        for listener in self._listeners:
            listener()
        self.signal_stop()

    def _close_connection(self, new: bool) -> None:
        raw = self._connections.pop(new, None)
        if raw is not None:
            with suppress(Exception):
                raw.close()

    def _run_until_stopped(self) -> None:
        try:
            super()._run_until_stopped()
        finally:
            for new in list(self._connections):
                self._close_connection(new)


def _close_if_fenced(raw: Any) -> Any:
    """Returns the connection; None: the schema is fenced, and the connection has been closed."""
    try:
        fenced = _query_bool(raw, FENCED_SQL)
    except BaseException:
        raw.close()
        raise
    if not fenced:
        return raw
    raw.close()
    return None


def _query_bool(raw: Any, sql: str) -> bool:
    cursor = raw.cursor()
    try:
        cursor.execute(sql)
        (answer,) = cursor.fetchone()
        raw.rollback()  # ends the transaction that the driver has begun
    finally:
        cursor.close()
    return bool(answer)
