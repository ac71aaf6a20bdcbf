"""Any legal history passes; with one thing in it that is broken, it never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from toc.testing import (
    CancelAnswered,
    Ended,
    Entry,
    Fault,
    Kind,
    RescheduleAnswered,
    Row,
    Scheduled,
    Started,
    check,
)

TYPE = "order.close"
RUNS = settings(max_examples=150, deadline=None)


@dataclass
class Life:
    """One job's entries by kind; `due_ms` is the action_time in force when it starts."""

    scheduled: Scheduled
    due_ms: int
    row: Row
    moves: list[RescheduleAnswered] = field(default_factory=list)
    cancels: list[CancelAnswered] = field(default_factory=list)
    starts: list[Started] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        lists = (self.moves, self.cancels, self.starts, self.ends, self.faults)
        return [self.scheduled, self.row, *(entry for entries in lists for entry in entries)]


gaps = st.floats(0.01, 500)


@st.composite
def lives(draw: st.DrawFn, job_id: int) -> Life:
    """Moved or not; failed, or killed in its run, some times; then done, cancelled or dead."""
    now_ms = draw(st.floats(0, 1000))
    due_ms = draw(st.integers(5_000, 20_000))
    life = Life(
        Scheduled(job_id, TYPE, due_ms, now_ms, now_ms + 1),
        due_ms,
        Row(job_id, "done", 0, due_ms),
    )
    now_ms += 2
    possible = {due_ms}
    for moved_ms in draw(st.lists(st.integers(5_000, 20_000), max_size=3)):
        answer = draw(st.sampled_from(["rescheduled", "rescheduled", ""]))
        at_ms = now_ms + draw(gaps)
        life.moves.append(RescheduleAnswered(job_id, answer, moved_ms, now_ms, at_ms))
        had_effect = bool(answer) or draw(st.booleans())
        life.due_ms = moved_ms if had_effect else life.due_ms
        possible = {moved_ms} if answer else {*possible, moved_ms}
        now_ms = at_ms + 1
    if len(possible) > 1:  # which one is in force is open: a start at the last of all is legal
        life.due_ms = draw(st.sampled_from(sorted(possible)))
    now_ms = life.due_ms + draw(gaps)
    end = draw(st.sampled_from(["done", "cancelled", "dead"]))
    outcomes = draw(st.lists(st.sampled_from(["failed", "killed"]), max_size=4))
    if end == "dead" and not outcomes:
        outcomes = ["failed"]
    for outcome in [*outcomes, *(["succeeded"] if end == "done" else [])]:
        attempt = len(life.starts) + 1
        who = f"w{job_id}-{attempt}"
        life.starts.append(Started(job_id, TYPE, attempt, now_ms, who, f"{who}:c"))
        until_ms = now_ms + draw(gaps)
        if outcome == "killed":
            life.faults.append(Fault("kill", until_ms, until_ms, (who,)))
        else:
            life.ends.append(Ended(job_id, attempt, outcome == "failed", until_ms, who, f"{who}:c"))
        now_ms = until_ms + draw(gaps)
    if end == "cancelled":
        answer = draw(st.sampled_from(["cancelled", ""]))
        life.cancels.append(CancelAnswered(job_id, answer, now_ms, now_ms + 1))
    token = life.starts[-1].token if life.starts else ""
    life.row = Row(job_id, end, len(life.starts), life.due_ms, token, end == "dead")
    return life


@st.composite
def histories(draw: st.DrawFn) -> list[Life]:
    return [draw(lives(job_id)) for job_id in range(1, draw(st.integers(1, 6)) + 1)]


def entries_of(history: list[Life]) -> list[Entry]:
    return [entry for life in history for entry in life.entries]


# ---- what can go wrong: each changes one life, or says that this one does not lend itself to it

Breach = Callable[[Life], bool]


def _no_row(life: Life) -> bool:
    life.row = replace(life.row, status="pending")
    return True


def _unfinished(life: Life) -> bool:
    kept = [end for end in life.ends if end.failed]
    lost = life.row.status == "done" and len(kept) < len(life.ends)
    life.ends = kept
    return lost


def _too_early(life: Life) -> bool:
    if not life.starts:
        return False
    first_ms = min([life.scheduled.action_ms, *(move.action_ms for move in life.moves)])
    life.starts[0] = replace(life.starts[0], at_ms=first_ms - 0.5)
    return True


