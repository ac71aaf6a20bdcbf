"""settle: each kind under the right token, the wrong one, and twice."""

from __future__ import annotations

import pytest

from tests.contract.breaks import lose_answers
from tests.contract.library import LEASE_MS, Library
from toc.domain.job import Status
from toc.store.claims import Outcome, OutcomeKind

LATER_MS = 90_000
ENDED = {
    OutcomeKind.DONE: Status.DONE,
    OutcomeKind.DROP: Status.CANCELLED,
    OutcomeKind.BURY: Status.DEAD,
}


@pytest.mark.parametrize(("kind", "status"), ENDED.items())
def test_what_has_ended_is_due_no_more(library: Library, kind: OutcomeKind, status: Status) -> None:
    job_id = library.running("one", key="k")
    before = library.row(job_id)
    library.clock.advance(1)
    assert library.settle_as(kind, job_id, "one", error="no luck")
    assert library.row(job_id) == before._replace(
        status=status, due_ms=None, live_key=None, modified_ms=library.now_ms
    )
    letters = [
        (job.job_id, job.attempts, job.error) for job in library.jobs.read_dead_letters(10, None)
    ]
    assert letters == ([(job_id, 1, "no luck")] if kind is OutcomeKind.BURY else [])


def test_a_retry_waits_and_counts(library: Library) -> None:
    job_id = library.running("one", key="k")
    before = library.row(job_id)
    due_ms = library.now_ms + LATER_MS
    assert library.settle_as(OutcomeKind.RETRY, job_id, "one", due_ms)
    # action_time stays: it is what the business asked for.
    assert library.row(job_id) == before._replace(status=Status.PENDING, due_ms=due_ms)
    assert library.claim([job_id], "two")[job_id].token == "one"
    library.clock.advance(LATER_MS / 1000)
    seen = library.claim([job_id], "two")[job_id]
    assert (seen.token, seen.attempts) == ("two", 2)


def test_a_snooze_moves_the_action_and_does_not_count(library: Library) -> None:
    job_id = library.running("one", key="k")
    before = library.row(job_id)
    due_ms = library.now_ms + LATER_MS
    assert library.settle_as(OutcomeKind.SNOOZE, job_id, "one", due_ms)
    assert library.row(job_id) == before._replace(
        status=Status.PENDING, due_ms=due_ms, action_ms=due_ms, attempts=0
    )


def test_what_never_started_is_as_if_never_claimed(library: Library) -> None:
    job_id = library.pending(in_ms=5)
    before = library.row(job_id)
    library.clock.advance(1)
    library.claim([job_id], "one")
    assert library.settle_as(OutcomeKind.GIVE_BACK, job_id, "one")
    # Due at its action time: it keeps its place in the order.
    assert library.row(job_id) == before._replace(claim_token="one", modified_ms=library.now_ms)


def test_what_was_tried_before_is_given_back_with_its_due_time(library: Library) -> None:
    job_id = library.running("one")
    due_ms = library.now_ms
    library.settle_as(OutcomeKind.RETRY, job_id, "one", due_ms)
    library.clock.advance(1)
    library.claim([job_id], "two")
    assert library.row(job_id).attempts == 2
    assert library.settle_as(OutcomeKind.GIVE_BACK, job_id, "two")
    row = library.row(job_id)
    assert (row.status, row.attempts, row.due_ms) == (Status.PENDING, 1, due_ms)


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_stale_token_changes_nothing(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one", key="k")
    library.clock.advance(LEASE_MS / 1000)
    library.take_over(job_id, "one", "two")
    before = library.row(job_id)
    assert not library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS, "stale")
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, [])
    assert library.settle_as(kind, job_id, "two", library.now_ms + LATER_MS, "current")


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("kind", list(OutcomeKind))
@pytest.mark.parametrize("first", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_an_ended_job_is_not_settled_to_something_else(
    library: Library, first: OutcomeKind, kind: OutcomeKind
) -> None:
    job_id = library.ended(first)
    before, letters = library.row(job_id), library.jobs.read_dead_letters(10, None)
    held = library.settle_as(kind, job_id, "ended", library.now_ms + LATER_MS, "it failed")
    assert held is (first is kind)
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, letters)


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_job_that_was_never_claimed_is_not_settled(library: Library, kind: OutcomeKind) -> None:
    job_id = library.pending()
    before = library.row(job_id)
    assert not library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS)
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, [])
    gone = library.new().job_id
    assert not library.settle_as(kind, gone, "one", library.now_ms + LATER_MS)


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_settle_whose_answer_was_lost_holds_and_counts_once(
    library: Library, kind: OutcomeKind
) -> None:
    job_id = library.running("one")
    due_ms = library.now_ms + LATER_MS
    with lose_answers(library.databases[0]) as lost:
        assert library.settle_as(kind, job_id, "one", due_ms, "failed")
    assert lost.times == 1
    attempts = 0 if kind in (OutcomeKind.SNOOZE, OutcomeKind.GIVE_BACK) else 1
    assert library.row(job_id).attempts == attempts
    assert len(library.jobs.read_dead_letters(10, None)) == (kind is OutcomeKind.BURY)


