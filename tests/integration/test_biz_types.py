"""Types while database 0 hangs, or has failed over without the row of a new type."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.servers import Server, ServerUnavailableError, start_mysql
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Job
from toc.domain.routing import routing_hash_of
from toc.errors import PartlyScheduled, StoreUnavailable
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate

BIZ_IDS = range(40)
FROZEN_S = 8.0
LATER = timedelta(days=1)


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        server = start_mysql(tmp_path_factory.mktemp("mysql"))
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def settings(own_mysql: Server, mysql_database: str) -> Settings:
    """Two databases; database 0 is on a MySQL server of our own."""
    name = f"toc_{secrets.token_hex(6)}"
    with create_engine(own_mysql.url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    made = Settings(
        databases=[f"{own_mysql.url}/{name}", mysql_database],
        shards=4,
        redis_url="none",
        connect_timeout_s=1,
        scanner={"tick_s": 0.2},
    )
    migrate.upgrade(made)
    return made


def biz_id_of(settings: Settings, database: int) -> int:
    """One whose jobs are in this database."""
    routing = settings.routing
    return next(
        n
        for n in BIZ_IDS
        if routing.database_index(routing.shard_of_hash(routing_hash_of(n))) == database
    )


def fail_over_without(settings: Settings, name: str) -> None:
    """Database 0 as its replica has it that lacks the last commit: the numbering goes back too."""
    with create_engine(settings.databases[0], poolclass=NullPool).begin() as connection:
        connection.execute(text("DELETE FROM toc_biz_type WHERE name = :name"), {"name": name})
        connection.execute(text("ALTER TABLE toc_biz_type AUTO_INCREMENT = 1"))


@pytest.mark.parametrize("place", [1, 0])
def test_a_type_that_database_0_has_lost_keeps_its_jobs(settings: Settings, place: int) -> None:
    """Another type is made after the fail-over; its handler must not run the lost type's jobs."""
    biz_id = biz_id_of(settings, place)
    with TimeoutCenter(settings) as old, TimeoutCenter(settings) as new:
        old.schedule(biz_id_of(settings, 0), LATER, biz_type="first")
        before = old.schedule(biz_id, timedelta(), biz_type="lost")
        fail_over_without(settings, "lost")
        new.schedule(biz_id_of(settings, 0), LATER, biz_type="other")
        after = old.schedule(biz_id, timedelta(), biz_type="lost")  # it knows the type's number
        started: list[Job] = []
        handlers = Registry()
        handlers.handler("other")(started.append)
        node = Node(settings, handlers=handlers)
        node.start()
        try:
            own = new.schedule(biz_id, timedelta(), biz_type="other")
            wait_until(lambda: own in [job.job_id for job in started])
        finally:
            node.stop()
        assert [job.job_id for job in started] == [own]
        handlers = Registry()
        right: list[Job] = []
        handlers.handler("lost")(right.append)
        node = Node(settings, handlers=handlers)
        node.start()
        try:
            wait_until(lambda: len(right) == 2)
        finally:
            node.stop()
        assert {job.job_id for job in right} == {before, after}
        assert {job.biz_type for job in right} == {"lost"}


class Caller(threading.Thread):
    """Calls again and again; `longest_s` is what the longest call took."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call, self._over = call, threading.Event()
        self.calls, self.longest_s = 0, 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        while not self._over.wait(0.02):
            began_s = time.monotonic()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 - the test raises it
                self.error = error
                return
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.calls += 1

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """It takes connections and says nothing."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def test_clients_of_another_database_do_not_wait_for_one_that_hangs(
    settings: Settings, own_mysql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times, old types and new ones, alone, in bulk and in the caller's transaction."""
    monkeypatch.setattr("toc.center.connections.TIME_AGE_S_MAX", 0.2)
    here, number = biz_id_of(settings, 1), itertools.count()
    engine = create_engine(settings.databases[1], poolclass=NullPool)

    def joined() -> None:
        with Session(engine) as session, session.begin():
            center.schedule(here, LATER, biz_type=f"joined.{next(number)}", session=session)

    with TimeoutCenter(settings) as center:
        center.schedule(here, LATER)
        calls: list[Callable[[], object]] = [
            lambda: center.schedule(here, LATER),
            lambda: center.schedule(here, LATER, biz_type=f"new.{next(number)}"),
            lambda: center.schedule_many([(here, LATER)], biz_type=f"many.{next(number)}"),
            lambda: center.reschedule(LATER, biz_id=here, biz_type="nobody"),
            lambda: center.cancel(biz_id=here, biz_type=f"nobody.{next(number)}"),
            joined,
        ]
        callers = [Caller(call) for call in calls]
        with frozen(own_mysql):
            for caller in callers:
                caller.start()
            time.sleep(FROZEN_S)  # measured, not waited for
            for caller in callers:
                caller.end()
    assert max(caller.longest_s for caller in callers) < FROZEN_S / 4
    assert min(caller.calls for caller in callers) > 10
    engine.dispose()


def test_a_batch_for_two_databases_costs_only_what_hangs(
    settings: Settings, own_mysql: Server
) -> None:
    here, there = biz_id_of(settings, 1), biz_id_of(settings, 0)
    quick = settings.model_copy(update={"read_timeout_s": 2})
    with TimeoutCenter(quick) as center:
        center.schedule(here, LATER)
        with frozen(own_mysql), pytest.raises(PartlyScheduled) as caught:
            center.schedule_many([(there, LATER), (here, LATER)], biz_type="batch")
        lost, written = caught.value.job_ids
        assert lost is None
        assert written is not None
        job = center.get(written)
        assert job is not None
        assert job.biz_type == "batch"


def test_a_new_type_for_a_database_that_hangs_is_refused_by_its_name(
    settings: Settings, own_mysql: Server
) -> None:
    there = biz_id_of(settings, 0)
    quick = settings.model_copy(update={"read_timeout_s": 2})
    with TimeoutCenter(quick) as center:
        center.schedule(there, LATER)
        began_s = time.monotonic()
        with frozen(own_mysql), pytest.raises(StoreUnavailable, match="database 0"):
            center.schedule(there, LATER, biz_type="new")
        assert time.monotonic() - began_s < 10


def test_a_node_that_meets_a_new_type_does_not_ask_a_database_that_hangs(
    settings: Settings, own_mysql: Server
) -> None:
    here = biz_id_of(settings, 1)
    started: list[Job] = []
    handlers = Registry()
    handlers.handler("*")(started.append)
    with TimeoutCenter(settings) as center:
        center.schedule(here, LATER)
        node = Node(settings, handlers=handlers)
        node.start()
        try:
            for n in range(3):
                center.cancel(center.schedule(here, LATER, biz_type=f"met.{n}"))
            with frozen(own_mysql):
                began_s = time.monotonic()
                for n in range(3):
                    center.schedule(here, datetime.now(UTC), biz_type=f"met.{n}")
                wait_until(lambda: len(started) == 3, seconds=60)
                took_s = time.monotonic() - began_s
        finally:
            node.stop()
    assert {job.biz_type for job in started} == {f"met.{n}" for n in range(3)}
    assert took_s < FROZEN_S
