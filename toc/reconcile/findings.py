"""What a reconciliation found, as it goes from the compare to repair and report. All of it is plain data."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from toc.domain.disagreements import Disagreement


class Finding(NamedTuple):
    """One disagreement, as it stood at the second look. Times in ms since 1970 UTC.

    shard: of the table where the row lies, or would lie. topic and slot: where its reminder stands, or
    belongs if it stands nowhere. job_id: 0 for MARK_AHEAD. biz_id, biz_type and status are None where
    there is no row; biz_type is "" where the catalogue has no name for its number. armed_ms: its
    time in the StoreQueue of `slot`; out_ms: the end of its stay in the PrepareQueue there.
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


class Marked(NamedTuple):
    """Until when a loader's mark says that a topic is loaded, and how many live rows of it that covers."""

    topic: str
    slot: int
    due_ms: int
    covered: int


def _seconds() -> dict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class Compared:
    """One shard, compared. `found` counts all; of each kind some are kept. For the rest see `Outcome`."""

    shard: int
    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[Disagreement] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    marks: list[Marked] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=_seconds)

    def keep(self, finding: Finding, kept_max: int) -> bool:
        """Counts a finding, and keeps it while there are fewer of its kind; whether it did."""
        self.found[finding.kind] += 1
        is_kept = self.found[finding.kind] <= kept_max
        if is_kept:
            self.findings.append(finding)
        return is_kept


class Mend(NamedTuple):
    """What repair did about a finding. `done`: False when it could do nothing; `how`: what, or why not."""

    finding: Finding
    done: bool
    how: str


class Failure(NamedTuple):
    """A part that was not compared, and why."""

    shard: int
    text: str


class Verdict(IntEnum):
    """The outcome of a whole run; its number is the exit code of `toc reconcile`."""

    AGREED = 0
    LEFT = 1
    """disagreements are left"""
    UNABLE = 3
    """not everything could be compared; nothing was repaired (or repairing broke off)"""
    REPAIRED = 5
    """there were disagreements, and all are repaired"""


@dataclass(slots=True)
class Outcome:
    """One run. Times in ms since 1970 UTC, durations in seconds.

    counts: of what was looked at: "rows" (live, within reach), "far" (live, beyond it: counted, not
    read), "armed" and "out" (entries of StoreQueues and PrepareQueues), "early" (reminders earlier
    than due: legal), "cancelled" (reminders of cancelled jobs: legal), "unarmed" (running jobs
    without a reminder: legal), "suspects" (looked up again). found: findings by kind, including
    those beyond `findings` (each shard keeps so many of each kind at most). seconds: where the time
    went: "start", "compare", "look", "grace", "repair", "report". work: the same of all tasks together,
    which run side by side: "rows" and "reminders" (reading them), "pair" (the compare itself) and
    "verify" (looking up what does not pair off).
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
    failures: list[Failure] = field(default_factory=list)
    mends: list[Mend] = field(default_factory=list)
    broken_off: str = ""  # why repairing ended early
    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=_seconds)

    @property
    def verdict(self) -> Verdict:
        if self.failures or self.broken_off or self.compared < self.shards:
            return Verdict.UNABLE
        if not self.found:
            return Verdict.AGREED
        mended = sum(mend.done for mend in self.mends)
        return Verdict.REPAIRED if mended == self.found.total() else Verdict.LEFT
