"""The kinds of disagreement between MySQL and Redis, and the rules that find them.

The row in MySQL is always right; Redis only holds reminders. Three differences are legal, and no
disagreement: a reminder that is too early (the claim corrects the reminder), a reminder of a cancelled job
(toc deletes the reminder when it is popped), a running job without a reminder (a scanner may have claimed the
job; scanners watch the lease).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from toc.domain.ids import ROUTING_MASK, routing_bits_of
from toc.domain.job import Status
from toc.domain.retry_policies import unhandled_delay_ms
from toc.domain.routing import routing_hash_of

SOON_MS = 5_000
"""In ms. The reminder of a job that is due already is not late if it is due within this time (plus the delay
for which a node without the handler puts the reminder back)."""

LATELY_MS = 3_600_000
"""In ms. For so long after its claim, an ended job may still have a reminder at the end of its lease:
if another worker popped the reminder while the job ended."""


class Disagreement(StrEnum):
    """The kinds of disagreement, about one job or about a slot (`OF_SLOTS`)."""

    MISSING = "missing"
    """a pending job that is due within the horizon has no reminder"""
    LATE = "late"
    """the reminder is later than the row's due_time"""
    ORPHAN = "orphan"
    """a reminder of a job that has ended, was deleted, or never existed"""
    WRONG_SLOT = "wrong_slot"
    """the job has a reminder in another slot than its own, and none in its own slot"""
    TWO_SLOTS = "two_slots"
    """the job has a reminder in its own slot and in another slot"""
    STUCK = "stuck"
    """the reminder is in a PrepareQueue long after its stay ended, or its stay ends far ahead"""
    LEASE_OVER = "lease_over"
    """the job is running, and its lease ended long ago"""
    OVERDUE = "overdue"
    """the job is pending, and long overdue"""
    MOVED = "moved"
    """the job is pending and was never tried, but due_time differs from action_time: somebody changed the
    row by hand"""
    MISFIT = "misfit"
    """the job_id does not belong to the biz_id, or the row lies in a table that does not
    fit the job_id"""
    NEVER_DUE = "never_due"
    """the job is live and has no due_time: no loader and no scanner ever finds the row"""
    UNKNOWN_STATUS = "unknown_status"
    """the row has a status that toc does not know"""
    UNKNOWN_TYPE = "unknown_type"
    """the job is live, and its type_no has no biz_type: no handler can be found"""
    ENDED_BUT_DUE = "ended_but_due"
    """the job has ended and still has a due_time, as if it were live"""
    ENDLESS_LEASE = "endless_lease"
    """the job is running, and its lease ends later than any worker would write"""
    NO_LETTER = "no_letter"
    """the job is dead and has no dead letter: no list of dead jobs shows it"""
    LONE_LETTER = "lone_letter"
    """a dead letter of a job that is not dead"""
    MARK_AHEAD = "mark_ahead"
    """the loader's mark says that rows were loaded, but most of these rows have no reminder"""
    FOREIGN = "foreign"
    """a queue has members that are no job_id"""


OF_SLOTS = frozenset({Disagreement.MARK_AHEAD, Disagreement.FOREIGN})
"""The kinds that are about a slot, not about one job."""

UNCLAIMABLE = frozenset(
    {
        Disagreement.NEVER_DUE,
        Disagreement.UNKNOWN_STATUS,
        Disagreement.UNKNOWN_TYPE,
        Disagreement.ENDLESS_LEASE,
    }
)
"""The kinds of live jobs that no worker will claim, or not in time. A healthy system has none of them."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerances of the rules, in ms.

    near_ms: rows due within this time must have a reminder (the horizon, less the time in which a loader
    reads the rows). overdue_ms: how long a due row, or a reminder of a cancelled job, may remain.
    stuck_ms: how long a reminder may remain in the PrepareQueue after its stay ended. stay_ms: how far from
    now a stay may end.
    """

    near_ms: int
    overdue_ms: int
    stuck_ms: int
    stay_ms: int

    def is_stuck(self, out_ms: int, now_ms: int) -> bool:
        """Whether no node puts back a popped reminder whose stay ends at `out_ms`, or not in time."""
        return not now_ms - self.stuck_ms <= out_ms <= now_ms + self.stay_ms


