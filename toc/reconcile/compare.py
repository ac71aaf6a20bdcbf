"""Compares one shard with its slots: one plain function for all callers (Spark, a node, a test).

The same hash gives a job its slot and its shard, so a shard can be compared with the slots of its rows alone,
and Spark moves no rows between its tasks. A slot that several shards share is read for each of them, and the
compare of each shard keeps the ids of this shard; the first of these shards also handles ids that belong in
another slot.

Rows and reminders are merged in the order of due_time, a page at a time, and paired by id and due time in ms.
Rows and reminders change while they are read: a row or reminder without its counterpart is only a suspect. A
suspect is looked up before the next page is read, and again `grace_s` later; only a disagreement that is
still there then counts. So a compare needs memory for one page, and for the jobs due in the same millisecond.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toc.domain.disagreements import OF_SLOTS, Disagreement, Tolerances
from toc.domain.ids import SEQUENCE_BITS, routing_bits_of
from toc.domain.routing import slot_of_hash
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import Finding, LoaderMarkCoverage, ShardComparison, ShardPart
from toc.reconcile.recheck import JobRechecker, Suspects
from toc.reconcile.row_sources import RowSource, RowSources
from toc.runtime.settings import Settings
from toc.store.reconcile_reads import LiveRowPage, ReconcileReads, split_live_rows
from toc.store.row_defects import DefectiveRows
from toc.timer.loader import LoadMark, shard_read_period_s

FAR_MS = 60_000
"""In ms. A lease or a stay that ends so much later than the settings say, seen from now, is a finding."""

FOREIGN_LOOKED_AT = 100_000
"""Members of a queue that are looked at, when foreign ones were found there before."""


def tolerances_of(settings: Settings) -> Tolerances:
    """The tolerances of a compare, and of the repair of its findings."""
    timer = settings.timer
    seen_s = shard_read_period_s(timer.horizon_s, timer.load_tick_s) + settings.reconcile.grace_s
    return Tolerances(
        near_ms=max(0, round((timer.horizon_s - seen_s) * 1000)),
        overdue_ms=round(settings.overdue_after_s * 1000),
        stuck_ms=round(settings.overdue_after_s * 1000),
        stay_ms=round(timer.stay_s * 1000) + FAR_MS,
    )


class ShardComparer:
    """Compares shards with their slots. Only reads. All methods raise StoreUnavailable, TimerUnavailable."""

    def __init__(self, sides: DatabasesAndRedis) -> None:
        self._sides = sides
        settings = sides.settings
        self._limits = tolerances_of(settings)
        self._sources = RowSources(sides, round(settings.worker.lease_s * 1000) + FAR_MS)
        self._rechecker = JobRechecker(sides, self._limits, self._sources.primary.defects)
        self._kept_max = settings.findings_kept_max

    def compare_shard(self, shard: int, *, whole: bool = True) -> ShardComparison:
        """Compares a shard, and looks its suspects up.

        whole: also counts the rows due beyond the horizon, and looks in the whole table for rows that are
        wrong by themselves.
        """
        part = self._compare_part(self._sources.primary, ShardPart(shard), whole=whole)
        return merge_parts([part], self._kept_max)

    def split_shard(self, shard: int, rows: int) -> list[ShardPart]:
        """Splits a shard into parts of about `rows` live rows."""
        until_ms = self._sides.reminders.read_time_ms() + self._sides.settings.timer.arm_within_ms
        times = self._sources.read_rows(
            shard, lambda source: split_live_rows(source.databases, shard, until_ms, rows)
        )
        bounds = [None, *times, None]
        return [ShardPart(shard, *pair) for pair in itertools.pairwise(bounds)]

    def compare_part(self, part: ShardPart) -> ShardComparison:
        """Compares a part of a shard. What is about the shard as a whole is done with its first part."""
        return self._sources.read_rows(
            part.shard, lambda source: self._compare_part(source, part, whole=True)
        )

    def _compare_part(self, source: RowSource, part: ShardPart, *, whole: bool) -> ShardComparison:
        shard, is_first = part.shard, part.after_ms is None
        compared = ShardComparison(shard)
        walk = _ShardMergeJoin(
            self._sides, source.reads, self._limits, self._rechecker, compared, part
        )
        defective = DefectiveRows({}, {})
        if is_first:
            until_ms = None if whole else walk.horizon_ms
            defective = source.defects.find_defective_rows(shard, self._kept_max, until_ms=until_ms)
        walk.compare_rows_with_reminders(defective)
        if is_first and whole:
            compared.counts["far"] = source.reads.count_live_rows_due_after(shard, walk.horizon_ms)
        if source.is_replica:
            compared.counts["replica"] = compared.counts["rows"]
        return compared

    def recheck_findings(self, compared: ShardComparison) -> ShardComparison:
        """Looks the findings up again, and keeps those that are still true.

        If a kind has more findings than were kept, those that were not kept count too, if most of the kept
        findings of this kind are still true.
        """
        of_jobs = [f for f in compared.findings if f.kind not in OF_SLOTS]
        suspects = Suspects(set)
        for finding in of_jobs:
            suspects[finding.topic_and_slot].add(finding.job_id)
        kept = {finding.identity_key for finding in of_jobs}
        still = ShardComparison(
            compared.shard, Counter(compared.counts), marks=compared.marks, work=compared.work
        )
        for rechecked in self._rechecker.recheck_jobs(compared.shard, suspects):
            for finding in rechecked.findings:
                if finding.identity_key in kept:
                    still.add_finding(finding, self._kept_max)
        looked_at = Counter(finding.kind for finding in of_jobs)
        for kind, number in looked_at.items():
            if 2 * still.found[kind] > number:
                still.found[kind] += compared.found[kind] - number
        for finding in compared.findings:
            if finding.kind is Disagreement.FOREIGN and self._sides.reminders.find_foreign_members(
                finding.topic, [finding.slot], FOREIGN_LOOKED_AT
            ):
                still.add_finding(finding, self._kept_max)
        _check_loader_marks(still, self._kept_max)
        return still


def merge_parts(parts: Sequence[ShardComparison], kept_max: int) -> ShardComparison:
    """The result for a shard from the results for its parts."""
    merged, *others = parts
    for part in others:
        merged.add_part(part, kept_max)
    _check_loader_marks(merged, kept_max)
    return merged


def _check_loader_marks(compared: ShardComparison, kept_max: int) -> None:
    """Adds MARK_AHEAD if most reminders that a loader's mark covers are missing, not only a few."""
    missing = [f for f in compared.findings if f.kind is Disagreement.MISSING]
    for mark in compared.marks:
        below = sum(
            finding.topic == mark.topic and (finding.due_ms or 0) <= mark.due_ms
            for finding in missing
        )
        # `missing` lacks findings beyond kept_max.
        if 2 * below > min(mark.covered, 2 * kept_max - 1):
            kind, shard = Disagreement.MARK_AHEAD, compared.shard
            finding = Finding(kind, shard, mark.topic, mark.slot, due_ms=mark.due_ms)
            compared.add_finding(finding, kept_max)


