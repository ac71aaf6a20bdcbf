"""What to do about one disagreement, as both sides stand right before its repair. Pure: it asks nobody.

A finding may be minutes old. Each rule therefore asks first whether it is still the case; if not,
there is nothing to do. What a rule orders is always legal for a reminder of a job that has changed
once more since the look: an early reminder is put right by the claim, one of an ended job is
forgotten when it is popped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from toc.domain.disagreements import Disagreement, latest_ms
from toc.domain.job import Status
from toc.reconcile.findings import Finding
from toc.store.comparing import FullRow
from toc.timer.slots import Entry

Spot = tuple[str, int]
"""A topic and one of its slots."""

Stand = tuple[int | None, int | None]
"""Where a reminder stands in a slot: its time in the StoreQueue, the end of its stay in the PrepareQueue."""

NOWHERE: Stand = (None, None)
_ARMED = "armed at its due_time"


@dataclass(frozen=True, slots=True)
class Look:
    """A finding, its row and its reminder now. Times in ms since 1970 UTC.

    row: where workers look for it if it lives there, else where it was found; None: there is none.
    home: where its reminder belongs (of no row: where it was found). there: of the finding's slot.
    until_ms: what is due later has no reminder yet. just_armed: by this very run.
    """

    finding: Finding
    row: FullRow | None
    home: Spot
    at_home: Stand
    there: Stand
    now_ms: int
    until_ms: int
    shard_of_id: int
    just_armed: bool = False

    @property
    def spot(self) -> Spot:
        return self.finding.topic, self.finding.slot

    @property
    def due_ms(self) -> int | None:
        """When the row is due; None: it has ended, or is gone."""
        return self.row.due_ms if self.row is not None and self.row.status.live else None

    @property
    def is_reachable(self) -> bool:
        """Whether a worker that has its id finds the row."""
        return self.row is not None and self.row.shard == self.shard_of_id

    @property
    def is_in_place(self) -> bool:
        """In its own slot it is out with a worker, or reminded of in time."""
        armed_ms, out_ms = self.at_home
        in_time = (
            armed_ms is not None
            and self.due_ms is not None
            and armed_ms <= latest_ms(self.due_ms, self.now_ms)
        )
        return out_ms is not None or in_time


class Remedy(NamedTuple):
    """What is done about it, in this order; nothing where all is None or False. `how`: in words.

    arm_ms: armed in its own slot. back: put back in the finding's slot. forget: acked there.
    done: False when nothing can be done.
    """

    how: str
    done: bool = True
    arm_ms: int | None = None
    back: Entry | None = None
    forget: bool = False

    @property
    def acts(self) -> bool:
        return self.arm_ms is not None or self.back is not None or self.forget


def remedy(look: Look) -> Remedy:
    """For a finding that is repaired by its reminder alone."""
    match look.finding.kind:
        case Disagreement.MISSING | Disagreement.LATE:
            return _of_missing(look)
        case Disagreement.ORPHAN:
            return _of_orphan(look)
        case Disagreement.WRONG_SLOT | Disagreement.TWO_SLOTS:
            return _of_wrong_slot(look)
        case Disagreement.STUCK:
            return _of_stuck(look)
        case Disagreement.OVERDUE | Disagreement.LEASE_OVER:
            return _of_overdue(look)
        case kind:
            raise ValueError(f"{kind} is no matter of a reminder")


def of_moved(look: Look, *, changed: bool) -> Remedy:
    """After the row's own repair. `changed`: it is due at its action_time again, by that repair."""
    row, due_ms = look.row, look.due_ms
    if row is None or due_ms is None:
        return _ended(look)
    if row.status is Status.RUNNING:
        return Remedy("it is running by now")
    if row.attempts == 0 and due_ms != row.action_ms:
        return Remedy("it was moved again meanwhile", done=False)
    how = "due at its action_time again" if changed else "it was put right meanwhile"
    needs = look.is_reachable and not look.is_in_place and due_ms <= look.until_ms
    return Remedy(how, arm_ms=due_ms if needs else None)


def _of_missing(look: Look) -> Remedy:
    row, due_ms = look.row, look.due_ms
    if row is None or due_ms is None:
        return _ended(look)
    if row.status is Status.RUNNING:
        return Remedy("it is running by now")
    if not look.is_reachable:
        return _unreachable()
    if look.is_in_place:
        return Remedy("its reminder is in place by now")
    if look.at_home == NOWHERE and due_ms > look.until_ms:
        return Remedy("it is due later by now: the loader brings it")
    return Remedy(_ARMED, arm_ms=due_ms)


def _of_orphan(look: Look) -> Remedy:
    if look.there == NOWHERE:
        return _went()
    if look.due_ms is not None:
        return Remedy("it is alive again: its reminder stays")
    return Remedy("forgotten", forget=True)


def _of_wrong_slot(look: Look) -> Remedy:
    due_ms = look.due_ms
    if look.there == NOWHERE:
        return _went()
    if due_ms is None:
        return Remedy("forgotten there", forget=True)
    if look.spot == look.home:
        return Remedy("it is its own slot by now", done=False)
    if not look.is_reachable:
        return _unreachable()
    if look.is_in_place or due_ms > look.until_ms:
        return Remedy("forgotten there", forget=True)
    return Remedy("moved to its own slot", arm_ms=due_ms, forget=True)


def _of_stuck(look: Look) -> Remedy:
    (_, out_ms), due_ms = look.there, look.due_ms
    if out_ms is None or out_ms >= look.now_ms:
        return Remedy("it is back by itself" if out_ms is None else "it was popped anew meanwhile")
    if due_ms is None:
        return Remedy("forgotten", forget=True)
    if look.spot != look.home:
        return _of_wrong_slot(look)
    if not look.is_reachable:
        return _unreachable()
    assert look.row is not None  # noqa: S101 - it is due
    far = due_ms > look.until_ms
    how = "taken out: the loader brings it" if far else "put back at its due_time"
    return Remedy(how, back=Entry(None if far else due_ms, look.row.job_id))


def _of_overdue(look: Look) -> Remedy:
    due_ms, (armed_ms, _) = look.due_ms, look.at_home
    if due_ms is None:
        return _ended(look)
    if due_ms > look.now_ms:
        return Remedy("it is due later by now")
    if look.just_armed:
        return Remedy("it has just been armed")
    if not look.is_reachable:
        return _unreachable()
    if armed_ms is not None and armed_ms <= latest_ms(due_ms, look.now_ms):
        return Remedy("it is armed; no worker takes it", done=False)
    return Remedy(_ARMED, arm_ms=due_ms)


def _ended(look: Look) -> Remedy:
    return Remedy("it is gone" if look.row is None else "it has ended meanwhile")


def _went() -> Remedy:
    return Remedy("it has left that slot by itself")


def _unreachable() -> Remedy:
    return Remedy("its row lies where no worker looks: that must be repaired first", done=False)
