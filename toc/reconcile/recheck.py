"""Looks single jobs up: their rows, and the places of their reminders, at this moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from toc.domain.disagreements import (
    KINDS_OF_HELD_JOBS,
    UNCLAIMABLE,
    ComparedRow,
    Disagreement,
    ReminderPlace,
    Tolerances,
    find_disagreements,
    is_in_wrong_table,
)
from toc.domain.job import Status
from toc.reconcile.databases_and_redis import DatabasesAndRedis, TopicSlot
from toc.reconcile.findings import Finding
from toc.store.row_defects import RowDefects

Suspects = defaultdict[TopicSlot, set[int]]
"""Job ids by the topic and slot where they were found, or belong."""


class RecheckedJob(NamedTuple):
    """The state of one job. `legal_oddity`: a state that is unusual and legal (see `ReconcileResult.counts`).

    `armed_ms`: the time of the reminder in the job's own slot, if nothing is wrong.
    """

    findings: list[Finding]
    legal_oddity: str
    armed_ms: int | None


class _JobState(NamedTuple):
    """A job to judge. `home`: the slot where its reminder belongs; without a row, where it was found."""

    job_id: int
    row: ComparedRow | None
    places: list[ReminderPlace]
    home: TopicSlot
    defects: frozenset[Disagreement]


class JobRechecker:
    """Looks up the rows and reminders of jobs, and says what disagrees."""

    def __init__(self, sides: DatabasesAndRedis, limits: Tolerances, defects: RowDefects) -> None:
        self._sides, self._limits, self._shards = sides, limits, sides.settings.shards
        self._defects = defects

    def recheck_jobs(
        self, shard: int, suspects: Mapping[TopicSlot, Collection[int]]
    ) -> Iterator[RecheckedJob]:
        """Yields the present state of ids that were found in some slots."""
        ids = {job_id for some in suspects.values() for job_id in some}
        rows = self._read_full_rows(shard, ids)
        defects = self._defects.defects_of_jobs(shard, ids)
        homes = {job_id: self._sides.expected_slot_of_row(row) for job_id, row in rows.items()}
        wanted = Suspects(set, {spot: set(some) for spot, some in suspects.items()})
        for job_id, home in homes.items():
            wanted[home].add(job_id)
        # Of an id that was found in several slots and has no row, the first slot counts.
        spot_of = {job_id: spot for spot in sorted(wanted, reverse=True) for job_id in wanted[spot]}
        places = self._sides.find_reminder_places(
            {spot: list(some) for spot, some in wanted.items()}
        )
        now_ms = self._sides.reminders.read_time_ms()
        for job_id in sorted(ids):
            home = homes.get(job_id, spot_of[job_id])
            defects_of_job = frozenset(defects.get(job_id, ()))
            job = _JobState(job_id, rows.get(job_id), places.get(job_id, []), home, defects_of_job)
            yield self._find_disagreements(shard, job, now_ms)

    def _read_full_rows(self, shard: int, ids: Collection[int]) -> dict[int, ComparedRow]:
        """The rows of the ids: in this shard, else in the shard that the id names."""
        found = {row.job_id: row for row in self._sides.reads.read_full_rows(shard, ids)}
        elsewhere: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            other = self._sides.shard_of_job_id(job_id)
            if job_id not in found and other != shard:
                elsewhere[other].append(job_id)
        return found | {row.job_id: row for row in self._sides.read_job_rows(elsewhere).values()}

    def _find_disagreements(self, shard: int, job: _JobState, now_ms: int) -> RecheckedJob:
        row, home = job.row, job.home
        at_home = next((place for place in job.places if place.topic_and_slot == home), None)
        kinds = list(find_disagreements(row, job.places, home, now_ms, self._limits))
        if row is not None and row.status.live and self._sides.is_held(row.type_no):
            # Paused or limited: its reminder may be in the hold topic of the type, and it may be late.
            kinds = [kind for kind in kinds if kind not in KINDS_OF_HELD_JOBS]
        if row is not None and row.status.live and is_in_wrong_table(row, self._shards):
            kinds.append(Disagreement.MISFIT)
        if job.defects & UNCLAIMABLE and Disagreement.ORPHAN in kinds:
            # The row only looks as if the job had ended.
            kinds.remove(Disagreement.ORPHAN)
        kinds += sorted(job.defects)
        if not kinds:
            armed_ms = None if at_home is None else at_home.armed_ms
            return RecheckedJob([], _name_legal_oddity(row, job.places, armed_ms), armed_ms)
        findings = [
            self._make_finding(kind, shard, job, place)
            for kind in kinds
            for place in _places_with_disagreement(kind, job.places, home) or [at_home]
        ]
        return RecheckedJob(findings, "", None)

    def _make_finding(
        self, kind: Disagreement, shard: int, job: _JobState, place: ReminderPlace | None
    ) -> Finding:
        topic, slot = job.home if place is None else place.topic_and_slot
        finding = Finding(kind, shard, topic, slot, job.job_id)
        if place is not None:
            finding = finding._replace(armed_ms=place.armed_ms, out_ms=place.out_ms)
        row = job.row
        if row is None:
            return finding
        return finding._replace(
            shard=row.shard,
            biz_id=row.biz_id,
            biz_type=self._sides.type_name(row.type_no),
            status=int(row.status),
            action_ms=row.action_ms,
            due_ms=row.due_ms,
            attempts=row.attempts,
        )


def _places_with_disagreement(
    kind: Disagreement, places: Sequence[ReminderPlace], home: TopicSlot
) -> Sequence[ReminderPlace | None]:
    """The places that disagree, one finding each; empty: the finding is about the job's own slot."""
    match kind:
        case Disagreement.WRONG_SLOT | Disagreement.TWO_SLOTS:
            return [place for place in places if place.topic_and_slot != home]
        case Disagreement.ORPHAN:
            return [place for place in places if place.armed_ms is not None]
        case Disagreement.STUCK:
            out = [place for place in places if place.out_ms is not None]
            return sorted(out, key=lambda place: place.out_ms or 0)[:1]
    return []


def _name_legal_oddity(
    row: ComparedRow | None, places: Sequence[ReminderPlace], armed_ms: int | None
) -> str:
    """The name of a state that is unusual and legal. `armed_ms`: of the reminder in the job's own slot."""
    if row is None:
        return ""
    if not row.status.live and armed_ms is not None:
        return "cancelled"
    if row.status is Status.RUNNING and not places:
        return "unarmed"
    if row.due_ms is not None and armed_ms is not None and armed_ms < row.due_ms:
        return "early"
    return ""
