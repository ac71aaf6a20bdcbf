"""The verdict on one job: its story against what toc promises. Pure.

A call whose answer was lost ("") may have had effect or not, at any moment since it was asked: both
are legal, and so the action_time in force is a set. A second Scheduled of one id is such a call too: under a
dedup key, schedule() may have replaced the job's time or kept it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from toc.testing.faults import Faults
from toc.testing.report import UNEXPLAINED, FaultFigures, Kind, Lateness, Problem, Report
from toc.testing.stories import AGAIN, BURIED, DROPPED, SNOOZED, SUCCESS, Call, Final, Start, Story
from toc.worker.suspects import EXTRA_MAX

OVERTIME = "over its timeout"
CLIENT_OFF_MS = 5000.0  # what a client takes for the servers' time it heard up to a slow answer ago
_CANCELLED = ("cancelled", "already_cancelled")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a check is told beside the history.

    tolerance_ms: how far handlers' and clients' clocks may be off the servers' (default 0).
    late_ms: a start later than this counts as late when a fault's recovery is measured (default 1000).
    linger_ms: how long after its end a fault still explains a duplicate (default 0).
    max_attempts: by biz_type; a dead job of a type that is named must have used them up.
    timeouts_ms: by biz_type, how long a claim holds: a start after so long explains itself if the one
    before had not ended, and a fault explains one only if it came within so long.
    problems_max: how many problems of each kind are kept in words (default 100); all are counted.
    """

    tolerance_ms: float = 0.0
    late_ms: float = 1000.0
    linger_ms: float = 0.0
    max_attempts: Mapping[str, int] = field(default_factory=dict)
    timeouts_ms: Mapping[str, float] = field(default_factory=dict)
    problems_max: int = 100


class _Write(NamedTuple):
    """An action_time that was set some time from `asked_ms` to `at_ms`; not sure: perhaps, from then on."""

    action_ms: int
    asked_ms: float
    at_ms: float
    sure: bool
    since_ms: float  # a job cannot be later than since it was asked for
    until_ms: float = -math.inf  # redrive: it is any moment from action_ms up to this

    def is_of(self, action_ms: int) -> bool:
        """Whether it may have set this action_time."""
        return action_ms == self.action_ms or self.action_ms <= action_ms <= self.until_ms


class Judge:
    """Adds one story after the other to its report. `strange`: jobs nobody scheduled are legal."""

    def __init__(self, rules: Rules, faults: Faults, *, strange: bool) -> None:
        self.report = Report()
        self._rules, self._faults, self._strange = rules, faults, strange

    def judge(self, job_id: int, story: Story) -> None:
        story.sort()
        case = _Case(self._rules, self._faults, self.report, job_id, story)
        if not story.schedules:
            self.report.strangers += 1
            if not self._strange:
                case.found(Kind.WRONG, "it is there, and nobody scheduled it")
                return
        case.check()


