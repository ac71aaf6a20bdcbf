"""A type with one number of a release before (database 0's), and elsewhere the one of its name.

The release before numbers a new type in database 0, and knows no other number of it. So the jobs of one
type may have two numbers in one table: who names the type means both.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.contract.test_biz_types import copy_of, lose, write
from tests.worker.waiting import wait_until
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.biz_types import type_no_of
from toc.domain.job import Status
from toc.domain.routing import hash_of
from toc.errors import DuplicateJob, SchemaMismatch
from toc.store.biz_types import REFRESH_S, BizTypes

LATER = timedelta(days=1)
OLD_NO = 77


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


@pytest.fixture
def center(two: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(two.settings, clock=two.clock) as center:
        yield center


@pytest.fixture
def name() -> str:
    """A type that nobody has named."""
    return f"type.{secrets.token_hex(6)}"


def biz_id_on(two: Library, database: int) -> int:
    """One whose jobs are in this database."""
    routing = two.settings.routing
    return next(n for n in range(100) if routing.database(routing.shard(hash_of(n))) == database)


def number_in_database_0(two: Library, name: str) -> None:
    """As a process of the release before does that has not met the number that follows from the name."""
    lose(two.databases[0], name)
    write(two.databases[0], {OLD_NO: name})


def old_job(two: Library, biz_id: int, key: str | None = None) -> int:
    """A job as a process of the release before schedules it."""
    return two.pending(biz_id, 86_400_000, type_no=OLD_NO, key=key)


def test_the_verbs_mean_all_numbers_of_a_type(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    here = biz_id_on(two, 1)
    new = center.schedule(here, LATER, biz_type=name, dedup_key="new")
    number_in_database_0(two, name)
    old = old_job(two, here, "old")
    with TimeoutCenter(two.settings, clock=two.clock) as later:
        assert {job.job_id for job in later.find(here, name)} == {old, new}
        answer = later.reschedule(LATER, biz_id=here, biz_type=name, dedup_key="old")
        assert (answer, answer.job_id) == ("rescheduled", old)
        assert later.cancel(biz_id=here, biz_type=name) == "cancelled"
        assert later.dead(biz_type=name) == []
    assert {two.row(job_id).status for job_id in (old, new)} == {Status.CANCELLED}


def test_a_client_learns_the_other_number_from_the_rows(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    """It has read database 0 before the number was there."""
    here = biz_id_on(two, 1)
    with TimeoutCenter(two.settings, clock=two.clock) as other:
        for each in (center, other):
            each.get(1)  # it connects
        BizTypes(two.databases).number_or_create(name, two.databases[1])
        number_in_database_0(two, name)
        old = old_job(two, here)
        assert [job.biz_type for job in center.find(here, name)] == [name]
        assert other.cancel(biz_id=here, biz_type=name) == "cancelled"
    assert two.row(old).status == Status.CANCELLED


def test_a_client_learns_the_other_number_within_a_minute(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    here = biz_id_on(two, 1)
    new = center.schedule(here, LATER, biz_type=name)
    number_in_database_0(two, name)
    old = old_job(two, here)
    two.clock.advance(REFRESH_S)
    # In the background: no call waits for another database.
    wait_until(lambda: {job.job_id for job in center.find(here, name)} == {old, new})


def test_a_key_is_held_under_all_numbers(two: Library, name: str) -> None:
    here = biz_id_on(two, 1)
    BizTypes(two.databases).number_or_create(name, two.databases[1])
    number_in_database_0(two, name)
    held = old_job(two, here, "key")
    with TimeoutCenter(two.settings, clock=two.clock) as center:

        def schedule(on_duplicate: str) -> int:
            return center.schedule(
                here, LATER, biz_type=name, dedup_key="key", on_duplicate=on_duplicate
            )  # type: ignore[call-overload, no-any-return]

        assert schedule("keep") == held
        assert schedule("replace") == held
        with pytest.raises(DuplicateJob, match=str(held)):
            schedule("error")
        many = center.schedule_many(
            [JobSpec(biz_id=here, action_time=LATER, dedup_key=key) for key in ("key", "b", None)],
            biz_type=name,
        )
        assert many[0] == held
        assert [two.row(job_id).dedup_key for job_id in many[1:]] == ["b", None]
        assert center.cancel(held) == "cancelled"
        assert schedule("keep") != held


def test_a_dead_job_is_superseded_by_one_under_another_number(
    two: Library, center: TimeoutCenter
) -> None:
    here = biz_id_on(two, 1)
    dead = two.dead(biz_id=here, type_no=two.close_no, key="key")
    number_in_database_0(two, "order.close")
    held = old_job(two, here, "key")
    assert center.redrive(dead) == "superseded"
    assert center.cancel(held) == "cancelled"
    assert center.redrive(dead) == "redriven"


def test_a_new_type_is_written_to_database_0_as_well(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    """So a process of the release before finds the number there."""
    center.schedule(biz_id_on(two, 1), LATER, biz_type=name)
    assert copy_of(two.databases[0])[type_no_of(name)] == name


def test_a_number_that_database_0_has_meanwhile_is_taken(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    """The release before could not write it to the other database."""
    center.find(1)
    write(two.databases[0], {OLD_NO: name})
    center.schedule(biz_id_on(two, 1), LATER, biz_type=name)
    assert copy_of(two.databases[1])[OLD_NO] == name


# ---- a number that a person has given to another type (docs/how-to/type-conflict.md)


def test_a_verb_does_not_use_a_number_that_its_type_has_no_more(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    """A client that only cancels reads the types again as well."""
    here = biz_id_on(two, 0)
    write(two.databases[0], {OLD_NO: name})
    assert center.cancel(biz_id=here, biz_type=name) == "unknown"
    lose(two.databases[0], name)
    write(two.databases[0], {OLD_NO: f"{name}.other", type_no_of(name): name})
    others = old_job(two, here)
    two.clock.advance(REFRESH_S)
    assert center.cancel(biz_id=here, biz_type=name) == "unknown"
    assert two.row(others).status == Status.PENDING


def test_a_client_of_one_database_hears_of_conflicts_with_another(
    two: Library, center: TimeoutCenter, name: str
) -> None:
    """So that it writes nothing under a number in conflict, and goes on when that is over."""
    here = biz_id_on(two, 1)
    write(two.databases[1], {OLD_NO: name})

    def refuses() -> bool:
        try:
            center.schedule(here, LATER, biz_type=name)
        except SchemaMismatch:
            return True
        return False

    assert not refuses()
    with two.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_biz_type WHERE type_no = 77")
    write(two.databases[0], {OLD_NO: f"{name}.other"})
    two.clock.advance(REFRESH_S)
    wait_until(refuses)
    lose(two.databases[0], f"{name}.other")
    two.clock.advance(REFRESH_S)
    wait_until(lambda: not refuses())


def test_a_read_that_failed_is_made_again_by_the_next_call(two: Library, name: str) -> None:
    """Else clients would use what they know for a minute more."""
    types, here = BizTypes(two.databases), two.databases[0]
    types.number_or_create(name, here)
    two.clock.advance(REFRESH_S)
    check, here._check = here._check, _refuse
    with pytest.raises(SchemaMismatch):
        types.number_or_create(name, here)
    with pytest.raises(SchemaMismatch):
        types.number_or_create(name, here)
    here._check, here._check_error = check, None
    assert types.number_or_create(name, here) == type_no_of(name)


def _refuse(database: object) -> None:
    raise SchemaMismatch("not now")
