"""What is the case with single jobs: their rows, and where their reminders stand, at this moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from toc.domain.disagreements import Disagreement, Place, Seen, Tolerances, disagreements, is_misfit
from toc.domain.ids import gene_of
from toc.domain.job import Status
from toc.domain.routing import slot_of
from toc.errors import NotFound
from toc.reconcile.findings import Finding
from toc.runtime.settings import Settings
from toc.store.comparing import Comparing, FullRow
from toc.timer.slots import Slots

Spot = tuple[str, int]
"""A topic and one of its slots."""


class Suspects(defaultdict[Spot, set[int]]):
    """Ids by the spot where they were met, or belong."""

    def __init__(self) -> None:
        super().__init__(set)


class Looked(NamedTuple):
    """One job: what is wrong with it, or what is unusual and legal (see `Outcome.counts`).

    `armed_ms`: of its reminder where that belongs, if nothing is wrong.
    """

    findings: list[Finding]
    legal: str
    armed_ms: int | None


class _Met(NamedTuple):
    job_id: int
    row: FullRow | None
    places: list[Place]
    spot: Spot  # where it was met


class Looker:
    """Looks jobs up on both sides, and judges them. `name_of_type`: of a type's number; raises NotFound."""

    def __init__(
        self,
        rows: Comparing,
        slots: Slots,
        settings: Settings,
        limits: Tolerances,
        name_of_type: Callable[[int], str],
    ) -> None:
        self._rows, self._slots, self._settings = rows, slots, settings
        self._limits, self._name_of_type = limits, name_of_type
        self._shards, self._amounts = settings.shards, settings.slot_amounts
        self._names: dict[int, str] = {}

    def look(self, shard: int, suspects: Mapping[Spot, Collection[int]]) -> Iterator[Looked]:
        """What is the case now with ids that were met in some slots."""
        ids = {job_id for some in suspects.values() for job_id in some}
        rows = self._full_rows(shard, ids)
        spots: dict[int, set[Spot]] = defaultdict(set)
        for spot, some in suspects.items():
            for job_id in some:
                spots[job_id].add(spot)
        for job_id, row in rows.items():
            spots[job_id].add(self._home(row))
        places = self._places(spots)
        now_ms = self._slots.time_ms()
        for job_id in sorted(ids):
            met = _Met(job_id, rows.get(job_id), places.get(job_id, []), min(spots[job_id]))
            yield self._judge(shard, met, now_ms)

    def _places(self, spots: Mapping[int, Collection[Spot]]) -> dict[int, list[Place]]:
        """Where each id stands, of the spots that are asked for it."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for job_id, some in spots.items():
            for topic, slot in some:
                wanted[topic][slot].append(job_id)
        found: dict[int, list[Place]] = defaultdict(list)
        for topic, by_slot in wanted.items():
            for (slot, job_id), (armed, out) in self._slots.places(topic, by_slot).items():
                found[job_id].append(Place(topic, slot, armed, out))
        return found

    def _full_rows(self, shard: int, ids: Collection[int]) -> dict[int, FullRow]:
        """Rows where they were met, and where their ids say."""
        found = {row.job_id: row for row in self._rows.rows(shard, ids)}
        elsewhere: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            other = gene_of(job_id) & (self._shards - 1)
            if job_id not in found and other != shard:
                elsewhere[other].append(job_id)
        for other, some in sorted(elsewhere.items()):
            found |= {row.job_id: row for row in self._rows.rows(other, some)}
        return found

    def _judge(self, shard: int, met: _Met, now_ms: int) -> Looked:
        full, places, row, home = met.row, met.places, None, met.spot
        if full is not None:
            home = self._home(full)
            row = Seen(
                met.job_id, full.shard, full.biz_id, home[0], full.status,
                full.action_ms, full.due_ms, full.attempts, full.claimed_ms,
            )  # fmt: skip
        at_home = next((p for p in places if (p.topic, p.slot) == home), None)
        kinds = list(disagreements(row, places, home, now_ms, self._limits))
        if row is not None and row.status.live and is_misfit(row, self._shards):
            kinds.append(Disagreement.MISFIT)
        if not kinds:
            armed_ms = None if at_home is None else at_home.armed_ms
            return Looked([], _legal(row, places, armed_ms), armed_ms)
        findings = []
        for kind in kinds:
            where: list[Place | None] = [*_places_of(kind, places, home)]
            for place in where or [at_home]:
                spot = home if place is None else (place.topic, place.slot)
                finding = Finding(
                    kind,
                    shard,
                    *spot,
                    met.job_id,
                    armed_ms=None if place is None else place.armed_ms,
                    out_ms=None if place is None else place.out_ms,
                )
                findings.append(finding if full is None else self._with_row(finding, full))
        return Looked(findings, "", None)

    def _with_row(self, finding: Finding, row: FullRow) -> Finding:
        return finding._replace(
            shard=row.shard,
            biz_id=row.biz_id,
            biz_type=self.name(row.type_no),
            status=int(row.status),
            action_ms=row.action_ms,
            due_ms=row.due_ms,
            attempts=row.attempts,
        )

    def name(self, type_no: int) -> str:
        """The name of a type; "" for a number that has none, by other hands or not yet."""
        name = self._names.get(type_no)
        if name is None:
            try:
                name = self._names[type_no] = self._name_of_type(type_no)
            except NotFound:
                return ""
        return name

    def _home(self, row: FullRow) -> Spot:
        topic = self._settings.topic_of(self.name(row.type_no))
        return topic, slot_of(gene_of(row.job_id), self._amounts[topic])


def _places_of(kind: Disagreement, places: Sequence[Place], home: Spot) -> list[Place]:
    """The places that a kind is about, a finding for each; none: it is about where the job belongs."""
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


def _legal(row: Seen | None, places: Sequence[Place], armed_ms: int | None) -> str:
    """What is unusual, and right. `armed_ms`: of the reminder where it belongs."""
    if row is None:
        return ""
    if not row.status.live and armed_ms is not None:
        return "cancelled"
    if row.status is Status.RUNNING and not places:
        return "unarmed"
    if row.due_ms is not None and armed_ms is not None and armed_ms < row.due_ms:
        return "early"
    return ""
