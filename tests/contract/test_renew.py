"""The renewal of leases: only the claim's own running rows change (ADR 31)."""

from __future__ import annotations

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.domain.claim_tokens import ALONE
from toc.store.claims import OutcomeKind


def renew(library: Library, *claims: tuple[int, str]) -> set[tuple[int, str]]:
    return library.claims.renew_leases(library.home(claims[0][0]), claims).valid


def test_a_renewed_lease_counts_from_now(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(10)
    before = library.row(job_id)
    assert renew(library, (job_id, "one")) == {(job_id, "one")}
    row = library.row(job_id)
    assert row.due_ms == library.now_ms + LEASE_MS
    assert (row.status, row.attempts, row.claim_token) == (before.status, 1, "one")
    assert row.action_ms == before.action_ms


def test_claims_of_many_shards_in_one_call(library: Library) -> None:
    jobs = [library.pending(biz_id) for biz_id in range(20)]
    library.claim(jobs[:10], "one")
    library.claim(jobs[10:], "two")
    library.clock.advance(1)
    claims = [
        *((job_id, "one") for job_id in jobs[:10]),
        *((job_id, "two") for job_id in jobs[10:]),
    ]
    assert renew(library, *claims) == set(claims)
    assert {library.row(job_id).due_ms for job_id in jobs} == {library.now_ms + LEASE_MS}


@pytest.mark.invariant("I5")
def test_the_lease_of_another_claim_stays(library: Library) -> None:
    job_id = library.running("two")
    before = library.row(job_id)
    library.clock.advance(10)
    assert renew(library, (job_id, "one")) == set()
    assert library.row(job_id) == before


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_settled_job_stays_as_it_is(library: Library, kind: OutcomeKind) -> None:
    """A renewal may arrive after the settle: the row has the same token still."""
    job_id = library.running("one")
    due_ms = library.now_ms + 5_000
    assert library.settle_as(kind, job_id, "one", due_ms=due_ms, error="it failed")
    before = library.row(job_id)
    assert before.claim_token == "one"
    library.clock.advance(1)
    assert renew(library, (job_id, "one")) == set()
    assert library.row(job_id) == before


def test_of_a_batch_only_the_lost_claims_are_missing(library: Library) -> None:
    held, lost = library.running("one"), library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(lost, "one", "two") is not None
    due_ms = library.row(lost).due_ms
    library.clock.advance(1)
    renewed = library.claims.renew_leases(library.home(held), [(held, "one"), (lost, "one")])
    assert (renewed.valid, renewed.lost) == ({(held, "one")}, {(lost, "one")})
    assert library.row(held).due_ms == library.now_ms + LEASE_MS
    assert library.row(lost).due_ms == due_ms


@pytest.mark.invariant("I2")
def test_a_lease_that_was_over_and_is_renewed_is_not_taken_over(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.claim([job_id], "two")[job_id].overdue
    assert renew(library, (job_id, "one")) == {(job_id, "one")}
    assert library.take_over(job_id, "one", "two") is None
    assert not library.bury_lost(job_id, "one")
    assert library.row(job_id).claim_token == "one"


def test_a_locked_row_delays_no_other_and_says_nothing(library: Library) -> None:
    """A handler's own transaction may lock its row for long (`toc.complete`)."""
    if library.sqlite:
        pytest.skip("SQLite has one writer and no row locks")
    locked, free = library.running("one"), library.running("one")
    library.clock.advance(1)
    before = library.row(locked)
    claims = [(locked, "one"), (free, "one")]
    with library.databases[0].engine.begin() as connection:
        table = f"toc_job_{library.shard(locked):04d}"
        connection.exec_driver_sql(f"SELECT * FROM {table} WHERE job_id = {locked} FOR UPDATE")
        renewed = library.claims.renew_leases(library.home(locked), claims)
    assert (renewed.valid, renewed.lost) == ({(free, "one")}, set())
    assert library.row(free).due_ms == library.now_ms + LEASE_MS
    assert library.row(locked) == before
    assert renew(library, *claims) == set(claims)


def test_a_token_that_has_lost_its_mark_is_renewed(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(1)
    assert renew(library, (job_id, "one" + ALONE)) == {(job_id, "one" + ALONE)}
    assert library.row(job_id).due_ms == library.now_ms + LEASE_MS


def test_a_job_that_its_handler_has_completed_is_not_lost(library: Library) -> None:
    """`toc.complete` has committed, and the handler goes on."""
    job_id = library.running("one")
    assert library.settle_as(OutcomeKind.DONE, job_id, "one")
    renewed = library.claims.renew_leases(library.home(job_id), [(job_id, "one")])
    assert (renewed.valid, renewed.lost) == (set(), set())
