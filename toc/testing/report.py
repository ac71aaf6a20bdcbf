"""The result of a check: counts, problems, lateness. The reports on parts of a history can be merged."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

_STEPS = 512  # buckets per doubling of the lateness: a percentile is off by 0.2 % at most
_COUNTS = (
    "entries", "scheduled", "starts", "retries", "rescheduled", "redriven", "discarded",
    "cancelled_too_late", "unanswered", "unstarted", "strangers",
)  # fmt: skip
"""The fields of a Report that are numbers."""

UNEXPLAINED = "unexplained"


class Kind(StrEnum):
    """The kinds of problems. `MEANING` explains each kind."""

    LOST = "lost"
    EARLY = "early"
    OLD_TIME = "old_time"
    AFTER_CANCEL = "after_cancel"
    DUPLICATE = "duplicate"
    STALE = "stale"
    WRONG = "wrong"


MEANING = {
    Kind.LOST: "scheduled, and not ended as done, cancelled or dead",
    Kind.EARLY: "started before the action_time in force",
    Kind.OLD_TIME: "started at a time that a reschedule had moved away",
    Kind.AFTER_CANCEL: 'started after cancel() or discard() had answered "cancelled"',
    Kind.DUPLICATE: "started again, and neither a failure nor a fault explains it",
    Kind.STALE: "a claim that was over had changed something",
    Kind.WRONG: "answers, handlers and rows that disagree",
}
"""What each kind of problem means, in a few words."""


class Problem(NamedTuple):
    """A broken promise. `job_id`: 0 if the problem concerns the whole history."""

    kind: Kind
    job_id: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: job {self.job_id}: {self.text}"


class Lateness:
    """How late starts were, in ms, as a distribution in bounded memory.

    `max_ms` and `min_ms` are exact; percentiles are exact to 0.2 %.
    """

    __slots__ = ("_found", "count", "max_ms", "min_ms")

    def __init__(self) -> None:
        self._found: dict[int, int] = {}  # by bucket
        self.count = 0
        self.max_ms, self.min_ms = -math.inf, math.inf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lateness) and self.buckets() == other.buckets()

    __hash__ = None  # type: ignore[assignment]

    def add(self, late_ms: float) -> None:
        mantissa, exponent = math.frexp(late_ms)
        bucket = (exponent + 64) * _STEPS + int((mantissa - 0.5) * 2 * _STEPS) if late_ms > 0 else 0
        self._found[bucket] = self._found.get(bucket, 0) + 1
        self.count += 1
        self.max_ms, self.min_ms = max(self.max_ms, late_ms), min(self.min_ms, late_ms)

    def merge(self, other: Lateness) -> None:
        for bucket, n in other._found.items():
            self._found[bucket] = self._found.get(bucket, 0) + n
        self.count += other.count
        self.max_ms = max(self.max_ms, other.max_ms)
        self.min_ms = min(self.min_ms, other.min_ms)

    def buckets(self) -> list[tuple[float, int]]:
        """(upper bound in ms, number of starts), ascending. Starts that were not late have the bound 0."""
        return [
            (self._upper_bound_ms(bucket), self._found[bucket]) for bucket in sorted(self._found)
        ]

    def percentile(self, percent: float) -> float:
        """The lateness in ms that `percent` of all starts do not exceed. Raises ValueError without starts."""
        if not self.count:
            raise ValueError("a percentile needs at least one value")
        wanted = max(1, math.ceil(self.count * percent / 100))
        for bound, n in self.buckets():
            wanted -= n
            if wanted <= 0:
                return bound
        raise AssertionError("the buckets hold other values than `count` says")

    def counts(self, edges_ms: Sequence[float]) -> list[int]:
        """The number of starts up to the first edge, then between each two edges, and above the last edge."""
        found = [0] * (len(edges_ms) + 1)
        for bound, n in self.buckets():
            found[bisect_left(edges_ms, bound)] += n
        return found

    def facts(self) -> dict[str, float | int | None]:
        if not self.count:
            return {"count": 0, "p50_ms": None, "p99_ms": None, "p999_ms": None, "max_ms": None}
        shown = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9}
        percentiles = {name: round(self.percentile(p), 3) for name, p in shown.items()}
        return {"count": self.count, **percentiles, "max_ms": round(self.max_ms, 3)}

    def _upper_bound_ms(self, bucket: int) -> float:
        if not bucket:
            return min(0.0, self.max_ms)
        exponent, step = divmod(bucket, _STEPS)
        bound = math.ldexp(0.5 + (step + 1) / (2 * _STEPS), exponent - 64)
        return min(bound, self.max_ms)


@dataclass(slots=True)
class FaultEffects:
    """The effects of all faults of one name.

    during: lateness of jobs that were due while a fault lasted. after: lateness of jobs that were due between
    its end and the next fault. recovery_ms: how long after its end a job was still late by more than
    `Rules.late_ms`. duplicates: how many duplicates it explains. problems: by kind, of jobs that were due
    during or after it.
    """

    times: int = 0
    lasted_ms: float = 0.0
    during: Lateness = field(default_factory=Lateness)
    after: Lateness = field(default_factory=Lateness)
    recovery_ms: float = 0.0
    duplicates: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def jobs(self) -> int:
        """How many jobs that were due during or after a fault have started."""
        return self.during.count + self.after.count

    @property
    def worst_ms(self) -> float:
        """The largest lateness during or after a fault; 0 without a job."""
        return max(0.0, self.during.max_ms, self.after.max_ms)

    def merge(self, other: FaultEffects) -> None:
        self.times += other.times
        self.lasted_ms += other.lasted_ms
        self.during.merge(other.during)
        self.after.merge(other.after)
        self.recovery_ms = max(self.recovery_ms, other.recovery_ms)
        self.duplicates += other.duplicates
        self.problems += other.problems

    def facts(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "lasted_ms": round(self.lasted_ms, 3),
            "jobs": self.jobs,
            "duplicates": self.duplicates,
            "problems": dict(self.problems),
            "recovery_ms": round(self.recovery_ms, 3),
            "during": self.during.facts(),
            "after": self.after.facts(),
        }


@dataclass(slots=True)
class Report:
    """The verdict on a history.

    problems_by_kind counts all problems; `problems` keeps the first of each kind (`Rules.problems_max`).
    duplicates: starts without a failure before, by their reason: a fault's name, "over its timeout", or
    "unexplained", which is a problem. lateness: first starts, minus the action_time in force.
    """

    entries: int = 0
    scheduled: int = 0
    starts: int = 0
    retries: int = 0  # starts after a failed one
    rescheduled: int = 0
    redriven: int = 0
    discarded: int = 0
    cancelled_too_late: int = 0  # cancel() answered that the job ran or had ended: no problem
    unanswered: int = 0  # calls that raised: both outcomes are legal
    unstarted: int = 0  # attempts that no handler began: their process died between claim and start
    strangers: int = 0  # jobs whose schedule() has raised
    by_status: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    problems_by_kind: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    lateness: Lateness = field(default_factory=Lateness)
    by_type: dict[str, Lateness] = field(default_factory=dict)
    by_fault: dict[str, FaultEffects] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether toc kept its promises."""
        return not self.problems_by_kind.total()

    def of(self, kind: Kind) -> list[Problem]:
        """The problems of one kind that were kept."""
        return [problem for problem in self.problems if problem.kind is kind]

    def facts(self) -> dict[str, Any]:
        """All fields, as values for JSON."""
        return {
            "holds": self.holds,
            **{name: getattr(self, name) for name in _COUNTS},
            "by_status": dict(self.by_status),
            "duplicates": dict(self.duplicates),
            "problems_by_kind": {kind: self.problems_by_kind[kind] for kind in Kind},
            "problems": [
                {"kind": problem.kind, "job_id": str(problem.job_id), "text": problem.text}
                for problem in self.problems
            ],
            "lateness": self.lateness.facts(),
            "by_type": {name: late.facts() for name, late in sorted(self.by_type.items())},
            "by_fault": {name: found.facts() for name, found in sorted(self.by_fault.items())},
        }

    def merge(self, other: Report, problems_max: int) -> None:
        """Adds the report on other jobs; keeps at most `problems_max` problems of each kind."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_status += other.by_status
        self.duplicates += other.duplicates
        kept = Counter(problem.kind for problem in self.problems)
        for problem in other.problems:
            if kept[problem.kind] < problems_max:
                kept[problem.kind] += 1
                self.problems.append(problem)
        self.problems_by_kind += other.problems_by_kind
        self.lateness.merge(other.lateness)
        for biz_type, late in other.by_type.items():
            self.by_type.setdefault(biz_type, Lateness()).merge(late)
        for name, figures in other.by_fault.items():
            self.by_fault.setdefault(name, FaultEffects()).merge(figures)
