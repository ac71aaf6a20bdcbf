"""The remedy for a disagreement, given row and reminder as they are right before the repair. Pure functions.

A finding may be minutes old. Therefore each rule first checks whether the finding is still true; if not,
nothing is done. A remedy is harmless if the job has changed once more meanwhile: the claim corrects
an early reminder, and removes the reminder of an ended job when it is popped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toc.domain.disagreements import ComparedRow, Disagreement, ReminderPlace, latest_reminder_ms
from toc.domain.job import Status
from toc.reconcile.databases_and_redis import TopicSlot
from toc.reconcile.findings import Finding
from toc.timer.reminders import Reminder

_ARMED = "armed at its due_time"


@dataclass(frozen=True, slots=True)
class RecheckedFinding:
    """A finding with its row and its reminder as they are now. Times in ms since 1970 UTC.

    row: the row in the shard where workers look for the job, if that row is live or is the only row; else
    the row in the finding's shard; None: there is no row. home: the slot where the job's reminder belongs;
    without a row, the finding's slot. at_home, at_spot: the reminder in the slot `home`, and in the finding's
    slot; None: no reminder is there. until_ms: jobs due later need no reminder yet. stay_until_ms: no stay
    ends later. just_armed: this run has
    armed the job.
    """

    finding: Finding
    row: ComparedRow | None
    home: TopicSlot
    at_home: ReminderPlace | None
    at_spot: ReminderPlace | None
    now_ms: int
    until_ms: int
    stay_until_ms: int
    shard_of_id: int
    just_armed: bool = False

    @property
    def due_ms(self) -> int | None:
        """When the row is due; None: it has ended, or does not exist."""
        return self.row.due_ms if self.row is not None and self.row.status.live else None

    @property
    def worker_finds_row(self) -> bool:
        """Whether a worker that has the id finds the row."""
        return self.row is not None and self.row.shard == self.shard_of_id

    @property
    def has_timely_reminder(self) -> bool:
        """Whether the job's own slot holds its reminder, and this is popped, or armed and not too late."""
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
    """The steps of a repair, in this order; no step if all are None or False. `how`: the repair in words.

    arm_ms: arm the job in its own slot at this time. put_back: put this reminder back in the finding's slot.
    ack: ack the job in the finding's slot. done: False if no repair is possible.
    """

    how: str
    done: bool = True
    arm_ms: int | None = None
    put_back: Reminder | None = None
    ack: bool = False

    @property
    def changes_redis(self) -> bool:
        return self.arm_ms is not None or self.put_back is not None or self.ack


_VANISHED = Remedy("the reminder is no longer in that slot")
_UNREACHABLE = Remedy(
    "the row is in a table where no worker looks for it: repair that first", done=False
)


def choose_remedy(current: RecheckedFinding) -> Remedy:
    """The remedy for a finding whose repair changes only the reminder, not the row."""
    match current.finding.kind:
        case Disagreement.MISSING | Disagreement.LATE:
            return _remedy_of_missing_reminder(current)
        case Disagreement.ORPHAN:
            return _remedy_of_orphan_reminder(current)
        case Disagreement.WRONG_SLOT | Disagreement.TWO_SLOTS:
            return _remedy_of_wrong_slot(current)
        case Disagreement.STUCK:
            return _remedy_of_stuck_reminder(current)
        case Disagreement.OVERDUE | Disagreement.LEASE_OVER:
            return _remedy_of_overdue_job(current)
        case kind:
            raise ValueError(f"{kind} is not repaired by a reminder")


def remedy_of_moved_row(current: RecheckedFinding, *, changed: bool) -> Remedy:
    """The remedy for a MOVED row. `changed`: this repair has set its due_time to its action_time."""
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("the job is running by now")
    if row.attempts == 0 and due_ms != row.action_ms:
        return Remedy("the row was changed again meanwhile", done=False)
    how = "due at its action_time again" if changed else "the row was corrected meanwhile"
    needs = (
        current.worker_finds_row and not current.has_timely_reminder and due_ms <= current.until_ms
    )
    return Remedy(how, arm_ms=due_ms if needs else None)


