"""Admits jobs of limited types: by Redis, or by this node's share while Redis does not answer."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from toc.domain.declared_type import DeclaredType
from toc.domain.limit_terms import LimitTerms
from toc.errors import TimerUnavailable
from toc.limits.holder import Holder, HolderTable
from toc.limits.node_share import NodeShare
from toc.limits.waits import PartitionWaits, TypeDoor
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.timer.limit_store import HOLDERS_MAX, LimitStore, PartitionAnswer, PartitionWish

log = logging.getLogger(__name__)

RELEASES_MAX = (
    100_000  # releases that wait for Redis; beyond this the oldest are dropped: holds expire
)
RESERVED_S = 5.0  # a job that goes first asks again much sooner


class DeclaredTypeSource(Protocol):
    """The declared types, as `DeclaredTypeCache` has them. Asks no database."""

    version: int

    def all(self) -> Mapping[str, DeclaredType]: ...


class Wanted(NamedTuple):
    """A job that is about to be claimed. `due_ms`: its place among the others: its due time, less the lead
    that its priority gives. `ended`: the token of its run before, if that run is over.
    """

    due_ms: int
    job_id: int
    partition: str
    ended: str = ""


class TakeTime(NamedTuple):
    """When jobs were admitted. `by_share`: by this node's share, and `at_ms` is of this process' monotonic
    clock; otherwise by Redis, and of its clock.
    """

    at_ms: float
    by_share: bool


class Taken(NamedTuple):
    """admitted: jobs that may be claimed now. waits_ms: the other jobs; by how much to put each of them off,
    or None: its reminder stays due as it is, because nothing of the type is fetched for now. time: for
    `give_back`.
    """

    admitted: frozenset[int]
    waits_ms: Mapping[int, int | None]
    time: TakeTime


class Release(NamedTuple):
    """A hold that has ended. `taken_ms`: the job has not started, so its start, which Redis gave at this
    time, comes back to the rate; None: no start comes back.
    """

    holder: Holder
    taken_ms: int | None


class Limits:
    """The limits of all types in one process. Thread-safe. `store`: None without Redis.

    `hold_ms`: how long a job holds its type's concurrency after its process was last heard of.
    """

    def __init__(
        self,
        declared: DeclaredTypeSource,
        store: LimitStore | None,
        clock: Clock,
        *,
        hold_ms: int,
        partitions_max: int,
    ) -> None:
        self._declared, self._clock = declared, clock
        self.store, self.hold_ms = store, hold_ms
        self.holders = HolderTable()
        self.releases: deque[Release] = deque(maxlen=RELEASES_MAX)
        self.on_release: Callable[[], None] = lambda: None
        """Called, in any thread, when there is a release or a first holder: the keeper sends it."""
        self.on_answer: Callable[[str, int], None] = lambda _type, _since_ms: None
        """Called with since when Redis knows a type."""
        self.on_lease_change: Callable[[str], None] = lambda _type: None
        """Called when the leases of a type must be named to Redis again."""
        self._share = NodeShare(clock, partitions_max)
        self._waits = PartitionWaits(clock)
        self._doors: dict[str, TypeDoor] = defaultdict(TypeDoor)
        self._listeners: list[Callable[[], None]] = []
        self._terms: Mapping[str, LimitTerms] = {}
        self._version = -1
        self._lock = threading.Lock()
        # By type and partition: until when its next place belongs to a job that goes first.
        self._reserved_s: dict[tuple[str, str], float] = {}
        self._log_throttle = LogThrottle(log)

    # ---- terms

    @property
    def limited_types(self) -> Mapping[str, LimitTerms]:
        """The types that have limits now."""
        if self._version != self._declared.version:
            version = self._declared.version
            types = self._declared.all()
            self._terms = {
                name: each.limit_terms for name, each in types.items() if each.limit_terms
            }
            self._version = version
        return self._terms

    def terms_of(self, biz_type: str) -> LimitTerms | None:
        """The limits of a type; None: it has none."""
        return self.limited_types.get(biz_type)

    def set_nodes(self, index: int | None, nodes: int) -> None:
        """Without Redis, this node takes part number `index` (from 0) of `nodes` parts of each limit.

        None: one of `nodes` equal parts.
        """
        with self._lock:
            self._share.set_nodes(index, nodes)

    # ---- fetch

    def count_fetchable(self, biz_type: str, wanted: int) -> int:
        """How many jobs of a type it makes sense to fetch now, up to `wanted`.

        Asks no server, and reserves nothing: `take` decides. With partitions, `wanted`: only the row says
        in which partition a job is.
        """
        terms = self.terms_of(biz_type)
        if terms is None or terms.per is not None:
            return wanted
        door = self._doors[biz_type]
        if self._clock.monotonic_s() < door.closed_until_s:
            return 0
        return min(wanted, door.guess)

    def next_fetch_s(self, biz_type: str) -> float:
        """Seconds until `count_fetchable` may answer more than 0; 0.0: at once."""
        return max(0.0, self._doors[biz_type].closed_until_s - self._clock.monotonic_s())

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` when a job of this process has ended that held a concurrency. Any thread."""
        self._listeners.append(listener)

    # ---- take and release

    def take(
        self,
        biz_type: str,
        wanted: Iterable[Wanted],
        token: str,
        lease_ms: int | None = None,
        *,
        goes_first: bool = False,
    ) -> Taken:
        """Admits jobs that are about to be claimed under `token`, in their order.

        Each admitted job uses one start of the rate, and holds the concurrency until `job_ended` or
        `give_back`. `lease_ms`: for a lease of a remote consumer, which any process may end: so long it
        holds; None: while this process lives. `goes_first`: jobs that ran before: if they are refused, other
        jobs of their partition are refused in this process until they are admitted, for RESERVED_S at most.
        """
        terms = self.terms_of(biz_type)
        jobs = sorted(wanted)
        if terms is None:
            return Taken(frozenset(job.job_id for job in jobs), {}, TakeTime(0, by_share=False))
        by_partition: dict[str, list[Wanted]] = defaultdict(list)
        for job in jobs:
            by_partition[job.partition].append(job)
        wishes = {
            partition: [
                Holder(biz_type, partition, job.job_id, token) for job in some[:HOLDERS_MAX]
            ]
            for partition, some in by_partition.items()
        }
        ended = {
            partition: [Holder(biz_type, partition, j.job_id, j.ended) for j in some if j.ended]
            for partition, some in by_partition.items()
        }
        reserved = {} if goes_first else self._answers_of_reserved(biz_type, wishes)
        asked = {name: some for name, some in wishes.items() if name not in reserved}
        answers, time = reserved, TakeTime(0, by_share=False)
        if asked:
            found, time = self._ask(biz_type, terms, asked, ended, lease_ms)
            answers = reserved | found
        if goes_first:
            self._note_reserved(biz_type, wishes, answers)
        return self._apply_answers(biz_type, terms, by_partition, answers, time)

    def _answers_of_reserved(
        self, biz_type: str, partitions: Iterable[str]
    ) -> dict[str, PartitionAnswer]:
        """The answers of the partitions whose next place belongs to a job that goes first."""
        if not self._reserved_s:
            return {}
        now_s = self._clock.monotonic_s()
        with self._lock:
            return {
                partition: PartitionAnswer(0, 0, is_full=True)
                for partition in partitions
                if self._reserved_s.get((biz_type, partition), now_s) > now_s
            }

    def _note_reserved(
        self,
        biz_type: str,
        wishes: Mapping[str, Sequence[Holder]],
        answers: Mapping[str, PartitionAnswer],
    ) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            kept = {key: until_s for key, until_s in self._reserved_s.items() if until_s > now_s}
            for partition, some in wishes.items():
                if answers[partition].admitted < len(some):
                    kept[biz_type, partition] = now_s + RESERVED_S
                else:
                    kept.pop((biz_type, partition), None)
            self._reserved_s = kept

    def give_back(
        self, job_ids: Iterable[int], biz_type: str, token: str, partition: str, time: TakeTime
    ) -> None:
        """Jobs that `take` has admitted at this time were not claimed: their starts come back to the rate."""
        holders = [Holder(biz_type, partition, job_id, token) for job_id in job_ids]
        for holder in holders:
            self.holders.remove_holder(holder.job_id, token)
        terms = self.terms_of(biz_type)
        if time.by_share and terms is not None and terms.interval_ms is not None:
            passed_ms = self._clock.monotonic_s() * 1000 - time.at_ms
            with self._lock:
                self._share.return_starts(
                    biz_type, partition, terms.interval_ms, len(holders), passed_ms
                )
        # A start of this node's share does not come back to Redis, which has not given it.
        taken_ms = None if time.by_share else round(time.at_ms)
        self._queue_releases([Release(holder, taken_ms) for holder in holders])

    def job_ended(self, job_id: int, token: str) -> None:
        """A claimed job has ended, or was given back. Nothing happens if its type has no concurrency."""
        holder = self.holders.remove_holder(job_id, token)
        if holder is not None:
            self._queue_releases([Release(holder, None)])

    def lease_ended(self, biz_type: str, partition: str, job_id: int, token: str) -> None:
        """A lease has ended that perhaps another process has given."""
        self.holders.remove_holder(job_id, token)
        terms = self.terms_of(biz_type)
        if terms is not None and terms.concurrency is not None:
            holder = Holder(biz_type, partition, job_id, token)
            self._queue_releases([Release(holder, None)])

    def lease_extended(self, holder: Holder, lease_ms: int) -> None:
        """A lease was extended, which perhaps another process has given; the keeper tells Redis."""
        terms = self.terms_of(holder.biz_type)
        if terms is not None and terms.concurrency is not None:
            self._add_holders([holder], lease_ms)
            self.on_lease_change(holder.biz_type)

    # ---- inside

    def _ask(
        self,
        biz_type: str,
        terms: LimitTerms,
        wishes: Mapping[str, Sequence[Holder]],
        ended: Mapping[str, Sequence[Holder]],
        lease_ms: int | None,
    ) -> tuple[dict[str, PartitionAnswer], TakeTime]:
        """The answers by partition, and their time; admitted jobs hold from here on."""
        if self.store is not None:
            asked = [
                PartitionWish(
                    partition, [each.member for each in some],
                    [each.member for each in ended[partition]],
                )
                for partition, some in wishes.items()
            ]  # fmt: skip
            hold_ms = self.hold_ms if lease_ms is None else lease_ms
            try:
                found, at_ms, since_ms = self.store.take(biz_type, terms, hold_ms, asked)
            except TimerUnavailable as error:
                text = "Redis does not answer: this node takes its share of the limits: %s"
                self._log_throttle.warning("share", text, error)
            else:
                answers = dict(zip(wishes, found, strict=True))
                with self._lock:
                    self._share.forget_type(biz_type)
                for partition, answer in answers.items():
                    self._hold(terms, wishes[partition][: answer.admitted], lease_ms)
                self.on_answer(biz_type, since_ms)
                return answers, TakeTime(at_ms, by_share=False)
        answers = {}
        time = TakeTime(self._clock.monotonic_s() * 1000, by_share=True)
        with self._lock:  # counted and added under one lock: two threads never take one place
            for partition, some in wishes.items():
                for each in ended[partition]:
                    self.holders.remove_holder(each.job_id, each.token)
                held = self.holders.count_holders(biz_type, partition)
                answer = self._share.take(biz_type, terms, partition, len(some), held)
                self._hold(terms, some[: answer.admitted], lease_ms)
                answers[partition] = answer
        if terms.concurrency is not None and lease_ms is not None:
            self._release_refused(
                holder
                for partition, some in wishes.items()
                for holder in some[answers[partition].admitted :]
            )
        return answers, time

    def _release_refused(self, holders: Iterable[Holder]) -> None:
        """Redis may have admitted holders, and its answer was lost: it must not count them until their
        leases end. Their starts do not come back: Redis may not have given them.
        """
        if self.store is None or len(self.releases) >= RELEASES_MAX // 2:
            return
        self.releases.extend(Release(holder, None) for holder in holders)
        self.on_release()

    def _hold(self, terms: LimitTerms, admitted: Sequence[Holder], lease_ms: int | None) -> None:
        if admitted and terms.concurrency is not None:
            self._add_holders(admitted, lease_ms)

    def _add_holders(self, holders: Sequence[Holder], lease_ms: int | None) -> None:
        until_s = None if lease_ms is None else self._clock.monotonic_s() + lease_ms / 1000
        was_empty = not len(self.holders)
        self.holders.add_holders(holders, until_s)
        if was_empty:
            self.on_release()

    def _apply_answers(
        self,
        biz_type: str,
        terms: LimitTerms,
        jobs: Mapping[str, Sequence[Wanted]],
        answers: Mapping[str, PartitionAnswer],
        time: TakeTime,
    ) -> Taken:
        admitted: set[int] = set()
        waits: dict[int, int | None] = {}
        with self._lock:
            for partition, answer in answers.items():
                some = jobs[partition]
                refused = some[answer.admitted :]
                admitted.update(job.job_id for job in some[: answer.admitted])
                if terms.per is None:
                    now_s = self._clock.monotonic_s()
                    gather_ms = terms.burst_ms / 4
                    self._doors[biz_type].record_take(len(some), answer, now_s, gather_ms)
                    waits.update((job.job_id, None) for job in refused)
                elif not refused:
                    self._waits.record_admission(biz_type, partition)
                else:
                    keys = [(job.due_ms, job.job_id) for job in refused]
                    found = self._waits.waits_ms(biz_type, partition, terms, keys, answer)
                    waits.update(zip((job.job_id for job in refused), found, strict=True))
        metrics.LIMIT_ADMITTED.labels(biz_type).inc(len(admitted))
        metrics.LIMIT_REFUSED.labels(biz_type).inc(len(waits))
        return Taken(frozenset(admitted), waits, time)

    def _queue_releases(self, releases: Sequence[Release]) -> None:
        if not releases:
            return
        if self.store is not None:
            self.releases.extend(releases)
        for biz_type in {each.holder.biz_type for each in releases}:
            door = self._doors.get(biz_type)
            if door is not None and all(each.taken_ms is None for each in releases):
                door.closed_until_s = 0.0  # a place is free
        self.on_release()
        for listener in list(self._listeners):
            listener()
