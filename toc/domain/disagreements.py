"""What MySQL and Redis can disagree about, and the rule of each kind.

The row decides; Redis only reminds. Allowed, and no disagreement: a reminder that is too
early (the claim puts it right), one of a cancelled job (it is forgotten when it is popped), none for a
running job (its worker may have found it in the database; the scanner watches its lease).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from toc.domain.ids import GENE_MASK, gene_of
from toc.domain.job import Status
from toc.domain.policy import unhandled_ms
from toc.domain.routing import hash_of

SOON_MS = 5_000
"""A job that is due already and reminded of within so long is on its way, or after the time for which a node
without its handler puts it back."""

LATELY_MS = 3_600_000
"""A job that was claimed within so long may have left a reminder at the end of that lease, when another
worker popped it while it ended."""


class Disagreement(StrEnum):
    """The kinds, each of one job but for the last one, which is of a slot."""

    MISSING = "missing"
    """pending and due within the horizon, and in no queue"""
    LATE = "late"
    """the reminder is later than the row's due_time"""
    ORPHAN = "orphan"
    """a reminder of a job that has ended, is gone, or was never there"""
    WRONG_SLOT = "wrong_slot"
    """a reminder where no loader puts it, and none in its own slot"""
    TWO_SLOTS = "two_slots"
    """a reminder in its own slot and in another one"""
    STUCK = "stuck"
    """in a PrepareQueue long after its stay"""
    LEASE_OVER = "lease_over"
    """running, and its lease has long been over"""
    OVERDUE = "overdue"
    """pending, and long overdue"""
    MOVED = "moved"
    """pending, never tried, due_time is not action_time: moved by hand"""
    MISFIT = "misfit"
    """the gene of its id does not fit its biz_id, or its shard does not fit the gene"""
    MARK_AHEAD = "mark_ahead"
    """the loader's mark is beyond rows of which most are in no queue"""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Where a rule begins to count, in ms.

    near: rows due within so long must have a reminder; the horizon, less what a loader may take to see
    them. overdue: for rows that are due, and for reminders of cancelled jobs. stuck: beyond a stay.
    """

    near_ms: int
    overdue_ms: int
    stuck_ms: int


@dataclass(frozen=True, slots=True)
class RowFacts:
    """A row, as far as the rules ask. `shard`: of the table that it lies in. `topic`: of its type."""

    job_id: int
    shard: int
    biz_id: int
    topic: str
    status: Status
    action_ms: int
    due_ms: int | None
    attempts: int
    claimed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReminderPlace:
    """Where a reminder stands: at `armed_ms` in the StoreQueue, until `out_ms` in the PrepareQueue."""

    topic: str
    slot: int
    armed_ms: int | None
    out_ms: int | None


def disagreements(
    row: RowFacts | None,
    places: Sequence[ReminderPlace],
    home: tuple[str, int],
    now_ms: int,
    limits: Tolerances,
) -> Iterator[Disagreement]:
    """What is wrong with one job. `row`: None when there is none; `home`: its topic and slot.

    `places`: of all slots where it stands in a queue.
    """
    stuck = any(
        place.out_ms is not None and place.out_ms < now_ms - limits.stuck_ms for place in places
    )
    if stuck:
        yield Disagreement.STUCK
    if row is None or row.due_ms is None or not row.status.live:
        yield from _of_ended(row, places, now_ms, limits)
        return
    at_home = [place for place in places if (place.topic, place.slot) == home]
    if len(places) > len(at_home):
        yield Disagreement.TWO_SLOTS if at_home else Disagreement.WRONG_SLOT
    if row.status is Status.PENDING:
        yield from _of_pending(row, places, at_home, now_ms, limits)
    elif row.due_ms < now_ms - limits.overdue_ms:
        yield Disagreement.LEASE_OVER


def latest_ms(due_ms: int, now_ms: int) -> int:
    """Until when a reminder is in time."""
    return due_ms if due_ms > now_ms else now_ms + unhandled_ms(now_ms - due_ms) + SOON_MS


def is_misfit(row: RowFacts, shards: int) -> bool:
    """Whether by-business verbs, or workers, look for the row in another place than it is in."""
    gene = gene_of(row.job_id)
    return gene != hash_of(row.biz_id) & GENE_MASK or gene & (shards - 1) != row.shard


def _of_ended(
    row: RowFacts | None, places: Sequence[ReminderPlace], now_ms: int, limits: Tolerances
) -> Iterator[Disagreement]:
    waits = row is not None and (
        row.status is Status.CANCELLED or now_ms - (row.claimed_ms or 0) < LATELY_MS
    )
    oldest_ms = now_ms - limits.overdue_ms  # not popped since then: nobody will
    for place in places:
        if place.armed_ms is not None and not (waits and place.armed_ms > oldest_ms):
            yield Disagreement.ORPHAN
            return


def _of_pending(
    row: RowFacts,
    places: Sequence[ReminderPlace],
    at_home: Sequence[ReminderPlace],
    now_ms: int,
    limits: Tolerances,
) -> Iterator[Disagreement]:
    assert row.due_ms is not None  # noqa: S101 - it is pending
    if not places and row.due_ms <= now_ms + limits.near_ms:
        yield Disagreement.MISSING
    in_time_ms = latest_ms(row.due_ms, now_ms)
    for place in at_home:
        if place.out_ms is None and place.armed_ms is not None and place.armed_ms > in_time_ms:
            yield Disagreement.LATE
    if row.due_ms < now_ms - limits.overdue_ms:
        yield Disagreement.OVERDUE
    if row.attempts == 0 and row.due_ms != row.action_ms:
        yield Disagreement.MOVED
