"""Where a database is at home: on the server of its URL, or on the one that it moves to.

A move (`store.mover`) has one moment that counts: the new server is *declared home*, by a row in its
`toc_meta`, `home = <its own server_uuid>`, while its schema takes writes. A copy of that row on any
other server declares nothing, so replicas, backups and the old server never match. Before it, the old
server's schema was made READ ONLY: at no time do both take writes.

Processes whose settings say `moving.N` watch for that row, in a thread of their own: nobody who wants
a connection ever waits for the new server before the move. Each new connection to a MySQL server is
asked whether its schema is fenced. If it is, there is nothing to be had there, not even a read, which
could be stale: whoever asked waits a little for the end of the move, then gets a retryable error. A
statement that the fence refuses empties the database's pools, as a lost connection does its own, and is
repeated as one: after a fail-over the old server may stand there still, read-only, and a session that
is left to it would not see what is written on the new one.
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
"""A write where none is allowed: the server is read-only, InnoDB is, the schema is."""

SCHEMA_READ_ONLY = 3989
HOME, MOVING_TO = "home", "moving_to"
"""Rows of `toc_meta`. Their values are a server_uuid: of the server that the database has moved to;
of the one that a move of it was begun to, in the old server's."""

# MariaDB knows no such schemas, and takes what is in the comment for a comment.
FENCED_SQL = """SELECT 0 /*!80022 + EXISTS (
    SELECT 1 FROM information_schema.SCHEMATA_EXTENSIONS
     WHERE SCHEMA_NAME = DATABASE() AND INSTR(OPTIONS, 'READ ONLY=1') > 0) */"""
# One that was home once and has been moved away from is fenced, and keeps its row.
HOME_SQL = f"""SELECT EXISTS (SELECT 1 FROM toc_meta WHERE name = '{HOME}' AND value = @@server_uuid)
    AND NOT ({FENCED_SQL})"""  # noqa: S608

LOOK_S = 0.5  # between two looks at the new server
FENCED_LOOK_S = 0.05  # the same, while the old one is fenced and people wait
AWAY_LOOK_S = 2.0  # the same, after one that did not answer
FIRST_LOOK_S = 1.0  # how long the first connections of a process wait for the first look
FENCED_S_MAX = 3.0  # how long a process waits for the end of a fence; after that it says so at once


def is_fence(error: BaseException | None) -> bool:
    """Whether a server refused a write because it, or the schema, is read-only. A driver's error."""
    return bool(error and error.args and error.args[0] in FENCE_ERRORS)


