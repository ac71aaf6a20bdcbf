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
from tests.chaos.restricted_history import Attempt, Occurrence, PauseSpan, Seen, Span, covering
from toc.testing import Fault

LINGER_MS = 5000.0  # after a fault: until all nodes go by Redis again, and have named their holders
SHARE_LINGER_MS = 2000.0
MARGIN_MS = 3000.0  # from a look at the known pauses to a handler's first line, on a busy machine
WINDOW_MS = 120_000.0  # longer windows of a rate are not looked at
EXACT = 0.06  # starts: the limits' clock counts whole ms
SHOWN = 20  # problems of one check that are told in words


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
    excuses = breakage.excuses(seen.faults, seen.shares)
    found = []
    for name, limit in LIMITS.items():
        attempts = seen.of_type(name)
        if limit.concurrency is not None:
            groups = by_shop(attempts, seen.shops) if limit.per_shop else [attempts]
            found.append(
                check_concurrency(name, limit, groups, seen.faults, excuses, breakage.hold_ms)
            )
        if limit.rate_per_s is not None:
            found.append(check_rate(name, limit, attempts, seen.taken, excuses))
    pauses = [
        span for span in seen.pauses
        if not (span.by_clock and _hit(seen.faults, breakage.clocks, span.answered_ms, span.to_ms))
    ]  # fmt: skip
    found.append(check_pauses(seen.of_type(PAUSED), pauses, seen.blind))
    found.append(
        check_recurring(SCHEDULES, seen.occurrences, seen.of_type(RECURRING), seen.nominal)
    )
    return found


def by_shop(attempts: Sequence[Attempt], shops: Mapping[int, object]) -> list[list[Attempt]]:
    """The attempts of each shop."""
    found: dict[object, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(shops.get(attempt.job_id), []).append(attempt)
    return list(found.values())


def check_concurrency(
    name: str,
    limit: Limit,
    groups: Iterable[Sequence[Attempt]],
    faults: Sequence[Fault],
    excuses: Sequence[Excuse],
    hold_ms: float,
) -> Finding:
    """Never more than `concurrency` handlers of a group at once.

    A handler whose process stood still or was cut off counts only until then: its hold ends with its lease.
    So does one that took more than half of `hold_ms`: these handlers take a fraction of a second.
    """
    found, most = Finding(f"{name}, at once"), limit.concurrency or 0
    peak = 0
    for attempts in groups:
        found.count += len(attempts)
        ends: list[float] = []
        for attempt in sorted(attempts, key=lambda each: each.start_ms):
            at_ms = attempt.start_ms
            ends = [end for end in ends if end > at_ms]
            end_ms = _held_until(attempt, faults, hold_ms)
            if end_ms <= at_ms:
                continue
            ends.append(end_ms)
            peak = max(peak, len(ends))
            if len(ends) <= most:
                continue
            over = [e for e in excuses if e.from_ms <= at_ms < e.to_ms]
            allowed = most * (1 + max((e.more for e in over), default=0))
            if len(ends) > allowed:
                found.add_problem(f"{len(ends)} of {most} at once at {at_ms:.0f}")
            else:
                found.explained[over[0].name] += 1
    found.worst = f"at most {peak} of {most} at once"
    return found


def _held_until(attempt: Attempt, faults: Sequence[Fault], hold_ms: float) -> float:
    """When the attempt ended, or its hold may have ended: by a fault of its process, or on a slow machine."""
    lost = [
        fault.from_ms
        for fault in faults
        if attempt.process in fault.processes
        and fault.from_ms <= attempt.end_ms
        and fault.to_ms >= attempt.start_ms
    ]
    return min(attempt.end_ms, attempt.start_ms + hold_ms / 2, *lost)


def check_rate(
    name: str,
    limit: Limit,
    attempts: Sequence[Attempt],
    taken: Mapping[tuple[int, str], Sequence[Span]],
    excuses: Sequence[Excuse],
) -> Finding:
    """In no time t more than burst + rate x t starts.

    A start was admitted at some moment of a known span; only a start whose span lies within a window counts
    for the window.
    """
    found, spans = Finding(f"{name}, rate"), list[Span]()
    for attempt in attempts:
        span = _last_before(taken.get((attempt.job_id, attempt.process), ()), attempt.start_ms)
        if span is None:
            found.add_problem(f"job {attempt.job_id} was started without being admitted")
        else:
            spans.append(span)
    found.count = len(attempts)
    spans.sort(key=lambda span: span.to_ms)
    ends = [span.to_ms for span in spans]
    rate_per_ms = (limit.rate_per_s or 0) / 1000
    fullest = 0.0
    for from_ms in sorted({span.from_ms for span in spans}):
        count = 0
        first, last = bisect_left(ends, from_ms), bisect_right(ends, from_ms + WINDOW_MS)
        for span in spans[first:last]:
            if span.from_ms < from_ms:
                continue
            count += 1
            bound = limit.burst + rate_per_ms * (span.to_ms - from_ms) + EXACT
            fullest = max(fullest, count / bound)
            if count <= bound:
                continue
            more, reason = _allowed_more(limit, from_ms, span.to_ms, excuses)
            if count <= bound + more:
                found.explained[reason] += 1
            else:
                seconds = (span.to_ms - from_ms) / 1000
                found.add_problem(
                    f"{count} starts in {seconds:.3f} s from {from_ms:.0f}, not {bound + more:.1f}"
                )
                break
    found.worst = f"the fullest window has {fullest:.2f} of the plain bound"
    return found


def _last_before(spans: Sequence[Span], at_ms: float) -> Span | None:
    """The last span that had begun by then."""
    return max((span for span in spans if span.from_ms <= at_ms), default=None)


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
