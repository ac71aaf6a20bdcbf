"""How many statements a database sees at the same time, by the times that MySQL itself has recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.invariants.conftest import _started
from tests.reconcile.test_run import Damaged, database_on, own_redis_url, settings_of
from tests.servers import Server, start_mysql
from tests.servers.mysql import execute
from toc.reconcile.executor_tasks import MergeParts, group_into_tasks
from toc.reconcile.findings import ShardComparison, ShardFailure, ShardPart
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings

__all__ = ["own_redis_url"]

HISTORY = "performance_schema.events_statements_history_long"


@pytest.fixture
def recording_mysql(tmp_path: Path) -> Iterator[Server]:
    """A MySQL that records its last 10,000 statements."""
    consumer = "--performance-schema-consumer-events-statements-history-long=ON"
    yield from _started(
        lambda: start_mysql(tmp_path / "mysql", "--performance-schema=ON", consumer)
    )


def most_at_once(server: Server) -> tuple[int, int]:
    """The largest number of SELECTs that overlap, and how many there were."""
    rows = execute(
        server,
        f"SELECT timer_start, timer_end FROM {HISTORY} "
        "WHERE current_schema = 'toc' AND event_name = 'statement/sql/select'",
    )
    changes = sorted(
        change for start, end in rows for change in ((int(str(start)), 1), (int(str(end)), -1))
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most, len(rows)


@pytest.mark.timeout(120)
def test_a_database_sees_no_more_reads_than_the_settings_allow(
    recording_mysql: Server, own_redis_url: tuple[Server, str], spark: Any
) -> None:
    settings = settings_of((database_on(recording_mysql),), own_redis_url[1])
    damaged = Damaged(settings)
    for limit in (
        1,
        2,
    ):  # Spark has two cores: the second run shows that the first one could see it
        execute(recording_mysql, f"TRUNCATE TABLE {HISTORY}")
        reconcile = settings.reconcile.model_copy(update={"reads_per_database": limit, "page": 2})
        damaged.settings = settings.model_copy(update={"reconcile": reconcile})
        assert len(damaged.run(spark).findings) == len(damaged.lost)
        most, statements = most_at_once(recording_mysql)
        assert statements > 200
        assert most == limit


def test_a_task_has_items_of_one_database_and_each_database_few_tasks() -> None:
    urls = tuple(f"sqlite:///{n}.db" for n in range(4))
    settings = Settings(databases=urls, shards=16, reconcile=ReconcileSettings())
    parts = [ShardPart(shard, n) for shard in range(12) for n in range(5)]
    tasks = group_into_tasks(settings, parts, 3)
    assert sorted(part for task in tasks for part in task) == sorted(parts)
    databases = [{part.shard // 4 for part in task} for task in tasks]
    assert databases == [{0}, {1}, {2}] * 3
    assert [len(task) for task in group_into_tasks(settings, parts[:2], 3)] == [1, 1]


def test_a_shard_of_which_one_part_fails_has_failed() -> None:
    merge, failure = MergeParts(10), ShardFailure(3, "gone")
    assert merge(ShardComparison(3), failure) == failure
    assert merge(failure, ShardComparison(3)) == failure
    assert isinstance(merge(ShardComparison(3), ShardComparison(3)), ShardComparison)
