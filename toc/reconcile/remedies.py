"""The remedy for one disagreement, given both sides as they are right before the repair. Pure functions.

A finding may be minutes old. Therefore each rule first asks whether it is still true; if not, there is
nothing to do. A remedy is harmless if the job has changed once more meanwhile: the claim corrects
an early reminder, and forgets the reminder of an ended job when it is popped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toc.domain.disagreements import Disagreement, ReminderPlace, RowFacts, latest_ms
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
    row: RowFacts | None
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
            and place.armed_ms <= latest_ms(self.due_ms, self.now_ms)
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
            raise ValueError(f"{kind} is no matter of a reminder")


def remedy_after_realign(current: RecheckedFinding, *, changed: bool) -> Remedy:
    """For a row that was MOVED. `changed`: the repair has made it due at its action_time again."""
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("it is running by now")
    if row.attempts == 0 and due_ms != row.action_ms:
        return Remedy("it was moved again meanwhile", done=False)
    how = "due at its action_time again" if changed else "it was put right meanwhile"
    needs = current.is_reachable and not current.is_in_place and due_ms <= current.until_ms
    return Remedy(how, arm_ms=due_ms if needs else None)


def _remedy_of_missing(current: RecheckedFinding) -> Remedy:
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("it is running by now")
    if not current.is_reachable:
        return _remedy_of_unreachable_row()
    if current.is_in_place:
        return Remedy("its reminder is in place by now")
    if current.at_home is None and due_ms > current.until_ms:
        return Remedy("it is due later by now: the loader brings it")
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_orphan(current: RecheckedFinding) -> Remedy:
    if current.at_spot is None:
        return _remedy_of_vanished_reminder()
    if current.due_ms is not None:
        return Remedy("it is alive again: its reminder stays")
    return Remedy("forgotten", forget=True)


def _remedy_of_wrong_slot(current: RecheckedFinding) -> Remedy:
    due_ms = current.due_ms
    if current.at_spot is None:
        return _remedy_of_vanished_reminder()
    if due_ms is None:
        return Remedy("forgotten there", forget=True)
    if current.finding.spot == current.home:
        return Remedy("it is its own slot by now", done=False)
    if not current.is_reachable:
        return _remedy_of_unreachable_row()
    if current.is_in_place or due_ms > current.until_ms:
        return Remedy("forgotten there", forget=True)
    return Remedy("moved to its own slot", arm_ms=due_ms, forget=True)


def _remedy_of_stuck(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_spot, current.due_ms
    out_ms = None if place is None else place.out_ms
    if out_ms is None or out_ms >= current.now_ms:
        return Remedy("it is back by itself" if out_ms is None else "it was popped anew meanwhile")
    if due_ms is None:
        return Remedy("forgotten", forget=True)
    if current.finding.spot != current.home:
        return _remedy_of_wrong_slot(current)
    if not current.is_reachable:
        return _remedy_of_unreachable_row()
    assert current.row is not None  # noqa: S101 - it is due
    far = due_ms > current.until_ms
    how = "taken out: the loader brings it" if far else "put back at its due_time"
    return Remedy(how, back=Reminder(None if far else due_ms, current.row.job_id))


def _remedy_of_overdue(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_home, current.due_ms
    armed_ms = None if place is None else place.armed_ms
    if due_ms is None:
        return _remedy_of_ended_job(current)
    if due_ms > current.now_ms:
        return Remedy("it is due later by now")
    if current.just_armed:
        return Remedy("it has just been armed")
    if not current.is_reachable:
        return _remedy_of_unreachable_row()
    if armed_ms is not None and armed_ms <= latest_ms(due_ms, current.now_ms):
        return Remedy("it is armed; no worker takes it", done=False)
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_ended_job(current: RecheckedFinding) -> Remedy:
    return Remedy("it is gone" if current.row is None else "it has ended meanwhile")


def _remedy_of_vanished_reminder() -> Remedy:
    return Remedy("it has left that slot by itself")


def _remedy_of_unreachable_row() -> Remedy:
    return Remedy("its row lies where no worker looks: that must be repaired first", done=False)