class ComparedRow(NamedTuple):
    """The columns of a row that comparison and repair need. `shard`: that of the table that holds the row."""

    job_id: int
    biz_id: int
    type_no: int
    status: Status
    action_ms: int
    due_ms: int | None
    attempts: int
    claimed_ms: int | None
    shard: int


@dataclass(frozen=True, slots=True)
class ReminderPlace:
    """A slot that holds a reminder: in its StoreQueue, due at `armed_ms`, or in its PrepareQueue, until
    `out_ms`."""

    topic: str
    slot: int
    armed_ms: int | None
    out_ms: int | None

    @property
    def topic_and_slot(self) -> tuple[str, int]:
        return self.topic, self.slot


KINDS_OF_HELD_JOBS = frozenset(
    {
        Disagreement.MISSING,
        Disagreement.LATE,
        Disagreement.WRONG_SLOT,
        Disagreement.TWO_SLOTS,
        Disagreement.STUCK,
        Disagreement.LEASE_OVER,
        Disagreement.OVERDUE,
    }
)
"""No disagreements of a job whose type is paused or limited: the job waits because a person wants it."""


def find_disagreements(
    row: ComparedRow | None,
    places: Sequence[ReminderPlace],
    home: tuple[str, int],
    now_ms: int,
    limits: Tolerances,
) -> Iterator[Disagreement]:
    """Yields the disagreements of one job.

    `row`: None if the job has no row. `home`: the topic and slot where the job's reminder belongs.
    `places`: all slots that hold a reminder of the job.
    """
    if any(place.out_ms is not None and limits.is_stuck(place.out_ms, now_ms) for place in places):
        yield Disagreement.STUCK
    if row is None or row.due_ms is None or not row.status.live:
        yield from _ended_job_disagreements(row, places, now_ms, limits)
        return
    at_home = [place for place in places if place.topic_and_slot == home]
    if len(places) > len(at_home):
        yield Disagreement.TWO_SLOTS if at_home else Disagreement.WRONG_SLOT
    if row.status is Status.PENDING:
        yield from _pending_job_disagreements(row, places, at_home, now_ms, limits)
    elif row.due_ms < now_ms - limits.overdue_ms:
        yield Disagreement.LEASE_OVER


def latest_reminder_ms(due_ms: int, now_ms: int) -> int:
    """The latest time, in ms, at which a reminder of the row is not late."""
    return due_ms if due_ms > now_ms else now_ms + unhandled_delay_ms(now_ms - due_ms) + SOON_MS


def is_in_wrong_table(row: ComparedRow, shards: int) -> bool:
    """Whether the row is of kind MISFIT: its job_id does not fit its biz_id or the table."""
    routing_bits = routing_bits_of(row.job_id)
    return (
        routing_bits != routing_hash_of(row.biz_id) & ROUTING_MASK
        or routing_bits & (shards - 1) != row.shard
    )


def _ended_job_disagreements(
    row: ComparedRow | None, places: Sequence[ReminderPlace], now_ms: int, limits: Tolerances
) -> Iterator[Disagreement]:
    waits = row is not None and (
        row.status is Status.CANCELLED or now_ms - (row.claimed_ms or 0) < LATELY_MS
    )
    # A reminder that is older than this, and was not popped, will not be popped any more.
    oldest_ms = now_ms - limits.overdue_ms
    for place in places:
        if place.armed_ms is not None and not (waits and place.armed_ms > oldest_ms):
            yield Disagreement.ORPHAN
            return


def _pending_job_disagreements(
    row: ComparedRow,
    places: Sequence[ReminderPlace],
    at_home: Sequence[ReminderPlace],
    now_ms: int,
    limits: Tolerances,
) -> Iterator[Disagreement]:
    assert row.due_ms is not None  # noqa: S101 - it is pending
    if not places and row.due_ms <= now_ms + limits.near_ms:
        yield Disagreement.MISSING
    in_time_ms = latest_reminder_ms(row.due_ms, now_ms)
    for place in at_home:
        if place.out_ms is None and place.armed_ms is not None and place.armed_ms > in_time_ms:
            yield Disagreement.LATE
    if row.due_ms < now_ms - limits.overdue_ms:
        yield Disagreement.OVERDUE
    if row.attempts == 0 and row.due_ms != row.action_ms:
        yield Disagreement.MOVED