def test_a_mixed_batch_with_stale_pairs(library: Library) -> None:
    kinds = list(OutcomeKind)
    current = [library.running(f"t{n}", biz_id=n) for n in range(24)]
    stale = [library.running("new", biz_id=n) for n in range(24)]
    before = [library.row(job_id) for job_id in stale]
    due_ms = library.now_ms + LATER_MS
    good = [Outcome(job_id, f"t{n}", kinds[n % 6], due_ms) for n, job_id in enumerate(current)]
    bad = [Outcome(job_id, "old", kinds[n % 6], due_ms) for n, job_id in enumerate(stale)]
    mixed = [outcome for pair in zip(good, bad, strict=True) for outcome in pair]
    held = library.settle(*mixed)
    assert held == {(outcome.job_id, outcome.token) for outcome in good}
    assert [library.row(job_id) for job_id in stale] == before
    after = [library.row(job_id).status for job_id in current]
    expected = {
        OutcomeKind.DONE: 2, OutcomeKind.RETRY: 0, OutcomeKind.SNOOZE: 0, OutcomeKind.GIVE_BACK: 0,
        OutcomeKind.DROP: 3, OutcomeKind.BURY: 4,
    }  # fmt: skip
    assert after == [expected[kinds[n % 6]] for n in range(24)]
    assert {job.job_id for job in library.jobs.read_dead_letters(50, None)} == {
        outcome.job_id for outcome in good if outcome.kind is OutcomeKind.BURY
    }


@pytest.mark.parametrize("times", [0, 1])
def test_many_that_are_done_and_some_that_are_stale(library: Library, times: int) -> None:
    """Those that hold are recorded, and told, also where the answer was lost."""
    current = [library.running("new", biz_id=n) for n in range(24)]
    stale = [library.running("newer", biz_id=n) for n in range(24)]
    before = [library.row(job_id) for job_id in stale]
    for tokens in (
        ("new", "old"),
        ("new", "new"),
    ):  # the second time all hold, and repeat the first
        good = [Outcome(job_id, tokens[0], OutcomeKind.DONE) for job_id in current]
        bad = [Outcome(job_id, tokens[1], OutcomeKind.DONE) for job_id in stale]
        with lose_answers(library.databases[0], times) as lost:
            assert library.settle(*good, *bad) == {(job_id, "new") for job_id in current}
        assert lost.times == times
        assert [library.row(job_id) for job_id in stale] == before
        assert {library.row(job_id).status for job_id in current} == {Status.DONE}


@pytest.mark.parametrize("tokens", [("old", "one"), ("one", "old"), ("one", "zzz"), ("zzz", "one")])
@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.BURY, OutcomeKind.RETRY])
def test_one_job_twice_in_a_batch_under_two_tokens(
    library: Library, kind: OutcomeKind, tokens: tuple[str, str]
) -> None:
    job_id = library.running("one")
    neighbour = library.running("one")
    held = library.settle(
        *(Outcome(job_id, token, kind, library.now_ms + LATER_MS) for token in tokens),
        Outcome(neighbour, "one", kind, library.now_ms + LATER_MS),
    )
    assert held == {(job_id, "one"), (neighbour, "one")}


def test_one_claim_settled_twice_in_a_batch_is_settled_once(library: Library) -> None:
    job_id = library.running("one")
    due_ms = library.now_ms + LATER_MS
    held = library.settle(
        Outcome(job_id, "one", OutcomeKind.RETRY, due_ms), Outcome(job_id, "one", OutcomeKind.DONE)
    )
    assert held == {(job_id, "one")}  # by kind, one of them was refused; the first one stands
    assert library.row(job_id).status in {Status.DONE, Status.PENDING}


def test_a_second_death_replaces_the_first_letter(library: Library) -> None:
    job_id = library.dead()
    assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    library.claim([job_id], "two")
    assert library.settle_as(OutcomeKind.BURY, job_id, "two", error="again")
    assert [letter.error for letter in library.jobs.read_dead_letters(10, None)] == ["again"]


def test_the_letter_and_the_status_are_one_transaction(library: Library) -> None:
    job_id = library.running("one")
    before = library.row(job_id)
    table = library.databases[0].dead
    library.sql(job_id, f"ALTER TABLE {table.name} RENAME TO away")
    try:
        with pytest.raises(Exception, match=table.name):
            library.settle_as(OutcomeKind.BURY, job_id, "one")
        assert library.row(job_id) == before
    finally:
        library.sql(job_id, f"ALTER TABLE away RENAME TO {table.name}")
