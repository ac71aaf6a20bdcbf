"""A take-over that nobody ran is given back; a token that loses its mark still stands for its claim."""

from __future__ import annotations

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.domain.claim_tokens import ALONE, remove_alone_mark
from toc.domain.job import Event, Status
from toc.store.claims import Outcome, OutcomeKind
from toc.store.events import read_events

R = Status.RUNNING
TWO = f"h:2:two{ALONE}"


def taken_over(library: Library, token: str = TWO) -> int:
    job_id = library.running("h:1:one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(job_id, "h:1:one", token)
    return job_id


def undone(job_id: int, token: str = TWO) -> Outcome:
    return Outcome(job_id, token, OutcomeKind.GIVE_BACK, 0, "the answer was lost", "h:1:one")


@pytest.mark.invariant("I7")
def test_the_row_is_as_it_was_and_its_lease_is_over(library: Library) -> None:
    job_id = taken_over(library)
    assert library.settle(undone(job_id)) == {(job_id, TWO)}
    row = library.row(job_id)
    assert (row.status, row.claim_token, row.attempts) == (R, "h:1:one", 1)
    assert row.due_ms == library.now_ms
    # Repeated, as after a lost answer: nothing more, and it holds.
    assert library.settle(undone(job_id)) == {(job_id, TWO)}
    assert library.row(job_id).attempts == 1
    *_, last = read_events(library.home(job_id), job_id, 10)
    assert last == Event(library.now_ms, "undo_take_over", R, R, 1, "h:2", "the answer was lost")
    seen = library.take_over(job_id, "h:1:one", "h:3:three")
    assert seen is not None
    assert seen.attempts == 2


def test_what_somebody_else_has_or_what_has_ended_is_not_touched(library: Library) -> None:
    pending, running = library.pending(), library.running("h:9:nine")
    ended = library.ended(OutcomeKind.DONE)
    before = [library.row(job_id) for job_id in (pending, running, ended)]
    assert library.settle(*map(undone, (pending, running, ended))) == set()
    assert [library.row(job_id) for job_id in (pending, running, ended)] == before


@pytest.mark.parametrize("kind", list(OutcomeKind))
@pytest.mark.invariant("I5")
def test_a_run_whose_token_has_lost_its_mark_is_settled(
    library: Library, kind: OutcomeKind
) -> None:
    marked, other = taken_over(library), taken_over(library, "h:2:other")
    shard = library.shard(marked)
    library.claims.replace_claim_token(
        library.home(marked), shard, marked, TWO, remove_alone_mark(TWO)
    )
    assert library.row(marked).claim_token == remove_alone_mark(TWO)
    assert library.row(marked).attempts == 2
    due_ms = library.now_ms + 1000
    outcomes = [Outcome(marked, TWO, kind, due_ms), Outcome(other, "h:2:other", kind, due_ms)]
    assert library.settle(*outcomes) == {(marked, TWO), (other, "h:2:other")}
    assert library.row(marked).status == library.row(other).status
    assert library.settle(*outcomes) == {(marked, TWO), (other, "h:2:other")}  # repeated


def test_a_mark_is_changed_only_where_it_was_seen(library: Library) -> None:
    job_id = taken_over(library, "h:2:another")
    before = library.row(job_id)
    library.claims.replace_claim_token(
        library.home(job_id), library.shard(job_id), job_id, TWO, "x"
    )
    assert library.row(job_id) == before
