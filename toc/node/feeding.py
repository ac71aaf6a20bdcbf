"""Everything that brings work in: pollers, loaders and scanners, and which of it is this node's.

There are so many of each per database (and topic), whatever the node owns: an assignment only tells
them their slots and shards. A database that hangs holds up its own, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from toc.domain.placement import Assignment
from toc.errors import NotFound, StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.scanner.scanner import Scanner
from toc.store.catalogue import Catalogue
from toc.store.databases import Databases
from toc.store.pages import Pages
from toc.timer.heads import Heads, See
from toc.timer.loader import Loader
from toc.timer.poller import Poller
from toc.timer.slots import Slots
from toc.timer.wakeup import Hear, Wakeup
from toc.worker.worker import Worker

LANES = 2  # pollers, and scanners, beside each other: one works in Python while the other waits


class Feeding:
    """The services that feed one worker; idle until `own`. `fires()`: whether the timer may."""

    def __init__(
        self,
        settings: Settings,
        databases: Databases,
        slots: Slots | None,
        worker: Worker,
        catalogue: Catalogue,
        clock: Clock,
        fires: Callable[[], bool],
    ) -> None:
        self._settings, self._databases, self._slots = settings, databases, slots
        self._worker, self._catalogue, self._clock, self._fires = worker, catalogue, clock, fires
        self._pages = Pages(databases)
        self.scanners = {
            (database.index, lane): self._scanner(database.index, lane)
            for database in databases
            for lane in range(LANES)
        }
        self.loaders: dict[tuple[str, int], Loader] = {}
        self.pollers: dict[tuple[str, int, int], Poller] = {}
        self._heads: Heads | None = None
        self._wakeup: Wakeup | None = None
        if slots is None:
            return
        for topic in settings.topic_names:
            for database in sorted(
                {self._database(slot) for slot in range(settings.slots_of(topic))}
            ):
                self.loaders[topic, database] = self._loader(slots, topic, database)
                for lane in range(LANES):
                    self.pollers[topic, database, lane] = self._poller(slots, topic, database, lane)
        see: Mapping[str, See] = {topic: self._see(topic) for topic in settings.topic_names}
        self._heads = Heads(slots, see, period_s=settings.timer.slow_poll_s)
        hear: Mapping[str, Hear] = {topic: self._hear(topic) for topic in settings.topic_names}
        self._wakeup = Wakeup(slots, settings.namespace, hear)

    def __iter__(self) -> Iterator[Service]:
        yield from self.pollers.values()
        yield from self.loaders.values()
        yield from (service for service in (self._heads, self._wakeup) if service is not None)
        yield from self.scanners.values()

    def own(self, assignment: Assignment, *, scan_all_in: int | None = None) -> None:
        """Hands out what this node does from now on.

        `scan_all_in`: some nodes may have died, and nobody has inherited theirs. Then it scans all shards,
        in so many ticks, and loads the slots that it is the deputy of as well.
        """
        for (topic, database, lane), poller in self.pollers.items():
            poller.own(
                self._of(assignment.slots.get(topic, ()), database, lane),
                self._of(assignment.deputised.get(topic, ()), database, lane),
            )
        if self._heads is not None:
            self._heads.own(
                {
                    topic: sorted(
                        {*assignment.slots.get(topic, ()), *assignment.deputised.get(topic, ())}
                    )
                    for topic in self._settings.topic_names
                }
            )
        for (topic, database), loader in self.loaders.items():
            slots = [*assignment.slots.get(topic, ())]
            if scan_all_in is not None:
                slots += assignment.deputised.get(topic, ())
            loader.own(self._of(slots, database))
        for (database, lane), scanner in self.scanners.items():
            here = self._databases[database].shards[lane::LANES]  # a range: cheap to look up in
            if scan_all_in is None:
                scanner.own(
                    [shard for shard in assignment.shards if shard in here],
                    [shard for shard in assignment.deputised_shards if shard in here],
                )
            else:
                scanner.own(here, stretch=scan_all_in)

    @property
    def load_age_s(self) -> float:
        """Seconds since all owned shards had been read to the end of the horizon."""
        return max((loader.age_s for loader in self.loaders.values()), default=0.0)

    # ---- inside

    def _database(self, slot: int) -> int:
        """The database of a slot's first shard."""
        return self._settings.routing.database(slot)

    def _of(self, slots: Iterable[int], database: int, lane: int | None = None) -> list[int]:
        return [
            slot
            for slot in slots
            if self._database(slot) == database and lane in (None, slot % LANES)
        ]

    def _hear(self, topic: str) -> Hear:
        def hear(slot: int, in_s: float) -> None:
            poller = self.pollers.get((topic, self._database(slot), slot % LANES))
            if poller is not None:  # wake-ups are of every slot
                poller.hear(slot, in_s)

        return hear

    def _see(self, topic: str) -> See:
        def see(slot: int, in_s: float) -> None:
            self.pollers[topic, self._database(slot), slot % LANES].see(slot, in_s)

        return see

    def _scanner(self, database: int, lane: int) -> Scanner:
        settings, slots, worker = self._settings, self._slots, self._worker
        scanner = Scanner(
            f"toc-scanner-{database}-{lane}",
            self._pages,
            worker,
            lambda: worker.types,
            lambda: slots is None or (slots.available and self._fires()),
            settings.routing,
            self._clock,
            grace_ms=round(settings.scanner.grace_s * 1000) if slots is not None else 0,
            tick_s=settings.scanner.tick_s,
            page_rows=settings.scanner.page,
        )
        worker.on_room(scanner.room_again)
        return scanner

    def _loader(self, slots: Slots, topic: str, database: int) -> Loader:
        settings, timer = self._settings, self._settings.timer
        return Loader(
            f"toc-loader-{topic}-{database}",
            slots,
            self._pages,
            topic,
            settings.slots_of(topic),
            settings.routing,
            lambda no: self._topic_of_type(no) == topic,
            self._clock,
            horizon_ms=round(timer.horizon_s * 1000),
            slack_ms=round(timer.slack_s * 1000),
            tick_s=timer.load_tick_s,
            page_rows=timer.load_page,
        )

    def _topic_of_type(self, type_no: int) -> str:
        try:
            return self._settings.topic_of(self._catalogue.name(type_no))
        except (NotFound, StoreUnavailable):
            # Written by hand, or new while the catalogue's database is away: it must not stop the
            # loader. In the wrong topic it is only looked at once too often, or left to the scanner.
            return "default"

    def _poller(self, slots: Slots, topic: str, database: int, lane: int) -> Poller:
        timer = self._settings.timer
        poller = Poller(
            f"toc-poller-{topic}-{database}-{lane}",
            slots,
            topic,
            database,
            self._worker,
            self._settings.routing,
            self._clock,
            pop_max=timer.pop_max,
            stay_ms=round(timer.stay_s * 1000),
            paused=lambda: not self._fires(),
        )
        self._worker.on_room(poller.wake)
        return poller
