"""What pauses, limits, priorities, recurring schedules and countdowns promise (ADR 44 to 47, 51), judged as it happens and at the end.

Whoever makes a call says so before the call (what may hold from then on) and after its answer (what holds for sure).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.kernel import Kernel
from tests.simulation.oracle import Oracle, Run, Violation
from toc.domain.countdown import Countdown
from toc.domain.job import Job, Status
from toc.domain.occurrence_keys import KEY_PREFIX, is_chain_key, nominal_ms_of_key
from toc.store.column_types import ms_of_sql_time

PAUSE_BOUND_S = 0.9
"""A pause is in force so long after its answer: `pauses.refresh_s` is at most 0.8 s, and a read takes a moment."""
CLAIM_S = 0.3
"""From the answer of the limits to the claim, where nothing is slow. A rate counts starts at that answer."""
RANK_MS = 4000
"""A job counts as waiting so long after it was due: until then its reminder may be in the topic of all types."""
SAME_MS = (
    300  # by so much the end of a job in its row may differ from the time that its settle went by
)


@dataclass(slots=True)
class LimitsSet:
    """The limits of a type, by what was answered. concurrency: (since when, how many), in their order.

    of_each: what was seen of each business id, if the limits hold for each of them; None: for all together.
    """

    burst: int = 0
    per_s: float = 0.0
    concurrency: list[tuple[float, float]] = field(default_factory=list)
    claims_ms: list[int] = field(default_factory=list)
    going: list[Run] = field(default_factory=list)
    verb: str = "concurrency"
    of_each: dict[int | str, LimitsSet] | None = None

    def of_business(self, biz_id: int | str) -> LimitsSet:
        if self.of_each is None:
            return self
        own = LimitsSet(self.burst, self.per_s, self.concurrency, verb=self.verb)
        return self.of_each.setdefault(biz_id, own)

    def most_at(self, now_s: float) -> float:
        """How many may run at once: the last number that was in force for sure, or a later one."""
        sure = max(
            (at for at, (since_s, _) in enumerate(self.concurrency) if since_s <= now_s),
            default=None,
        )
        return math.inf if sure is None else max(most for _, most in self.concurrency[sure:])


@dataclass(slots=True)
class RankedJobs:
    """The jobs of a type that runs one at a time, by their aged due times (ADR 51)."""

    ageing_ms: int
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of jobs that were scheduled and have not been started: the aged due time; since when they wait."""

    def add_job(self, job_id: int, due_ms: int, priority: int, now_ms: int) -> None:
        """`now_ms`: after the answer of the call."""
        self.waiting[job_id] = due_ms - priority * self.ageing_ms, max(due_ms, now_ms)

    def start_job(self, job_id: int, claim_ms: int) -> list[int]:
        """The jobs that should have been claimed before this one."""
        aged_ms = self.waiting.pop(job_id, (-math.inf, 0))[0]
        return [
            other
            for other, (other_ms, since_ms) in self.waiting.items()
            if other_ms < aged_ms and since_ms + RANK_MS < claim_ms
        ]


@dataclass(slots=True)
class ScheduleSet:
    """A recurring schedule with an end. left_out_to_ms: nominal times up to then may be missing, after a pause."""

    overlap: str
    times_ms: tuple[int, ...]
    left_out_to_ms: int = 0
    job_of: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class CountdownSet:
    """Of one countdown: arrivals whose callers know that they count, and those that may count."""

    wanted: int
    deadline_ms: int
    sure: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    read: tuple[str, ...] | None = None


