"""The audit: a run in which all went well passes; each single thing that goes wrong fails it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from toc.demo.audit import Verdict, audit
from toc.demo.journal import CancelAnswered, Ended, Entry, MoveAnswered, Scheduled, Started
from toc.demo.view import BROKEN, HELD, Tally, summary
from toc.domain.job import Status
from toc.trial.rows import Row

PLAIN, PAID, RETRIED, POISON, MOVED, LATE_PAID = 1, 2, 3, 4, 5, 6
ATTEMPTS = {"order": 16, "coupon": 2}


def run_of(job_id: int, attempt: int, at_ms: float, *, failed: bool = False) -> list[Entry]:
    biz_type = "coupon" if job_id == POISON else "order"
    return [
        Started(job_id, biz_type, attempt, at_ms),
        Ended(job_id, attempt, failed, at_ms + 1),
    ]


ENTRIES: list[Entry] = [
    *[
        Scheduled(job_id, "order", 1000, 10.0)
        for job_id in (PLAIN, PAID, RETRIED, MOVED, LATE_PAID)
    ],
    Scheduled(POISON, "coupon", 1000, 10.0),
    *run_of(PLAIN, 1, 1002.5),
    CancelAnswered(PAID, "cancelled", 500.0, 505.0),
    *run_of(RETRIED, 1, 1001.0, failed=True),
    *run_of(RETRIED, 2, 1500.0),
    *run_of(POISON, 1, 1001.0, failed=True),
    *run_of(POISON, 2, 1500.0, failed=True),
    MoveAnswered(MOVED, "rescheduled", 2000, 500.0, 505.0),
    *run_of(MOVED, 1, 2003.0),
    CancelAnswered(LATE_PAID, "running", 1000.5, 1003.0),
    *run_of(LATE_PAID, 1, 1001.0),
]
ROWS = {
    PLAIN: Row(Status.DONE, 1),
    PAID: Row(Status.CANCELLED, 0),
    RETRIED: Row(Status.DONE, 2),
    POISON: Row(Status.DEAD, 2),
    MOVED: Row(Status.DONE, 1),
    LATE_PAID: Row(Status.DONE, 1),
}


def verdict_on(
    entries: Sequence[Entry] = (),
    rows: dict[int, Row] | None = None,
    dead_letters: frozenset[int] = frozenset({POISON}),
) -> Verdict:
    return audit(entries or ENTRIES, ROWS if rows is None else rows, dead_letters, ATTEMPTS)


def test_all_went_well() -> None:
    verdict = verdict_on()
    assert verdict.problems == []
    assert verdict.holds
    assert (verdict.scheduled, verdict.starts, verdict.retries) == (6, 7, 2)
    assert (verdict.moved, verdict.paid_too_late) == (1, 1)
    assert verdict.by_status == {Status.DONE: 4, Status.CANCELLED: 1, Status.DEAD: 1}
    assert sorted(verdict.late_ms) == [1.0, 1.0, 1.0, 2.5, 3.0]
    assert summary(verdict)[-1] == HELD


def test_the_order_of_entries_does_not_matter() -> None:
    assert verdict_on(ENTRIES[::-1]) == verdict_on()


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (None, "no row"),
        (Row(Status.PENDING, 0), "has not ended, it is pending"),
        (Row(Status.RUNNING, 1), "has not ended, it is running"),
    ],
)
def test_lost(row: Row | None, word: str) -> None:
    rows = {job_id: found for job_id, found in ROWS.items() if job_id != PLAIN}
    if row is not None:
        rows[PLAIN] = row
    verdict = verdict_on(rows=rows)
    assert len(verdict.lost) == 1
    assert word in verdict.lost[0]
    assert summary(verdict)[-2:] == [verdict.lost[0], BROKEN]


def test_done_by_nobody_is_lost() -> None:
    verdict = verdict_on([e for e in ENTRIES if e.job_id != PLAIN or isinstance(e, Scheduled)])
    assert verdict.problems == verdict.lost == ["job 1: the row says done, no handler has done it"]


def test_done_by_a_handler_that_failed_is_lost() -> None:
    entries = [
        replace(e, failed=True) if isinstance(e, Ended) and e.job_id == PLAIN else e
        for e in ENTRIES
    ]
    assert len(verdict_on(entries).lost) == 1


def test_early() -> None:
    entries = [
        replace(e, at_ms=999.5) if isinstance(e, Started) and e.job_id == PLAIN else e
        for e in ENTRIES
    ]
    verdict = verdict_on(entries)
    assert verdict.problems == verdict.early == ["job 1: started 0.5 ms before its time"]


def test_the_old_time_of_a_moved_job_is_early() -> None:
    entries = [e for e in ENTRIES if e.job_id != MOVED or isinstance(e, Scheduled | MoveAnswered)]
    assert len(verdict_on(entries + run_of(MOVED, 1, 1001.0)).early) == 1


def test_a_move_that_was_refused_moves_nothing() -> None:
    refused = MoveAnswered(PLAIN, "running", 5000, 900.0, 1003.0)
    assert verdict_on([*ENTRIES, refused]).holds


def test_fired_after_cancel() -> None:
    verdict = verdict_on(ENTRIES + run_of(PAID, 1, 1001.0))
    assert verdict.problems == verdict.after_cancel
    assert verdict.after_cancel == ['job 2: started 496.0 ms after "cancelled"']


def test_a_handler_that_succeeded_before_the_answer_belies_it() -> None:
    early = replace(ENTRIES[PAID - 1], action_ms=400)
    verdict = verdict_on([early, *ENTRIES, *run_of(PAID, 1, 501.0)])
    assert 'job 2: "cancelled", and its handler succeeded' in verdict.after_cancel


def test_cancelled_between_two_attempts_is_fine() -> None:
    entries = [e for e in ENTRIES if e.job_id != PAID or isinstance(e, Scheduled)]
    entries += run_of(PAID, 1, 1001.0, failed=True)
    entries.append(CancelAnswered(PAID, "cancelled", 1200.0, 1203.0))
    assert verdict_on(entries).holds


@pytest.mark.parametrize(
    ("attempt", "why"), [(1, "that one had succeeded"), (2, "that one had succeeded")]
)
def test_duplicate(attempt: int, why: str) -> None:
    verdict = verdict_on(ENTRIES + run_of(PLAIN, attempt, 1700.0))
    assert verdict.problems == verdict.duplicates == [f"job 1: started after a start, and {why}"]


def test_two_at_the_same_time_are_a_duplicate() -> None:
    verdict = verdict_on([*ENTRIES, Started(PLAIN, "order", 2, 1003.0)])
    assert len(verdict.duplicates) == 1
    assert "had not ended" in verdict.duplicates[0]


def test_a_retry_beyond_a_success_is_a_duplicate() -> None:
    assert len(verdict_on(ENTRIES + run_of(RETRIED, 3, 1900.0)).duplicates) == 1


@pytest.mark.parametrize("status", [Status.DONE, Status.DEAD])
def test_an_answer_that_the_row_does_not_know(status: Status) -> None:
    assert verdict_on(rows=ROWS | {PAID: Row(status, 0)}).wrong


def test_cancelled_and_nobody_was_told() -> None:
    verdict = verdict_on([e for e in ENTRIES if not isinstance(e, CancelAnswered)])
    assert verdict.problems == verdict.wrong == ["job 2: cancelled, but nobody was told so"]


def test_dead_before_its_attempts_were_used_up() -> None:
    entries = [e for e in ENTRIES if not (e.job_id == POISON and e.at_ms >= 1500)]
    assert verdict_on(entries).wrong == ["job 4: dead after 1 failures of 2"]


def test_dead_without_a_letter() -> None:
    verdict = verdict_on(dead_letters=frozenset())
    assert verdict.wrong == ["job 4: dead without a dead letter"]


def test_dead_although_it_was_done() -> None:
    verdict = verdict_on(rows=ROWS | {PLAIN: Row(Status.DEAD, 1)})
    assert "job 1: the row says dead, its handler has succeeded" in verdict.wrong


def test_a_row_that_nobody_scheduled() -> None:
    assert verdict_on(rows=ROWS | {9: Row(Status.DONE, 1)}).wrong
    assert verdict_on(ENTRIES + run_of(9, 1, 1000.0)).wrong


def test_nothing_at_all_is_summed_up() -> None:
    assert summary(audit([], {}, set(), {}))[-1] == HELD


def test_the_view_counts_the_same() -> None:
    tally = Tally(0.0)
    tally.add(ENTRIES)
    facts = dict(tally.facts())
    assert facts["scheduled"] == "6"
    assert facts["handler starts"] == "7"
    assert facts["of these retries"] == "2"
    assert facts["lateness now"] == "p50 1.0 ms, p99 3.0 ms"
