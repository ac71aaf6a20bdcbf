"""Shards over two databases: each is asked for its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.biz_ids import BusinessId
from toc.domain.recurrence import Recurrence
from toc.domain.recurring import RecurringSchedule
from toc.domain.routing import routing_hash_of
from toc.errors import StoreUnavailable
from toc.store import recurring_rows
from toc.store.claims import Outcome, OutcomeKind
from toc.store.database_metadata import DatabaseMetadata
from toc.store.recurring_chains import RecurringChains
from toc.store.recurring_changes import RecurringChanges


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


def test_jobs_live_in_the_database_of_their_shard(two: Library) -> None:
    jobs = {biz_id: two.pending(biz_id, key="k") for biz_id in range(16)}
    assert two.count() == 16
    for biz_id, job_id in jobs.items():
        shard = routing_hash_of(biz_id) % 4
        assert two.shard(job_id) == shard
        assert two.home(job_id).index == shard // 2
        assert two.row(job_id).biz_id == biz_id
        job = two.jobs.get(job_id)
        assert job is not None
        assert job.biz_id == biz_id
        assert [found.job_id for found in two.jobs.find(shard, BusinessId(biz_id), None, 5)] == [
            job_id
        ]
    assert {two.home(job_id).index for job_id in jobs.values()} == {0, 1}


def test_a_database_has_only_its_own_shards(two: Library) -> None:
    for database in two.databases:
        with database.engine.begin() as connection:
            for shard in range(4):
                sql = f"SELECT COUNT(*) FROM toc_job_{shard:04d}"
                if shard in database.shards:
                    connection.exec_driver_sql(sql)
                else:
                    with pytest.raises(Exception, match=f"toc_job_{shard:04d}"):
                        connection.exec_driver_sql(sql)


def test_claim_settle_and_letters_in_each_database(two: Library) -> None:
    jobs = [two.pending(biz_id) for biz_id in range(16)]
    for database in two.databases:
        mine = [job_id for job_id in jobs if two.home(job_id) is database]
        seen = two.claim(mine, "one")
        assert {row.token for row in seen.values()} == {"one"}
        held = two.settle(*(Outcome(job_id, "one", OutcomeKind.BURY, error="x") for job_id in mine))
        assert {job_id for job_id, _ in held} == set(mine)
    letters = [letter.job_id for letter in two.jobs.read_dead_letters(20, None)]
    assert letters == sorted(jobs, reverse=True)
    assert [letter.job_id for letter in two.jobs.read_dead_letters(5, None)] == letters[:5]
    assert two.jobs.redrive(jobs[0], 5) == "redriven"
    assert len(two.jobs.read_dead_letters(20, None)) == 15


def test_type_numbers_are_the_same_everywhere(two: Library) -> None:
    """A type is written where its jobs are; it gets the same number wherever that is."""
    for database in two.databases:
        number = DatabaseMetadata(two.databases).types.get_or_create_number("new.type", database)
        with database.engine.begin() as connection:
            sql = "SELECT type_no FROM toc_biz_type WHERE name = 'new.type'"
            assert connection.exec_driver_sql(sql).scalar_one() == number


def test_one_database_away_leaves_the_other(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/away/1.db"])
    jobs = {library.home(library.new(n).job_id).index: n for n in range(16)}
    library.close()
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable) as caught:
        library.pending(jobs[1])
    assert caught.value.database == 1
    assert library.jobs.get(library.pending(jobs[0])) is not None
    (tmp_path / "elsewhere").rename(tmp_path / "away")
    assert library.jobs.get(library.pending(jobs[1])) is not None
    library.close()


def test_a_recurring_schedule_lies_in_the_database_of_its_jobs(two: Library) -> None:
    chains = RecurringChains(two.databases, two.jobs, lambda name: None)
    changes = RecurringChanges(
        two.databases, two.database_metadata, chains, biz_types_max=100, schedules_max=20,
        tenant_schedules_max=20, backfill_max=10, occurrence_days=31,
    )  # fmt: skip
    rule = Recurrence(every_s=3600)
    for number in range(8):
        schedule = RecurringSchedule(f"s{number}", "report", rule)
        made = changes.declare(schedule, "somebody").made
        assert made is not None
        home = changes.home_of(schedule)
        assert two.home(made.job_id) is home
        for database in two.databases:
            names = [row.name for row in recurring_rows.select_rows(database)]
            assert (schedule.name in names) == (database is home)
    assert {changes.home_of(row.schedule).index for row in changes.read_all()} == {0, 1}
    assert [row.name for row in changes.read_all()] == [f"s{number}" for number in range(8)]
