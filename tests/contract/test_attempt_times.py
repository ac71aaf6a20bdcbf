"""When each attempt of a job began and how long it took: what the events of their ends say."""

from __future__ import annotations

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.domain.job import Event
from toc.store.claims import Outcome, OutcomeKind
from toc.store.events import read_events

LATER_MS = 90_000


def events(library: Library, job_id: int) -> list[Event]:
    return read_events(library.home(job_id), job_id, 100)


def times(library: Library, job_id: int) -> list[tuple[str, int, int | None, int | None]]:
    """Of each event: the verb, the attempts, when its attempt began and how long it took, in ms."""
    return [
        (event.what, event.attempts, event.claimed_ms, event.took_ms)
        for event in events(library, job_id)
    ]


def attempt(library: Library, job_id: int, token: str, took_ms: int, kind: OutcomeKind) -> int:
    """Claims the due job, settles it after `took_ms`; returns when the attempt began."""
    began_ms = library.now_ms
    assert library.claim([job_id], token)[job_id].token == token
    library.clock.advance(took_ms / 1000)
    assert library.settle_as(kind, job_id, token, library.now_ms + LATER_MS, "it failed")
    library.clock.advance(LATER_MS / 1000)
    return began_ms


def test_each_failed_attempt_keeps_its_begin_and_duration(library: Library) -> None:
    job_id = library.pending()
    expected = []
    for number, took_ms in enumerate((1500, 1, 27_000), 1):
        began_ms = attempt(library, job_id, f"h:{number}", took_ms, OutcomeKind.RETRY)
        expected.append(("retry", number, began_ms, took_ms))
    last_ms = attempt(library, job_id, "h:4", 700, OutcomeKind.DONE)
    assert times(library, job_id) == expected
    found = library.jobs.get(job_id)
    assert found is not None
    assert (found.attempts, found.claimed_ms) == (4, last_ms)


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.DROP, OutcomeKind.BURY])
def test_repeated_settles_keep_the_first_duration(library: Library, kind: OutcomeKind) -> None:
    job_id, began_ms = library.running("one"), library.now_ms
    for _ in range(2):
        library.clock.advance(2)
        assert library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS, "why")
    assert times(library, job_id) == [(kind.value, 1, began_ms, 2000)]


def test_attempts_of_one_batch_have_their_own_begins(library: Library) -> None:
    ids, began = [], []
    for number in range(3):
        ids.append(library.running(f"h:{number}", biz_id=number))
        began.append(library.now_ms)
        library.clock.advance(0.25)
    library.settle(*(Outcome(i, f"h:{n}", OutcomeKind.BURY) for n, i in enumerate(ids)))
    for number, job_id in enumerate(ids):
        took_ms = 750 - 250 * number
        assert times(library, job_id) == [("bury", 1, began[number], took_ms)]


def test_a_snooze_leaves_no_time_to_the_next_attempt(library: Library) -> None:
    job_id = library.pending()
    attempt(library, job_id, "h:1", 5000, OutcomeKind.SNOOZE)
    began_ms = attempt(library, job_id, "h:2", 300, OutcomeKind.BURY)
    assert times(library, job_id) == [("bury", 1, began_ms, 300)]


def test_after_a_redrive_the_numbers_begin_anew(library: Library) -> None:
    job_id = library.pending()
    first_ms = attempt(library, job_id, "h:1", 40, OutcomeKind.BURY)
    assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    second_ms = attempt(library, job_id, "h:2", 60, OutcomeKind.DROP)
    assert times(library, job_id) == [
        ("bury", 1, first_ms, 40),
        ("redrive", 0, None, None),
        ("drop", 1, second_ms, 60),
    ]


def test_the_end_of_a_lost_attempt_is_not_known(library: Library) -> None:
    job_id = library.running("killed")
    library.clock.advance(LEASE_MS / 1000)
    taken_ms = library.now_ms
    assert library.take_over(job_id, "killed", "h:2")
    library.clock.advance(0.3)
    assert library.settle_as(OutcomeKind.RETRY, job_id, "h:2", library.now_ms, "it failed")
    assert library.claim([job_id], "killed too")[job_id].token == "killed too"
    library.clock.advance(LEASE_MS / 1000)
    assert library.bury_lost(job_id, "killed too")
    assert times(library, job_id) == [
        ("take_over", 2, None, None),
        ("retry", 2, taken_ms, 300),
        ("bury", 3, None, None),
    ]


def test_a_take_over_that_is_undone_ends_no_attempt(library: Library) -> None:
    job_id = library.running("h:1:one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(job_id, "h:1:one", "h:2:two")
    undone = Outcome(job_id, "h:2:two", OutcomeKind.GIVE_BACK, 0, "no answer", "h:1:one")
    assert library.settle(undone)
    assert times(library, job_id) == [
        ("take_over", 2, None, None),
        ("undo_take_over", 1, None, None),
    ]


def test_changes_by_people_end_no_attempt(library: Library) -> None:
    job_id = library.pending()
    attempt(library, job_id, "h:1", 10, OutcomeKind.RETRY)
    library.jobs.run_now(job_id, library.now_ms)
    library.jobs.reschedule(job_id, library.now_ms + LATER_MS)
    library.jobs.cancel(job_id)
    assert [(what, took_ms) for what, _, _, took_ms in times(library, job_id)] == [
        ("retry", 10),
        ("run_now", None),
        ("reschedule", None),
        ("cancel", None),
    ]
    assert [event.claimed_ms is None for event in events(library, job_id)[1:]] == [True] * 3


def test_a_clock_that_was_set_back_makes_no_negative_duration(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(1)
    library.settle_as(OutcomeKind.BURY, job_id, "one")
    library.sql(job_id, "UPDATE toc_event SET claim_time = '2030-01-01 00:00:00.000'")
    assert [took_ms for *_, took_ms in times(library, job_id)] == [0]
