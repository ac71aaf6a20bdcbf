"""Repairs the findings of a compare, with the guarded statements and scripts that workers use.

Right before its repair each job is read again, in the database and in Redis (`remedies`); so a finding may be
old, a run may be repeated, and two may run at the same time. The steps for a batch:

1. The rows are read, then their reminders: without Redis nothing is changed.

2. Rows that are wrong themselves are changed (`store.job_repair`), each with its event in the transaction.

3. The trace of the coming repairs of reminders is committed: an event per job, or a line in the log if a job
has no row. The trace comes first: after a crash there may be a trace of a repair that only the next run
makes, but never a repair without a trace.

4. The reminders in Redis are changed in this order: jobs are armed, popped reminders are put back, jobs are
acked. After a crash in between, a job has a reminder too many, never one too few.

5. **An ack knows only the id.** A dead job may be redriven between the read and the ack, and then the ack
removes a reminder of a live job. So the rows of acked ids are read once more, and live jobs are armed.
Nothing can be lost: if a redrive commits before this last read, the read sees the live row; if a redrive
commits later, its client arms the job after the commit, so after the ack. The loader arms only rows that were
committed before, so the last read sees these rows too. After a crash between the ack and the last read, such
a job has no reminder until the next run, and the scanner takes the job.

A job that is armed too often, too early or after its end costs one claim that finds nothing to do.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from toc.domain.disagreements import ComparedRow, Disagreement, ReminderPlace
from toc.domain.job import Status
from toc.domain.routing import slot_of_hash
from toc.errors import StoreUnavailable
from toc.reconcile.compare import FOREIGN_LOOKED_AT, tolerances_of
from toc.reconcile.databases_and_redis import DatabasesAndRedis, TopicSlot, group_by_topic
from toc.reconcile.findings import Finding, RepairResult
from toc.reconcile.remedies import (
    RecheckedFinding,
    Remedy,
    choose_remedy,
    remedy_of_defective_row,
    remedy_of_moved_row,
)
from toc.store.column_types import sql_time_of_ms
from toc.store.job_repair import JobRepair, ShiftedJob
from toc.store.row_defects import LEASE_MS_MAX, RowDefects
from toc.timer.reminders import Reminder

log = logging.getLogger(__name__)

BATCH = 200  # findings at a time, and at most as many as may be repaired in one second

DEFECTS = (
    Disagreement.NEVER_DUE,
    Disagreement.ENDED_BUT_DUE,
    Disagreement.ENDLESS_LEASE,
    Disagreement.NO_LETTER,
    Disagreement.LONE_LETTER,
    Disagreement.UNKNOWN_STATUS,
    Disagreement.UNKNOWN_TYPE,
)
"""Rows that are wrong by themselves."""

_FOR_PEOPLE = frozenset({Disagreement.UNKNOWN_STATUS, Disagreement.UNKNOWN_TYPE})

_ORDER = (
    # Repairs that change rows come first: the other rules depend on the rows.
    *DEFECTS,
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
    Disagreement.FOREIGN,
)
_LIVE = [int(status) for status in Status if status.live]


class Repairer:
    """Repairs findings. `actor`: named in events.

    Thread-safe; all callers together repair at most `reconcile.repairs_per_s`.
    """

    def __init__(self, sides: DatabasesAndRedis, actor: str, run_id: str | None = None) -> None:
        settings = sides.settings
        self._sides, self._reminders, self._clock = sides, sides.reminders, sides.clock
        self._job_repair = JobRepair(sides.databases, actor, run_id)
        self._defects = RowDefects(
            sides.databases, LEASE_MS_MAX, self._reminders.read_time_ms, actor=actor, run_id=run_id
        )
        self._stay_ms = tolerances_of(settings).stay_ms
        self._near_ms = settings.timer.arm_within_ms
        self._per_s = settings.reconcile.repairs_per_s
        self._batch = max(1, min(BATCH, int(self._per_s)))
        self._rate_lock = threading.Lock()
        self._free_s = float("-inf")  # when the next batch may begin, by the monotonic clock

    def repair_findings(
        self, findings: Iterable[Finding], on_progress: Callable[[int], object] = lambda count: None
    ) -> Iterator[RepairResult]:
        """Repairs a batch when the caller asks for its first result; stopping half-way is harmless.

        `on_progress` is called after each batch with the number of findings dealt with until then. A database
        that fails costs the findings of this kind and database. Raises TimerUnavailable, after the known
        results are yielded. In the batch of an error, findings may be repaired whose results do not say so:
        the next run finds only what is left.
        """
        armed: set[int] = set()  # by this run
        dealt = 0
        todo = sorted(findings, key=_repair_order_key)
        for (kind, _), group in groupby(todo, key=self._batch_key):
            some, failure = list(group), ""
            for start in range(0, len(some), self._batch):
                batch = some[start : start + self._batch]
                results: list[RepairResult] = []
                try:
                    if not failure:
                        self._wait_for_rate_limit(len(batch))
                        self._repair_batch(kind, batch, armed, results)
                except StoreUnavailable as error:
                    failure = str(error)
                except Exception:
                    yield from results
                    raise
                yield from results
                for finding in batch[len(results) :]:
                    yield RepairResult(finding, False, failure)
                dealt += len(batch)
                on_progress(dealt)

    # ---- inside

    def _batch_key(self, finding: Finding) -> tuple[Disagreement, int]:
        """Findings with an equal key may share a batch: they are of one kind and one database."""
        return finding.kind, self._sides.settings.routing.database_index(finding.shard)

    def _wait_for_rate_limit(self, number: int) -> None:
        with self._rate_lock:
            now_s = self._clock.monotonic_s()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + number / self._per_s
        if begin_s > now_s:
            self._clock.sleep_s(begin_s - now_s)

    def _repair_batch(
        self,
        kind: Disagreement,
        batch: Sequence[Finding],
        armed: set[int],
        results: list[RepairResult],
    ) -> None:
        """Repairs a batch; appends each result to `results` as soon as it is known."""
        if kind is Disagreement.MARK_AHEAD:
            for finding in batch:
                results.append(self._drop_loader_mark(finding))
            return
        if kind is Disagreement.FOREIGN:
            for finding in batch:
                results.append(self._remove_foreign_members(finding))
            return
        now_ms = self._reminders.read_time_ms()
        # Before any change: without Redis nothing is changed.
        rechecked = self._read_current_state(batch, now_ms, armed)
        if kind is Disagreement.MISFIT:
            for finding in batch:
                results.append(self._copy_row_to_right_table(finding, now_ms, armed))
            return
        changed: set[tuple[int, int]] = set()
        if kind in DEFECTS:
            changed = self._repair_rows(kind, batch)
            rechecked = self._read_current_state(batch, now_ms, armed)
            remedies = [
                remedy_of_defective_row(
                    current, changed=_shard_and_job_id(current.finding) in changed
                )
                for current in rechecked
            ]
        elif kind is Disagreement.MOVED:
            changed = self._reset_due_times(batch)
            rechecked = self._read_current_state(batch, now_ms, armed)
            remedies = [
                remedy_of_moved_row(current, changed=_shard_and_job_id(current.finding) in changed)
                for current in rechecked
            ]
        else:
            remedies = [choose_remedy(current) for current in rechecked]
        self._apply_remedies(rechecked, remedies, armed, noted=changed)
        for current, remedy in zip(rechecked, remedies, strict=True):
            results.append(RepairResult(current.finding, remedy.done, remedy.how))

    # ---- rows

    def _reset_due_times(self, batch: Sequence[Finding]) -> set[tuple[int, int]]:
        """Makes rows due at their action_time again; returns (shard, job_id) of those that were changed."""
        shifted: dict[int, list[ShiftedJob]] = defaultdict(list)
        for finding in batch:
            if finding.action_ms is not None and finding.due_ms is not None:
                shifted[finding.shard].append(
                    ShiftedJob(finding.job_id, finding.action_ms, finding.due_ms)
                )
        return self._job_repair.reset_due_times(shifted) if shifted else set()

    def _repair_rows(self, kind: Disagreement, batch: Sequence[Finding]) -> set[tuple[int, int]]:
        """Corrects rows that are wrong by themselves; returns (shard, job_id) of those that were changed."""
        if kind in _FOR_PEOPLE:
            return set()
        ids: dict[int, list[int]] = defaultdict(list)
        for finding in batch:
            ids[finding.shard].append(finding.job_id)
        return {
            (shard, job_id)
            for shard in sorted(ids)
            for job_id in self._defects.repair_jobs(kind, shard, ids[shard])
        }

    def _copy_row_to_right_table(
        self, finding: Finding, now_ms: int, armed: set[int]
    ) -> RepairResult:
        """Copies a row from the wrong table to the right one, and moves its reminders."""
        old_id = finding.job_id
        rehomed = self._job_repair.copy_to_right_shard(finding.shard, old_id)
        if rehomed.job_id is None:
            return RepairResult(finding, rehomed.is_over and finding.status in _LIVE, rehomed.why)
        topic = self._sides.topic_of_type(rehomed.type_no)
        home = self._sides.expected_slot(topic, rehomed.job_id)
        if rehomed.due_ms <= now_ms + self._near_ms:
            self._arm_reminders({topic: [Reminder(rehomed.due_ms, rehomed.job_id)]}, armed)
        # The loader of the old shard takes the slot from the shard, a worker takes the slot from the id.
        amount = self._sides.settings.slot_amount_of(topic)
        spots = {finding.topic_and_slot, (topic, slot_of_hash(finding.shard, amount))}
        spots.add(self._sides.expected_slot(topic, old_id))
        if rehomed.job_id == old_id:  # only its shard was wrong
            spots.discard(home)
        self._ack_reminders({spot: [old_id] for spot in spots}, {old_id}, now_ms, armed)
        return RepairResult(finding, True, "the row was copied to the table where it belongs")

    # ---- reading both sides

    def _read_current_state(
        self, batch: Sequence[Finding], now_ms: int, armed: set[int]
    ) -> list[RecheckedFinding]:
        """Reads the rows of findings, then their reminders: in their own slots, and where they were found."""
        sides, rows = self._sides, self._read_rows_of_findings(batch)
        homes = [
            finding.topic_and_slot if row is None else sides.expected_slot_of_row(row)
            for finding, row in zip(batch, rows, strict=True)
        ]
        wanted: dict[TopicSlot, list[int]] = defaultdict(list)
        for finding, home in zip(batch, homes, strict=True):
            for spot in {home, finding.topic_and_slot}:
                wanted[spot].append(finding.job_id)
        places = sides.find_reminder_places(wanted)
        return [
            RecheckedFinding(
                finding, row, home,
                at_home=_find_place_in_slot(places.get(finding.job_id, ()), home),
                at_spot=_find_place_in_slot(places.get(finding.job_id, ()), finding.topic_and_slot),
                now_ms=now_ms,
                until_ms=now_ms + self._near_ms,
                stay_until_ms=now_ms + self._stay_ms,
                shard_of_id=sides.shard_of_job_id(finding.job_id),
                just_armed=finding.job_id in armed,
            )
            for finding, row, home in zip(batch, rows, homes, strict=True)
        ]  # fmt: skip

    def _read_rows_of_findings(self, batch: Sequence[Finding]) -> list[ComparedRow | None]:
        """For each finding: the row in the shard where workers look for the job, if that row is live or is
        the only row; else the row in the finding's shard.

        Two rows may have one id, if a person has copied rows by hand.
        """
        ids: dict[int, set[int]] = defaultdict(set)
        for finding in batch:
            ids[finding.shard].add(finding.job_id)
            ids[self._sides.shard_of_job_id(finding.job_id)].add(finding.job_id)
        found = self._sides.read_job_rows(ids)
        rows = []
        for finding in batch:
            own = found.get((self._sides.shard_of_job_id(finding.job_id), finding.job_id))
            at_spot = found.get(_shard_and_job_id(finding), own)
            rows.append(own if own is not None and own.status.live else at_spot)
        return rows

    # ---- reminders

    def _apply_remedies(
        self,
        rechecked: Sequence[RecheckedFinding],
        remedies: Sequence[Remedy],
        armed: set[int],
        noted: Collection[tuple[int, int]],
    ) -> None:
        """Applies the remedies to Redis. `noted`: (shard, job_id) that have their event already."""
        todo = [pair for pair in zip(rechecked, remedies, strict=True) if pair[1].changes_redis]
        if not todo:
            return
        self._record_repair_events(
            [pair for pair in todo if _shard_and_job_id(pair[0].finding) not in noted]
        )
        arms: dict[str, list[Reminder]] = defaultdict(list)
        backs: dict[str, list[Reminder]] = defaultdict(list)
        acks: dict[TopicSlot, list[int]] = defaultdict(list)
        ended: set[int] = set()
        for current, wanted in todo:
            job_id = current.finding.job_id
            if wanted.arm_ms is not None:
                arms[current.home[0]].append(Reminder(wanted.arm_ms, job_id))
            if wanted.put_back is not None:
                backs[current.finding.topic_and_slot[0]].append(wanted.put_back)
            if wanted.ack:
                acks[current.finding.topic_and_slot].append(job_id)
                if current.due_ms is None:
                    ended.add(job_id)
        self._arm_reminders(arms, armed)
        for topic, some in backs.items():
            self._reminders.put_back(topic, some)
        self._ack_reminders(acks, ended, rechecked[0].now_ms, armed)

    def _record_repair_events(self, todo: Iterable[tuple[RecheckedFinding, Remedy]]) -> None:
        reasons: dict[int, dict[int, str]] = defaultdict(dict)
        for current, wanted in todo:
            finding, row = current.finding, current.row
            words = f"{finding.kind} ({finding.topic} slot {finding.slot}): {wanted.how}"
            due_ms = wanted.arm_ms if wanted.put_back is None else wanted.put_back.due_ms
            if due_ms is not None:
                words += f", {sql_time_of_ms(due_ms)} UTC"
            if row is None:
                log.info("repair: job %d, which has no row: %s", finding.job_id, words)
                continue
            before = reasons[row.shard].get(finding.job_id)
            reasons[row.shard][finding.job_id] = f"{before}; {words}" if before else words
        if reasons:
            self._job_repair.record_reminder_repairs(reasons)

    def _arm_reminders(self, reminders: Mapping[str, Sequence[Reminder]], armed: set[int]) -> None:
        for topic, some in reminders.items():
            self._reminders.arm(topic, some)
            armed.update(reminder.job_id for reminder in some)

    def _ack_reminders(
        self,
        acks: Mapping[TopicSlot, Sequence[int]],
        ended: Iterable[int],
        now_ms: int,
        armed: set[int],
    ) -> None:
        """Acks ids, then arms those of the `ended` that are live again (see step 5 of the module)."""
        for topic, by_slot in group_by_topic(acks).items():
            self._reminders.remove_reminders(topic, by_slot)
        ids: dict[int, set[int]] = defaultdict(set)
        for job_id in ended:
            ids[self._sides.shard_of_job_id(job_id)].add(job_id)
        alive: dict[str, list[Reminder]] = defaultdict(list)
        for row in self._sides.read_job_rows(ids).values():
            due_ms = row.due_ms if row.status.live else None
            if due_ms is not None and due_ms <= now_ms + self._near_ms:
                topic = self._sides.topic_of_type(row.type_no)
                alive[topic].append(Reminder(due_ms, row.job_id))
        self._arm_reminders(alive, armed)

    def _remove_foreign_members(self, finding: Finding) -> RepairResult:
        topic, slot = finding.topic, finding.slot
        number = self._reminders.remove_foreign_members(topic, slot, FOREIGN_LOOKED_AT)
        if number:
            log.info(
                "repair: %s: removed %d members of %s slot %d", finding.kind, number, topic, slot
            )
        return RepairResult(finding, True, f"{number} members are removed")

    def _drop_loader_mark(self, finding: Finding) -> RepairResult:
        topic, slot = finding.topic, finding.slot
        if finding.shard not in self._reminders.read_marks(topic, [slot])[slot].by_shard:
            return RepairResult(finding, True, "the mark was dropped meanwhile")
        log.info("repair: %s: dropped the mark of %s slot %d", finding.kind, topic, slot)
        self._reminders.delete_marks(topic, [slot])
        return RepairResult(
            finding, True, "the mark is dropped: the loader starts from the beginning"
        )


def _find_place_in_slot(places: Iterable[ReminderPlace], spot: TopicSlot) -> ReminderPlace | None:
    return next((place for place in places if place.topic_and_slot == spot), None)


def _repair_order_key(finding: Finding) -> tuple[int, int, str, int, int]:
    place = _ORDER.index(finding.kind)
    return place, finding.shard, finding.topic, finding.slot, finding.job_id


def _shard_and_job_id(finding: Finding) -> tuple[int, int]:
    return finding.shard, finding.job_id
