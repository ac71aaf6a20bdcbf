"""What clients meet while a database moves: no write in the wrong place, no stale read, and little else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.growing.town import LATER, Town, refused
from tests.reliability.wire import Wire
from tests.servers.mysql import execute
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.errors import StoreUnavailable, WrongDatabase
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import database_home
from toc.store.databases import Databases
from toc.store.verb import Statement, Verb


def server_of(town: Town, center: TimeoutCenter) -> str:
    """The role of the server that a client's statements reach: by both of its pools."""
    database = center._open_connections().databases[0]
    sql = "SELECT @@server_uuid"
    seen = {
        use(lambda c: c.exec_driver_sql(sql).scalar())
        for use in (database.run_transaction, database.run_read)
    }
    (uuid,) = seen
    return next(role for role in ("old", "new") if town.server(role).uuid == uuid)


@contextmanager
def session_on(url: str) -> Iterator[Session]:
    engine = create_engine(url, poolclass=NullPool)
    with Session(engine) as session:
        yield session


def started(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs a call in a thread; what it gave, or raised, will be in the list."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def fence(town: Town, on: bool = True) -> None:
    server = town.server("old")
    server.run_statement("REPLACE INTO " + server.quoted_schema + ".toc_meta VALUES ('moving_to', %s)",
               town.server("new").uuid) if on else None  # fmt: skip
    server.set_fence(on)


def test_a_client_follows_with_reads_and_writes(town: Town) -> None:
    center = town.center()
    before = center.schedule(1, LATER)
    assert server_of(town, center) == "old"
    town.go()
    after = center.schedule(2, LATER)
    assert server_of(town, center) == "new"
    assert center.get(before) is not None
    assert after in town.ids("new")
    assert after not in town.ids("old")
    assert center.cancel(before) == "cancelled"


def test_one_that_only_reads_follows_even_if_its_sessions_were_not_ended(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    center = town.center()
    job_id = center.schedule(1, LATER)
    assert server_of(town, center) == "old"
    monkeypatch.setattr(
        "toc.store.database_mover.DatabaseMover._kill_application_sessions", lambda self: 0
    )
    town.go()
    other = town.center(town.moved)
    assert other.cancel(job_id) == "cancelled"
    wait_until(lambda: center.get(job_id).status.name == "CANCELLED", "the reader to follow")


def test_sessions_are_ended_before_the_switch_so_that_nothing_stale_is_read(town: Town) -> None:
    center = town.center()
    job_id = center.schedule(1, LATER)
    reads: list[tuple[threading.Thread, list[Any]]] = []

    def tell(step: str, text: str) -> None:
        if step == "end":
            reads.append(started(lambda: server_of(town, center)))

    town.mover(tell).start_or_resume(lambda: None)
    for thread, got in reads:
        thread.join(20)
        assert got == ["new"]
    assert center.get(job_id) is not None


def test_a_call_during_the_pause_waits_for_its_end(town: Town) -> None:
    center = town.center()
    center.schedule(1, LATER)
    calls = []

    def tell(step: str, text: str) -> None:
        if step == "fence":
            calls.extend(started(lambda n=n: center.schedule(n, LATER)) for n in range(2, 6))

    town.mover(tell).start_or_resume(lambda: None)
    for thread, got in calls:
        thread.join(20)
        assert got[0] in town.ids("new"), got
        assert got[0] not in town.ids("old")


def test_a_call_whose_new_connection_is_killed_by_the_mover_too_goes_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    center = town.center()
    center.schedule(1, LATER)
    killed = []
    look = database_home._query_bool

    def killing(raw: Any, sql: str) -> bool:
        if sql == database_home.FENCED_SQL and not killed:
            killed.append(raw.thread_id())
            town.server("old").run_statement(f"KILL {raw.thread_id()}")
        return look(raw, sql)

    database = center._open_connections().databases[0]
    for session in sessions_of(database.engine, database.autocommit_engine):
        town.server("old").run_statement(f"KILL {session}")
    monkeypatch.setattr(database_home, "_query_bool", killing)
    assert center.schedule(2, LATER) in town.ids("old")
    assert killed


def test_a_call_in_a_pause_that_is_taken_back_goes_on_where_it_was(town: Town) -> None:
    center = town.center()
    center.schedule(1, LATER)
    fence(town)
    thread, got = started(lambda: center.schedule(2, LATER))
    watch = center._open_connections().databases[0]._database_home._watch
    wait_until(lambda: watch._fenced_since_s is not None, "the call to meet the fence")
    fence(town, on=False)
    thread.join(20)
    assert got[0] in town.ids("old")


def test_a_fence_that_stays_is_said_soon_and_then_at_once(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_home, "FENCED_S_MAX", 1.0)
    center = town.center()
    center.schedule(1, LATER)
    fence(town)
    for patience_s in (10.0, 0.9):
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="database 0 is moving") as caught:
            center.schedule(2, LATER)
        assert caught.value.retryable
        assert not caught.value.refused
        assert time.monotonic() - began_s < patience_s
    with pytest.raises(StoreUnavailable):
        center.find(1)  # what is read there may be stale by now
    fence(town, on=False)
    assert center.schedule(3, LATER) in town.ids("old")


def test_a_client_with_old_settings_is_told_so(town: Town) -> None:
    center = town.center(town.ignorant)
    job_id = center.schedule(1, LATER)
    town.go()
    for call in (
        lambda: center.schedule(2, LATER),
        lambda: center.cancel(job_id),
        lambda: center.get(job_id),
        lambda: town.center(town.ignorant).get(job_id),
    ):
        assert "the settings lack moving.0" in refused(call)
    assert town.center(town.moved).get(job_id).status.live


def test_the_new_server_hangs_before_the_move_and_nobody_waits(town: Town) -> None:
    host_port = town.urls["new"].split("@")[1].split("/")[0]
    with Wire(host_port) as wire:
        url = town.urls["new"].replace(host_port, wire.url)
        settings = Settings(**town.plan, moving={0: url})
        wire.cut()
        center = town.center(settings)
        center.schedule(1, LATER)  # the first may wait for the first look
        slowest_s = 0.0
        for n in range(2, 42):
            database = center._open_connections().databases[0]
            database.engine.dispose()
            database.autocommit_engine.dispose()
            began_s = time.monotonic()
            center.schedule(n, LATER)
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < settings.connect_timeout_s / 2
        wire.mend()
        town.go()
        wait_until(lambda: server_of(town, center) == "new", "it to follow", 30)


def test_a_process_that_stands_still_between_two_looks_holds_nothing(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, seen = database_home._query_bool, []

    def spy(raw: Any, sql: str) -> bool:
        if sql == database_home.HOME_SQL:
            seen.append(raw.get_autocommit())  # else a read leaves a transaction open
        return ask(raw, sql)

    monkeypatch.setattr(database_home, "_query_bool", spy)
    town.center().schedule(1, LATER)
    wait_until(lambda: seen, "a look")
    assert all(seen)


def test_a_new_server_that_is_down_disturbs_nobody(town: Town) -> None:
    url = town.urls["new"].replace(town.urls["new"].split(":")[-1].split("/")[0], str(free_port()))
    center = town.center(Settings(**town.plan, moving={0: url}))
    assert center.schedule(1, LATER) in town.ids("old")


def test_a_process_that_starts_after_the_move_needs_no_old_server(town: Town) -> None:
    job_id = town.center().schedule(1, LATER)
    town.go()
    gone = town.plan | {
        "databases": [town.urls["old"].replace(_port(town.urls["old"]), str(free_port()))]
    }
    center = town.center(Settings(**gone, moving={0: town.urls["new"]}))
    assert center.get(job_id) is not None
    assert center.schedule(2, LATER) in town.ids("new")


def test_the_row_decides_not_the_fence(town: Town) -> None:
    """Somebody has lifted the fence of the old server after the move: who knows of it is not misled."""
    town.go()
    town.server("old").set_fence(False)
    plan = town.settings
    databases = Databases(plan.databases, plan.routing, SystemClock(), moving=plan.moving)
    try:
        first = databases[0].run_read(lambda c: c.exec_driver_sql("SELECT @@server_uuid").scalar())
    finally:
        databases.close()
    assert first == town.server("new").uuid


def test_a_copied_row_declares_nothing(town: Town) -> None:
    """The new server holds the row of another one, as a replica of a moved database does."""
    town.sql("old", "REPLACE INTO toc_meta (name, value) VALUES ('home', @@server_uuid)")
    town.catch_up()
    center = town.center()
    assert center.schedule(1, LATER) in town.ids("old")


def test_a_former_home_attracts_nobody(town: Town) -> None:
    """It was declared home once, and was moved away from: fenced, with its row."""
    town.sql("new", "REPLACE INTO toc_meta (name, value) VALUES ('home', @@server_uuid)")
    town.server("new").set_fence(True)
    center = town.center()
    assert center.schedule(1, LATER) in town.ids("old")


def test_a_home_that_was_moved_on_from_is_said(town: Town) -> None:
    center = town.center()
    center.schedule(1, LATER)
    town.go()
    assert center.schedule(2, LATER) in town.ids("new")
    town.server("new").set_fence(True)
    assert "has moved on from its new server" in refused(lambda: center.schedule(3, LATER))


def test_a_callers_session_on_the_old_server_is_refused(town: Town) -> None:
    center = town.center()
    with session_on(town.urls["old"]) as session:
        center.schedule(1, LATER, session=session)
        session.rollback()
        fence(town)
        with pytest.raises(StoreUnavailable, match="read only mode"):
            center.schedule(1, LATER, session=session)
    fence(town, on=False)
    town.go()
    assert server_of(town, center) == "new"
    for settings in (town.settings, town.moved):
        with session_on(town.urls["old"]) as session, pytest.raises(WrongDatabase, match="moved"):
            town.center(settings).schedule(1, LATER, session=session)
    with session_on(town.urls["new"]) as session:
        job_id = center.schedule(1, LATER, session=session)
        session.commit()
    assert job_id in town.ids("new")


WRITES: dict[str, Callable[[TimeoutCenter], object]] = {
    "a packet of one": lambda center: center.schedule(2, LATER),
    "a packet of several": lambda center: center.schedule_many(
        [{"biz_id": n, "action_time": LATER} for n in range(2, 200)]
    ),
    "one by one": lambda center: center.schedule(2, LATER, dedup_key="k"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_read_only_server_is_left_and_tried_again(town: Town, write: str) -> None:
    """Where a fail-over, not a move, makes it so: new connections may reach the new primary."""
    center = ordinary(town)
    database = center._open_connections().databases[0]
    before = sessions_of(database.engine, database.autocommit_engine)
    with read_only(town), pytest.raises(StoreUnavailable, match="read-only"):
        WRITES[write](center)
    # None is left to read what is old.
    assert not before & sessions_of(database.engine, database.autocommit_engine)
    assert center.schedule(3, LATER) in town.ids("old")


def test_a_packet_that_is_refused_leaves_no_session_behind(town: Town) -> None:
    """What is done one by one then may reach the new primary at once: a look after it has to, too."""
    database = ordinary(town)._open_connections().databases[0]
    before = sessions_of(database.autocommit_engine)
    with read_only(town):
        assert (
            database.run_pipelined(Verb([Statement("DELETE FROM toc_event")], (), lambda *_: True))
            is None
        )
    assert not before & sessions_of(database.autocommit_engine)


def ordinary(town: Town) -> TimeoutCenter:
    """A client whose account may not write where a server is read-only. It has connected."""
    account = f"a{town.schema}"
    execute(town.pair.old, f"CREATE USER {account}@'127.0.0.1'")
    execute(town.pair.old, f"GRANT ALL ON {town.schema}.* TO {account}@'127.0.0.1'")
    plain = town.plan | {"databases": [town.urls["old"].replace("root@", f"{account}@")]}
    center = town.center(Settings(**plain))
    center.schedule(1, timedelta(hours=2))
    return center


@contextmanager
def read_only(town: Town) -> Iterator[None]:
    execute(town.pair.old, "SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        execute(town.pair.old, "SET GLOBAL read_only = 0")


def sessions_of(*engines: Engine) -> set[int]:
    """Three of each pool, by the server's number."""
    with ExitStack() as held:
        connections = [held.enter_context(engine.connect()) for engine in engines for _ in range(3)]
        sql = "SELECT CONNECTION_ID()"
        return {connection.exec_driver_sql(sql).scalar_one() for connection in connections}


def _port(url: str) -> str:
    return url.rpartition(":")[2].partition("/")[0]
