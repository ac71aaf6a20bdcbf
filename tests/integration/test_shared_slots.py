"""Slots that hold jobs of several databases (slot_amount < shards), one of which goes away."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.deep import deep
from tests.servers import Server, ServerUnavailableError, start_mysql
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Job, Status
from toc.domain.routing import routing_hash_of
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.setting_groups import TopicSettings, WorkerSettings
from toc.runtime.settings import Settings
from toc.store import migrate

AWAY_S = 8.0  # how long jobs come due while the database is away
LATE_S_MAX = 4.0  # a scanner would be 30 s late
POPS_MAX = 150  # a second


@pytest.fixture
def own_mysql(tmp_path: Path) -> Iterator[Server]:
    try:
        server = start_mysql(tmp_path / "mysql")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def settings(
    own_mysql: Server,
    mysql_database: str,
    redis_server: Endpoint,
    redis_namespace: str,
    request: pytest.FixtureRequest,
) -> Settings:
    """Two databases share each of two slots; which of the two goes away is the parameter."""
    name = f"toc_{secrets.token_hex(6)}"
    with create_engine(own_mysql.url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    urls = [mysql_database, f"{own_mysql.url}/{name}"]
    made = Settings(
        databases=urls[::-1] if request.param == "first" else urls,
        shards=4,
        topics={"default": TopicSettings(slot_amount=2)},
        redis_url=redis_server.url,
        namespace=redis_namespace[:32],
        connect_timeout_s=1,
        worker=WorkerSettings(lease_s=3, lease_margin_s=1),
    )
    migrate.upgrade(made)
    return made


def ids_on(settings: Settings, database: int, number: int) -> list[int]:
    routing = settings.routing
    found = (
        n
        for n in range(10**6)
        if routing.database_index(routing.shard_of_hash(routing_hash_of(n))) == database
    )
    return [next(found) for _ in range(number)]


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ("first", "killed"),
        ("second", "frozen"),
        pytest.param("first", "frozen", marks=deep),
        pytest.param("second", "killed", marks=deep),
    ],
    indirect=["settings"],
)
def test_a_database_that_is_away_makes_no_other_late_and_nobody_spins(
    settings: Settings, own_mysql: Server, how: str
) -> None:
    away = next(n for n, url in enumerate(settings.databases) if "toc_test" not in url)
    late_s: dict[int, float] = {}
    handlers, pops = Registry(), []

    @handlers.handler("default", timeout=5, retry=[0.1])
    def handle(job: Job) -> None:
        late_s[job.job_id] = time.time() - job.action_ms / 1000

    node = Node(settings, handlers=handlers)
    node.start()
    assert node.reminders is not None
    pop = node.reminders.pop

    def counted(*arguments: Any) -> Any:
        pops.append(time.monotonic())
        return pop(*arguments)

    node.reminders.pop = counted  # type: ignore[method-assign]
    try:
        with TimeoutCenter(settings) as center:
            begins = datetime.now(UTC) + timedelta(seconds=4)
            steps = [timedelta(seconds=AWAY_S * n / 60) for n in range(60)]
            there, here = (
                center.schedule_many(
                    [(b, begins + step) for b, step in zip(biz_ids, steps, strict=True)]
                )
                for biz_ids in (ids_on(settings, away, 60), ids_on(settings, 1 - away, 60))
            )
        wait_until(lambda: datetime.now(UTC) > begins - timedelta(seconds=0.5))
        assert not late_s
        own_mysql.freeze() if how == "frozen" else own_mysql.kill()
        began_s = time.monotonic()
        wait_until(lambda: late_s.keys() >= set(here), "the other database's jobs", 60)
        rate = len(pops) / (time.monotonic() - began_s)
        worst = max(late_s[job_id] for job_id in here)
        assert worst < LATE_S_MAX, f"{rate:.0f} pops a second"
        assert rate < POPS_MAX
        assert not late_s.keys() & set(there)
        own_mysql.thaw() if how == "frozen" else own_mysql.start()
        # A claim that hung may be done by now, and holds its jobs until its lease is over.
        wait_until(
            lambda: late_s.keys() >= set(there), "the jobs of the database that was away", 60
        )
        with TimeoutCenter(settings) as center:
            wait_until(lambda: {center.get(job_id).status for job_id in here} == {Status.DONE})
    finally:
        own_mysql.thaw() if how == "frozen" else None
        node.stop()
