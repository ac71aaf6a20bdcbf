"""The verdict on one job: its entries compared with toc's promises. Pure.

A call whose answer was lost ("") may have had effect or not, at any moment since the call was made: both are
legal. So there may be several action_times, each of which may be the one in force. A second Scheduled of one
id is such a call too: under a dedup key, schedule() may have replaced the job's time or kept it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from toc.domain.claim_tokens import remove_alone_mark
from toc.testing.faults import FaultTimeline, LostLeases
from toc.testing.job_entries import (
    AGAIN,
    BURIED,
    DROPPED,
    SNOOZED,
    STOPPED,
    SUCCESS,
    ClientCall,
    FinalRow,
    HandlerStart,
    JobEntries,
)
from toc.testing.report import UNEXPLAINED, FaultEffects, Kind, Lateness, Problem, Report
from toc.worker.lease_recovery import EXTRA_MAX

OVERTIME = "over its timeout"
# How far a client's estimate of the servers' time may be off, after a slow answer.
CLIENT_OFF_MS = 5000.0
_CANCELLED = ("cancelled", "already_cancelled")


@dataclass(frozen=True, slots=True)
class Rules:
    """Facts about a run that its history does not have.

    tolerance_ms: how far handlers' and clients' clocks may differ from the servers' (default 0).

    early_ms: by fault name, how long before its time a job may start while that fault is on: up to a limit,
    toc trusts a clock that has stepped ahead.

    late_ms: a start later than this counts as late when a fault's recovery is measured (default 1000).

    linger_ms: how long after its end a fault still explains a duplicate (default 0).

    max_attempts: by biz_type; a dead job of such a type must have used up so many attempts.

    timeouts_ms: by biz_type, how long a claim holds: a start after this time is legal if the run before had
    not ended, and a fault explains a start only if the fault came within this time.

    lease_ms: how long a claim holds whose run has not begun (default: for ever). On a slow machine a process
    may give such a claim back too late: its attempt counts, and was never started.

    held_types: biz_types whose jobs wait on purpose (paused, limited): their lateness is in `by_type` only.

    problems_max: how many problems of each kind are kept in words (default 100); all problems are counted.
    """

    tolerance_ms: float = 0.0
    early_ms: Mapping[str, float] = field(default_factory=dict)
    late_ms: float = 1000.0
    linger_ms: float = 0.0
    max_attempts: Mapping[str, int] = field(default_factory=dict)
    timeouts_ms: Mapping[str, float] = field(default_factory=dict)
    lease_ms: float = math.inf
    held_types: frozenset[str] = frozenset()
    problems_max: int = 100


class _ActionTimeWrite(NamedTuple):
    """A call that set action_time between `asked_ms` and `at_ms`; if not `certain`, it may have failed."""

    action_ms: int
    asked_ms: float
    at_ms: float
    certain: bool
    since_ms: float  # when the call was made: lateness never counts from an earlier time
    # Only a redrive has this time: its action_time is any moment from action_ms to until_ms.
    until_ms: float = -math.inf

    def may_have_set(self, action_ms: int) -> bool:
        """Whether the call may have set this action_time."""
        return action_ms == self.action_ms or self.action_ms <= action_ms <= self.until_ms


class JobJudge:
    """Judges one job after the other, and adds the results to `report`.

    `strangers_are_legal`: jobs that no answered call scheduled are no problem.
    """

    def __init__(
        self,
        rules: Rules,
        faults: FaultTimeline,
        lost_leases: LostLeases,
        *,
        strangers_are_legal: bool,
    ) -> None:
        self.report = Report()
        self._rules, self._faults, self._lost_leases = rules, faults, lost_leases
        self._strangers_are_legal = strangers_are_legal

    def judge_job(self, job_id: int, job: JobEntries) -> None:
        job.sort_by_time()
        case = _JobCheck(self._rules, self._faults, self._lost_leases, self.report, job_id, job)
        if not job.schedules:
            self.report.strangers += 1
            if not self._strangers_are_legal:
                case.add_problem(Kind.WRONG, "the job exists, and no client scheduled it")
                return
        case.check_job()


class _JobCheck:
    """Checks the entries of one job."""

    def __init__(
        self,
        rules: Rules,
        faults: FaultTimeline,
        lost_leases: LostLeases,
        report: Report,
        job_id: int,
        job: JobEntries,
    ) -> None:
        self._rules, self._faults, self._report = rules, faults, report
        self._lost_leases = lost_leases
        self._job_id, self._job = job_id, job
        self._biz_type = job.biz_type or (job.starts[0].biz_type if job.starts else "")
        self._snoozed = any(end.how == SNOOZED for end in job.ends)
        self._writes = _list_calls_that_set_action_time(job, snoozed=self._snoozed)

    def add_problem(self, kind: Kind, text: str) -> None:
        report = self._report
        report.problems_by_kind[kind] += 1
        if report.problems_by_kind[kind] <= self._rules.problems_max:
            report.problems.append(Problem(kind, self._job_id, text))
        if self._writes and self._faults.all:
            moment = self._faults.fault_state_at(self._writes[-1].action_ms)
            for name in {*moment.during, *(name for name, _ in moment.after)}:
                self._effects_of_fault(name).problems[kind] += 1

    def check_job(self) -> None:
        report, job = self._report, self._job
        report.scheduled += bool(job.schedules)
        if job.starts:
            report.starts += len(job.starts)
            self._check_starts()
        if job.cancels or job.moves or job.redrives or job.discards:
            self._count_client_calls()
            self._check_call_answers()
        row = job.row
        if row is None:
            self.add_problem(Kind.LOST, "was scheduled, and has no row")
            return
        report.by_status[row.status] += 1
        self._check_final_row(row)
        self._check_attempt_count(row)
        if row.status == "done":
            self._check_done_row(row)
        elif row.status == "cancelled":
            self._check_cancelled_row(row)
        elif row.status == "dead":
            self._check_dead_row(row)
        else:
            self.add_problem(Kind.LOST, f"has not ended, it is {row.status}")

    # ---- starts

    def _check_starts(self) -> None:
        job, tolerance_ms = self._job, self._rules.tolerance_ms
        cancelled_ms = min(
            (c.at_ms for c in (*job.cancels, *job.discards) if c.answer in _CANCELLED),
            default=math.inf,
        )
        before: HandlerStart | None = None
        for start in job.starts:
            force = self._action_times_in_force(start.at_ms)
            due_ms = min((w.action_ms for w in force), default=-math.inf)
            if start.at_ms + tolerance_ms < due_ms - self._allowed_early_ms(start.at_ms):
                self._add_early_start_problem(start, due_ms)
            if before is not None:
                self._check_repeated_start(before, start)
            elif force:
                self._measure_lateness(start, max(max(w.action_ms, w.since_ms) for w in force))
            if start.at_ms > cancelled_ms + tolerance_ms:
                after_ms = start.at_ms - cancelled_ms
                self.add_problem(Kind.AFTER_CANCEL, f'started {after_ms:.1f} ms after "cancelled"')
            if start.biz_type != self._biz_type:
                self.add_problem(
                    Kind.WRONG, f"a handler of {start.biz_type} got a {self._biz_type}"
                )
            before = start

    def _allowed_early_ms(self, at_ms: float) -> float:
        """How early a start may be because of the faults that are on."""
        allowed = self._rules.early_ms
        if not allowed or not self._faults.all:
            return 0.0
        return max(
            (allowed.get(name, 0.0) for name in self._faults.fault_state_at(at_ms).during),
            default=0.0,
        )

    def _add_early_start_problem(self, start: HandlerStart, due_ms: float) -> None:
        early_ms = due_ms - start.at_ms
        now_ms = start.at_ms + self._rules.tolerance_ms
        old = [w for w in self._writes if w.asked_ms <= now_ms and w.action_ms <= now_ms]
        if old:
            text = f"started at its old time, {early_ms:.1f} ms before the one in force"
            self.add_problem(Kind.OLD_TIME, text)
        else:
            self.add_problem(Kind.EARLY, f"started {early_ms:.1f} ms before its time")

    def _measure_lateness(self, start: HandlerStart, due_ms: float) -> None:
        report, late_ms = self._report, start.at_ms - due_ms
        by_type = report.by_type.get(self._biz_type)
        if by_type is None:
            by_type = report.by_type[self._biz_type] = Lateness()
        by_type.add(late_ms)
        if not self._faults.all or self._biz_type in self._rules.held_types:
            return
        moment = self._faults.fault_state_at(due_ms)
        for name in moment.during:
            self._effects_of_fault(name).during.add(late_ms)
        for name, _ in moment.after:
            if name not in moment.during:
                self._effects_of_fault(name).after.add(late_ms)
        if late_ms > self._rules.late_ms:
            for name, ended_ms in self._faults.fault_state_at(start.at_ms).after:
                figures = self._effects_of_fault(name)
                figures.recovery_ms = max(figures.recovery_ms, start.at_ms - ended_ms)

    def _check_repeated_start(self, before: HandlerStart, start: HandlerStart) -> None:
        outcome = self._job.find_end_of_start(before, start.at_ms)
        if outcome is not None and outcome.how != SUCCESS:
            self._report.retries += 1
        else:
            why = "that one had succeeded" if outcome is not None else "that one had not ended"
            reason = self._reason_of_duplicate(before, start)
            self._report.duplicates[reason] += 1
            if reason == UNEXPLAINED:
                self.add_problem(Kind.DUPLICATE, f"started after a start, and {why}")
            elif reason != OVERTIME:
                self._effects_of_fault(reason).duplicates += 1
        if start.token == before.token != "":
            self.add_problem(Kind.STALE, f"claim {start.token} was started twice")
        elif outcome is not None and outcome.how == STOPPED and start.attempt == before.attempt:
            pass  # the attempt of the stopped run was taken back
        elif start.attempt <= before.attempt and not self._may_have_reset_attempts(
            before.at_ms, start.at_ms
        ):
            self._check_attempt_rises(before, start)

    def _check_attempt_rises(self, before: HandlerStart, start: HandlerStart) -> None:
        """Each claim counts one more attempt, so the numbers rise.

        The exception: a start that a fault delayed may belong to an older claim.
        """
        belated = self._injected_fault_before_start(start)
        if start.attempt == before.attempt or belated is None:
            text = f"attempt {start.attempt} was started after attempt {before.attempt}"
            self.add_problem(
                Kind.STALE, f"{text}: a claim's count was lost, or a stale claim was started"
            )

    def _reason_of_duplicate(self, before: HandlerStart, start: HandlerStart) -> str:
        """Why a job was started again although the start before had not failed."""
        if start.token == before.token != "":
            return UNEXPLAINED
        fault = self._injected_fault_during_run(before, start.at_ms)
        if fault is None and start.attempt < before.attempt:
            # The older claim was started after the newer one.
            fault = self._injected_fault_before_start(start)
        if fault is None and self._ran_over_timeout(before, start.at_ms):
            return OVERTIME
        return fault or UNEXPLAINED

    @property
    def _timeout_ms(self) -> float:
        return self._rules.timeouts_ms.get(self._biz_type, math.inf)

    def _injected_fault_during_run(self, start: HandlerStart, until_ms: float) -> str | None:
        """The name of an injected fault that may have kept a run from ending, or its end from being recorded.

        Only faults before `until_ms` and within the timeout of the job's type count.
        """
        to_ms = min(until_ms, start.at_ms + self._timeout_ms)
        return self._faults.find_explaining_fault(start.process, start.at_ms, to_ms)

    def _injected_fault_before_start(self, start: HandlerStart) -> str | None:
        """The name of an injected fault that may have delayed the start of a run after its claim."""
        return self._faults.find_explaining_fault(
            start.process, start.at_ms - self._timeout_ms, start.at_ms
        )

    def _ran_over_timeout(self, start: HandlerStart, until_ms: float) -> bool:
        """Whether the run had not ended within its type's timeout, so that its lease was over."""
        in_time = self._job.find_end_of_start(start, start.at_ms + self._timeout_ms)
        return until_ms - start.at_ms >= self._timeout_ms and in_time is None

    def _may_have_reset_attempts(self, from_ms: float, to_ms: float) -> bool:
        """Whether the count may have been reset, or lowered by a snooze, between these times."""
        return self._snoozed or any(
            call.asked_ms <= to_ms and (call.at_ms >= from_ms or not call.answer)
            for call in self._calls_that_reset_attempts()
        )

    def _calls_that_reset_attempts(self) -> list[ClientCall]:
        job = self._job
        calls = [c for c in job.moves if c.answer in {"rescheduled", ""}]
        calls += [c for c in job.redrives if c.answer in {"redriven", ""}]
        return calls + job.schedules[1:]

    # ---- answers

    def _count_client_calls(self) -> None:
        report, job = self._report, self._job
        report.rescheduled += sum(call.answer == "rescheduled" for call in job.moves)
        report.redriven += sum(call.answer == "redriven" for call in job.redrives)
        report.discarded += sum(call.answer == "cancelled" for call in job.discards)
        report.cancelled_too_late += sum(call.answer in {"running", "done"} for call in job.cancels)
        report.unanswered += sum(
            not call.answer
            for calls in (job.cancels, job.moves, job.redrives, job.discards)
            for call in calls
        )

    def _check_call_answers(self) -> None:
        job, row = self._job, self._job.row
        since_ms = job.schedules[0].at_ms if job.schedules else math.inf
        for cancel in job.cancels:
            if cancel.answer == "cancelled":
                self._check_success_before_cancel(cancel)
                break
        cancelled = sum(call.answer == "cancelled" for call in (*job.cancels, *job.discards))
        if cancelled and row is not None and row.status != "cancelled":
            self.add_problem(Kind.WRONG, f"cancelled, but the row says {row.status}")
        if cancelled > 1:
            self.add_problem(Kind.WRONG, 'more than one call has answered "cancelled"')
        for call in (*job.cancels, *job.moves, *job.redrives, *job.discards):
            if call.answer == "unknown" and call.asked_ms >= since_ms and row is not None:
                self.add_problem(Kind.WRONG, 'answered "unknown" after schedule() had returned it')
            elif call.answer == "done" and row is not None and row.status != "done":
                self.add_problem(Kind.WRONG, f'answered "done", but the row says {row.status}')

    def _check_success_before_cancel(self, cancel: ClientCall) -> None:
        """Adds a problem if the last run before `cancel` succeeded, unless its claim had lost its lease."""
        last = self._job.starts[-1] if self._job.starts else None
        if last is None or last.at_ms > cancel.at_ms:
            return
        end = self._job.find_end_of_start(last, math.inf)
        if end is None or end.how != SUCCESS or self._may_have_lost_lease(last, cancel.at_ms):
            return
        self.add_problem(Kind.AFTER_CANCEL, '"cancelled", and its handler succeeded')

    def _may_have_lost_lease(self, start: HandlerStart, until_ms: float) -> bool:
        """Whether the claim of a run may have ended before the run, by a fault or over its timeout."""
        fault = self._injected_fault_during_run(start, until_ms)
        return fault is not None or self._ran_over_timeout(start, until_ms)

    # ---- the row

    def _check_final_row(self, row: FinalRow) -> None:
        force = self._action_times_in_force(math.inf)
        if force and not self._snoozed and not any(w.may_have_set(row.action_ms) for w in force):
            due_ms = force[-1].action_ms
            self.add_problem(Kind.WRONG, f"the row's action_time is {row.action_ms}, not {due_ms}")
        if row.dead_letter and row.status != "dead":
            self.add_problem(Kind.WRONG, f"the row says {row.status}, and there is a dead letter")

    def _check_attempt_count(self, row: FinalRow) -> None:
        """Each claim counts one attempt, so each number up to the row's `attempts` belongs to one start.

        The exceptions: if a process stops a run, the attempt of this run is taken back; an attempt of which
        no consumer has learned, by a fault or because the answer with the lease was lost; and one whose lease
        was over before its run began: then the last start is late by at least that lease.
        """
        stopped = {(end.token, end.attempt) for end in self._job.ends if end.how == STOPPED}
        starts = self._job.starts
        if self._snoozed or self._calls_that_reset_attempts():
            return
        counted = [s.attempt for s in starts if (s.token, s.attempt) not in stopped]
        highest = max(counted, default=0)
        if row.attempts < highest:
            text = f"the row counts {row.attempts} attempts, and attempt {highest} was started"
            self.add_problem(Kind.STALE, text)
        missing = row.attempts - len({start.attempt for start in starts})
        if missing <= 0:
            return
        ended_ms = starts[-1].at_ms if starts and row.status == "done" else math.inf
        due_ms = self._writes[0].action_ms if self._writes else 0
        late_ms = starts[-1].at_ms - due_ms if starts else 0.0
        if (
            self._faults.has_fault_within(due_ms, ended_ms)
            or self._lost_leases.were_possible_within(self._biz_type, due_ms, ended_ms)
            or late_ms >= missing * self._rules.lease_ms
        ):
            self._report.unstarted += missing
        else:
            self.add_problem(Kind.WRONG, f"{missing} of {row.attempts} attempts were never started")

    def _check_done_row(self, row: FinalRow) -> None:
        successes = [end for end in self._job.ends if end.how == SUCCESS]
        if not successes:
            self.add_problem(Kind.LOST, "the row says done, but no handler has succeeded")
        elif row.token:
            # toc may have removed ":alone" from the row's token while the handler ran.
            token = remove_alone_mark(row.token)
            if all(remove_alone_mark(end.token) != token for end in successes):
                self.add_problem(
                    Kind.STALE, f"done under claim {row.token}, which has not succeeded"
                )
        elif all(end.attempt != row.attempts for end in successes):
            self.add_problem(Kind.STALE, f"done in attempt {row.attempts}, which has not succeeded")

    def _check_cancelled_row(self, row: FinalRow) -> None:
        job = self._job
        calls = *job.cancels, *job.discards
        if any(call.answer == "cancelled" for call in job.discards):
            self._check_death(row)  # the row keeps the attempts with which the job died
        if any(call.answer in {"cancelled", ""} for call in calls):
            return
        # A client repeats a call whose answer was lost, and finds the job that it cancelled itself.
        again = (call for call in calls if call.answer == "already_cancelled")
        if any(self._faults.has_fault_within(call.asked_ms, call.at_ms) for call in again):
            return
        if all(end.how != DROPPED for end in job.ends):
            self.add_problem(Kind.WRONG, "the row says cancelled, but no call was answered so")

    def _check_dead_row(self, row: FinalRow) -> None:
        if row.dead_letter is False:
            self.add_problem(Kind.WRONG, "dead without a dead letter")
        self._check_death(row)

    def _check_death(self, row: FinalRow) -> None:
        """Checks that the job had reason to die. `row`: as the death left it."""
        job = self._job
        if job.starts:
            last = job.starts[-1]
            end = job.find_end_of_start(last, math.inf)
            if (
                end is not None
                and end.how == SUCCESS
                and not self._may_have_lost_lease(last, math.inf)
            ):
                self.add_problem(Kind.WRONG, "the job has died, and its handler has succeeded")
        wanted = self._rules.max_attempts.get(self._biz_type)
        if wanted is None or any(end.how == BURIED for end in job.ends):
            return
        since_ms = max(
            (call.asked_ms for call in self._calls_that_reset_attempts()), default=-math.inf
        )
        failed = sum(end.how == AGAIN and end.at_ms >= since_ms for end in job.ends)
        killed = self._faults.has_fault_within(
            self._writes[0].action_ms if self._writes else 0, math.inf
        )
        # A job that lost its lease while other jobs ran may get more attempts, until it has run alone.
        most = wanted + EXTRA_MAX if killed else wanted
        if not wanted <= row.attempts <= most or (failed != wanted and not killed):
            text = f"dead after {failed} failures and {row.attempts} attempts of {wanted}"
            self.add_problem(Kind.WRONG, text)

    # ---- common

    def _action_times_in_force(self, at_ms: float) -> list[_ActionTimeWrite]:
        """The writes that may have set the action_time that the row has at `at_ms`."""
        writes = self._writes
        if len(writes) <= 1:
            return writes
        last_ms = max(
            (w.asked_ms for w in writes if w.certain and w.at_ms <= at_ms), default=-math.inf
        )
        return [w for w in writes if w.asked_ms <= at_ms and w.at_ms >= last_ms]

    def _effects_of_fault(self, fault: str) -> FaultEffects:
        return self._report.by_fault.setdefault(fault, FaultEffects())