class VerbOracle:
    """`early_ms`: how early a job may start because of what the clocks are like.

    judged: the verbs whose exact bounds hold under the faults of this run.
    """

    def __init__(
        self, kernel: Kernel, oracle: Oracle, judged: frozenset[str], early_ms: int
    ) -> None:
        self._kernel, self._oracle, self._judged = kernel, oracle, judged
        self._early_ms = early_ms
        self.paused: dict[str, tuple[float, float]] = {}
        """From when to when nothing of a target ("type:NAME", "all") may start."""
        self.let_through: set[int] = set()
        self.limits: dict[str, LimitsSet] = {}
        self.ranked: dict[str, RankedJobs] = {}
        self.schedules: dict[str, ScheduleSet] = {}
        self.countdowns: dict[int, CountdownSet] = {}

    # ---- handlers

    def starts(self, job: Job, run: Run, claim_ms: int, true_ms: int) -> None:
        """A handler starts. claim_ms: when its claim was written, by the true time."""
        self._check_paused(job, run)
        if job.biz_type in self.limits:
            self._check_limits(job, run, claim_ms)
        if job.biz_type in self.ranked:
            self._check_order(job, claim_ms)
        if job.biz_type in self.schedules:
            self._check_nominal_time(job)
        if job.job_id in self.countdowns:
            self._check_fired(job, true_ms)

    def _check_paused(self, job: Job, run: Run) -> None:
        if job.job_id in self.let_through or run.process.name in self._oracle.excused:
            return
        for target in (f"type:{job.biz_type}", "topic:default", "all"):
            from_s, to_s = self.paused.get(target, (math.inf, 0.0))
            if "pause" in self._judged and from_s + PAUSE_BOUND_S < self._kernel.now_s < to_s:
                late_s = self._kernel.now_s - from_s
                raise Violation(
                    "pause",
                    f"job {job.job_id} was started {late_s:.1f} s after {target} was paused",
                )

    def _check_limits(self, job: Job, run: Run, claim_ms: int) -> None:
        limits, now_s = self.limits[job.biz_type].of_business(job.biz_id), self._kernel.now_s
        limits.claims_ms.append(claim_ms)
        limits.going = [
            each
            for each in limits.going
            if not (each.process.dead or each.result) and each.lease_end_s() > now_s
        ]
        limits.going.append(run)
        most = limits.most_at(now_s)
        if limits.verb in self._judged and len(limits.going) > most:
            said = f"{len(limits.going)} jobs of {job.biz_type} run at once, not {most:g}"
            raise Violation("limit", said)

    def _check_order(self, job: Job, claim_ms: int) -> None:
        before = self.ranked[job.biz_type].start_job(job.job_id, claim_ms)
        if before and "priority" in self._judged:
            raise Violation("priority", f"job {job.job_id} was started before {before}")

    def _check_nominal_time(self, job: Job) -> None:
        nominal_ms = nominal_ms_of_key(job.dedup_key)
        schedule = self.schedules[job.biz_type]
        if nominal_ms not in schedule.times_ms:
            raise Violation("recurring", f"job {job.job_id} is for {nominal_ms}, which is no time")
        other = schedule.job_of.setdefault(nominal_ms, job.job_id)
        if other != job.job_id:
            both = f"jobs {other} and {job.job_id}"
            raise Violation("recurring", f"{both} of {job.biz_type} are both for {nominal_ms}")

    def _check_fired(self, job: Job, true_ms: int) -> None:
        known = self.countdowns[job.job_id]
        if len(known.maybe) < known.wanted and true_ms + self._early_ms < known.deadline_ms:
            raise Violation("countdown", f"job {job.job_id} fired with {len(known.maybe)} arrivals")

    def reads(self, job: Job, found: Countdown | None) -> None:
        """The handler of a countdown has read how far it is."""
        known, said = self.countdowns.get(job.job_id), f"job {job.job_id}"
        if known is None:  # `countdown` has not answered
            return
        if found is None:
            raise Violation("countdown", f"{said} has no count")
        read = set(found.arrival_ids)
        if not known.sure <= read <= known.maybe:
            lost, strange = sorted(known.sure - read), sorted(read - known.maybe)
            raise Violation("countdown", f"{said}: its handler misses {lost}, and reads {strange}")
        if known.read not in (None, found.arrival_ids):
            raise Violation("countdown", f"{said}: a later attempt reads other arrivals")
        if (found.by == "arrivals") != (len(read) >= known.wanted):
            raise Violation("countdown", f"{said} fired by {found.by} with {len(read)} arrivals")
        known.read = found.arrival_ids

    # ---- clients

    def counts(self, job_id: int, arrival_id: str) -> None:
        """An arrival was answered as counted."""
        known = self.countdowns[job_id]
        known.sure.add(arrival_id)
        if known.read is not None and arrival_id not in known.read:
            raise Violation("countdown", f"job {job_id}: {arrival_id} counts, and was not read")

    # ---- the end

    def lost_times(
        self, looks: list[sqlite3.Connection], tables: Callable[[int], list[str]]
    ) -> str:
        """The nominal times that have no job and no reason for that; "" when there are none.

        Raises Violation for two jobs of one nominal time.
        """
        lost = ""
        for name, schedule in self.schedules.items():
            rows = [
                row
                for index, look in enumerate(looks)
                for table in tables(index)
                for row in look.execute(
                    f"SELECT job_id, dedup_key, status, gmt_modified FROM {table} "
                    "WHERE biz_text = ? AND dedup_key LIKE ?",
                    (name, f"{KEY_PREFIX}%"),
                )
            ]
            lost += self._lost_times(name, schedule, rows)
        return lost

    def _lost_times(
        self, name: str, schedule: ScheduleSet, rows: list[tuple[int, str, int, str]]
    ) -> str:
        ended_ms: dict[int, float] = {}
        live = [row for row in rows if row[2] < Status.DONE and is_chain_key(row[1])]
        if len(live) > 1:
            raise Violation("recurring", f"{len(live)} occurrences of {name} live at a time")
        for job_id, key, status, modified in rows:
            nominal_ms = nominal_ms_of_key(key)
            assert nominal_ms is not None
            is_cancelled = status == Status.CANCELLED
            if nominal_ms in ended_ms and not is_cancelled and nominal_ms > schedule.left_out_to_ms:
                raise Violation("recurring", f"{name} has two jobs for {nominal_ms}: {job_id}")
            end_ms = math.inf if status < Status.DONE else ms_of_sql_time(modified)
            ended_ms[nominal_ms] = max(ended_ms.get(nominal_ms, 0), end_ms)
        lost = [
            at
            for at in schedule.times_ms
            if at not in ended_ms and at > schedule.left_out_to_ms
            if not self._is_left_out(at, schedule, ended_ms)
        ]
        return f"{name} ({schedule.overlap}) has no job for {lost}; " if lost else ""

    def _is_left_out(self, at_ms: int, schedule: ScheduleSet, ended_ms: dict[int, float]) -> bool:
        """Whether the rule of the schedule leaves out a nominal time."""
        if schedule.overlap == "skip":
            return any(one < at_ms <= end + SAME_MS for one, end in ended_ms.items())
        if schedule.overlap == "cancel-other":
            return any(one > at_ms for one in ended_ms)
        return False

    def check_end(self) -> None:
        """Raises Violation for a rate that was exceeded in any window."""
        for name, limits in self.limits.items():
            times = sorted(limits.claims_ms)
            for first, from_ms in enumerate(times):
                for last in range(first, len(times)):
                    seconds = (times[last] - from_ms) / 1000 + CLAIM_S
                    most = limits.burst + seconds * limits.per_s
                    if limits.burst and "rate" in self._judged and last - first + 1 > most + 1e-6:
                        said = f"{last - first + 1} jobs of {name} started in {seconds:.2f} s"
                        raise Violation("limit", f"{said}: {most:.1f} are allowed")


def claim_ms_of(sql_time: str | None, ahead_ms: int) -> int:
    """The true time of a claim, by a database whose clock is ahead by so much."""
    return 0 if sql_time is None else ms_of_sql_time(sql_time) - ahead_ms


def times_of(start_ms: int, end_ms: int, every_s: int) -> tuple[int, ...]:
    """The nominal times of a schedule that counts from `start_ms`."""
    return tuple(range(start_ms, end_ms + 1, every_s * 1000))
