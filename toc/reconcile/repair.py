"""Repairs what a compare has found, through the guarded verbs that everybody uses.

Right before its repair each job is looked at again, in the database and in Redis (`remedies`); so a
finding may be old, a run may be repeated, and two may run side by side. A batch goes so:

1. The rows are read, then their reminders: without Redis nothing is begun.
2. Rows that are wrong themselves are changed (`store.mending`), each with its event in the transaction.
3. The trace of what will be done to reminders is committed: an event per job, a line in the log where
   there is no row. Before it is done: who dies in between leaves a trace of a repair that the next
   run makes, and never a repair without a trace.
4. Arm, put back, ack, in this order. Killed in between, a job has a reminder too many, never one too
   few.
5. **An ack knows only the id.** A dead job may be redriven between the look and the ack, and then the
   ack takes a reminder of the living. So the rows of acked ids are read once more, and those that
   live are armed. Nothing can be lost: a redrive that commits before that look is seen by it; one
   that commits later arms later still, after its commit, so after the ack. The loader's reminders
   are of rows that were committed before it armed them: they are seen too. Killed between the ack and
   that look, such a job has no reminder until the next run, and the scanner takes it.

A job that is armed too often, too early or after its end costs a look; the claim decides.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from toc.domain.disagreements import Disagreement
from toc.domain.ids import gene_of
from toc.domain.job import Status
from toc.domain.routing import slot_of
from toc.errors import NotFound
from toc.reconcile.findings import Finding, Mend
from toc.reconcile.remedies import NOWHERE, Look, Remedy, Spot, Stand, of_moved, remedy
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.columns import sql_time
from toc.store.comparing import Comparing, FullRow
from toc.store.databases import Databases
from toc.store.mending import Mending, Shifted
from toc.timer.slots import Entry, Slots

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 200  # findings at a time, and never more than a second's worth

_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            # What changes rows comes first: the other rules go by the rows.
            Disagreement.MOVED,
            Disagreement.MISFIT,
            Disagreement.WRONG_SLOT,
            Disagreement.TWO_SLOTS,
            Disagreement.STUCK,
            Disagreement.ORPHAN,
            Disagreement.LATE,
            Disagreement.MISSING,
            Disagreement.LEASE_OVER,
            Disagreement.OVERDUE,
            Disagreement.MARK_AHEAD,
        )
    )
}
_LIVE = [int(status) for status in Status if status.live]


class Repairs:
    """Mends findings. `name_of_type`: of a type's number; raises NotFound. `actor`: stands in events.

    Thread-safe; all callers together go no faster than `reconcile.repairs_per_s`.
    """

    def __init__(
        self,
        databases: Databases,
        slots: Slots,
        settings: Settings,
        name_of_type: Callable[[int], str],
        clock: Clock,
        actor: str,
    ) -> None:
        self._routing, self._slots, self._settings = databases.routing, slots, settings
        self._name_of_type, self._clock = name_of_type, clock
        self._rows, self._mending = Comparing(databases), Mending(databases, actor)
        self._near_ms = round((settings.timer.horizon_s + settings.timer.slack_s) * 1000)
        self._per_s = settings.reconcile.repairs_per_s
        self._batch = max(1, min(BATCH, int(self._per_s)))
        self._pace = threading.Lock()
        self._free_s = float("-inf")  # when the next batch may begin, by the monotonic clock

    def mend(
        self, findings: Iterable[Finding], tell: Callable[[int], object] = lambda count: None
    ) -> Iterator[Mend]:
        """Repairs batch by batch, as the caller takes what was done; stopping half-way is harmless.

        `tell` is called after each batch with the number of findings dealt with until then. Raises
        StoreUnavailable and TimerUnavailable, after all that was done is yielded, but for the batch
        in which it happened: that may be done in part, and is as good as new to the next run.
        """
        armed: set[int] = set()  # by this run
        dealt = 0
        todo = sorted(findings, key=self._order)
        for (_, kind, _), some in groupby(todo, key=self._group):
            for batch in _parts(list(some), self._batch):
                self._wait(len(batch))
                mended: list[Mend] = []
                try:
                    self._mend(kind, batch, armed, mended)
                except Exception:
                    yield from mended
                    raise
                yield from mended
                dealt += len(batch)
                tell(dealt)

    # ---- inside

    def _group(self, finding: Finding) -> tuple[int, Disagreement, int]:
        """What may share a batch: one kind, one database."""
        return _ORDER[finding.kind], finding.kind, self._routing.database(finding.shard)

    def _order(self, finding: Finding) -> tuple[int, int, str, int, int]:
        return (
            _ORDER[finding.kind], finding.shard, finding.topic, finding.slot, finding.job_id,
        )  # fmt: skip

    def _wait(self, number: int) -> None:
        with self._pace:
            now_s = self._clock.monotonic_s()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + number / self._per_s
        if begin_s > now_s:
            self._clock.sleep_s(begin_s - now_s)

    def _mend(
        self, kind: Disagreement, batch: Sequence[Finding], armed: set[int], mended: list[Mend]
    ) -> None:
        """Appends to `mended` what is done with."""
        if kind is Disagreement.MARK_AHEAD:
            for finding in batch:
                mended.append(self._drop_mark(finding))
            return
        now_ms = self._slots.time_ms()
        looks = self._look(batch, now_ms, armed)  # without Redis nothing is begun
        match kind:
            case Disagreement.MISFIT:
                for finding in batch:
                    mended.append(self._rehome(finding, now_ms, armed))
            case Disagreement.MOVED:
                changed = self._realign(batch)
                looks = self._look(batch, now_ms, armed)
                remedies = [
                    of_moved(look, changed=_place(look.finding) in changed) for look in looks
                ]
                self._carry_out(looks, remedies, armed, noted=changed)
                mended += map(_mend_of, looks, remedies)
            case _:
                remedies = [remedy(look) for look in looks]
                self._carry_out(looks, remedies, armed)
                mended += map(_mend_of, looks, remedies)

    # ---- rows

    def _realign(self, batch: Sequence[Finding]) -> set[tuple[int, int]]:
        """(shard, job_id) of those that are due at their action_time again."""
        shifted: dict[int, list[Shifted]] = defaultdict(list)
        for finding in batch:
            if finding.action_ms is not None and finding.due_ms is not None:
                shifted[finding.shard].append(
                    Shifted(finding.job_id, finding.action_ms, finding.due_ms)
                )
        return self._mending.realign(shifted) if shifted else set()

    def _rehome(self, finding: Finding, now_ms: int, armed: set[int]) -> Mend:
        """Copies a misfit to where it belongs, and takes its reminders along."""
        old_id = finding.job_id
        rehomed = self._mending.rehome(finding.shard, old_id)
        if rehomed.job_id is None:
            return Mend(finding, rehomed.is_over and finding.status in _LIVE, rehomed.why)
        topic = self._topic(rehomed.type_no)
        home = self._home(topic, rehomed.job_id)
        if rehomed.due_ms <= now_ms + self._near_ms:
            self._arm({home: [Entry(rehomed.due_ms, rehomed.job_id)]}, armed)
        # The loader of the old shard has its slot from the shard, a worker from the id.
        amount = self._settings.slots_of(topic)
        spots = {(finding.topic, finding.slot), (topic, slot_of(finding.shard, amount))}
        spots.add(self._home(topic, old_id))
        if rehomed.job_id == old_id:  # only its shard was wrong
            spots.discard(home)
        self._forget({spot: [old_id] for spot in spots}, {old_id}, now_ms, armed)
        return Mend(finding, True, "a copy stands for it where it belongs")

    # ---- looking

    def _look(self, batch: Sequence[Finding], now_ms: int, armed: set[int]) -> list[Look]:
        """The rows of findings, then their reminders: in their own slots, and where they were found."""
        rows = self._rows_of(batch)
        homes: list[Spot] = []
        wanted: dict[Spot, list[int]] = defaultdict(list)
        for finding, row in zip(batch, rows, strict=True):
            spot = finding.topic, finding.slot
            home = spot if row is None else self._home(self._topic(row.type_no), row.job_id)
            homes.append(home)
            for place in {home, spot}:
                wanted[place].append(finding.job_id)
        stands: dict[tuple[str, int, int], Stand] = {}
        for topic, by_slot in _by_topic(wanted).items():
            for (slot, job_id), stand in self._slots.places(topic, by_slot).items():
                stands[topic, slot, job_id] = stand
        return [
            Look(
                finding, row, home,
                at_home=stands.get((*home, finding.job_id), NOWHERE),
                there=stands.get((finding.topic, finding.slot, finding.job_id), NOWHERE),
                now_ms=now_ms,
                until_ms=now_ms + self._near_ms,
                shard_of_id=self._shard_of(finding.job_id),
                just_armed=finding.job_id in armed,
            )
            for finding, row, home in zip(batch, rows, homes, strict=True)
        ]  # fmt: skip

    def _rows_of(self, batch: Sequence[Finding]) -> list[FullRow | None]:
        """Of each finding: the row where a worker finds it, if that lives, else the one where it was found.

        There may be two with one id, when somebody has copied rows by hand.
        """
        ids: dict[int, set[int]] = defaultdict(set)
        for finding in batch:
            ids[finding.shard].add(finding.job_id)
            ids[self._shard_of(finding.job_id)].add(finding.job_id)
        found: dict[tuple[int, int], FullRow] = {}
        for shard in sorted(ids):
            for row in self._rows.rows(shard, ids[shard]):
                found[shard, row.job_id] = row
        rows = []
        for finding in batch:
            own = found.get((self._shard_of(finding.job_id), finding.job_id))
            there = found.get(_place(finding), own)
            rows.append(own if own is not None and own.status.live else there)
        return rows

    def _shard_of(self, job_id: int) -> int:
        return self._routing.shard(gene_of(job_id))

    def _topic(self, type_no: int) -> str:
        try:
            return self._settings.topic_of(self._name_of_type(type_no))
        except NotFound:  # a number that other hands have written
            return self._settings.topic_of("")

    def _home(self, topic: str, job_id: int) -> Spot:
        return topic, slot_of(gene_of(job_id), self._settings.slots_of(topic))

    # ---- reminders

    def _carry_out(
        self,
        looks: Sequence[Look],
        remedies: Sequence[Remedy],
        armed: set[int],
        noted: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Does what is to be done. `noted`: (shard, job_id) that have their event already."""
        todo = [pair for pair in zip(looks, remedies, strict=True) if pair[1].acts]
        if not todo:
            return
        self._leave_trace([pair for pair in todo if _place(pair[0].finding) not in noted])
        arms: dict[Spot, list[Entry]] = defaultdict(list)
        backs: dict[Spot, list[Entry]] = defaultdict(list)
        acks: dict[Spot, list[int]] = defaultdict(list)
        ended: set[int] = set()
        for look, wanted in todo:
            job_id = look.finding.job_id
            if wanted.arm_ms is not None:
                arms[look.home].append(Entry(wanted.arm_ms, job_id))
            if wanted.back is not None:
                backs[look.spot].append(wanted.back)
            if wanted.forget:
                acks[look.spot].append(job_id)
                if look.due_ms is None:
                    ended.add(job_id)
        self._arm(arms, armed)
        for topic, entries in _by_topic(backs).items():
            self._slots.put_back(topic, entries)
        self._forget(acks, ended, looks[0].now_ms, armed)

    def _leave_trace(self, todo: Iterable[tuple[Look, Remedy]]) -> None:
        reasons: dict[int, dict[int, str]] = defaultdict(dict)
        for look, wanted in todo:
            finding, row = look.finding, look.row
            words = f"{finding.kind} ({finding.topic} slot {finding.slot}): {wanted.how}"
            due_ms = wanted.arm_ms if wanted.back is None else wanted.back.due_ms
            if due_ms is not None:
                words += f", {sql_time(due_ms)} UTC"
            if row is None:
                log.info("repair: job %d, which has no row: %s", finding.job_id, words)
                continue
            before = reasons[row.shard].get(finding.job_id)
            reasons[row.shard][finding.job_id] = f"{before}; {words}" if before else words
        if reasons:
            self._mending.note(reasons)

    def _arm(self, entries: Mapping[Spot, Sequence[Entry]], armed: set[int]) -> None:
        for topic, by_slot in _by_topic(entries).items():
            self._slots.arm(topic, by_slot)
        armed.update(entry.job_id for some in entries.values() for entry in some)

    def _forget(
        self,
        acks: Mapping[Spot, Sequence[int]],
        ended: Iterable[int],
        now_ms: int,
        armed: set[int],
    ) -> None:
        """Acks ids, then arms those of the `ended` that live again (see 5 above)."""
        for topic, by_slot in _by_topic(acks).items():
            self._slots.ack(topic, by_slot)
        ids: dict[int, set[int]] = defaultdict(set)
        for job_id in ended:
            ids[self._shard_of(job_id)].add(job_id)
        alive: dict[Spot, list[Entry]] = defaultdict(list)
        for shard in sorted(ids):
            for row in self._rows.rows(shard, ids[shard]):
                due_ms = row.due_ms if row.status.live else None
                if due_ms is not None and due_ms <= now_ms + self._near_ms:
                    home = self._home(self._topic(row.type_no), row.job_id)
                    alive[home].append(Entry(due_ms, row.job_id))
        self._arm(alive, armed)

    def _drop_mark(self, finding: Finding) -> Mend:
        topic, slot = finding.topic, finding.slot
        if finding.shard not in self._slots.marks(topic, [slot])[slot].by_shard:
            return Mend(finding, True, "it was dropped meanwhile")
        log.info("repair: %s: dropped the mark of %s slot %d", finding.kind, topic, slot)
        self._slots.drop_marks(topic, [slot])
        return Mend(finding, True, "dropped: the loader begins anew")


def _place(finding: Finding) -> tuple[int, int]:
    return finding.shard, finding.job_id


def _mend_of(look: Look, done: Remedy) -> Mend:
    return Mend(look.finding, done.done, done.how)


def _parts(items: Sequence[Finding], size: int) -> Iterator[Sequence[Finding]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _by_topic(by_spot: Mapping[Spot, Sequence[T]]) -> dict[str, dict[int, Sequence[T]]]:
    found: dict[str, dict[int, Sequence[T]]] = defaultdict(dict)
    for (topic, slot), items in by_spot.items():
        found[topic][slot] = items
    return found