def _at_old_time(life: Life) -> bool:
    sure = bool(life.moves) and all(move.answer for move in life.moves)
    if not sure or not life.starts or life.scheduled.action_ms >= life.due_ms:
        return False
    life.starts[0] = replace(life.starts[0], at_ms=float(life.scheduled.action_ms))
    return True


def _after_cancel(life: Life) -> bool:
    if not life.cancels or not life.cancels[0].answer:
        return False
    attempt = len(life.starts) + 1
    at_ms = max(life.cancels[0].at_ms, life.due_ms) + 0.01
    life.starts.append(Started(life.row.job_id, TYPE, attempt, at_ms, "wx", "wx:c"))
    return True


def _again(life: Life) -> bool:
    """A second start of what was done."""
    if life.row.status != "done":
        return False
    attempt = life.row.attempts + 1
    at_ms = life.ends[-1].at_ms + 0.01
    life.starts.append(Started(life.row.job_id, TYPE, attempt, at_ms, "wx", "wx:c"))
    life.ends.append(Ended(life.row.job_id, attempt, False, at_ms + 1, "wx", "wx:c"))
    life.row = replace(life.row, attempts=attempt, token="wx:c")
    return True


def _no_reason(life: Life) -> bool:
    """The fault that explains a second start was not there."""
    killed = {name for fault in life.faults for name in fault.processes}
    restarted = any(before.process in killed for before, _ in pairwise(life.starts))
    life.faults = []
    return restarted


def _stale_done(life: Life) -> bool:
    if life.row.status != "done" or len(life.starts) < 2:
        return False
    life.row = replace(life.row, token=life.starts[-2].token)
    return True


def _count_lost(life: Life) -> bool:
    if any(move.at_ms > life.due_ms or not move.answer for move in life.moves):
        return False
    life.row = replace(life.row, attempts=life.row.attempts - 1)
    return not life.moves and bool(life.starts)


def _two_with_one_count(life: Life) -> bool:
    if len(life.starts) < 2 or life.moves:
        return False
    life.starts[-1] = replace(life.starts[-1], attempt=life.starts[-2].attempt)
    return True


def _untold(life: Life) -> bool:
    cancelled, life.cancels = bool(life.cancels), []
    return cancelled


def _told_and_not_done(life: Life) -> bool:
    if life.row.status == "cancelled":
        return False
    at_ms = (life.starts[-1].at_ms if life.starts else life.due_ms) + 0.001
    life.cancels.append(CancelAnswered(life.row.job_id, "cancelled", at_ms - 0.0005, at_ms))
    return True


def _another_time(life: Life) -> bool:
    life.row = replace(life.row, action_ms=4_999)
    return True


def _no_letter(life: Life) -> bool:
    life.row = replace(life.row, dead_letter=not life.row.dead_letter)
    return True


BREACHES: dict[Breach, set[Kind]] = {
    _no_row: {Kind.LOST},
    _unfinished: {Kind.LOST},
    _too_early: {Kind.EARLY},
    _at_old_time: {Kind.OLD_TIME},
    _after_cancel: {Kind.AFTER_CANCEL},
    _again: {Kind.DUPLICATE},
    _no_reason: {Kind.DUPLICATE},
    _stale_done: {Kind.STALE},
    _count_lost: {Kind.STALE},
    _two_with_one_count: {Kind.STALE},
    _untold: {Kind.WRONG},
    _told_and_not_done: {Kind.WRONG},
    _another_time: {Kind.WRONG},
    _no_letter: {Kind.WRONG},
}


@RUNS
@given(histories(), st.randoms())
def test_a_legal_history_passes(history: list[Life], order: Random) -> None:
    entries = entries_of(history)
    order.shuffle(entries)
    assert check([entries]).problems == []


@RUNS
@given(histories(), st.sampled_from(list(BREACHES)), st.data())
def test_one_breach_is_caught(history: list[Life], breach: Breach, data: st.DataObject) -> None:
    life = data.draw(st.sampled_from(history))
    if not breach(life):
        return
    report = check([entries_of(history)])
    found = {problem.kind for problem in report.problems if problem.job_id == life.row.job_id}
    assert BREACHES[breach] <= found, report.problems
    assert {problem.job_id for problem in report.problems} == {life.row.job_id}