def remedy_of_defective_row(current: RecheckedFinding, *, changed: bool) -> Remedy:
    """The remedy for a row that was wrong by itself. `changed`: this repair has changed the row."""
    due_ms = current.due_ms
    if not changed:
        return Remedy(_BY_HAND.get(current.finding.kind, "the row was changed meanwhile"),
                      done=current.finding.kind not in _BY_HAND)  # fmt: skip
    needs = due_ms is not None and current.worker_finds_row and not current.has_timely_reminder
    if needs and due_ms is not None and due_ms <= current.until_ms:
        return Remedy("the row is corrected, and the job is armed", arm_ms=due_ms)
    return Remedy("corrected")


_BY_HAND = {
    Disagreement.UNKNOWN_STATUS: "toc cannot know what the status was meant to be: set it to 0 (pending), 2 "
    "(done) or 3 (cancelled), with a due_time only if it is 0",
    Disagreement.UNKNOWN_TYPE: "toc cannot know which type the job has: set type_no to a number of "
    "toc_biz_type, or cancel the job",
    Disagreement.LONE_LETTER: "toc cannot know what became of the job: its row is gone, or has an unknown "
    "status. Delete its letter from toc_dead_job if you need it no more",
    Disagreement.ENDLESS_LEASE: "a worker with a larger worker.lease_s may hold the job: if none does, set "
    "lease_end_time to UTC_TIMESTAMP(3)",
}


def _remedy_of_missing_reminder(current: RecheckedFinding) -> Remedy:
    row, due_ms = current.row, current.due_ms
    if row is None or due_ms is None:
        return _remedy_of_ended_job(current)
    if row.status is Status.RUNNING:
        return Remedy("the job is running by now")
    if not current.worker_finds_row:
        return _UNREACHABLE
    if current.has_timely_reminder:
        return Remedy("the reminder is in place by now")
    if current.at_home is None and due_ms > current.until_ms:
        return Remedy("the job is due later by now: the loader arms it")
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_orphan_reminder(current: RecheckedFinding) -> Remedy:
    if current.at_spot is None:
        return _VANISHED
    if current.due_ms is not None:
        return Remedy("the job is live again: its reminder stays")
    return Remedy("removed", ack=True)


def _remedy_of_wrong_slot(current: RecheckedFinding) -> Remedy:
    due_ms = current.due_ms
    if current.at_spot is None:
        return _VANISHED
    if due_ms is None:
        return Remedy("removed from that slot", ack=True)
    if current.finding.topic_and_slot == current.home:
        return Remedy("the slot is the job's own by now", done=False)
    if not current.worker_finds_row:
        return _UNREACHABLE
    if current.has_timely_reminder or due_ms > current.until_ms:
        return Remedy("removed from that slot", ack=True)
    return Remedy("moved to its own slot", arm_ms=due_ms, ack=True)


def _remedy_of_stuck_reminder(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_spot, current.due_ms
    out_ms = None if place is None else place.out_ms
    if out_ms is None:
        return Remedy("the reminder is no longer in the PrepareQueue")
    if current.now_ms <= out_ms <= current.stay_until_ms:
        return Remedy("the reminder was popped again meanwhile")
    if due_ms is None:
        return Remedy("removed", ack=True)
    if current.finding.topic_and_slot != current.home:
        return _remedy_of_wrong_slot(current)
    if not current.worker_finds_row:
        return _UNREACHABLE
    assert current.row is not None  # noqa: S101 - it is due
    # The loader loads only rows whose due_time is ahead; that of a running row has passed.
    far = due_ms > current.until_ms and current.row.status is Status.PENDING
    how = "taken out: the loader arms it" if far else "put back at its due_time"
    return Remedy(how, put_back=Reminder(None if far else due_ms, current.row.job_id))


def _remedy_of_overdue_job(current: RecheckedFinding) -> Remedy:
    place, due_ms = current.at_home, current.due_ms
    armed_ms = None if place is None else place.armed_ms
    if due_ms is None:
        return _remedy_of_ended_job(current)
    if due_ms > current.now_ms:
        return Remedy("the job is due later by now")
    if current.just_armed:
        return Remedy("this run has just armed the reminder")
    if not current.worker_finds_row:
        return _UNREACHABLE
    if armed_ms is not None and armed_ms <= latest_reminder_ms(due_ms, current.now_ms):
        return Remedy("the reminder is armed, but no worker takes it", done=False)
    return Remedy(_ARMED, arm_ms=due_ms)


def _remedy_of_ended_job(current: RecheckedFinding) -> Remedy:
    return Remedy("the row is gone" if current.row is None else "the job has ended meanwhile")