class _Case:
    def __init__(
        self, rules: Rules, faults: Faults, report: Report, job_id: int, story: Story
    ) -> None:
        self._rules, self._faults, self._report = rules, faults, report
        self._job_id, self._story = job_id, story
        self._biz_type = story.biz_type or (story.starts[0].biz_type if story.starts else "")
        self._snoozed = any(end.how == SNOOZED for end in story.ends)
        self._writes = _writes(story, snoozed=self._snoozed)

    def found(self, kind: Kind, text: str) -> None:
        report = self._report
        report.problems_by_kind[kind] += 1
        if report.problems_by_kind[kind] <= self._rules.problems_max:
            report.problems.append(Problem(kind, self._job_id, text))
        if self._writes and self._faults.all:
            moment = self._faults.at(self._writes[-1].action_ms)
            for name in {*moment.during, *(name for name, _ in moment.after)}:
                self._figures(name).problems[kind] += 1

    def check(self) -> None:
        report, story = self._report, self._story
        report.scheduled += bool(story.schedules)
        if story.starts:
            report.starts += len(story.starts)
            self._check_starts()
        if story.cancels or story.moves or story.redrives:
            self._count_calls()
            self._check_answers()
        row = story.row
        if row is None:
            self.found(Kind.LOST, "was scheduled, and has no row")
            return
        report.by_status[row.status] += 1
        self._check_row(row)
        self._check_attempts(row)
        if row.status == "done":
            self._check_done(row)
        elif row.status == "cancelled":
            self._check_cancelled()
        elif row.status == "dead":
            self._check_dead(row)
        else:
            self.found(Kind.LOST, f"has not ended, it is {row.status}")

    # ---- starts

    def _check_starts(self) -> None:
        story, tolerance_ms = self._story, self._rules.tolerance_ms
        cancelled_ms = min(
            (c.at_ms for c in story.cancels if c.answer in _CANCELLED), default=math.inf
        )
        before: Start | None = None
        for start in story.starts:
            force = self._in_force(start.at_ms)
            if force and start.at_ms + tolerance_ms < (due_ms := min(w.action_ms for w in force)):
                self._found_early(start, due_ms)
            if before is not None:
                self._check_again(before, start)
            elif force:
                self._measure(start, max(max(w.action_ms, w.since_ms) for w in force))
            if start.at_ms > cancelled_ms + tolerance_ms:
                after_ms = start.at_ms - cancelled_ms
                self.found(Kind.AFTER_CANCEL, f'started {after_ms:.1f} ms after "cancelled"')
            if start.biz_type != self._biz_type:
                self.found(Kind.WRONG, f"a handler of {start.biz_type} got a {self._biz_type}")
            before = start

    def _found_early(self, start: Start, due_ms: float) -> None:
        early_ms = due_ms - start.at_ms
        now_ms = start.at_ms + self._rules.tolerance_ms
        old = [w for w in self._writes if w.asked_ms <= now_ms and w.action_ms <= now_ms]
        if old:
            text = f"started at its old time, {early_ms:.1f} ms before the one in force"
            self.found(Kind.OLD_TIME, text)
        else:
            self.found(Kind.EARLY, f"started {early_ms:.1f} ms before its time")

    def _measure(self, start: Start, due_ms: float) -> None:
        report, late_ms = self._report, start.at_ms - due_ms
        by_type = report.by_type.get(self._biz_type)
        if by_type is None:
            by_type = report.by_type[self._biz_type] = Lateness()
        by_type.add(late_ms)
        if not self._faults.all:
            return
        moment = self._faults.at(due_ms)
        for name in moment.during:
            self._figures(name).during.add(late_ms)
        for name, _ in moment.after:
            if name not in moment.during:
                self._figures(name).after.add(late_ms)
        if late_ms > self._rules.late_ms:
            for name, ended_ms in self._faults.at(start.at_ms).after:
                figures = self._figures(name)
                figures.recovery_ms = max(figures.recovery_ms, start.at_ms - ended_ms)

    def _check_again(self, before: Start, start: Start) -> None:
        outcome = self._story.end_of(before, start.at_ms)
        if outcome is not None and outcome.how != SUCCESS:
            self._report.retries += 1
        else:
            why = "that one had succeeded" if outcome is not None else "that one had not ended"
            reason = self._reason(before, start)
            self._report.duplicates[reason] += 1
            if reason == UNEXPLAINED:
                self.found(Kind.DUPLICATE, f"started after a start, and {why}")
            elif reason != OVERTIME:
                self._figures(reason).duplicates += 1
        if start.token == before.token != "":
            self.found(Kind.STALE, f"claim {start.token} was started twice")
        elif start.attempt <= before.attempt and not self._reset(before.at_ms, start.at_ms):
            self._check_count(before, start)

    def _check_count(self, before: Start, start: Start) -> None:
        """Each claim counts one more, so the numbers rise; a start that came late is of an older claim."""
        belated = self._held_up(start)
        if start.attempt == before.attempt or belated is None:
            text = f"attempt {start.attempt} was started after attempt {before.attempt}"
            self.found(
                Kind.STALE, f"{text}: a claim's count was lost, or a stale claim was started"
            )

    def _reason(self, before: Start, start: Start) -> str:
        """Why a start came after one that had not failed."""
        if start.token == before.token != "":
            return UNEXPLAINED
        found = self._hit(before, start.at_ms)
        if found is None and start.attempt < before.attempt:  # it is the older one that came late
            found = self._held_up(start)
        if found is None and self._overtime(before, start.at_ms):
            return OVERTIME
        return found or UNEXPLAINED

    @property
    def _timeout_ms(self) -> float:
        return self._rules.timeouts_ms.get(self._biz_type, math.inf)

    def _hit(self, start: Start, until_ms: float) -> str | None:
        """A fault that may have kept a run from ending, or from being recorded, while its claim held."""
        to_ms = min(until_ms, start.at_ms + self._timeout_ms)
        return self._faults.explaining(start.process, start.at_ms, to_ms)

    def _held_up(self, start: Start) -> str | None:
        """A fault that may have kept a run from starting after its claim."""
        return self._faults.explaining(start.process, start.at_ms - self._timeout_ms, start.at_ms)

    def _overtime(self, start: Start, until_ms: float) -> bool:
        """Whether it had not ended within its type's timeout, and the lease was so over."""
        in_time = self._story.end_of(start, start.at_ms + self._timeout_ms)
        return until_ms - start.at_ms >= self._timeout_ms and in_time is None

    def _reset(self, from_ms: float, to_ms: float) -> bool:
        """Whether the count may have begun anew between these times, or gone back by a snooze."""
        return self._snoozed or any(
            call.asked_ms <= to_ms and (call.at_ms >= from_ms or not call.answer)
            for call in self._resets()
        )

    def _resets(self) -> list[Call]:
        story = self._story
        calls = [c for c in story.moves if c.answer in {"rescheduled", ""}]
        calls += [c for c in story.redrives if c.answer in {"redriven", ""}]
        return calls + story.schedules[1:]

    # ---- answers

    def _count_calls(self) -> None:
        report, story = self._report, self._story
        report.rescheduled += sum(call.answer == "rescheduled" for call in story.moves)
        report.redriven += sum(call.answer == "redriven" for call in story.redrives)
        report.cancelled_too_late += sum(
            call.answer in {"running", "done"} for call in story.cancels
        )
        report.unanswered += sum(
            not call.answer
            for calls in (story.cancels, story.moves, story.redrives)
            for call in calls
        )

    def _check_answers(self) -> None:
        story, row = self._story, self._story.row
        since_ms = story.schedules[0].at_ms if story.schedules else math.inf
        answers = Counter(call.answer for call in story.cancels)
        if answers["cancelled"]:
            self._check_cancel(next(c for c in story.cancels if c.answer == "cancelled"))
            if row is not None and row.status != "cancelled":
                self.found(Kind.WRONG, f"cancelled, but the row says {row.status}")
            if answers["cancelled"] > 1:
                self.found(Kind.WRONG, 'more than one cancel() has answered "cancelled"')
        for call in (*story.cancels, *story.moves, *story.redrives):
            if call.answer == "unknown" and call.asked_ms >= since_ms and row is not None:
                self.found(Kind.WRONG, 'answered "unknown" after schedule() had returned it')
            elif call.answer == "done" and row is not None and row.status != "done":
                self.found(Kind.WRONG, f'answered "done", but the row says {row.status}')

    def _check_cancel(self, cancel: Call) -> None:
        """A success does not count any more; legal only of a claim that had lost its lease."""
        last = self._story.starts[-1] if self._story.starts else None
        if last is None or last.at_ms > cancel.at_ms:
            return
        end = self._story.end_of(last, math.inf)
        if end is None or end.how != SUCCESS or self._lost(last, cancel.at_ms):
            return
        self.found(Kind.AFTER_CANCEL, '"cancelled", and its handler succeeded')

    def _lost(self, start: Start, until_ms: float) -> bool:
        """Whether its claim may have ended without it, by a fault or over its timeout."""
        return self._hit(start, until_ms) is not None or self._overtime(start, until_ms)

    # ---- the row

    def _check_row(self, row: Final) -> None:
        force = self._in_force(math.inf)
        if force and not self._snoozed and not any(w.is_of(row.action_ms) for w in force):
            due_ms = force[-1].action_ms
            self.found(Kind.WRONG, f"the row's action_time is {row.action_ms}, not {due_ms}")
        if row.dead_letter and row.status != "dead":
            self.found(Kind.WRONG, f"the row says {row.status}, and there is a dead letter")

    def _check_attempts(self, row: Final) -> None:
        """Every claim counts one, so each number up to the row's belongs to one start."""
        starts = self._story.starts
        if self._snoozed or self._resets():
            return
        highest = max((start.attempt for start in starts), default=0)
        if row.attempts < highest:
            text = f"the row counts {row.attempts} attempts, and attempt {highest} was started"
            self.found(Kind.STALE, text)
        missing = row.attempts - len({start.attempt for start in starts})
        if missing <= 0:
            return
        ended_ms = starts[-1].at_ms if starts and row.status == "done" else math.inf
        if self._faults.any_within(self._writes[0].action_ms if self._writes else 0, ended_ms):
            self._report.unstarted += missing
        else:
            self.found(Kind.WRONG, f"{missing} of {row.attempts} attempts were never started")

    def _check_done(self, row: Final) -> None:
        successes = [end for end in self._story.ends if end.how == SUCCESS]
        if not successes:
            self.found(Kind.LOST, "the row says done, no handler has done it")
        elif row.token:
            if all(end.token != row.token for end in successes):
                self.found(Kind.STALE, f"done under claim {row.token}, which has not succeeded")
        elif all(end.attempt != row.attempts for end in successes):
            self.found(Kind.STALE, f"done in attempt {row.attempts}, which has not succeeded")

    def _check_cancelled(self) -> None:
        story = self._story
        if any(call.answer in {"cancelled", ""} for call in story.cancels):
            return
        # A cancel whose answer was lost is repeated by the client, and finds what it did itself.
        again = (call for call in story.cancels if call.answer == "already_cancelled")
        if any(self._faults.any_within(call.asked_ms, call.at_ms) for call in again):
            return
        if all(end.how != DROPPED for end in story.ends):
            self.found(Kind.WRONG, "cancelled, but nobody was told so")

    def _check_dead(self, row: Final) -> None:
        story = self._story
        if row.dead_letter is False:
            self.found(Kind.WRONG, "dead without a dead letter")
        if story.starts:
            last = story.starts[-1]
            end = story.end_of(last, math.inf)
            if end is not None and end.how == SUCCESS and not self._lost(last, math.inf):
                self.found(Kind.WRONG, "the row says dead, its handler has succeeded")
        wanted = self._rules.max_attempts.get(self._biz_type)
        if wanted is None or any(end.how == BURIED for end in story.ends):
            return
        since_ms = max((call.asked_ms for call in self._resets()), default=-math.inf)
        failed = sum(end.how == AGAIN and end.at_ms >= since_ms for end in story.ends)
        killed = self._faults.any_within(self._writes[0].action_ms if self._writes else 0, math.inf)
        # One that lost its lease beside others may get more attempts, until it has run alone.
        most = wanted + EXTRA_MAX if killed else wanted
        if not wanted <= row.attempts <= most or (failed != wanted and not killed):
            text = f"dead after {failed} failures and {row.attempts} attempts of {wanted}"
            self.found(Kind.WRONG, text)

    # ---- common

    def _in_force(self, at_ms: float) -> list[_Write]:
        """Those writes of which one has set the action_time that the row has at this time."""
        writes = self._writes
        if len(writes) <= 1:
            return writes
        last_ms = max(
            (w.asked_ms for w in writes if w.sure and w.at_ms <= at_ms), default=-math.inf
        )
        return [w for w in writes if w.asked_ms <= at_ms and w.at_ms >= last_ms]

    def _figures(self, fault: str) -> FaultFigures:
        return self._report.by_fault.setdefault(fault, FaultFigures())


