"""A process starts while one of its databases is down, and looks at it before it uses it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.servers import Server, ServerUnavailableError, start_mysql
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.errors import SchemaMismatch, StoreUnavailable
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate

BIZ_IDS = range(40)


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        server = start_mysql(tmp_path_factory.mktemp("mysql"))
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def settings(own_mysql: Server, mysql_database: str, request: pytest.FixtureRequest) -> Settings:
    """Two databases, one on a MySQL of our own, which can go away; which of them is first varies."""
    name = f"toc_{secrets.token_hex(6)}"
    with create_engine(own_mysql.url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    urls = [mysql_database, f"{own_mysql.url}/{name}"]
    made = Settings(
        databases=urls[::-1] if request.param == "first" else urls,
        shards=4,
        redis_url="none",
        connect_timeout_s=1,
        scanner={"tick_s": 0.2},
    )
    migrate.upgrade(made)
    return made


def away(settings: Settings) -> int:
    """The index of the database that goes away."""
    return next(n for n, url in enumerate(settings.databases) if "toc_test" not in url)


def database_of(settings: Settings, biz_id: int) -> int:
    return settings.routing.database_index(settings.routing.shard_of_hash(routing_hash_of(biz_id)))


def answers(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnavailable:
        return False
    return True


def both(settings: Settings) -> tuple[int, int]:
    """A biz_id whose database stays, and one whose database goes away."""
    here = next(n for n in BIZ_IDS if database_of(settings, n) != away(settings))
    return here, next(n for n in BIZ_IDS if database_of(settings, n) == away(settings))


@pytest.mark.parametrize("settings", ["first", "second"], indirect=True)
def test_what_answers_works_and_the_rest_when_it_comes_back(
    settings: Settings, own_mysql: Server
) -> None:
    here, there = both(settings)
    with TimeoutCenter(settings) as center:
        center.schedule(here, timedelta(days=1), biz_type="t")  # the type exists
        waiting = center.schedule(there, timedelta(), biz_type="t")
    started: list[int] = []
    handlers = Registry()
    handlers.handler("t")(lambda job: started.append(job.biz_id))
    own_mysql.stop()
    node = Node(settings, handlers=handlers)
    try:
        with TimeoutCenter(settings) as center:
            node.start()
            with pytest.raises(StoreUnavailable):
                center.schedule(there, timedelta(), biz_type="t")
            center.schedule(here, timedelta(days=1), biz_type="new")  # whichever is away
            job_id = center.schedule(here, timedelta(), biz_type="t")
            wait_until(lambda: center.get(job_id).status is Status.DONE)
            assert started == [here]
            own_mysql.start()
            wait_until(lambda: started == [here, there], "the other database's job")
            assert center.get(waiting).biz_id == there
            wait_until(
                lambda: answers(lambda: center.schedule(there, timedelta(1), biz_type="new"))
            )
    finally:
        if own_mysql._process is None:
            own_mysql.start()
        node.stop()


@pytest.mark.parametrize("settings", ["second"], indirect=True)
@pytest.mark.parametrize("fault", ["revision", "routing"])
def test_one_that_does_not_fit_is_not_used_when_it_comes_back(
    settings: Settings, own_mysql: Server, fault: str
) -> None:
    here, there = both(settings)
    with TimeoutCenter(settings) as center:
        center.schedule(here, timedelta(days=1))
    engine = create_engine(settings.databases[1], poolclass=NullPool)
    with engine.begin() as connection:
        if fault == "revision":
            connection.execute(text("UPDATE toc_alembic_version SET version_num = '9999'"))
            fits = "UPDATE toc_meta SET value = '9999' WHERE name = 'schema_fits_since'"
            connection.execute(text(fits))
        else:
            connection.execute(text("UPDATE toc_meta SET value = '8' WHERE name = 'shards'"))
    own_mysql.stop()
    try:
        with TimeoutCenter(settings) as center:
            center.schedule(here, timedelta(days=1))
            own_mysql.start()
            for _ in range(2):
                with pytest.raises(SchemaMismatch):
                    center.schedule(there, timedelta(days=1))
            center.schedule(here, timedelta(days=1))
    finally:
        if own_mysql._process is None:
            own_mysql.start()
    with engine.connect() as connection:
        for shard in settings.routing.shards_of_database(1):
            sql = f"SELECT COUNT(*) FROM toc_job_{shard:04d}"
            assert connection.execute(text(sql)).scalar() == 0
    engine.dispose()


def test_nothing_answers(tmp_path: Path) -> None:
    settings = Settings(databases=("mysql+pymysql://x@127.0.0.1:1/x",), connect_timeout_s=1)
    with TimeoutCenter(settings) as center, pytest.raises(StoreUnavailable):
        center.schedule(1, timedelta())
    node = Node(settings, handlers=Registry())
    try:
        with pytest.raises(StoreUnavailable):
            node.start()
    finally:
        node.stop()


@pytest.mark.parametrize("settings", ["second"], indirect=True)
def test_a_wrong_name_is_not_an_outage(settings: Settings) -> None:
    wrong = settings.model_copy(
        update={"databases": (settings.databases[0], settings.databases[1] + "_nowhere")}
    )
    with TimeoutCenter(wrong) as center, pytest.raises(StoreUnavailable, match="Unknown database"):
        center.schedule(both(settings)[0], timedelta(days=1))


@pytest.mark.parametrize("settings", ["first", "second"], indirect=True)
def test_one_that_hangs_holds_up_neither_start_nor_the_others(
    settings: Settings, own_mysql: Server
) -> None:
    """It takes connections and says nothing: each answer would be waited for for 30 s."""
    here, _ = both(settings)
    with TimeoutCenter(settings) as center:
        center.schedule(here, timedelta(days=1))  # the type exists
    started: list[int] = []
    handlers = Registry()
    handlers.handler("default")(lambda job: started.append(job.biz_id))
    own_mysql.freeze()
    node = Node(settings, handlers=handlers)
    began_s = time.monotonic()
    try:
        node.start()
        with TimeoutCenter(settings) as center:
            center.schedule(here, datetime.now(UTC))
            wait_until(lambda: started == [here])
        assert time.monotonic() - began_s < 25
    finally:
        own_mysql.thaw()
        node.stop()