class _DueWindow(NamedTuple):
    """The due times of a page of rows: later than `after_ms`, up to `until_ms`; None: no bound."""

    after_ms: int | None
    until_ms: int | None


class _ShardMergeJoin:
    """Compares one shard with its slots, page by page; adds the findings to `compared`."""

    def __init__(
        self,
        sides: DatabasesAndRedis,
        reads: ReconcileReads,
        limits: Tolerances,
        rechecker: JobRechecker,
        compared: ShardComparison,
        part: ShardPart,
    ) -> None:
        self._part = part
        self._sides, self._reads, self._reminders = sides, reads, sides.reminders
        self._clock, self._booked_until_s = sides.clock, sides.clock.monotonic_s()
        self._limits, self._rechecker, self._compared = limits, rechecker, compared
        settings = sides.settings
        self._shard, self._shards = compared.shard, settings.shards
        self._page, self._kept_max = settings.reconcile.page, settings.findings_kept_max
        self._amounts = settings.slot_amounts_with_pull_types
        self._slot = {topic: slot_of_hash(self._shard, n) for topic, n in self._amounts.items()}
        found = {
            topic: self._reminders.read_marks(topic, [slot])[slot]
            for topic, slot in self._slot.items()
        }
        self._now_ms = min(marks.time_ms for marks in found.values())
        # A mark of an earlier run of Redis does not count: the loader writes a new one.
        self._marks = {
            topic: mark
            for topic, marks in found.items()
            if (
                mark := LoadMark.parse_mark_of_redis_run(
                    marks.by_shard.get(self._shard), marks.run_id
                )
            )
            is not None
        }
        self.horizon_ms = self._now_ms + settings.timer.arm_within_ms
        self.until_ms = self.horizon_ms if part.until_ms is None else part.until_ms
        self._out: dict[str, set[int]] = {topic: set() for topic in self._slot}
        self._covered: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        # Reminders of the last ms of a page: their rows may be on the next page.
        self._carried: dict[str, dict[int, int]] = {topic: {} for topic in self._slot}
        self._suspects = Suspects(set)
        self._kept: set[tuple[Disagreement, int, str, int]] = set()

    def compare_rows_with_reminders(self, defective: DefectiveRows) -> None:
        """Compares the shard. Raises StoreUnavailable and TimerUnavailable."""
        self._add_elapsed_time("rows")  # the search for defective ones
        for topic in self._slot:
            self._read_popped_reminders(topic)
        self._add_elapsed_time("reminders")
        met = next(iter(self._slot.items()))
        for ids in defective.ids.values():
            self._suspects[met].update(ids)
        after_ms = self._part.after_ms
        pages = self._reads.read_live_pages(
            self._shard, after_ms, self.until_ms, self._page, typed=len(self._slot) > 1
        )
        for page in pages:
            self._add_elapsed_time("rows")
            is_last = len(page.ids) < self._page
            until_ms = self._part.until_ms if is_last else max(page.due_ms)
            self._pair_rows_with_reminders(page, _DueWindow(after_ms, until_ms), is_last=is_last)
            self._recheck_suspects(after_ms)
            self._add_elapsed_time("verify")
            after_ms = until_ms
        # Findings that were not looked up are only counted; `recheck_findings` treats them as most kept ones.
        for kind, count in defective.counts.items():
            ids = defective.ids[kind]
            confirmed = sum(found is kind and job_id in ids for found, job_id, *_ in self._kept)
            if 2 * confirmed > len(ids):
                self._compared.found[kind] += count - len(ids)
        for topic, slot in self._slot.items():
            # A slot that several shards share is the first one's.
            if self._foreign[topic] and self._shard == slot:
                self._compared.counts["foreign"] += self._foreign[topic]
                finding = Finding(Disagreement.FOREIGN, self._shard, topic, slot)
                self._compared.add_finding(finding, self._kept_max)
        for topic, mark in self._marks.items():
            self._compared.marks.append(
                LoaderMarkCoverage(topic, self._slot[topic], mark.due_ms, self._covered[topic])
            )

    def _read_popped_reminders(self, topic: str) -> None:
        slot, now_ms, limits = self._slot[topic], self._now_ms, self._limits
        for page in self._reminders.read_popped_pages(topic, slot, self._page):
            mine = self._filter_own_shard(topic, page.by_id)
            self._out[topic].update(mine)
            if self._part.after_ms is not None:
                continue  # the first part has counted them, and looked them up
            self._compared.counts["out"] += len(mine)
            self._foreign[topic] += page.foreign
            self._suspects[topic, slot].update(
                job_id for job_id, until_ms in mine.items() if limits.is_stuck(until_ms, now_ms)
            )

    def _pair_rows_with_reminders(
        self, page: LiveRowPage, window: _DueWindow, *, is_last: bool
    ) -> None:
        """Pairs a page of rows with the reminders of the same time."""
        self._compared.counts["rows"] += len(page.ids)
        by_topic = self._group_rows_by_topic(page)
        self._add_elapsed_time("pair")
        for topic, rows in by_topic.items():
            armed = self._read_armed_reminders(topic, window)
            self._add_elapsed_time("reminders")
            suspects = self._suspects[topic, self._slot[topic]]
            suspects.update(self._find_suspect_rows(topic, rows, armed))
            rest = armed.keys() - rows.keys()
            if not is_last and window.until_ms is not None:
                last = {job_id for job_id in rest if armed[job_id] == window.until_ms}
                self._carried[topic] = dict.fromkeys(last, window.until_ms)
                rest -= last
            suspects.update(rest)
            self._add_elapsed_time("pair")

    def _add_elapsed_time(self, on: str) -> None:
        """Adds the time since the last call to the duration of one kind of work."""
        now_s = self._clock.monotonic_s()
        self._compared.work[on] += now_s - self._booked_until_s
        self._booked_until_s = now_s

    def _find_suspect_rows(
        self, topic: str, rows: dict[int, int], armed: dict[int, int]
    ) -> list[int]:
        """The rows that are overdue, or have no reminder, or have a reminder that is too late."""
        out = self._out[topic]
        near_ms = self._now_ms + self._limits.near_ms
        overdue_ms = self._now_ms - self._limits.overdue_ms
        if topic in self._marks:
            self._covered[topic] += sum(map(self._marks[topic].due_ms.__ge__, rows.values()))
        found = []
        if rows and min(rows.values()) < overdue_ms:
            found += [job_id for job_id, due_ms in rows.items() if due_ms < overdue_ms]
        for job_id in [i for i, due_ms in rows.items() if armed.get(i) != due_ms]:
            armed_ms, due_ms = armed.get(job_id), rows[job_id]
            if armed_ms is None:
                # The job's reminder may have another time. If the row is due after near_ms, such a
                # reminder is found when the reminders of that time are read.
                if due_ms <= near_ms and job_id not in out:
                    found.append(job_id)
            elif armed_ms > due_ms:
                found.append(job_id)
            else:
                self._compared.counts["early"] += 1
        return found

    def _group_rows_by_topic(self, page: LiveRowPage) -> dict[str, dict[int, int]]:
        rows = zip(page.ids, page.due_ms, strict=True)
        if len(self._slot) == 1:
            return {topic: dict(rows) for topic in self._slot}
        found: dict[str, dict[int, int]] = {topic: {} for topic in self._slot}
        topics = {number: self._sides.topic_of_type(number) for number in set(page.types)}
        for (job_id, due_ms), type_no in zip(rows, page.types, strict=True):
            found[topics[type_no]][job_id] = due_ms
        return found

    def _read_armed_reminders(self, topic: str, window: _DueWindow) -> dict[int, int]:
        found, self._carried[topic] = self._carried[topic], {}
        for page in self._reminders.read_armed_pages(topic, self._slot[topic], *window, self._page):
            mine = self._filter_own_shard(topic, page.by_id)
            self._compared.counts["armed"] += len(mine)
            self._foreign[topic] += page.foreign
            found |= mine
        return found

    def _filter_own_shard(self, topic: str, entries: dict[int, int]) -> dict[int, int]:
        """Returns the reminders of this shard; reminders that belong in another slot become suspects."""
        shard, mask, slot = self._shard, self._shards - 1, self._slot[topic]
        mine = {i: ms for i, ms in entries.items() if (i >> SEQUENCE_BITS) & mask == shard}
        if len(mine) < len(entries) and shard == slot:
            amount = self._amounts[topic]
            self._suspects[topic, slot].update(
                i
                for i in entries.keys() - mine.keys()
                if slot_of_hash(routing_bits_of(i), amount) != slot
            )
        return mine

    def _recheck_suspects(self, after_ms: int | None) -> None:
        """Looks up the suspects of the page of rows that are due after `after_ms`."""
        compared, suspects = self._compared, self._suspects
        number = sum(map(len, suspects.values()))
        if not number:
            return
        compared.counts["suspects"] += number
        # A job whose reminder has another time is found twice: as a row, and as a reminder.
        for rechecked in self._rechecker.recheck_jobs(self._shard, suspects):
            is_known = after_ms is not None and (rechecked.armed_ms or 0) <= after_ms
            if rechecked.legal_oddity and not (rechecked.legal_oddity == "early" and is_known):
                compared.counts[rechecked.legal_oddity] += 1
            for finding in rechecked.findings:
                if finding.identity_key not in self._kept and compared.add_finding(
                    finding, self._kept_max
                ):
                    self._kept.add(finding.identity_key)
        suspects.clear()