def _writes(story: Story, *, snoozed: bool) -> list[_Write]:
    """All that set or may have set the action_time, by when it was asked."""
    if story.schedules:
        first = story.schedules[0]
        writes = [_Write(first.action_ms, -math.inf, first.at_ms, True, first.asked_ms)]
    elif story.row is not None and not (snoozed or story.moves or story.redrives):
        # Nobody knows what a lost schedule() was told; its row does.
        return [_Write(story.row.action_ms, -math.inf, -math.inf, True, -math.inf)]
    else:
        return []
    for call in story.schedules[1:]:
        writes.append(_Write(call.action_ms, call.asked_ms, math.inf, False, call.asked_ms))
    for call in story.moves:
        if call.answer == "rescheduled":
            writes.append(_Write(call.action_ms, call.asked_ms, call.at_ms, True, call.asked_ms))
        elif not call.answer:
            writes.append(_Write(call.action_ms, call.asked_ms, math.inf, False, call.asked_ms))
    for call in story.redrives:
        if call.answer in {"redriven", ""}:
            sure, at_ms = (True, call.at_ms) if call.answer else (False, math.inf)
            # Due at once: at the time that its client took for the servers'.
            first_ms, last_ms = (
                math.floor(call.asked_ms - CLIENT_OFF_MS),
                call.at_ms + CLIENT_OFF_MS,
            )
            writes.append(_Write(first_ms, call.asked_ms, at_ms, sure, call.asked_ms, last_ms))
    if len(writes) > 2:
        writes.sort(key=lambda write: write.asked_ms)
    return writes
