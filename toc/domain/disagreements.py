"""The kinds of disagreement between MySQL and Redis, and the rule by which each is recognised.

The row decides; Redis only holds reminders. These are legal and no disagreement: a reminder that is too
early (the claim corrects it), a reminder of a cancelled job (it is deleted when it is popped), a running
job without a reminder (a scanner may have claimed it; scanners watch its lease).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from toc.domain.ids import GENE_MASK, gene_of
from toc.domain.job import Status
from toc.domain.policy import unhandled_ms
from toc.domain.routing import hash_of

SOON_MS = 5_000
"""A job that is due already is not late if its reminder comes within this time, in ms (plus the delay for
which a node without the handler puts the reminder back)."""

LATELY_MS = 3_600_000
"""In ms. For this time after its claim an ended job may still have a reminder at the end of its lease:
another worker popped the reminder while the job ended."""


class Disagreement(StrEnum):
    """The kinds. MARK_AHEAD is about a slot; all others are about one job."""

    MISSING = "missing"
    """pending and due within the horizon, and in no queue"""
    LATE = "late"
    """the reminder is later than the row's due_time"""
    ORPHAN = "orphan"
    """a reminder of a job that has ended, was deleted, or never existed"""
    WRONG_SLOT = "wrong_slot"
    """a reminder in another slot than the job's own, and none in its own slot"""
    TWO_SLOTS = "two_slots"
    """a reminder in its own slot and in another one"""
    STUCK = "stuck"
    """in a PrepareQueue long after its stay there ended"""
    LEASE_OVER = "lease_over"
    """running, and its lease ended long ago"""
    OVERDUE = "overdue"
    """pending, and long overdue"""
    MOVED = "moved"
    """pending, never tried, and due_time differs from action_time: somebody changed the row by hand"""
    MISFIT = "misfit"
    """the job_id does not belong to the biz_id, or the row lies in a table that does not
    fit the job_id"""
    MARK_AHEAD = "mark_ahead"
    """the loader's mark says that rows were loaded, and most of these rows are in no queue"""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerances of the rules, in ms.

    near_ms: rows due within this time must have a reminder (the horizon, less the time that a loader may
    take to read them). overdue_ms: how long a due row, or a reminder of a cancelled job, may remain.
    stuck_ms: how long a reminder may remain in the PrepareQueue after its stay ended.
    """

    near_ms: int
    overdue_ms: int
    stuck_ms: int


class RowFacts(NamedTuple):
    """The columns of a row that compare and repair need. `shard`: of the table that holds the row."""

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
    """A slot that holds a reminder: due at `armed_ms` in its StoreQueue, or until `out_ms` in its
    PrepareQueue."""

    topic: str
    slot: int
    armed_ms: int | None
    out_ms: int | None

    @property
    def spot(self) -> tuple[str, int]:
        return self.topic, self.slot


def disagreements(
    row: RowFacts | None,
    places: Sequence[ReminderPlace],
    home: tuple[str, int],
    now_ms: int,
    limits: Tolerances,
) -> Iterator[Disagreement]:
    """Yields the disagreements of one job.

    `row`: None when it does not exist. `home`: the topic and slot where the job's reminder belongs.
    `places`: all slots that hold a reminder of it.
    """
    stuck = any(
        place.out_ms is not None and place.out_ms < now_ms - limits.stuck_ms for place in places
    )
    if stuck:
        yield Disagreement.STUCK
    if row is None or row.due_ms is None or not row.status.live:
        yield from _of_ended(row, places, now_ms, limits)
        return
    at_home = [place for place in places if place.spot == home]
    if len(places) > len(at_home):
        yield Disagreement.TWO_SLOTS if at_home else Disagreement.WRONG_SLOT
    if row.status is Status.PENDING:
        yield from _of_pending(row, places, at_home, now_ms, limits)
    elif row.due_ms < now_ms - limits.overdue_ms:
        yield Disagreement.LEASE_OVER


def latest_ms(due_ms: int, now_ms: int) -> int:
    """The latest time, in ms, at which a reminder of the row is not late."""
    return due_ms if due_ms > now_ms else now_ms + unhandled_ms(now_ms - due_ms) + SOON_MS


def is_in_wrong_table(row: RowFacts, shards: int) -> bool:
    """Whether the row is of kind MISFIT: its job_id does not fit its biz_id, or names another table."""
    gene = gene_of(row.job_id)
    return gene != hash_of(row.biz_id) & GENE_MASK or gene & (shards - 1) != row.shard


def _of_ended(
    row: RowFacts | None, places: Sequence[ReminderPlace], now_ms: int, limits: Tolerances
) -> Iterator[Disagreement]:
    waits = row is not None and (
        row.status is Status.CANCELLED or now_ms - (row.claimed_ms or 0) < LATELY_MS
    )
    # A reminder that was not popped since then will not be popped any more.
    oldest_ms = now_ms - limits.overdue_ms
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
