"""What a node and `toc doctor` do where somebody has changed the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.migration.conftest import run
from tests.servers.fixtures import _database as temporary_database
from tests.servers.process import free_port
from toc.cli.check_results import CheckResult
from toc.cli.doctor import SetupChecker
from toc.errors import SchemaMismatch
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store import migrate

ENGINES = ["mariadb", "mysql"]


@pytest.fixture(params=ENGINES)
def settings(request: pytest.FixtureRequest) -> Iterator[Settings]:
    """Two databases, two shards in each."""
    server = request.getfixturevalue(f"{request.param}_server")
    with ExitStack() as stack:
        urls = [stack.enter_context(temporary_database(server)) for _ in range(2)]
        settings = Settings(databases=tuple(urls), shards=4, redis_url="none")
        migrate.upgrade(settings)
        yield settings


@pytest.fixture
def start() -> Iterator[Callable[[Settings], Node]]:
    with ExitStack() as stack:

        def begin(settings: Settings) -> Node:
            handlers = Registry()
            handlers.handler("t")(lambda job: None)
            node = Node(settings, handlers=handlers)
            stack.callback(node.stop)
            node.start()
            return node

        yield begin


def tables_of(settings: Settings, database: int) -> CheckResult:
    checks = {(c.subject, c.check): c for c in SetupChecker(settings).run_checks()}
    return checks[f"database {database}", "tables"]


def test_tables_that_are_as_made(settings: Settings, start: Callable[[Settings], Node]) -> None:
    node = start(settings)
    assert "schema" not in {part.part for part in node.health()}
    assert [tables_of(settings, index).level for index in (0, 1)] == ["ok", "ok"]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE toc_job_0003 DROP INDEX uq_live",
        "ALTER TABLE toc_job_0003 DROP INDEX uq_live, ADD INDEX uq_live (biz_id, type_no, live_key)",
        "ALTER TABLE toc_event MODIFY event_id BIGINT UNSIGNED NOT NULL",
    ],
)
def test_a_promise_that_would_break_silently_stops_the_start(
    settings: Settings, start: Callable[[Settings], Node], change: str
) -> None:
    run(settings.databases[1], change)
    with pytest.raises(SchemaMismatch, match=r"^database 1: toc_.*toc migrate --mend") as caught:
        start(settings)
    assert change.split()[2] in str(caught.value)
    check = tables_of(settings, 1)
    assert (check.level, tables_of(settings, 0).level) == ("fail", "ok")
    assert change.split()[2] in check.found


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ("ALTER TABLE toc_job_0003 DROP INDEX ix_due", "warn", "index ix_due is missing"),
        ("ALTER TABLE toc_job_0003 ADD COLUMN x INT NOT NULL", "fail", "each INSERT fails"),
        ("ALTER TABLE toc_job_0003 ADD UNIQUE KEY x (biz_id)", "fail", "it refuses rows"),
        ("DROP TABLE toc_job_0003", "fail", "the table is missing"),
    ],
)
def test_what_is_slow_or_fails_with_an_error_is_said_and_shown(
    settings: Settings,
    start: Callable[[Settings], Node],
    caplog: pytest.LogCaptureFixture,
    change: str,
    level: str,
    said: str,
) -> None:
    run(settings.databases[1], change)
    with caplog.at_level(logging.WARNING):
        node = start(settings)
    assert any("database 1: toc_job_0003: " in line and said in line for line in caplog.messages)
    (part,) = (part for part in node.health() if part.part == "schema")
    assert (part.state, said in part.how) == ("degraded", True)
    assert part.since_ms is not None
    check = tables_of(settings, 1)
    assert (check.level, said in check.found) == (level, True)


def test_a_database_that_is_away_is_no_reason_not_to_start(
    settings: Settings, start: Callable[[Settings], Node]
) -> None:
    away = f"mysql+pymysql://u@127.0.0.1:{free_port()}/toc"
    urls = (settings.databases[0], away)
    run(settings.databases[0], "ALTER TABLE toc_job_0001 DROP INDEX ix_due")
    node = start(settings.model_copy(update={"databases": urls}))
    parts = {part.part: part for part in node.health()}
    assert "index ix_due is missing" in parts["schema"].how


def test_a_shard_s_tables_of_other_settings_are_not_called_missing(settings: Settings) -> None:
    for index, url in enumerate(settings.databases):
        facts = {**settings.routing.meta_values(), "database": str(index)}
        run(url, *(f"INSERT INTO toc_meta VALUES ('{k}', '{v}')" for k, v in facts.items()))
    other = settings.model_copy(update={"shards": 8})
    checks = [check for check in SetupChecker(other).run_checks() if check.subject == "database 0"]
    assert "tables" not in {check.check for check in checks}
    assert not any("missing" in check.found for check in checks)
