"""A clock that has stepped starts nothing early and ends no lease: claim, take_over, bury_lost, overdue."""

from __future__ import annotations

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.domain.job import Status
from toc.runtime.server_clock import ClockOffset
from toc.store.claims import Outcome, OutcomeKind
from toc.store.column_types import sql_time_of_ms

HOUR_MS = 3_600_000


def follow(library: Library) -> None:
    """As a node's probe does: from now on the process knows the database's clock."""
    clock = library.clock
    for database in library.databases:
        database.server_clock.start_following(LEASE_MS / 1000)
        now_s = clock.monotonic_s()
        database.server_clock.record_offset(
            ClockOffset.from_answer(database.now_ms(), now_s, now_s)
        )


def step(library: Library, ms: int) -> None:
    """The databases' clocks step; this process' own does not."""
    clock = library.clock
    clock.time_for_servers_ms = lambda: clock.wall_ms() + ms  # type: ignore[method-assign]


@pytest.mark.invariant("I4")
def test_a_claim_believes_redis_no_further_than_the_database(library: Library) -> None:
    job_id = library.pending(in_ms=600_000)
    seen = library.claim([job_id], "one", library.now_ms + 700_000)[job_id]
    assert (seen.status, seen.token) == (Status.PENDING, None)
    library.clock.advance(599.5)
    assert library.claim([job_id], "one", library.now_ms + 700_000)[job_id].token == "one"


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("by", ["database", "redis"])
def test_a_database_that_steps_ahead_starts_nothing(library: Library, by: str) -> None:
    soon, later = library.pending(in_ms=-10), library.pending(in_ms=HOUR_MS // 2)
    follow(library)
    step(library, HOUR_MS)
    pop_ms = library.now_ms + HOUR_MS if by == "redis" else None
    seen = library.claim([soon, later], "one", pop_ms)
    assert (seen[soon].token, seen[later].token) == ("one", None)


def overdue(library: Library, job_id: int, grace_ms: int) -> tuple[list[int], bool]:
    """By its page, and by the look at many shards."""
    shard = library.shard(job_id)
    page = library.pages.read_overdue_rows(shard, (0, 0), grace_ms, None, 10)
    return [row.job_id for row in page], bool(library.pages.find_overdue_shards({shard: grace_ms}))


@pytest.mark.invariant("I4")
def test_nothing_is_overdue_by_a_step(library: Library) -> None:
    job_id = library.pending(in_ms=HOUR_MS // 2)
    follow(library)
    step(library, HOUR_MS)
    assert overdue(library, job_id, 1000) == ([], False)
    library.clock.advance(HOUR_MS / 2000 + 2)
    assert overdue(library, job_id, 1000) == ([job_id], True)


@pytest.mark.invariant("I2")
def test_a_database_that_steps_ahead_ends_no_lease(library: Library) -> None:
    job_id = library.running("one")
    follow(library)
    step(library, HOUR_MS)
    assert not library.claim([job_id], "two")[job_id].overdue
    assert library.take_over(job_id, "one", "two") is None
    assert not library.bury_lost(job_id, "one")
    assert library.row(job_id).claim_token == "one"
    library.clock.advance(LEASE_MS / 1000 + 1)
    assert library.claim([job_id], "two")[job_id].overdue
    assert library.take_over(job_id, "one", "two") is not None


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("how", ["claim", "take_over"])
def test_a_lease_is_whole_though_the_clock_is_behind(library: Library, how: str) -> None:
    """It comes back: then a lease that counted from the wrong time would be over."""
    if how == "claim":
        job_id = library.pending(in_ms=-2 * HOUR_MS)
    else:
        job_id = library.running("one")
        table, long_ago = f"toc_job_{library.shard(job_id):04d}", library.now_ms - 2 * HOUR_MS
        library.sql(
            job_id,
            f"UPDATE {table} SET lease_end_time = :at WHERE job_id = :id",
            {"at": sql_time_of_ms(long_ago), "id": job_id},
        )
    follow(library)
    step(library, -HOUR_MS)
    if how == "claim":
        assert library.claim([job_id], "two")[job_id].token == "two"
    else:
        assert library.take_over(job_id, "one", "two") is not None
    step(library, 0)
    due_ms = library.row(job_id).due_ms
    assert due_ms is not None
    assert abs(due_ms - library.now_ms - LEASE_MS) <= 1100
    assert library.take_over(job_id, "two", "three") is None


@pytest.mark.invariant("I1")
def test_a_take_over_is_given_back_with_its_lease_over_though_the_clock_is_ahead(
    library: Library,
) -> None:
    """It comes back: then nobody could take the job over for an hour."""
    job_id = library.running("h:1:one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(job_id, "h:1:one", "h:2:two") is not None
    follow(library)
    step(library, HOUR_MS)
    lost = Outcome(job_id, "h:2:two", OutcomeKind.GIVE_BACK, 0, "the answer was lost", "h:1:one")
    assert library.settle(lost) == {(job_id, "h:2:two")}
    step(library, 0)
    due_ms = library.row(job_id).due_ms
    assert due_ms is not None
    assert due_ms <= library.now_ms + 1100
    library.clock.advance(1.1)
    assert library.take_over(job_id, "h:1:one", "h:3:three") is not None
