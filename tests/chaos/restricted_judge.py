"""Says whether limits, pauses and recurring schedules held what ADR 44 to 46 promise. Pure.

All times are recorded around the calls, by one clock. What the table in ADR 45 allows while Redis is away or
loses data is counted as explained, and bounded too.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.observations import BLIND_MS
from tests.chaos.restricted import LIMITS, PAUSED, RECURRING, SCHEDULES, Limit, Schedule
from tests.chaos.restricted_history import (
    Admission,
    Attempt,
    Occurrence,
    PauseSpan,
    Seen,
    Span,
    covering,
)
from toc.testing import Fault

LINGER_MS = 5000.0  # after a fault: until all nodes go by Redis again, and have named their holders
SHARE_LINGER_MS = 2000.0
MARGIN_MS = 3000.0  # from a look at the known pauses to a handler's first line, on a busy machine
WINDOW_MS = 120_000.0  # longer windows of a rate are not looked at
EXACT = 0.06  # starts: the limits' clock counts whole ms
SHOWN = 20  # problems of one check that are told in words, and starts of one problem
HOLD_ENDED = "a hold ended before its handler"


@dataclass(slots=True)
class Finding:
    """What one check has found. `explained`: by reason, how often a bound was passed as ADR 45 allows."""

    name: str
    count: int = 0
    worst: str = ""
    problems: list[str] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)

    def add_problem(self, text: str) -> None:
        if len(self.problems) < SHOWN:
            self.problems.append(f"{self.name}: {text}")

    def __str__(self) -> str:
        reasons = ", ".join(f"{name} {n}" for name, n in sorted(self.explained.items()))
        return f"{self.name}: {self.count:,}; {self.worst}" + (
            f"; over the plain bound, explained: {reasons}" if reasons else ""
        )


class Excuse(NamedTuple):
    """For a while nodes may go by their shares, or Redis has lost data. `more`: times the limit on top."""

    name: str
    from_ms: float
    to_ms: float
    more: int


@dataclass(frozen=True, slots=True)
class Breakage:
    """Which faults, by name, concern limits and schedules. `workers`: how many nodes there are.

    redis: what breaks Redis for a worker. members: what makes the roster of nodes wrong. clocks: what moves
    a server's clock. hold_ms: how long a place is held after its process was last heard of.
    """

    redis: Collection[str]
    members: Collection[str]
    clocks: Collection[str]
    workers: int
    hold_ms: float

    def excuses(self, faults: Sequence[Fault], shares: Iterable[Span]) -> list[Excuse]:
        """Without ZooKeeper, or while nodes come and go, each node may take the whole limit."""

        def more(from_ms: float, to_ms: float) -> int:
            wrong = any(
                f.name in self.members and f.from_ms <= to_ms and f.to_ms + LINGER_MS >= from_ms
                for f in faults
            )
            return self.workers if wrong else 1

        found = [
            Excuse(f.name, f.from_ms, f.to_ms + LINGER_MS, more(f.from_ms, f.to_ms + LINGER_MS))
            for f in faults
            if f.name in self.redis
        ]
        for from_ms, to_ms in merged(shares, SHARE_LINGER_MS):
            found.append(Excuse("a node's share", from_ms, to_ms, more(from_ms, to_ms)))
        return found


def judge(seen: Seen, breakage: Breakage) -> list[Finding]:
    """All checks on one run."""
    found, runs = [], {name: Finding(f"{name}, admitted") for name in LIMITS}
    admitted = {
        name: admitted_runs(seen.of_type(name), seen, breakage.hold_ms, runs[name])
        for name in LIMITS
    }
    unknown = [span for some in admitted.values() for run in some if (span := run.unknown_span)]
    excuses = breakage.excuses(seen.faults, [*seen.shares, *unknown])
    for name, limit in LIMITS.items():
        found.append(runs[name])
        if limit.concurrency is not None:
            shops = seen.shops if limit.per_shop else {}
            found.append(check_concurrency(name, limit, by_shop(admitted[name], shops), excuses))
        if limit.rate_per_s is not None:
            found.append(check_rate(name, limit, admitted[name], excuses))
    pauses = [
        span for span in seen.pauses
        if not (span.by_clock and _hit(seen.faults, breakage.clocks, span.answered_ms, span.to_ms))
    ]  # fmt: skip
    found.append(check_pauses(seen.of_type(PAUSED), pauses, seen.blind))
    found.append(
        check_recurring(SCHEDULES, seen.occurrences, seen.of_type(RECURRING), seen.nominal)
    )
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """An attempt of a limited type. It counts for the concurrency until `counts_until_ms`.

    `unknown_span`: it was admitted by a share, and Redis did not know of it for so long.
    """

    attempt: Attempt
    admission: Admission
    counts_until_ms: float
    unknown_span: Span | None = None

    def text(self, at_ms: float) -> str:
        """All times as ms after `at_ms`."""
        one, by = self.attempt, " by its share" if self.admission.by_share else ""
        return (
            f"job {one.job_id} of {one.process} admitted{by} {self.admission.from_ms - at_ms:+.0f} to"
            f" {self.admission.to_ms - at_ms:+.0f}, ran {one.start_ms - at_ms:+.0f} to"
            f" {one.end_ms - at_ms:+.0f}, counts until {self.counts_until_ms - at_ms:+.0f}"
        )


def admitted_runs(
    attempts: Sequence[Attempt], seen: Seen, hold_ms: float, found: Finding
) -> list[Run]:
    """The attempts with their admissions; one without an admission is a problem.

    An attempt counts for the concurrency until it ends, or until its hold may have ended: `hold_ms` after its
    process has asked for it, or has named it to Redis without such a gap; when a fault hits its process; when
    its job is admitted again, because its lease is over. The last row of the table in ADR 45 allows one more
    handler for each that goes on nevertheless.
    """
    runs, later = list[Run](), dict[int, float]()  # by job: when its next attempt was admitted
    found.count, found.worst = len(attempts), "each by a call of its limits"
    ordered = sorted(attempts, key=lambda each: each.start_ms)
    for attempt in reversed(ordered):
        admission = seen.taken.get(attempt.holder)
        if admission is None:
            found.add_problem(
                f"job {attempt.job_id} of {attempt.process} was started at {attempt.start_ms:.0f}"
                " without being admitted"
            )
            continue
        until_ms = admission.from_ms + hold_ms
        named = sorted(seen.named.get(attempt.holder, ()))
        for span in named:
            if span.to_ms > until_ms:
                break
            until_ms = max(until_ms, span.from_ms + hold_ms)
        lost = [
            fault.from_ms
            for fault in seen.faults
            if attempt.process in fault.processes
            and fault.from_ms <= attempt.end_ms
            and fault.to_ms >= admission.from_ms
        ]
        ends = [attempt.end_ms, until_ms, later.get(attempt.job_id, math.inf), *lost]
        later[attempt.job_id] = admission.from_ms
        unknown = None
        if admission.by_share:
            known_ms = named[0].to_ms if named else attempt.end_ms
            unknown = Span(admission.from_ms, max(admission.to_ms, known_ms))
        runs.append(Run(attempt, admission, min(ends), unknown))
    return runs[::-1]


def by_shop(runs: Iterable[Run], shops: Mapping[int, object]) -> list[list[Run]]:
    """The attempts of each shop."""
    found: dict[object, list[Run]] = {}
    for run in runs:
        found.setdefault(shops.get(run.attempt.job_id), []).append(run)
    return list(found.values())


def check_concurrency(
    name: str, limit: Limit, groups: Iterable[Sequence[Run]], excuses: Sequence[Excuse]
) -> Finding:
    """Never more than `concurrency` handlers of a group at once that count."""
    found, most = Finding(f"{name}, at once"), limit.concurrency or 0
    peak = 0
    for runs in groups:
        found.count += len(runs)
        going: list[Run] = []
        for run in runs:
            at_ms = run.attempt.start_ms
            going = [*(each for each in going if each.attempt.end_ms > at_ms), run]
            counted = [each for each in going if each.counts_until_ms > at_ms]
            if run.counts_until_ms <= at_ms < run.attempt.end_ms:
                found.explained[HOLD_ENDED] += 1
                continue
            peak = max(peak, len(counted))
            if len(going) > most >= len(counted):
                found.explained[HOLD_ENDED] += 1
            if len(counted) <= most:
                continue
            # One of them was admitted too much: the last one, or one that Redis did not know then.
            last = max((each.admission for each in counted), key=lambda each: each.from_ms)
            over = [e for e in excuses if e.from_ms <= last.to_ms and last.from_ms < e.to_ms]
            allowed = most * (1 + max((e.more for e in over), default=0))
            if len(counted) > allowed:
                each_run = "; ".join(each.text(at_ms) for each in counted[-SHOWN:])
                found.add_problem(f"{len(counted)} of {most} at once at {at_ms:.0f}: {each_run}")
            else:
                found.explained[over[0].name] += 1
    found.worst = f"at most {peak} of {most} at once"
    return found


def check_rate(name: str, limit: Limit, runs: Iterable[Run], excuses: Sequence[Excuse]) -> Finding:
    """In no time t more than burst + rate x t starts.

    A start was admitted at some moment of a known span; only a start whose span lies within a window counts
    for the window.
    """
    found = Finding(f"{name}, rate")
    runs = sorted(runs, key=lambda run: run.admission.to_ms)
    found.count = len(runs)
    ends = [run.admission.to_ms for run in runs]
    rate_per_ms = (limit.rate_per_s or 0) / 1000
    fullest = 0.0
    for from_ms in sorted({run.admission.from_ms for run in runs}):
        within: list[Run] = []
        first, last = bisect_left(ends, from_ms), bisect_right(ends, from_ms + WINDOW_MS)
        for run in runs[first:last]:
            to_ms = run.admission.to_ms
            if run.admission.from_ms < from_ms:
                continue
            within.append(run)
            count, bound = len(within), limit.burst + rate_per_ms * (to_ms - from_ms) + EXACT
            fullest = max(fullest, count / bound)
            if count <= bound:
                continue
            more, reason = _allowed_more(limit, from_ms, to_ms, excuses)
            if count <= bound + more:
                found.explained[reason] += 1
            else:
                each_run = "; ".join(each.text(from_ms) for each in within[-SHOWN:])
                found.add_problem(
                    f"{count} starts in {to_ms - from_ms:.1f} ms from {from_ms:.0f}, not"
                    f" {bound + more:.2f}: {each_run}"
                )
                break
    found.worst = f"the fullest window has {fullest:.2f} of the plain bound"
    return found


def _allowed_more(
    limit: Limit, from_ms: float, to_ms: float, excuses: Sequence[Excuse]
) -> tuple[float, str]:
    """What excuses allow on top in a window: a burst at each change, and the rate again while they last."""
    more, reason = 0.0, ""
    for excuse in excuses:
        both_ms = min(to_ms, excuse.to_ms) - max(from_ms, excuse.from_ms)
        if both_ms >= 0:
            reason = reason or excuse.name
            more += 2 * limit.burst * excuse.more
            more += excuse.more * (limit.rate_per_s or 0) * both_ms / 1000
    return more, reason


def check_pauses(
    attempts: Iterable[Attempt], pauses: Sequence[PauseSpan], blind: Mapping[str, Sequence[Span]]
) -> Finding:
    """No handler of a paused type starts once its process must have known it."""
    found = Finding("pauses")
    slowest_ms = -math.inf
    for attempt in attempts:
        for pause in pauses:
            at_ms = attempt.start_ms
            if attempt.biz_type != pause.biz_type or not pause.answered_ms < at_ms < pause.to_ms:
                continue
            late_ms = at_ms - pause.answered_ms
            slowest_ms = max(slowest_ms, late_ms)
            if at_ms > _known_ms(pause, blind.get(attempt.process, ())) + MARGIN_MS:
                found.add_problem(
                    f"job {attempt.job_id} was started {late_ms:.0f} ms after the pause"
                )
            elif late_ms > BLIND_MS:
                found.explained["the process had read nothing"] += 1
    found.count = len(pauses)
    found.worst = f"the last start came {max(0.0, slowest_ms):.0f} ms after an answer"
    return found


def _known_ms(pause: PauseSpan, blind: Sequence[Span]) -> float:
    """By when a process knows of a pause."""
    ends = [span.to_ms for span in covering(blind, pause.answered_ms)]
    return max([pause.answered_ms + BLIND_MS, *ends])


def check_recurring(
    schedules: Sequence[Schedule],
    occurrences: Sequence[Occurrence],
    attempts: Iterable[Attempt],
    nominal: Mapping[int, tuple[str, int]],
) -> Finding:
    """Each nominal time has one job; a time is left out only while the job before still lived."""
    found = Finding("recurring", count=len(occurrences))
    jobs: dict[tuple[str, int], set[int]] = {}
    for each in occurrences:
        jobs.setdefault((each.name, each.nominal_ms), set()).add(each.job_id)
    recorded = set(jobs)
    for attempt in attempts:
        time = nominal.get(attempt.job_id)
        if time is None or time not in recorded:
            found.add_problem(f"job {attempt.job_id} ran for {time}, which has no record")
        else:
            jobs[time].add(attempt.job_id)
    for (name, nominal_ms), some in sorted(jobs.items()):
        if len(some) > 1:
            found.add_problem(f"{name} has the jobs {sorted(some)} for {nominal_ms}")
    left_out = 0
    for schedule in schedules:
        chain = sorted(
            (each for each in occurrences if each.name == schedule.name),
            key=lambda each: each.nominal_ms,
        )
        if not chain:
            found.add_problem(f"{schedule.name} has made no job")
        left_out += _check_chain(schedule, chain, found)
    found.worst = f"{left_out} nominal times were left out"
    return found


def _check_chain(schedule: Schedule, chain: Sequence[Occurrence], found: Finding) -> int:
    """How many times were left out between the first and the last one."""
    every_ms, left_out = schedule.every_s * 1000, 0
    for each in chain:
        if each.nominal_ms % every_ms:
            found.add_problem(f"{schedule.name} has a job for {each.nominal_ms}, no nominal time")
    for before, after in pairwise(chain):
        missing = (after.nominal_ms - before.nominal_ms) // every_ms - 1
        if missing <= 0:
            continue
        left_out += missing
        last_ms = after.nominal_ms - every_ms
        # The next job is made when the one before ends: until then the times pass it by.
        if schedule.overlap == "queue" or after.made_ms < last_ms:
            found.add_problem(
                f"{schedule.name} left out {missing} times up to {last_ms}, and made the next job at"
                f" {after.made_ms:.0f}"
            )
    return left_out


def merged(spans: Iterable[Span], linger_ms: float) -> list[Span]:
    """The spans, each longer by `linger_ms`; those that touch are one."""
    found: list[Span] = []
    for from_ms, to_ms in sorted(spans):
        if found and from_ms <= found[-1].to_ms:
            found[-1] = Span(found[-1].from_ms, max(found[-1].to_ms, to_ms + linger_ms))
        else:
            found.append(Span(from_ms, to_ms + linger_ms))
    return found


def _hit(faults: Iterable[Fault], names: Collection[str], from_ms: float, to_ms: float) -> bool:
    """Whether such a fault was on between these times."""
    return any(f.name in names and f.from_ms <= to_ms and f.to_ms >= from_ms for f in faults)