def _list_calls_that_set_action_time(job: JobEntries, *, snoozed: bool) -> list[_ActionTimeWrite]:
    """The calls that set or may have set the action_time, in the order in which they were made."""
    if job.schedules:
        first = job.schedules[0]
        writes = [_ActionTimeWrite(first.action_ms, -math.inf, first.at_ms, True, first.asked_ms)]
    elif job.row is not None and not (snoozed or job.moves or job.redrives):
        # The call that scheduled the job is unknown; the job's row has the action_time.
        return [_ActionTimeWrite(job.row.action_ms, -math.inf, -math.inf, True, -math.inf)]
    else:
        return []
    for call in job.schedules[1:]:
        writes.append(
            _ActionTimeWrite(call.action_ms, call.asked_ms, math.inf, False, call.asked_ms)
        )
    for call in job.moves:
        if call.answer == "rescheduled":
            writes.append(
                _ActionTimeWrite(call.action_ms, call.asked_ms, call.at_ms, True, call.asked_ms)
            )
        elif not call.answer:
            writes.append(
                _ActionTimeWrite(call.action_ms, call.asked_ms, math.inf, False, call.asked_ms)
            )
    for call in job.redrives:
        if call.answer in {"redriven", ""}:
            certain, at_ms = (True, call.at_ms) if call.answer else (False, math.inf)
            # The job is due at once, at the time that the client estimated as the servers' time.
            first_ms, last_ms = (
                math.floor(call.asked_ms - CLIENT_OFF_MS),
                call.at_ms + CLIENT_OFF_MS,
            )
            writes.append(
                _ActionTimeWrite(first_ms, call.asked_ms, at_ms, certain, call.asked_ms, last_ms)
            )
    if len(writes) > 2:
        writes.sort(key=lambda write: write.asked_ms)
    return writes
