"""Puts the kernel in the place of threads, clocks and chance in toc's own modules, for one run.

Nothing of toc is replaced but what it gets from outside: `threading`, `queue`, `random`, `uuid`, the system's
clock, the name of the process, the client of Redis, and the way of a statement to its database. Left out are
wake-ups (they only shorten a wait; the slow poll is simulated) and the collector of garbage.
"""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from sqlalchemy import event

import toc.center.center
import toc.center.connections
import toc.center.recurring_verbs
import toc.node.hold_sources
import toc.node.node
import toc.runtime.log_throttle
import toc.runtime.service
import toc.store.databases
import toc.store.schema_check
import toc.timer.loader
import toc.timer.timer_server
import toc.worker.handler_pool
from tests.simulation.kernel import Kernel, Process, Queue, Threading
from tests.simulation.servers import (
    REDIS,
    ProcessClock,
    Servers,
    SimulatedRedis,
    database,
    lost_connection,
)
from toc.node.recurring_keeper import RecurringKeeper
from toc.runtime.service import Service
from toc.scanner.fallback import FallbackScanner
from toc.scanner.scanner import Scanner
from toc.store.claims import Claims
from toc.store.databases import Database

IDLE_S = 3600.0
ORIGINS = ("toc.runtime.clock", "toc.runtime.process_info", "toc.testing.clock")
"""Where others take them from: what is imported within a run must not keep them."""


class _Deaf(Service):
    """In the place of the subscription to wake-ups."""

    def __init__(self, *parts: Any) -> None:
        super().__init__("toc-wakeup")

    def run_once(self) -> float:
        return IDLE_S


class _NoReporter(Service):
    """In the place of the reporter of counts: they are those of this whole process, not of a run."""

    is_started = True

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__("toc-activity")

    def start(self) -> None:
        """Does nothing."""


class _Random:
    """In the place of the module `random`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def Random(self) -> random.Random:  # noqa: N802 - as the module has it
        return random.Random(self._rng.getrandbits(64))

    def randrange(self, *args: int) -> int:
        return self._rng.randrange(*args)


class _Uuid:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)


class _Compiled(dict[Any, Any]):
    """Statements that were compiled, for all databases of a process.

    SQLAlchemy keeps them for each engine, and a run makes dozens: nodes and clients come and go. In its key the
    dialect comes first. All dialects here are of one class, and have no settings that a statement depends on.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        super().__setitem__(key[1:], value)


_compiled = _Compiled()


@contextmanager
def installed(
    kernel: Kernel,
    servers: Servers,
    rng: random.Random,
    *,
    scanner: bool = True,
    keeper: bool = True,
) -> Iterator[None]:
    """Within, what toc starts are tasks of the kernel. Not `scanner`: it is given no shards.

    Not `keeper`: no node goes on with recurring schedules that stand still.
    """
    threads, chance = Threading(kernel), _Random(rng)

    def clock() -> ProcessClock:
        return ProcessClock(servers, kernel.process, REDIS)

    def queue() -> Queue:
        return Queue(kernel)

    def client(url: str, timeout_s: float) -> SimulatedRedis:
        made = SimulatedRedis(unix_socket_path=servers.socket, protocol=2)
        made.servers = servers
        return made

    replaced: list[tuple[Any, str, Any]] = [
        (toc.worker.handler_pool, "SimpleQueue", queue),
        (toc.store.schema_check, "SimpleQueue", queue),
        (toc.timer.loader, "uuid", _Uuid(rng)),
        (toc.timer.timer_server, "make_redis_client", client),
        (toc.node.node, "ActivityReporter", _NoReporter),
        (toc.center.connections, "ActivityReporter", _NoReporter),
        (toc.runtime.service, "_clock", ProcessClock(servers, Process("services"), REDIS)),
        (toc.runtime.log_throttle, "_clock", ProcessClock(servers, Process("logs"), REDIS)),
        (toc.node.work_sources, "WakeupListener", _Deaf),
        (toc.node.hold_sources, "WakeupListener", _Deaf),
        (Database, "_run_with_retries", _asking(servers)),
        (Claims, "take_over_job", _taking_over(servers)),
        (Database, "_configure_sqlite", _prepared),
        (Database, "__init__", _heard(kernel, servers)),
    ]
    if not scanner:
        replaced.append((Scanner, "set_shards", lambda *told, **more: None))
        replaced.append((FallbackScanner, "_find_overdue_shards", lambda _: None))
    if not keeper:
        replaced.append((RecurringKeeper, "run_once", lambda _: IDLE_S))
    replaced += _named({
        "threading": threads,
        "random": chance,
        "SystemClock": clock,
        "process_name": lambda: kernel.process.name,
    })  # fmt: skip
    patches = [mock.patch.object(where, name, value) for where, name, value in replaced]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _named(values: dict[str, Any]) -> list[tuple[Any, str, Any]]:
    """Wherever a module of toc has such a name."""
    return [
        (module, attribute, value)
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] == "toc" and name not in ORIGINS
        for attribute, value in values.items()
        if attribute in vars(module)
    ]


def _asking(servers: Servers) -> Callable[..., Any]:
    original = Database._run_with_retries

    def repeated(self: Database, attempt: Callable[[], Any]) -> Any:
        def asked() -> Any:
            return servers.ask(database(self.index), attempt, lost_connection)

        return original(self, asked)

    return repeated


def _taking_over(servers: Servers) -> Callable[..., Any]:
    original = Claims.take_over_job

    def take_over(self: Claims, *args: Any) -> Any:
        servers.taking_over[servers.kernel.process] = True
        return original(self, *args)

    return take_over


def _heard(kernel: Kernel, servers: Servers) -> Callable[..., None]:
    """Databases whose time is that of their simulated server, and whose single statements stand alone."""
    original = Database.__init__

    def init(self: Database, *args: Any, **how: Any) -> None:
        original(self, *args, **how)
        self.engine._compiled_cache = self.autocommit_engine._compiled_cache = _compiled
        self._clock = ProcessClock(servers, kernel.process, database(self.index))
        self._writer_turn = (
            nullcontext()
        )  # transactions take no virtual time: none ever waits for another

        def between(connection: Any, *rest: Any) -> None:
            """Between two statements that commit by themselves, all may happen."""
            if connection.info.setdefault("toc_asked", 0):
                kernel.point("between two statements")
                kernel.wait(servers.rng.uniform(0, servers.weather.fast_s))
            connection.info["toc_asked"] = 1

        def given_back(raw: Any, record: Any) -> None:
            record.info["toc_asked"] = 0

        event.listen(self.autocommit_engine, "before_cursor_execute", between)
        event.listen(self.autocommit_engine, "checkin", given_back)

    return init


def _prepared(self: Database, raw: Any, record: Any) -> None:
    """As the original, but a crash of the machine is not simulated: no waiting for disks."""
    self._add_sqlite_functions(raw)
    cursor = raw.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()
