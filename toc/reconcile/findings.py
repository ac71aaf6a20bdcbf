"""The results of a reconciliation, from the compare to repair and report. Plain data only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from toc.domain.disagreements import UNCLAIMABLE, Disagreement
from toc.runtime.clock import Clock


class Finding(NamedTuple):
    """One disagreement, as it was when it was last looked up. Times in ms since 1970 UTC.

    shard: of the table that has the row, or would have it. topic and slot: where the job's reminder is, or
    where it should be if it is nowhere. job_id: 0 for kinds that are about a slot. biz_id, biz_type and
    status are None if there is no row; biz_type is "" if no biz_type has the row's number. armed_ms: the time
    of the reminder in the StoreQueue of `slot`; out_ms: the end of the reminder's stay in the PrepareQueue
    there.
    """

    kind: Disagreement
    shard: int
    topic: str
    slot: int
    job_id: int = 0
    biz_id: int | None = None
    biz_type: str | None = None
    status: int | None = None
    action_ms: int | None = None
    due_ms: int | None = None
    attempts: int | None = None
    armed_ms: int | None = None
    out_ms: int | None = None

    @property
    def topic_and_slot(self) -> tuple[str, int]:
        return self.topic, self.slot

    @property
    def due_or_reminder_ms(self) -> int | None:
        """When the row is due; without a row, when the reminder is due."""
        return self.armed_ms if self.due_ms is None else self.due_ms

    @property
    def identity_key(self) -> tuple[Disagreement, int, str, int]:
        """Equal for findings of one disagreement that was seen twice."""
        return self.kind, self.job_id, self.topic, self.slot


class LoaderMarkCoverage(NamedTuple):
    """A loader's mark: until when its topic is loaded, and how many live rows are due before that."""

    topic: str
    slot: int
    due_ms: int
    covered: int


class ShardPart(NamedTuple):
    """The live rows of a shard that are due later than `after_ms`, and until `until_ms`; None: no bound."""

    shard: int
    after_ms: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class ShardComparison:
    """The result for one shard, or for a part of it. `found` counts all findings; `findings` has some of each
    kind. See `ReconcileResult`.
    """

    shard: int
    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[Disagreement] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    marks: list[LoaderMarkCoverage] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add_finding(self, finding: Finding, kept_max: int) -> bool:
        """Counts a finding, and keeps it while there are fewer than `kept_max` of its kind; True if it was
        kept.
        """
        self.found[finding.kind] += 1
        is_kept = self.found[finding.kind] <= kept_max
        if is_kept:
            self.findings.append(finding)
        return is_kept

    def add_part(self, part: ShardComparison, kept_max: int) -> None:
        """Adds the result for another part of the shard. A finding of both parts counts once."""
        self.counts += part.counts
        known = {finding.identity_key for finding in self.findings}
        kept = Counter(finding.kind for finding in part.findings)
        self.found += part.found - kept  # those that the part has only counted
        for finding in part.findings:
            if finding.identity_key not in known:
                self.add_finding(finding, kept_max)
        covered = {(mark.topic, mark.slot): mark.covered for mark in part.marks}
        self.marks = [
            mark._replace(covered=mark.covered + covered.get((mark.topic, mark.slot), 0))
            for mark in self.marks
        ]
        for on, seconds in part.work.items():
            self.work[on] += seconds


class RepairResult(NamedTuple):
    """The repair of a finding. `done`: False if nothing could be done; `how`: what was done, or why not."""

    finding: Finding
    done: bool
    how: str


class ShardFailure(NamedTuple):
    """A shard that was not compared, and why."""

    shard: int
    text: str


class RunVerdict(IntEnum):
    """The outcome of a whole run; its number is the exit code of `toc reconcile`."""

    AGREED = 0
    LEFT = 1
    """disagreements are left"""
    UNABLE = 3
    """not everything could be compared (or repairing broke off)"""
    REPAIRED = 5
    """there were disagreements, and all are repaired"""


@dataclass(slots=True)
class ReconcileResult:
    """The result of one run. Times in ms since 1970 UTC, durations in seconds.

    counts: numbers of what was read: "rows" (live, due within the horizon), "replica" (of these, read from a
    replica), "far" (live, due later: counted, not read), "armed" and "out" (entries of StoreQueues and
    PrepareQueues), "early" (reminders earlier than due: legal), "cancelled" (reminders of cancelled jobs:
    legal), "unarmed" (running jobs without a reminder: legal), "suspects" (looked up again). found: findings
    by kind, including those that are not in `findings` (each shard keeps a limited number of each kind).
    seconds: the duration of each phase: "start", "compare", "look", "grace", "repair". work: the sum over all
    parallel tasks: "rows" and "reminders" (reading them), "pair" (the compare itself) and "verify" (looking
    up the suspects). taken_up: shards that an interrupted run compared, by the time when it had done so.
    """

    began_ms: int
    namespace: str
    databases: int
    shards: int
    engine: str
    repairing: bool
    ended_ms: int = 0
    compared: int = 0  # shards
    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[Disagreement] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    failures: list[ShardFailure] = field(default_factory=list)
    repairs: list[RepairResult] = field(default_factory=list)
    broken_off: str = ""  # why repairing ended early
    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    taken_up: dict[int, list[int]] = field(default_factory=dict)

    @property
    def unclaimable(self) -> int:
        """How many live jobs no worker will claim, or not in time, that this run did not repair."""
        repaired = Counter(repair.finding.kind for repair in self.repairs if repair.done)
        return sum((self.found - repaired)[kind] for kind in UNCLAIMABLE)

    @property
    def verdict(self) -> RunVerdict:
        if self.failures or self.broken_off or self.compared < self.shards:
            return RunVerdict.UNABLE
        if not self.found:
            return RunVerdict.AGREED
        repaired = sum(repair.done for repair in self.repairs)
        return RunVerdict.REPAIRED if repaired == self.found.total() else RunVerdict.LEFT


@contextmanager
def record_duration(clock: Clock, seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Adds the duration of the block to `seconds[phase]`."""
    began_s = clock.monotonic_s()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + clock.monotonic_s() - began_s
