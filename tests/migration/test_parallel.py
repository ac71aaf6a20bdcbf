"""Several databases at a time: the same tables as one after the other, and one error stops all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.migration.conftest import dump, engine_of, name_held, settings_of
from tests.servers.fixtures import _database as temporary_database
from toc.store import migrate
from toc.store.schema_executor import CompletedStep, MigrationFailed


@pytest.fixture
def urls(server: Any) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(temporary_database(server)) for _ in range(4)]


@pytest.mark.usefixtures("second_revision")
def test_the_same_as_one_after_the_other(urls: list[str]) -> None:
    ones, others = urls[:2], urls[2:]
    migrate.upgrade(settings_of(*ones, shards=4))
    seen: list[CompletedStep] = []
    migrate.upgrade(settings_of(*others, shards=4), seen.append, to="0001", parallel=2)
    reached = migrate.upgrade(settings_of(*others, shards=4), seen.append, parallel=2)
    assert [one.revision for one in reached] == [migrate.newest_revision()] * 2
    assert {(step.database, step.revision) for step in seen} >= {
        (0, "0001"),
        (1, migrate.newest_revision()),
    }
    for one, other in zip(ones, others, strict=True):
        with engine_of(one) as first, engine_of(other) as second:
            assert dump(second) == dump(first)


def test_the_first_error_stops_all_and_a_later_run_goes_on(urls: list[str]) -> None:
    settings = settings_of(*urls[:2], shards=4)
    with (
        name_held(urls[1], "toc_job_0002"),
        pytest.raises(MigrationFailed, match="database 1, table toc_job_0002: a transaction holds"),
    ):
        migrate.upgrade(settings, parallel=2, lock_wait_s=1)
    migrate.upgrade(settings, parallel=2)
    with engine_of(urls[1]) as engine:
        assert "toc_job_0003" in dump(engine)
