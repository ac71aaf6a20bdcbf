"""The checker: what breaks a promise is caught, and what stands beside it and is legal passes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.testing.histories import (
    DUE_MS,
    TYPE,
    cancel,
    discard,
    end,
    fault,
    move,
    redriven,
    row,
    run,
    scheduled,
    start,
)
from toc.testing import (
    Entry,
    Fault,
    Kind,
    LeaseUnanswered,
    Report,
    Rules,
    ScheduleUnanswered,
    check,
)  # fmt: skip

History = list[Entry]


def verdict(history: Sequence[Entry], rules: Rules | None = None) -> Report:
    return check([history], rules)


def kinds(report: Report) -> set[Kind]:
    return {problem.kind for problem in report.problems}


POISON = [scheduled(), *run(1001, 1, failed=True), *run(1100, 2, failed=True)]
MOVED = move("rescheduled", 2000, 505)
KILLED = fault("kill", 1002, 1002, "w1")
FROZEN = fault("freeze", 1001.5, 1900, "w1")
DATABASE = fault("database killed", 900, 1300)
TAKEN_OVER = [start(1001), *run(1500, 2, "w2"), row("done", 2, "w2")]

LEGAL: dict[str, History] = {
    "plain": [scheduled(), *run(1001), row()],
    "on time to the fraction": [scheduled(), *run(1000.0), row()],
    "cancelled": [scheduled(), cancel("cancelled", 505), row("cancelled", 0)],
    "cancelled after a failure": [
        scheduled(), *run(1001, failed=True), cancel("cancelled", 1010), row("cancelled"),
    ],
    "cancelled again": [
        scheduled(), cancel("cancelled", 505), cancel("already_cancelled", 510), row("cancelled", 0),
    ],
    "cancel while it runs": [
        scheduled(), start(1001), cancel("running", 1005), end(1010), row(),
    ],
    "cancel when done": [scheduled(), *run(1001), cancel("done", 1500), row()],
    "cancel lost, and it had effect": [scheduled(), cancel("", 505), row("cancelled", 0)],
    "cancel lost, and it had none": [scheduled(), cancel("", 505), *run(1001), row()],
    "a start just before the cancel's answer": [
        scheduled(), *run(1001, failed=True), cancel("cancelled", 1002.5), row("cancelled"),
    ],
    "retried": [scheduled(), *run(1001, failed=True), *run(1500, 2), row("done", 2)],
    "stopped with its process, and run again": [
        scheduled(), start(1001), end(1005, failed=True, verdict="stopped"), *run(1010, 1, "w2"),
        row("done", 1, "w2"),
    ],
    "stopped with its process, and cancelled": [
        scheduled(), start(1001), end(1005, failed=True, verdict="stopped"),
        cancel("cancelled", 1010), row("cancelled", 0),
    ],
    "retried by its own wish": [
        scheduled(), start(1001), end(1002, verdict="retry"), *run(1500, 2), row("done", 2),
    ],
    "snoozed": [
        scheduled(), start(1001), end(1002, verdict="snooze"),
        start(3000, claim="w1:7:1:z"), end(3001, claim="w1:7:1:z"),
        row(due_ms=2900, claim="w1:7:1:z"),
    ],
    "dropped": [scheduled(), start(1001), end(1002, verdict="drop"), row("cancelled")],
    "dead": [*POISON, row("dead", 2, letter=True)],
    "dead again after its redrive": [
        *POISON, redriven(1200), start(1300, claim="a"), end(1301, claim="a", failed=True),
        start(1400, 2, claim="b"), end(1401, 2, claim="b", failed=True), row("dead", 2, claim="b"),
    ],
    "without tokens the attempts tell its runs apart": [
        scheduled(), FROZEN, start(1001, claim=""), start(1100, 2, "w2", claim=""),
        end(1200, 1, claim=""), end(1300, 2, "w2", claim="", failed=True),
        start(1500, 3, "w2", claim=""), end(1501, 3, "w2", claim=""), row("done", 3, claim=""),
    ],
    "dead by its own wish": [
        scheduled(), start(1001), end(1002, verdict="dead"), row("dead", letter=True),
    ],
    "redriven": [
        *POISON, redriven(1200), start(1300, claim="again"), end(1301, claim="again"),
        row(claim="again"),
    ],
    "redriven, so due at that moment": [
        *POISON, redriven(1200), start(1300, claim="again"), end(1301, claim="again"),
        row(claim="again", due_ms=1197),
    ],
    "redriven, perhaps": [
        *POISON, redriven(1200, ""), start(1300, claim="again"), end(1301, claim="again"),
        row(claim="again"),
    ],
    "discarded": [*POISON, discard(1200), row("cancelled", 2)],
    "discarded after it died again": [
        *POISON, redriven(1200), start(1300, claim="a"), end(1301, claim="a", failed=True),
        start(1400, 2, claim="b"), end(1401, 2, claim="b", failed=True), discard(1500),
        row("cancelled", 2, claim="b"),
    ],
    "discard lost, and it had effect": [*POISON, discard(1200, ""), row("cancelled", 2)],
    "discard lost, and it had none": [*POISON, discard(1200, ""), row("dead", 2, letter=True)],
    "discard repeated after a lost answer": [
        *POISON, fault("cut", 1190, 1199), discard(1200, "already_cancelled"), row("cancelled", 2),
    ],
    "discarded, and too late to redrive or cancel": [
        *POISON, discard(1200), redriven(1300, "already_cancelled"), discard(1400, "already_cancelled"),
        cancel("already_cancelled", 1500), row("cancelled", 2),
    ],
    "discard when it lives": [scheduled(), discard(505, "pending"), *run(1001), row()],
    "moved on": [scheduled(), MOVED, *run(2001), row(due_ms=2000)],
    "moved ahead": [scheduled(), move("rescheduled", 600, 505), *run(601), row(due_ms=600)],
    "moved too late": [scheduled(), *run(1001), move("done", 2000, 1505), row()],
    "moved, and twice": [
        scheduled(), MOVED, move("rescheduled", 1500, 605), *run(1501), row(due_ms=1500),
    ],
    "move lost, and it had effect": [
        scheduled(), move("", 2000, 505), *run(2001), row(due_ms=2000),
    ],
    "move lost, and it had none": [scheduled(), move("", 2000, 505), *run(1001), row()],
    "moves at the same time": [
        scheduled(), move("rescheduled", 2000, 505), move("rescheduled", 1500, 504), *run(1501),
        row(due_ms=1500),
    ],
    "moved after a failure, so its count is new": [
        scheduled(), *run(1001, failed=True), move("rescheduled", 2000, 1105),
        start(2001, claim="b"), end(2002, claim="b"), row(due_ms=2000, claim="b"),
    ],
    "replaced by schedule()": [
        scheduled(), scheduled(due_ms=2000, at_ms=50), *run(2001), row(due_ms=2000),
    ],
    "replaced after a failure, so its count is new": [
        scheduled(), *run(1001, failed=True), scheduled(due_ms=2000, at_ms=1105),
        start(2001, claim="b"), end(2002, claim="b"), row(due_ms=2000, claim="b"),
    ],
    "asked for before schedule() had answered": [
        scheduled(at_ms=600), cancel("unknown", 505), *run(1001), row(),
    ],
    "kept by schedule()": [scheduled(), scheduled(due_ms=2000, at_ms=50), *run(1001), row()],
    "killed, and taken over": [scheduled(), KILLED, *TAKEN_OVER],
    "killed before its handler began": [
        scheduled(), fault("kill", 1000.5, 1000.5, "w1"), *run(1500, 2, "w2"), row("done", 2, "w2"),
    ],
    "frozen, and it ends as if nothing were": [scheduled(), FROZEN, *TAKEN_OVER, end(1950)],
    "frozen before its first instruction": [
        scheduled(), fault("freeze", 1000.5, 1900, "w1"), *run(1500, 2, "w2"), *run(1900),
        row("done", 2, "w2"),
    ],
    "frozen, and cancelled after the other's failure": [
        scheduled(), FROZEN, start(1001), *run(1500, 2, "w2", failed=True),
        cancel("cancelled", 1600), end(1950), row("cancelled", 2, "w2"),
    ],
    "frozen, given back unstarted, and cancelled": [
        scheduled(), FROZEN, start(1001), cancel("cancelled", 1600), end(1950), row("cancelled"),
    ],
    "done, and its settle lost with the database": [
        scheduled(), DATABASE, *run(1001), *run(1500, 2, "w2"), row("done", 2, "w2"),
    ],
    "killed each time, until it was dead": [
        scheduled(), KILLED, fault("kill", 1502, 1502, "w2"), start(1001), start(1500, 2, "w2"),
        row("dead", 2, "w2", letter=True),
    ],
    "done, unsettled, and dead": [
        scheduled(), KILLED, fault("kill", 1502, 1502, "w2"), start(1001), *run(1500, 2, "w2"),
        row("dead", 2, "w2", letter=True),
    ],
    "dead in one attempt more, alone: it had killed its workers": [
        scheduled(), start(1001), fault("kill", 1002, 1002, "w1"), start(1100, 2, "w2", claim="b"),
        fault("kill", 1101, 1101, "w2"), start(1200, 3, "w3", claim="c"), fault("kill", 1201, 1201, "w3"),
        row("dead", 3, claim="c", letter=True),
    ],
    "a schedule() that raised had effect": [
        ScheduleUnanswered(TYPE, 1, 5, 10), *run(1001), row(),
    ],
    "a lost schedule's job was dead, and redriven": [
        ScheduleUnanswered(TYPE, 1, 5, 10), *POISON[1:], redriven(1200),
        start(1300, claim="again"), end(1301, claim="again"), row(claim="again", due_ms=1198),
    ],
    "a schedule() that raised had none": [ScheduleUnanswered(TYPE, 1, 5, 10)],
    "an attempt that was leased to nobody": [
        scheduled(), LeaseUnanswered(TYPE, 990, 1100), *run(1500, 2), row("done", 2),
    ],
}  # fmt: skip
"""Each with attempts of 2 and timeouts of 10 s."""

RULES = Rules(max_attempts={TYPE: 2}, timeouts_ms={TYPE: 10_000})

BROKEN: dict[str, tuple[Kind, History]] = {
    "a failure that was not counted": (
        Kind.STALE,
        [scheduled(), *run(1001, failed=True), *run(1010, 1, "w2"), row("done", 1, "w2")],
    ),
    "no row": (Kind.LOST, [scheduled(), *run(1001)]),
    "still pending": (Kind.LOST, [scheduled(), row("pending", 0)]),
    "still running": (Kind.LOST, [scheduled(), start(1001), row("running")]),
    "done by nobody": (Kind.LOST, [scheduled(), row(), fault("x", 900, 1100)]),
    "done, and it only failed": (Kind.LOST, [scheduled(), *run(1001, failed=True), row()]),
    "a lost schedule's job is still pending": (
        Kind.LOST, [ScheduleUnanswered(TYPE, 1, 5, 10), row("pending", 0)],
    ),
    "early": (Kind.EARLY, [scheduled(), *run(999.5), row()]),
    "early in a lost schedule's job": (
        Kind.EARLY, [ScheduleUnanswered(TYPE, 1, 5, 10), *run(999), row()],
    ),
    "early, and moved ahead only later": (
        Kind.EARLY,
        [scheduled(), *run(700), move("", 600, 905), row()],
    ),
    "early after two moves": (
        Kind.EARLY,
        [scheduled(due_ms=1800), MOVED, move("rescheduled", 1500, 605), *run(1400), row(due_ms=1500)],
    ),
    "at its old time": (Kind.OLD_TIME, [scheduled(), MOVED, *run(1001), row(due_ms=2000)]),
    "at its old time, the last move lost": (
        Kind.OLD_TIME, [scheduled(), MOVED, move("", 3000, 605), *run(1001), row(due_ms=2000)],
    ),
    "after the cancel": (
        Kind.AFTER_CANCEL, [scheduled(), cancel("cancelled", 505), *run(1001), row("cancelled")],
    ),
    "after it was cancelled already": (
        Kind.AFTER_CANCEL,
        [scheduled(), cancel("", 505), cancel("already_cancelled", 600), *run(1001), row("cancelled")],
    ),
    "a success that cancel() did not see": (
        Kind.AFTER_CANCEL, [scheduled(), start(1001), cancel("cancelled", 1005), end(1010), row("cancelled")],
    ),
    "twice at once": (
        Kind.DUPLICATE, [scheduled(), start(1001), *run(1001.5, 2, "w2"), end(1003), row("done", 2, "w2")],
    ),
    "twice, one after the other": (
        Kind.DUPLICATE, [scheduled(), *run(1001), *run(1500, 2), row("done", 2)],
    ),
    "taken over from a healthy worker": (
        Kind.DUPLICATE, [scheduled(), fault("kill", 1002, 1002, "w3"), *TAKEN_OVER],
    ),
    "taken over after a fault that was over": (
        Kind.DUPLICATE, [scheduled(), fault("kill", 900, 1000.5, "w1"), *TAKEN_OVER],
    ),
    "killed after it was taken over": (
        Kind.DUPLICATE, [scheduled(), fault("kill", 1600, 1600, "w1"), *TAKEN_OVER],
    ),
    "a stale failure's retry beside a healthy run": (
        Kind.DUPLICATE,
        [
            scheduled(), FROZEN, start(1001), start(1500, 2, "w2"), end(1901, failed=True),
            *run(1910, 3, "w3"), end(2000, 2, "w2"), row("done", 3, "w3"),
        ],
    ),
    "one claim started twice": (
        Kind.STALE, [scheduled(), FROZEN, start(1001), start(1003), end(1950), row()],
    ),
    "one count, two claims": (
        Kind.STALE,
        [scheduled(), KILLED, start(1001), *run(1500, 1, "w2"), row("done", 1, "w2")],
    ),
    "a claim that starts twice is no work of a fault": (
        Kind.DUPLICATE,
        [scheduled(), KILLED, start(1001), start(1003), end(1004), row()],
    ),
    "a claim that starts again after its failure": (
        Kind.STALE,
        [
            scheduled(),
            *run(1001, failed=True),
            move("", 1000, 1100),
            start(1200),
            end(1201),
            row(),
        ],
    ),
    "an older claim's late start, and nobody was frozen": (
        Kind.STALE,
        [
            scheduled(),
            *run(1001, 2, "w2", failed=True),
            *run(1100, 1),
            row("done", 2, claim="w1:7:1:1"),
        ],
    ),
    "the same count under two claims, and one was frozen": (
        Kind.STALE,
        [
            scheduled(),
            fault("freeze", 1000.5, 1900, "w2"),
            *run(1001, failed=True),
            *run(1500, 1, "w2"),
            row("done", 1, "w2"),
        ],
    ),
    "a count that went back long after a move": (
        Kind.STALE,
        [
            scheduled(),
            move("rescheduled", 1000, 505),
            *run(1001, failed=True),
            *run(1100, 1, "w2"),
            row("done", 1, "w2"),
        ],
    ),
    "an attempt nobody began, and the fault came after its end": (
        Kind.WRONG,
        [
            scheduled(),
            *run(1001, 1, failed=True),
            *run(1100, 3),
            row("done", 3),
            fault("wipe", 1200, 1300),
        ],
    ),
    "a count that went back": (
        Kind.STALE,
        [
            scheduled(), *run(1001, failed=True), *run(1100, 2, failed=True),
            start(1200, 1, claim="c"), end(1201, 1, claim="c"), row(claim="c"),
        ],
    ),
    "done under a claim that failed": (
        Kind.STALE,
        [scheduled(), FROZEN, start(1001), *run(1500, 2, "w2", failed=True), end(1950), row("done", 2, "w2")],
    ),
    "done by attempt, where no row has a token": (
        Kind.STALE,
        [
            scheduled(), FROZEN, start(1001), *run(1500, 2, "w2", failed=True), end(1950),
            row("done", 2, claim=""),
        ],
    ),
    "fewer attempts in the row": (
        Kind.STALE,
        [scheduled(), *run(1001, failed=True), *run(1500, 2), row("done", 1, claim="w1:7:1:2")],
    ),
    "more attempts in the row": (Kind.WRONG, [scheduled(), *run(1001), row("done", 4, claim="w1:7:1:1")]),
    "cancelled, and nobody was told": (Kind.WRONG, [scheduled(), row("cancelled", 0)]),
    "cancelled, and the row is done": (
        Kind.WRONG, [scheduled(), *run(1001), cancel("cancelled", 1500), row()],
    ),
    "cancelled twice": (
        Kind.WRONG,
        [scheduled(), cancel("cancelled", 505), cancel("cancelled", 600), row("cancelled", 0)],
    ),
    "started after a discard": (
        Kind.AFTER_CANCEL,
        [
            *POISON, discard(1200), redriven(1300), start(1400, claim="again"),
            end(1401, claim="again"), row(claim="again"),
        ],
    ),
    "started after a discard found it cancelled": (
        Kind.AFTER_CANCEL,
        [
            *POISON, discard(1200, ""), discard(1250, "already_cancelled"), redriven(1300),
            start(1400, claim="again"), end(1401, claim="again", failed=True), row("cancelled", 1),
        ],
    ),
    "discarded, and the row is dead": (
        Kind.WRONG, [*POISON, discard(1200), row("dead", 2, letter=True)],
    ),
    "discarded, and the letter is there": (
        Kind.WRONG, [*POISON, discard(1200), row("cancelled", 2, letter=True)],
    ),
    "discarded twice": (
        Kind.WRONG, [*POISON, discard(1200), discard(1300), row("cancelled", 2)],
    ),
    "discarded and cancelled": (
        Kind.WRONG, [*POISON, discard(1200), cancel("cancelled", 1300), row("cancelled", 2)],
    ),
    "discarded before it was dead": (
        Kind.WRONG, [scheduled(), *run(1001, failed=True), discard(1200), row("cancelled", 1)],
    ),
    "discarded, and it had succeeded": (
        Kind.WRONG,
        [scheduled(), *run(1001, failed=True), *run(1100, 2), discard(1200), row("cancelled", 2)],
    ),
    "dead, and it had succeeded": (
        Kind.WRONG, [scheduled(), *run(1001, failed=True), *run(1100, 2), row("dead", 2)],
    ),
    "dead too late": (
        Kind.WRONG,
        [*POISON, *run(1200, 3, failed=True), row("dead", 3), fault("x", 5, 10)],
    ),
    "dead far too late": (
        Kind.WRONG,
        [
            scheduled(), KILLED, start(1001), start(1100, 2), *run(1200, 6, failed=True),
            row("dead", 6),
        ],
    ),
    "dead too soon": (Kind.WRONG, [scheduled(), *run(1001, failed=True), row("dead", 1)]),
    "dead, and one attempt did not fail": (
        Kind.WRONG,
        [scheduled(), start(1001), *run(1500, 2, "w2", failed=True), row("dead", 2, "w2")],
    ),
    "dead without a letter": (Kind.WRONG, [*POISON, row("dead", 2, letter=False)]),
    "done with a letter": (Kind.WRONG, [scheduled(), *run(1001), row(letter=True)]),
    "not what was scheduled": (Kind.WRONG, [scheduled(), *run(1001), row(due_ms=900)]),
    "the move is not in the row": (Kind.WRONG, [scheduled(), MOVED, *run(2001), row()]),
    "redriven to a time nobody asked for": (
        Kind.WRONG,
        [
            *POISON,
            redriven(1200),
            start(1300, claim="again"),
            end(1301, claim="again"),
            row(claim="again", due_ms=99_999),
        ],
    ),
    "another type's handler": (
        Kind.WRONG, [scheduled(), start(1001, biz_type="other"), end(1002), row()],
    ),
    "unknown, though schedule() had returned": (
        Kind.WRONG, [scheduled(), cancel("unknown", 505), *run(1001), row()],
    ),
    "answered done, and cancelled": (
        Kind.WRONG, [scheduled(), cancel("done", 505), cancel("", 600), row("cancelled", 0)],
    ),
    "a row nobody scheduled": (Kind.WRONG, [*run(1001), row()]),
    "more rows than lost calls": (
        Kind.WRONG,
        [
            ScheduleUnanswered(TYPE, 1, 5, 10), *run(1001), row(),
            *run(1001, job_id=2), row(job_id=2),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_passes(name: str) -> None:
    assert verdict(LEGAL[name], RULES).problems == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_caught(name: str) -> None:
    kind, history = BROKEN[name]
    report = verdict(history, RULES)
    assert not report.holds
    assert kind in kinds(report), report.problems


@pytest.mark.parametrize("name", BROKEN)
def test_the_order_of_entries_does_not_matter(name: str) -> None:
    _, history = BROKEN[name]
    shuffled = history.copy()
    random.Random(name).shuffle(shuffled)  # noqa: S311 - a shuffle, not a secret
    assert kinds(verdict(shuffled, RULES)) == kinds(verdict(history, RULES))


@pytest.mark.parametrize(
    "call", [LeaseUnanswered("another.type", 990, 1100), LeaseUnanswered(TYPE, 10, 20)]
)
def test_a_lost_lease_explains_attempts_of_its_type_and_time(call: LeaseUnanswered) -> None:
    report = verdict([scheduled(), call, *run(1500, 2), row("done", 2)], RULES)
    assert kinds(report) == {Kind.WRONG}
    assert report.unstarted == 0


@pytest.mark.parametrize("late_ms", [2999, 3000])
def test_a_lease_that_ended_before_its_run_began_makes_the_next_start_late(late_ms: int) -> None:
    history = [scheduled(), *run(DUE_MS + late_ms, 2), row("done", 2)]
    report = verdict(history, replace(RULES, lease_ms=3000))
    assert (report.unstarted, report.holds) == ((1, True) if late_ms == 3000 else (0, False))
    assert not verdict(history, RULES).holds


def test_a_lost_lease_explains_no_duplicate() -> None:
    history = [scheduled(), start(1001), LeaseUnanswered(TYPE, 990, 1100), *run(1500, 2, "w2")]
    assert Kind.DUPLICATE in kinds(verdict([*history, row("done", 2, "w2")], RULES))


def test_only_what_is_broken_is_named() -> None:
    both = [*BROKEN["early"][1], scheduled(2), *run(1001, job_id=2), row(job_id=2)]
    assert [str(problem) for problem in verdict(both).problems] == [
        "early: job 1: started 0.5 ms before its time"
    ]


# ---- what a caller tells it


def test_a_tolerance_is_for_clocks_that_differ() -> None:
    early, cancelled = BROKEN["early"][1], BROKEN["after the cancel"][1]
    assert verdict(early, Rules(tolerance_ms=0.5)).holds
    assert not verdict(early, Rules(tolerance_ms=0.4)).holds
    assert Kind.AFTER_CANCEL not in kinds(verdict(cancelled, Rules(tolerance_ms=496)))


def test_a_start_is_early_no_further_than_the_fault_that_is_on_allows() -> None:
    history = [*BROKEN["early"][1], Fault("a clock steps", 0, 1_000_000, ("nobody",))]
    assert verdict(history, Rules(early_ms={"a clock steps": 0.5})).holds
    assert not verdict(history, Rules(early_ms={"a clock steps": 0.4})).holds
    assert not verdict(history, Rules(early_ms={"another": 0.5})).holds
    over = [*BROKEN["early"][1], Fault("a clock steps", -2, -1, ("nobody",))]
    assert not verdict(over, Rules(early_ms={"a clock steps": 0.5})).holds


def test_a_handler_over_its_timeout_loses_its_lease() -> None:
    history = [scheduled(), *TAKEN_OVER]
    assert verdict(history, Rules(timeouts_ms={TYPE: 499})).duplicates == {"over its timeout": 1}
    assert not verdict(history, Rules(timeouts_ms={TYPE: 500})).holds
    in_time = [scheduled(), *run(1001), *run(1500, 2), row("done", 2)]
    assert not verdict(in_time, Rules(timeouts_ms={TYPE: 499})).holds


def test_a_fault_explains_only_what_it_met_within_the_lease() -> None:
    ended = [scheduled(), *run(1001), *run(9000, 2), row("done", 2)]
    late = [*ended, fault("kill", 8000, 8100, "w1")]
    assert verdict(late, Rules(timeouts_ms={TYPE: 7000})).duplicates == {"kill": 1}
    assert not verdict(late, Rules(timeouts_ms={TYPE: 6998})).holds
    assert verdict(late).holds  # nobody has said how long a claim holds


def test_a_fault_holds_up_a_start_only_while_its_claim_held() -> None:
    # The older claim's start comes last: its process stood still.
    late = [scheduled(), *run(8000, 2, "w2"), start(9000), row("done", 2, "w2")]
    frozen = fault("freeze", 3000, 3100, "w1")
    assert Kind.DUPLICATE not in kinds(verdict([*late, frozen], Rules(timeouts_ms={TYPE: 5900})))
    assert Kind.DUPLICATE in kinds(verdict([*late, frozen], Rules(timeouts_ms={TYPE: 5899})))


def test_a_cancel_may_find_its_own_work_when_its_answer_was_lost() -> None:
    found = [scheduled(), cancel("already_cancelled", 505), row("cancelled", 0)]
    assert verdict([*found, fault("link", 500, 506)]).holds
    assert kinds(verdict(found)) == {Kind.WRONG}
    assert kinds(verdict([*found, fault("link", 600, 700)])) == {Kind.WRONG}


def test_a_fault_may_linger() -> None:
    history = BROKEN["taken over after a fault that was over"][1]
    assert verdict(history, Rules(linger_ms=0.5)).holds
    assert not verdict(history, Rules(linger_ms=0.4)).holds


def test_without_wanted_attempts_a_death_is_a_death() -> None:
    assert verdict(BROKEN["dead too soon"][1]).holds


def test_problems_are_all_counted_and_some_are_kept() -> None:
    history = [
        entry
        for job_id in range(1, 8)
        for entry in (scheduled(job_id), row("pending", 0, job_id=job_id))
    ]
    report = verdict(history, Rules(problems_max=3))
    assert (report.problems_by_kind[Kind.LOST], len(report.problems)) == (7, 3)


# ---- what it counts


def test_the_reason_of_each_duplicate() -> None:
    killed = [scheduled(), *TAKEN_OVER]
    settled = [scheduled(2), *run(1001, job_id=2), *run(1500, 2, "w2", 2), row("done", 2, "w2", 2)]
    report = verdict([*killed, *settled, KILLED, DATABASE])
    assert report.holds
    # The process' own fault says more than one that was everywhere.
    assert report.duplicates == {"kill": 2}
    assert verdict([*killed, *settled, DATABASE]).duplicates == {"database killed": 2}
    assert report.by_fault["kill"].duplicates == 2


def test_the_reason_is_a_fault_that_was_on() -> None:
    long, short = fault("long", 800, 2000, "w1"), fault("short", 900, 950, "w1")
    assert verdict([scheduled(), *TAKEN_OVER, long, short]).duplicates == {"long": 1}


def test_counts() -> None:
    history = [
        *POISON, redriven(1200), start(1300, claim="again"), end(1301, claim="again"), row(claim="again"),
        scheduled(2), move("rescheduled", 2000, 505, 2), *run(2003, job_id=2), row(job_id=2, due_ms=2000),
        scheduled(3), cancel("", 400, 3), cancel("running", 1001, 3), *run(1001, job_id=3), row(job_id=3),
        scheduled(4), *run(1001, job_id=4, failed=True), discard(1200, job_id=4), discard(1300, "", 4),
        row("cancelled", job_id=4),
        ScheduleUnanswered(TYPE, 2, 5, 10),
    ]  # fmt: skip
    report = verdict(history)
    assert report.problems == []
    assert (report.scheduled, report.starts, report.retries) == (4, 6, 2)
    assert (report.rescheduled, report.redriven, report.discarded) == (1, 1, 1)
    assert (report.cancelled_too_late, report.unanswered) == (1, 3)
    assert (report.entries, report.by_status) == (len(history), {"done": 3, "cancelled": 1})


def test_a_token_that_has_lost_its_mark_is_of_the_same_claim() -> None:
    ran = [start(1001, claim="w1:7:alone"), end(1002, claim="w1:7:alone")]
    assert verdict([scheduled(), *ran, row(claim="w1:7")]).problems == []
    assert verdict([scheduled(), *ran, row(claim="w1:8")]).problems != []


def test_lateness_is_of_first_starts_and_since_they_were_asked_for() -> None:
    retried = [scheduled(), *run(1001, failed=True), *run(9000, 2), row("done", 2)]
    past = [scheduled(2, at_ms=5001), *run(5004, job_id=2), row(job_id=2)]
    report = verdict([*retried, *past])
    assert (report.lateness.count, report.lateness.min_ms, report.lateness.max_ms) == (2, 1, 4)
    assert report.by_type[TYPE] == report.lateness


def test_lateness_of_held_types_is_in_no_total() -> None:
    paused = "report.send"
    history = [
        DATABASE, scheduled(), *run(1001), row(),
        scheduled(2, biz_type=paused), start(5000, job_id=2, biz_type=paused), end(5001, job_id=2),
        row(job_id=2),
    ]  # fmt: skip
    report = verdict(history, Rules(held_types=frozenset({paused})))
    assert report.lateness.max_ms == 1
    assert report.by_type[paused].max_ms == 4000
    assert report.by_fault["database killed"].worst_ms == 1
    assert report.by_fault["database killed"].recovery_ms == 0
    counted = verdict(history)
    assert counted.lateness.max_ms == 4000
    assert counted.by_fault["database killed"].worst_ms == 4000


def test_lateness_in_and_after_a_fault_and_its_recovery() -> None:
    def job(job_id: int, due_ms: int, start_ms: float) -> History:
        return [
            scheduled(job_id, due_ms), *run(start_ms, job_id=job_id), row(job_id=job_id, due_ms=due_ms)
        ]  # fmt: skip

    history = [
        fault("wipe", 2000, 3000),
        fault("kill", 9000, 9000, "w1"),
        *job(1, 1500, 1501),  # before
        *job(2, 2500, 5500),  # in it, and late by 3 s, 2.5 s after its end
        *job(3, 3500, 5000),  # after it, late by 1.5 s
        *job(4, 8000, 8500),  # after it, not late
        *job(5, 9001, 9002),  # after the other
        *job(6, 8900, 9903),  # late after the other's end
    ]
    report = verdict(history)
    assert report.holds
    wipe, kill = report.by_fault["wipe"], report.by_fault["kill"]
    assert (wipe.times, wipe.lasted_ms, wipe.jobs, wipe.worst_ms) == (1, 1000, 4, 3000)
    assert (wipe.during.count, wipe.after.count, wipe.recovery_ms) == (1, 3, 2500)
    assert (kill.jobs, kill.worst_ms, kill.recovery_ms) == (1, 1, 903)
    assert verdict(history, Rules(late_ms=2000)).by_fault["kill"].recovery_ms == 0


def test_problems_are_counted_with_the_fault_they_fell_into() -> None:
    report = verdict(
        [fault("wipe", 500, 1500), fault("later", 4000, 5000), *BROKEN["still pending"][1]]
    )
    assert report.by_fault["wipe"].problems == {Kind.LOST: 1}
    assert report.by_fault["later"].problems == {}


def test_percentiles() -> None:
    jobs = [
        entry
        for job_id in range(1, 1001)
        for entry in (scheduled(job_id), *run(1000 + job_id, job_id=job_id), row(job_id=job_id))
    ]
    late = verdict(jobs).lateness
    for percent, wanted in [(50, 500), (99, 990), (99.9, 999), (100, 1000)]:
        assert late.percentile(percent) == pytest.approx(wanted, rel=0.003)
    assert late.counts([100, 900]) == pytest.approx([100, 800, 100], abs=2)
    assert late.facts()["max_ms"] == 1000
    with pytest.raises(ValueError, match="at least one"):
        verdict([]).lateness.percentile(50)
