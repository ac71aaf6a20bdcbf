"""Looks single jobs up: their rows, and the places of their reminders, at this moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from toc.domain.disagreements import (
    Disagreement,
    ReminderPlace,
    RowFacts,
    Tolerances,
    disagreements,
    is_misfit,
)
from toc.domain.ids import gene_of
from toc.domain.job import Status
from toc.domain.routing import slot_of
from toc.errors import NotFound
from toc.reconcile.findings import Finding
from toc.runtime.settings import Settings
from toc.store.compare_reads import CompareReads, FullRow
from toc.timer.reminders import Reminders

Spot = tuple[str, int]
"""A topic and one of its slots."""


class Suspects(defaultdict[Spot, set[int]]):
    """Job ids by the topic and slot where they were found, or belong."""

    def __init__(self) -> None:
        super().__init__(set)


class Rechecked(NamedTuple):
    """The state of one job. `legal_oddity`: a state that is unusual and legal (see `ReconcileResult.counts`).

    `armed_ms`: of its reminder in its own slot, if nothing is wrong.
    """

    findings: list[Finding]
    legal_oddity: str
    armed_ms: int | None


class _Suspect(NamedTuple):
    job_id: int
    row: FullRow | None
    places: list[ReminderPlace]
    spot: Spot  # where it was found


class Rechecker:
    """Looks jobs up on both sides. `name_of_type`: gives the name of a type's number; raises NotFound."""

    def __init__(
        self,
        rows: CompareReads,
        slots: Reminders,
        settings: Settings,
        limits: Tolerances,
        name_of_type: Callable[[int], str],
    ) -> None:
        self._reads, self._slots, self._settings = rows, slots, settings
        self._limits, self._name_of_type = limits, name_of_type
        self._shards, self._amounts = settings.shards, settings.slot_amounts
        self._names: dict[int, str] = {}

    def recheck(self, shard: int, suspects: Mapping[Spot, Collection[int]]) -> Iterator[Rechecked]:
        """Yields the present state of ids that were found in some slots."""
        ids = {job_id for some in suspects.values() for job_id in some}
        rows = self._read_full_rows(shard, ids)
        spots: dict[int, set[Spot]] = defaultdict(set)
        for spot, some in suspects.items():
            for job_id in some:
                spots[job_id].add(spot)
        for job_id, row in rows.items():
            spots[job_id].add(self._home_spot(row))
        places = self._find_places(spots)
        now_ms = self._slots.time_ms()
        for job_id in sorted(ids):
            suspect = _Suspect(job_id, rows.get(job_id), places.get(job_id, []), min(spots[job_id]))
            yield self._judge(shard, suspect, now_ms)

    def _find_places(self, spots: Mapping[int, Collection[Spot]]) -> dict[int, list[ReminderPlace]]:
        """Where each id is, among the spots given for it."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for job_id, some in spots.items():
            for topic, slot in some:
                wanted[topic][slot].append(job_id)
        found: dict[int, list[ReminderPlace]] = defaultdict(list)
        for topic, by_slot in wanted.items():
            for (slot, job_id), (armed, out) in self._slots.find_reminders(topic, by_slot).items():
                found[job_id].append(ReminderPlace(topic, slot, armed, out))
        return found

    def _read_full_rows(self, shard: int, ids: Collection[int]) -> dict[int, FullRow]:
        """The rows of the ids: in this shard, else in the shard that the id names."""
        found = {row.job_id: row for row in self._reads.full_rows(shard, ids)}
        elsewhere: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            other = gene_of(job_id) & (self._shards - 1)
            if job_id not in found and other != shard:
                elsewhere[other].append(job_id)
        for other, some in sorted(elsewhere.items()):
            found |= {row.job_id: row for row in self._reads.full_rows(other, some)}
        return found

    def _judge(self, shard: int, suspect: _Suspect, now_ms: int) -> Rechecked:
        full, places, row, home = suspect.row, suspect.places, None, suspect.spot
        if full is not None:
            home = self._home_spot(full)
            row = RowFacts(
                suspect.job_id, full.shard, full.biz_id, home[0], full.status,
                full.action_ms, full.due_ms, full.attempts, full.claimed_ms,
            )  # fmt: skip
        at_home = next((p for p in places if (p.topic, p.slot) == home), None)
        kinds = list(disagreements(row, places, home, now_ms, self._limits))
        if row is not None and row.status.live and is_misfit(row, self._shards):
            kinds.append(Disagreement.MISFIT)
        if not kinds:
            armed_ms = None if at_home is None else at_home.armed_ms
            return Rechecked([], _legal_oddity(row, places, armed_ms), armed_ms)
        findings = []
        for kind in kinds:
            where: list[ReminderPlace | None] = [*_places_of_kind(kind, places, home)]
            for place in where or [at_home]:
                spot = home if place is None else (place.topic, place.slot)
                finding = Finding(
                    kind,
                    shard,
                    *spot,
                    suspect.job_id,
                    armed_ms=None if place is None else place.armed_ms,
                    out_ms=None if place is None else place.out_ms,
                )
                findings.append(finding if full is None else self._with_row(finding, full))
        return Rechecked(findings, "", None)

    def _with_row(self, finding: Finding, row: FullRow) -> Finding:
        return finding._replace(
            shard=row.shard,
            biz_id=row.biz_id,
            biz_type=self.type_name(row.type_no),
            status=int(row.status),
            action_ms=row.action_ms,
            due_ms=row.due_ms,
            attempts=row.attempts,
        )

    def type_name(self, type_no: int) -> str:
        """The name of a type; "" for a number that has none (written by another program, or not yet read)."""
        type_name = self._names.get(type_no)
        if type_name is None:
            try:
                type_name = self._names[type_no] = self._name_of_type(type_no)
            except NotFound:
                return ""
        return type_name

    def _home_spot(self, row: FullRow) -> Spot:
        topic = self._settings.topic_of(self.type_name(row.type_no))
        return topic, slot_of(gene_of(row.job_id), self._amounts[topic])


def _places_of_kind(
    kind: Disagreement, places: Sequence[ReminderPlace], home: Spot
) -> list[ReminderPlace]:
    """The places that this kind of finding is about, one finding each; empty: it is about the job's
    own slot.
    """
    match kind:
        case Disagreement.WRONG_SLOT | Disagreement.TWO_SLOTS:
            return [place for place in places if (place.topic, place.slot) != home]
        case Disagreement.ORPHAN:
            return [place for place in places if place.armed_ms is not None]
        case Disagreement.STUCK:
            return sorted(
                (place for place in places if place.out_ms is not None), key=lambda p: p.out_ms or 0
            )[:1]
    return []


def _legal_oddity(
    row: RowFacts | None, places: Sequence[ReminderPlace], armed_ms: int | None
) -> str:
    """The name of a state that is unusual and legal. `armed_ms`: of the reminder in its own slot."""
    if row is None:
        return ""
    if not row.status.live and armed_ms is not None:
        return "cancelled"
    if row.status is Status.RUNNING and not places:
        return "unarmed"
    if row.due_ms is not None and armed_ms is not None and armed_ms < row.due_ms:
        return "early"
    return ""