class Home:
    """Gives the engines of one database their connections, to the server where it is at home.

    `new`: where it moves to; None: nowhere. `arguments`: the driver's, beyond the URL's.
    """

    def __init__(
        self, index: int, old: URL, new: URL | None, arguments: Mapping[str, Any], clock: Clock
    ) -> None:
        self._index, self._old, self._new, self._arguments = index, old, new, arguments
        self._watch = None if new is None else Watch(index, self._reach, clock)
        self._served: list[Engine] = []

    def serve(self, engine: Engine) -> None:
        """From now on the engine's connections come from here."""
        self._served.append(engine)
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "handle_error", self._hear)
        if self._watch is not None:
            # What is in use is given back to the pool that was, and forgotten with it.
            self._watch.on_moved(engine.dispose)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.signal_stop()

    def _hear(self, context: ExceptionContext) -> None:
        """The pools of a fenced server are as good as lost."""
        if is_fence(context.original_exception):
            context.is_disconnect = True  # empties the pool that it came from
            for engine in self._served:
                if engine is not context.engine:
                    engine.dispose()

    def _connect(
        self, dialect: Dialect, record: Any, arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        """A new connection of the driver. Raises the driver's errors, and one like the fence's own."""
        watch = self._watch
        if watch is None:
            raw = _unfenced(self._reach(dialect, new=False))
            if raw is None:
                hint = f"if so, the settings lack moving.{self._index}"
                raise self._fenced(dialect, f"has moved, or is moving, away from there; {hint}")
            return raw
        watch.begin(dialect)
        while not watch.moved:
            raw = _unfenced(self._reach(dialect, new=False))
            if raw is not None:
                return raw
            if not watch.outlasts_fence():
                raise self._fenced(dialect, "is moving, and the new server is not its home yet")
        raw = _unfenced(self._reach(dialect, new=True))
        if raw is None:
            raise self._fenced(dialect, "has moved on from its new server")
        return raw

    def _reach(self, dialect: Dialect, *, new: bool) -> Any:
        url = self._new if new and self._new is not None else self._old
        arguments, named = dialect.create_connect_args(url)
        return dialect.connect(*arguments, **{**named, **self._arguments})

    def _fenced(self, dialect: Dialect, why: str) -> Exception:
        text = f"schema {self._old.database} is read-only: database {self._index} {why}"
        error: Exception = dialect.loaded_dbapi.OperationalError(SCHEMA_READ_ONLY, text)
        return error


class Reach(Protocol):
    """Connects to the old server, or to the new one."""

    def __call__(self, dialect: Dialect, *, new: bool) -> Any: ...


class Watch(Service):
    """Looks whether the new server of a database has been declared its home; ends when it has.

    While the old one is known to be fenced it looks there too, for all who wait.
    """

    def __init__(self, index: int, reach: Reach, clock: Clock) -> None:
        super().__init__(f"toc-move-{index}")
        self._index, self._reach, self._clock = index, reach, clock
        self.moved = False
        self._dialect: Dialect | None = None
        self._kept: dict[bool, Any] = {}  # its own connection to the new server (True), and the old
        self._looked = threading.Event()
        self._change = threading.Condition()
        self._fenced_s: float | None = None  # since when the old server is known to be fenced
        self._when_moved: list[Callable[[], None]] = []

    def on_moved(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once it has moved, in the thread that looks."""
        self._when_moved.append(listener)

    def begin(self, dialect: Dialect) -> None:
        """Looks from now on. Waits for the first look, a moment, once."""
        if self._looked.is_set():
            return
        self._dialect = dialect
        self.start()
        self._looked.wait(FIRST_LOOK_S)
        self._looked.set()

    def outlasts_fence(self) -> bool:
        """Waits for a change after the old server was found fenced. False: that has taken too long.

        The time counts from when this process first met the fence, for all that wait.
        """
        with self._change:
            if self.moved:
                return True
            now_s = self._clock.monotonic_s()
            if self._fenced_s is None:
                self._fenced_s = now_s
            left_s = self._fenced_s + FENCED_S_MAX - now_s
            if left_s <= 0:
                return False
            self.wake()
            return self._change.wait(left_s)

    def run_once(self) -> float:
        """One look."""
        if self._fenced_s is not None and self._ask(FENCED_SQL, new=False) is False:
            with self._change:  # whatever it was for, it was lifted
                self._fenced_s = None
                self._change.notify_all()
        moved = self._ask(HOME_SQL, new=True)
        if moved:
            self._arrive()
        self._looked.set()
        if self._is_waited_for():
            return FENCED_LOOK_S
        return AWAY_LOOK_S if moved is None else LOOK_S

    def _is_waited_for(self) -> bool:
        since_s = self._fenced_s
        return since_s is not None and self._clock.monotonic_s() < since_s + FENCED_S_MAX

    def _ask(self, sql: str, *, new: bool) -> bool | None:
        """What one of the servers says; None: it does not answer, or not to this question."""
        assert self._dialect is not None  # noqa: S101 - it has begun
        try:
            if new not in self._kept:
                self._kept[new] = raw = self._reach(self._dialect, new=new)
                # A process that is frozen between two looks must hold nothing that others wait for.
                self._dialect.set_isolation_level(raw, "AUTOCOMMIT")
            return _ask(self._kept[new], sql)
        except self._dialect.loaded_dbapi.Error as error:
            self._forget(new)
            which = "new" if new else "old"
            self._seldom.warning(which, "%s: the %s server: %s", self.name, which, error)
            return None

    def _arrive(self) -> None:
        log.info("database %d is at home on its new server from now on", self._index)
        with self._change:
            self.moved = True
            self._change.notify_all()
        for listener in self._when_moved:
            listener()
        self.signal_stop()

    def _forget(self, new: bool) -> None:
        raw = self._kept.pop(new, None)
        if raw is not None:
            with suppress(Exception):
                raw.close()

    def _loop(self) -> None:
        try:
            super()._loop()
        finally:
            for new in list(self._kept):
                self._forget(new)


def _unfenced(raw: Any) -> Any:
    """The connection, or None (and it is closed) where the schema is fenced."""
    try:
        fenced = _ask(raw, FENCED_SQL)
    except BaseException:
        raw.close()
        raise
    if not fenced:
        return raw
    raw.close()
    return None


def _ask(raw: Any, sql: str) -> bool:
    cursor = raw.cursor()
    try:
        cursor.execute(sql)
        (answer,) = cursor.fetchone()
        raw.rollback()  # the driver has begun a transaction
    finally:
        cursor.close()
    return bool(answer)
