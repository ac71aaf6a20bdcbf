"""The audit trail: which verbs leave an event, what it says, and that both happen together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.contract.breaks import lose_answers
from tests.contract.library import ACTOR, LEASE_MS, Library
from toc.domain.argument_checks import REASON_CHARS_MAX
from toc.domain.job import TRANSITIONS, Event, Status
from toc.store.claims import Outcome, OutcomeKind
from toc.store.events import read_events

LATER_MS = 90_000
P, R, C, D = Status.PENDING, Status.RUNNING, Status.CANCELLED, Status.DEAD


def events(library: Library, job_id: int, limit: int = 100) -> list[Event]:
    return read_events(library.home(job_id), job_id, limit)


def only(library: Library, job_id: int) -> Event:
    (event,) = events(library, job_id)
    return event


# ---- each verb that leaves one


def cancel(library: Library) -> int:
    job_id = library.pending()
    library.clock.advance(1)
    library.jobs.cancel(job_id, "why")
    return job_id


def reschedule(library: Library) -> int:
    job_id = library.pending()
    library.clock.advance(1)
    library.jobs.reschedule(job_id, library.now_ms + LATER_MS, "why")
    return job_id


def settle(kind: OutcomeKind) -> Callable[[Library], int]:
    def make(library: Library) -> int:
        job_id = library.running("h:1:x:7")
        library.clock.advance(1)
        library.settle_as(kind, job_id, "h:1:x:7", library.now_ms + LATER_MS, "why")
        return job_id

    return make


def take_over(library: Library) -> int:
    job_id = library.running("old")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(job_id, "old", "new")
    return job_id


def bury_lost(library: Library) -> int:
    job_id = library.running("old")
    library.clock.advance(LEASE_MS / 1000)
    assert library.bury_lost(job_id, "old", "why")
    return job_id


VERBS: dict[str, tuple[Callable[[Library], int], Event]] = {
    "cancel": (cancel, Event(0, "cancel", P, C, 0, ACTOR, "why")),
    "reschedule": (
        reschedule,
        Event(0, "reschedule", P, P, 0, ACTOR, "to 2026-01-01 00:01:31.000 UTC: why"),
    ),
    "retry": (settle(OutcomeKind.RETRY), Event(0, "retry", R, P, 1, "h:1", "why")),
    "drop": (settle(OutcomeKind.DROP), Event(0, "drop", R, C, 1, "h:1", "why")),
    "bury": (settle(OutcomeKind.BURY), Event(0, "bury", R, D, 1, "h:1", "why")),
    "take_over": (
        take_over,
        Event(0, "take_over", R, R, 2, "new", "the lease of old was over"),
    ),
    "bury_lost": (bury_lost, Event(0, "bury", R, D, 1, ACTOR, "why")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_one_event(library: Library, verb: str) -> None:
    make, expected = VERBS[verb]
    job_id = make(library)
    began_ms = library.now_ms - 1000 if verb in ("retry", "drop", "bury") else None
    assert only(library, job_id) == replace(expected, at_ms=library.now_ms, claimed_ms=began_ms)
    assert TRANSITIONS[expected.from_status][expected.what] is expected.to_status


def test_a_redrive_leaves_one_after_the_death(library: Library) -> None:
    job_id = library.dead()
    library.clock.advance(1)
    library.jobs.redrive(job_id, library.now_ms, "why")
    death, redriven = events(library, job_id)
    assert (death.what, death.attempts) == ("bury", 1)
    assert redriven == Event(library.now_ms, "redrive", D, P, 0, ACTOR, "why")


def test_a_discard_leaves_one_after_the_death(library: Library) -> None:
    job_id = library.dead()
    library.clock.advance(1)
    library.jobs.discard(job_id, "why", "ann")
    library.jobs.discard(job_id, "again")
    death, discarded = events(library, job_id)
    assert death.what == "bury"
    assert discarded == Event(library.now_ms, "discard", D, C, 1, "ann", "why")
    assert TRANSITIONS[D]["discard"] is C


def test_a_discard_whose_answer_was_lost_leaves_one(library: Library) -> None:
    job_id = library.dead()
    with lose_answers(library.databases[0]):
        library.jobs.discard(job_id, "why")
    assert [event.what for event in events(library, job_id)] == ["bury", "discard"]


def test_schedule_that_replaces_leaves_one(library: Library) -> None:
    job_id = library.pending(in_ms=5, key="k")
    library.insert(library.new(in_ms=LATER_MS, key="k"), on_duplicate="replace")
    event = only(library, job_id)
    assert (event.what, event.actor) == ("reschedule", ACTOR)
    assert event.reason == "to 2026-01-01 00:01:30.000 UTC: replaced by schedule()"


def test_no_reason_is_none(library: Library) -> None:
    job_id = library.pending()
    library.jobs.cancel(job_id)
    assert only(library, job_id).reason is None


# ---- what leaves none


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.SNOOZE, OutcomeKind.GIVE_BACK])
def test_the_happy_path_leaves_none(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one")
    assert library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS)
    assert events(library, job_id) == []


def test_what_changes_nothing_leaves_none(library: Library) -> None:
    done, running = library.ended(OutcomeKind.DONE), library.running("one")
    dead, holder = library.dead(key="k"), library.pending(key="k")
    before = len(events(library, dead))
    assert library.jobs.cancel(done) == "done"
    assert library.jobs.cancel(running) == "running"
    assert library.jobs.reschedule(running, 5) == "running"
    assert library.jobs.redrive(done, 5) == "done"
    assert library.jobs.redrive(dead, 5) == "superseded"
    assert library.jobs.discard(running) == "running"
    assert library.jobs.discard(holder) == "pending"
    for kind in OutcomeKind:
        assert not library.settle_as(kind, running, "stale", library.now_ms, "stale")
    assert library.take_over(running, "one", "two") is None  # its lease is not over
    assert not library.bury_lost(running, "one")
    library.insert(library.new(key="k"), on_duplicate="keep")
    assert [events(library, job_id) for job_id in (done, running, holder)] == [[], [], []]
    assert len(events(library, dead)) == before


# ---- once


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.DROP, OutcomeKind.BURY])
def test_a_settle_that_is_repeated_leaves_one(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one")
    for _ in range(3):
        assert library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS, "why")
    assert only(library, job_id).what == kind


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.DROP, OutcomeKind.BURY])
def test_a_settle_whose_answer_was_lost_leaves_one(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one")
    with lose_answers(library.databases[0]) as lost:
        assert library.settle_as(kind, job_id, "one", library.now_ms + LATER_MS, "why")
    assert lost.times == 1
    assert only(library, job_id).what == kind


def test_one_claim_settled_twice_in_a_batch_leaves_one(library: Library) -> None:
    job_id = library.running("one")
    outcome = Outcome(job_id, "one", OutcomeKind.RETRY, library.now_ms + LATER_MS, "why")
    library.settle(outcome, outcome)
    assert only(library, job_id).what == "retry"


def test_a_cancel_whose_answer_was_lost_leaves_one(library: Library) -> None:
    job_id = library.pending()
    with lose_answers(library.databases[0]):
        library.jobs.cancel(job_id, "why")
    assert only(library, job_id).what == "cancel"


def test_a_batch_leaves_one_for_each_that_held(library: Library) -> None:
    mine = [library.running("one", biz_id=n) for n in range(12)]
    others = [library.running("two", biz_id=n) for n in range(12)]
    outcomes = [Outcome(i, "one", OutcomeKind.BURY, error=f"of {i}") for i in [*mine, *others]]
    library.settle(*outcomes)
    assert [only(library, i).reason for i in mine] == [f"of {i}" for i in mine]
    assert [events(library, i) for i in others] == [[]] * 12


# ---- one transaction


@contextmanager
def no_event_table(library: Library) -> Iterator[None]:
    some_id = library.new().job_id
    library.sql(some_id, "ALTER TABLE toc_event RENAME TO away")
    try:
        yield
    finally:
        library.sql(some_id, "ALTER TABLE away RENAME TO toc_event")


CHANGES: dict[str, tuple[Callable[[Library], int], Callable[[Library, int], object]]] = {
    "cancel": (lambda x: x.pending(), lambda x, job_id: x.jobs.cancel(job_id)),
    "reschedule": (lambda x: x.pending(), lambda x, job_id: x.jobs.reschedule(job_id, 5)),
    "redrive": (lambda x: x.dead(), lambda x, job_id: x.jobs.redrive(job_id, 5)),
    "discard": (lambda x: x.dead(), lambda x, job_id: x.jobs.discard(job_id)),
    "retry": (
        lambda x: x.running("one"),
        lambda x, i: x.settle_as(OutcomeKind.RETRY, i, "one", 5, "y"),
    ),
    "drop": (
        lambda x: x.running("one"),
        lambda x, i: x.settle_as(OutcomeKind.DROP, i, "one", 5, "y"),
    ),
    "bury": (
        lambda x: x.running("one"),
        lambda x, i: x.settle_as(OutcomeKind.BURY, i, "one", 5, "y"),
    ),
    "take_over": (lambda x: x.running("one"), lambda x, i: x.take_over(i, "one", "two")),
    "bury_lost": (lambda x: x.running("one"), lambda x, i: x.bury_lost(i, "one")),
    "replace": (
        lambda x: x.pending(key="k"),
        lambda x, i: x.insert(x.new(key="k", in_ms=5), on_duplicate="replace"),
    ),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_without_its_event_nothing_changes(library: Library, verb: str) -> None:
    make, change = CHANGES[verb]
    job_id = make(library)
    library.clock.advance(LEASE_MS / 1000)
    before, letters = library.row(job_id), library.jobs.read_dead_letters(10)
    with no_event_table(library), pytest.raises(Exception, match="toc_event"):
        change(library, job_id)
    assert (library.row(job_id), library.jobs.read_dead_letters(10)) == (before, letters)


# ---- texts and order


def test_what_people_write_is_kept_as_it_is(library: Library) -> None:
    job_id = library.pending()
    reason = "ничего 'не' \"ясно\" 😀 %s :x ; -- \n\t end"
    library.jobs.cancel(job_id, reason)
    assert only(library, job_id).reason == reason


def test_a_long_error_is_cut(library: Library) -> None:
    job_id = library.running("one")
    library.settle_as(OutcomeKind.BURY, job_id, "one", error="😀" * 5000)
    assert only(library, job_id).reason == "😀" * REASON_CHARS_MAX


def test_events_come_oldest_first_and_the_newest_of_many(library: Library) -> None:
    job_id = library.pending()
    for n in range(6):
        library.jobs.reschedule(job_id, library.now_ms + LATER_MS, f"{n}")
    library.jobs.cancel(job_id)  # all in the same millisecond: the order of their making counts
    assert [event.what for event in events(library, job_id)] == ["reschedule"] * 6 + ["cancel"]
    newest = events(library, job_id, limit=3)
    assert [str(event.reason)[-1] for event in newest] == ["4", "5", "e"]
    assert events(library, library.pending()) == []
