"""The remedy for one disagreement, given both sides as they are right before the repair. Pure functions.

A finding may be minutes old. Therefore each rule first asks whether it is still true; if not, there is
nothing to do. A remedy is harmless if the job has changed once more meanwhile: the claim corrects
an early reminder, and forgets the reminder of an ended job when it is popped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toc.domain.disagreements import ComparedRow, Disagreement, ReminderPlace, latest_reminder_ms
from toc.domain.job import Status
from toc.reconcile.both_sides import Spot
from toc.reconcile.findings import Finding
from toc.timer.reminders import Reminder

_ARMED = "armed at its due_time"


@dataclass(frozen=True, slots=True)
class RecheckedFinding:
    """A finding with its row and its reminder as they are now. Times in ms since 1970 UTC.

    row: where workers look for it if it is live there, else where it was found; None: there is none. home:
    the slot that its reminder belongs in (without a row: where it was found). at_home, at_spot: its reminder
    there, and in the finding's slot; None: it has none. until_ms: jobs due later need no reminder yet.
    just_armed: armed by this very run.
    """

    finding: Finding
    row: ComparedRow | None
    home: Spot
    at_home: ReminderPlace | None
    at_spot: ReminderPlace | None
    now_ms: int
    until_ms: int
    shard_of_id: int
    just_armed: bool = False

    @property
    def due_ms(self) -> int | None:
        """When the row is due; None: it has ended, or does not exist."""
        return self.row.due_ms if self.row is not None and self.row.status.live else None

    @property
    def is_reachable(self) -> bool:
        """Whether a worker that has the id finds the row."""
        return self.row is not None and self.row.shard == self.shard_of_id

    @property
    def is_in_place(self) -> bool:
        """Whether its own slot has it out with a worker, or armed in time."""
        place = self.at_home
        if place is None:
            return False
        in_time = (
            place.armed_ms is not None
            and self.due_ms is not None
            and place.armed_ms <= latest_reminder_ms(self.due_ms, self.now_ms)
        )
        return place.out_ms is not None or in_time


class Remedy(NamedTuple):
    """What to do, in this order; nothing if all are None or False. `how`: in words.

    arm_ms: arm it in its own slot. back: put it back in the finding's slot. forget: ack it there. done: False
    when nothing can be done.
    """

    how: str
    done: bool = True
    arm_ms: int | None = None
    back: Reminder | None = None
    forget: bool = False

    @property
    def does_something(self) -> bool:
        return self.arm_ms is not None or self.back is not None or self.forget


_VANISHED = Remedy("the reminder is no longer in that slot")
_UNREACHABLE = Remedy(
    "the row is in a table where no worker looks for it: repair that first", done=False
)


def choose_remedy(current: RecheckedFinding) -> Remedy:
    """For a finding that is repaired by its reminder alone."""
    match current.finding.kind:
        case Disagreement.MISSING | Disagreement.LATE:
            return _remedy_of_missing(current)
        case Disagreement.ORPHAN:
            return _remedy_of_orphan(current)
        case Disagreement.WRONG_SLOT | Disagreement.TWO_SLOTS:
            return _remedy_of_wrong_slot(current)
        case Disagreement.STUCK:
            return _remedy_of_stuck(current)
        case Disagreement.OVERDUE | Disagreement.LEASE_OVER:
            return _remedy_of_overdue(current)
        case kind:
            raise ValueError(f"{kind} is not repaired by a reminder")


def remedy_after_realign(current: RecheckedFinding, *, changed: bool) -> Remedy:
    """For a row that was MOVED. `changed`: the repair has made it due at its action_time again."""
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("the job is running by now")
    if row.attempts == 0 and due_ms != row.action_ms:
        return Remedy("the row was changed again meanwhile", done=False)
    how = "due at its action_time again" if changed else "the row was corrected meanwhile"
    needs = current.is_reachable and not current.is_in_place and due_ms <= current.until_ms
    return Remedy(how, arm_ms=due_ms if needs else None)


def _remedy_of_missing(current: RecheckedFinding) -> Remedy:
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("the job is running by now")
    if not current.is_reachable:
        return _UNREACHABLE
    if current.is_in_place:
        return Remedy("the reminder is in place by now")
    if current.at_home is None and due_ms > current.until_ms:
        return Remedy("the job is due later by now: the loader arms it")
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_orphan(current: RecheckedFinding) -> Remedy:
    if current.at_spot is None:
        return _VANISHED
    if current.due_ms is not None:
        return Remedy("the job is live again: its reminder stays")
    return Remedy("forgotten", forget=True)


def _remedy_of_wrong_slot(current: RecheckedFinding) -> Remedy:
    due_ms = current.due_ms
    if current.at_spot is None:
        return _VANISHED
    if due_ms is None:
        return Remedy("forgotten there", forget=True)
    if current.finding.spot == current.home:
        return Remedy("the slot is the job's own by now", done=False)
    if not current.is_reachable:
        return _UNREACHABLE
    if current.is_in_place or due_ms > current.until_ms:
        return Remedy("forgotten there", forget=True)
    return Remedy("moved to its own slot", arm_ms=due_ms, forget=True)


def _remedy_of_stuck(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_spot, current.due_ms
    out_ms = None if place is None else place.out_ms
    if out_ms is None:
        return Remedy("the reminder is no longer in the PrepareQueue")
    if out_ms >= current.now_ms:
        return Remedy("the reminder was popped again meanwhile")
    if due_ms is None:
        return Remedy("forgotten", forget=True)
    if current.finding.spot != current.home:
        return _remedy_of_wrong_slot(current)
    if not current.is_reachable:
        return _UNREACHABLE
    assert current.row is not None  # noqa: S101 - it is due
    far = due_ms > current.until_ms
    how = "taken out: the loader arms it" if far else "put back at its due_time"
    return Remedy(how, back=Reminder(None if far else due_ms, current.row.job_id))


def _remedy_of_overdue(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_home, current.due_ms
    armed_ms = None if place is None else place.armed_ms
    if due_ms is None:
        return _remedy_of_ended_job(current)
    if due_ms > current.now_ms:
        return Remedy("the job is due later by now")
    if current.just_armed:
        return Remedy("this run has just armed the reminder")
    if not current.is_reachable:
        return _UNREACHABLE
    if armed_ms is not None and armed_ms <= latest_reminder_ms(due_ms, current.now_ms):
        return Remedy("the reminder is armed, but no worker takes it", done=False)
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_ended_job(current: RecheckedFinding) -> Remedy:
    return Remedy("the row is gone" if current.row is None else "the job has ended meanwhile")
