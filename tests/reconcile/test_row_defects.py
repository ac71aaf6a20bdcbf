"""Rows that are wrong by themselves: each defect is found, repaired by its condition, and leaves a trace."""

from __future__ import annotations

import pytest

from tests.reconcile.damage import Town
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.store.column_types import sql_time_of_ms
from toc.store.row_defects import LEASE_MS_MAX, RowDefects

HOUR_MS = 3_600_000


def defects(town: Town, time_ms: int = 0, lease_ms: int = LEASE_MS_MAX) -> RowDefects:
    return RowDefects(town.library.databases, lease_ms, lambda: time_ms, actor="night", run_id="1")


def table(town: Town, job_id: int) -> str:
    return f"toc_job_{town.library.shard(job_id):04d}"


def set_row(town: Town, job_id: int, values: str) -> None:
    town.library.sql(job_id, f"UPDATE {table(town, job_id)} SET {values} WHERE job_id = {job_id}")


def a_lease_of(town: Town, hours: int) -> int:
    job_id = town.library.running("somebody")
    set_row(town, job_id, f"lease_end_time = '{sql_time_of_ms(town.now_ms + hours * HOUR_MS)}'")
    return job_id


def found(town: Town, job_id: int, **changes: int) -> set[D]:
    """The defects of a job, by both ways of looking."""
    shard, checker = town.library.shard(job_id), defects(town, **changes)
    whole = checker.find_defective_rows(shard, 1000)
    by_table = {kind for kind, ids in whole.ids.items() if job_id in ids}
    by_id = checker.defects_of_jobs(shard, [job_id]).get(job_id, set())
    assert by_table - {D.MOVED, D.MISFIT} == by_id
    return by_table


def repaired(town: Town, kind: D, job_id: int, **changes: int) -> bool:
    shard = town.library.shard(job_id)
    return defects(town, **changes).repair_jobs(kind, shard, [job_id]) == {job_id}


def events(town: Town, job_id: int) -> list[str]:
    return [
        reason
        for (reason,) in town.library.sql(
            job_id, f"SELECT reason FROM toc_event WHERE job_id = {job_id} AND what = 'repair'"
        )
    ]


def test_a_job_that_is_never_due_is_due_at_its_action_time_again(town: Town) -> None:
    job_id = town.library.pending(in_ms=60_000)
    set_row(town, job_id, "due_time = NULL")
    assert found(town, job_id) == {D.NEVER_DUE}
    assert repaired(town, D.NEVER_DUE, job_id)
    assert town.library.row(job_id).due_ms == town.now_ms + 60_000
    assert events(town, job_id) == ["never_due: due_time was NULL, and is the action_time now"]
    assert found(town, job_id) == set()
    assert not repaired(town, D.NEVER_DUE, job_id)


def test_an_ended_job_is_not_due_and_ended_when_it_did(town: Town) -> None:
    job_id = town.library.pending(in_ms=60_000)
    modified_ms = town.library.row(job_id).modified_ms
    set_row(town, job_id, "status = 3")
    assert found(town, job_id) == {D.ENDED_BUT_DUE}
    assert repaired(town, D.ENDED_BUT_DUE, job_id)
    row = town.library.row(job_id)
    assert (row.due_ms, row.modified_ms) == (None, modified_ms)


def test_a_lease_without_end_is_ended(town: Town) -> None:
    job_id = a_lease_of(town, hours=2)
    assert found(town, job_id) == {D.ENDLESS_LEASE}
    assert repaired(town, D.ENDLESS_LEASE, job_id)
    assert found(town, job_id) == set()


def test_a_database_whose_clock_is_behind_accuses_no_lease(town: Town) -> None:
    """Leases are written by the later one of its clock and of what was believed before."""
    job_id = a_lease_of(town, hours=2)
    redis_ms = town.now_ms + 2 * HOUR_MS
    assert found(town, job_id, time_ms=redis_ms) == set()
    assert not repaired(town, D.ENDLESS_LEASE, job_id, time_ms=redis_ms)


def test_a_lease_that_a_worker_with_other_settings_may_hold_is_only_reported(town: Town) -> None:
    job_id = a_lease_of(town, hours=1)
    set_row(town, job_id, "attempts = 1")
    assert found(town, job_id, lease_ms=90_000) == {D.ENDLESS_LEASE}
    assert not repaired(town, D.ENDLESS_LEASE, job_id, lease_ms=90_000)


def test_a_dead_job_without_a_letter_gets_one(town: Town) -> None:
    job_id = town.library.dead()
    town.library.sql(job_id, f"DELETE FROM toc_dead_job WHERE job_id = {job_id}")
    assert found(town, job_id) == {D.NO_LETTER}
    assert repaired(town, D.NO_LETTER, job_id)
    assert not repaired(town, D.NO_LETTER, job_id)
    assert found(town, job_id) == set()


def test_a_lone_letter_is_deleted_and_its_error_is_kept(town: Town) -> None:
    job_id = town.library.dead()
    ((error,),) = town.library.sql(
        job_id, f"SELECT error FROM toc_dead_job WHERE job_id = {job_id}"
    )
    set_row(town, job_id, "status = 2")
    assert found(town, job_id) == {D.LONE_LETTER}
    assert repaired(town, D.LONE_LETTER, job_id)
    assert found(town, job_id) == set()
    (reason,) = events(town, job_id)
    assert reason.endswith(f"its dead letter is deleted, which said: {error}")


@pytest.mark.parametrize("gone", [False, True])
def test_a_letter_of_a_job_of_which_nothing_is_known_stays(town: Town, *, gone: bool) -> None:
    """It may be all that tells what became of the job."""
    job_id = town.library.dead()
    if gone:
        town.library.sql(job_id, f"DELETE FROM {table(town, job_id)} WHERE job_id = {job_id}")
    else:
        set_row(town, job_id, "status = 77")
    assert D.LONE_LETTER in found(town, job_id)
    assert not repaired(town, D.LONE_LETTER, job_id)
    assert D.LONE_LETTER in found(town, job_id)
