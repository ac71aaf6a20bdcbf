"""The services that bring work to a worker: pollers, loaders and scanners, and the share of each.

Their number depends on the databases and topics only: an assignment just tells each its slots and shards. A
database that hangs delays its own services, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from zlib import crc32

from toc.domain.placement import Assignment
from toc.errors import NotFound
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.scanner.fallback import Fallback
from toc.scanner.scanner import Scanner
from toc.store.catalogue import Catalogue
from toc.store.databases import Database, Databases
from toc.store.due_pages import DuePages
from toc.timer.claimer import Claimer
from toc.timer.loader import Loader
from toc.timer.next_due_watcher import NextDueWatcher, OnHeadSeen
from toc.timer.poller import Poller
from toc.timer.reminders import Reminders
from toc.timer.wakeup import OnWakeup, WakeupListener
from toc.worker.worker import Worker

LANES = 2  # of pollers and of scanners: one works in Python while the other waits
FALLBACK_TICKS = 3  # ticks of the scanner between two runs of the fallback


class WorkSources:
    """The services that bring work to one worker; idle until `set_assignment`."""

    def __init__(
        self,
        settings: Settings,
        databases: Databases,
        reminders: Reminders | None,
        worker: Worker,
        catalogue: Catalogue,
        clock: Clock,
        timer_may_fire: Callable[[], bool],
    ) -> None:
        self._settings, self._databases, self._reminders = settings, databases, reminders
        self._worker, self._types, self._clock, self._timer_may_fire = (
            worker,
            catalogue.types,
            clock,
            timer_may_fire,
        )
        self._pages = DuePages(databases)
        self.scanners = {
            (database.index, lane): self._make_scanner(database.index, lane)
            for database in databases
            for lane in range(LANES)
        }
        self.fallbacks = {
            database.index: self._make_fallback(database.index) for database in databases
        }
        self.loaders: dict[tuple[str, int], Loader] = {}
        self.pollers: dict[tuple[str, int, int], Poller] = {}
        # For the databases that share slots with others.
        self.claimers: dict[int, Claimer] = {}
        self._next_due_watcher: NextDueWatcher | None = None
        self._wakeup: WakeupListener | None = None
        if reminders is None:
            return
        for topic in settings.topic_names:
            for database in sorted(
                {self._database_of_slot(slot) for slot in range(settings.slots_of(topic))}
            ):
                self.loaders[topic, database] = self._make_loader(reminders, topic, database)
                for lane in range(LANES):
                    self.pollers[topic, database, lane] = self._make_poller(
                        reminders, topic, database, lane
                    )
        see: Mapping[str, OnHeadSeen] = {
            topic: self._make_next_due_callback(topic) for topic in settings.topic_names
        }
        self._next_due_watcher = NextDueWatcher(reminders, see, period_s=settings.timer.slow_poll_s)
        hear: Mapping[str, OnWakeup] = {
            topic: self._make_wakeup_callback(topic) for topic in settings.topic_names
        }
        self._wakeup = WakeupListener(reminders, settings.namespace, hear)

    def __iter__(self) -> Iterator[Service]:
        yield from self.pollers.values()
        yield from self.claimers.values()
        yield from self.loaders.values()
        yield from (
            service for service in (self._next_due_watcher, self._wakeup) if service is not None
        )
        yield from self.scanners.values()
        yield from self.fallbacks.values()

    def set_assignment(self, assignment: Assignment, *, scan_all_in: int | None = None) -> None:
        """Tells each service its share from now on.

        `scan_all_in`: set while some nodes may have died without an heir. Then this node scans all shards, in
        so many ticks, and loads the slots whose deputy it is as well.
        """
        for (topic, database, lane), poller in self.pollers.items():
            poller.set_slots(
                self._slots_in_lane(assignment.slots.get(topic, ()), database, lane),
                self._slots_in_lane(assignment.deputised.get(topic, ()), database, lane),
            )
        if self._next_due_watcher is not None:
            self._next_due_watcher.set_slots(
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
            loader.set_slots(self._slots_in_lane(slots, database))
        for (database, lane), scanner in self.scanners.items():
            here = self._databases[database].shards[lane::LANES]  # a range: `in` is cheap
            if scan_all_in is None:
                scanner.set_shards(
                    [shard for shard in assignment.shards if shard in here],
                    [shard for shard in assignment.deputised_shards if shard in here],
                )
            else:
                scanner.set_shards(here, stretch=scan_all_in)
        for fallback in self.fallbacks.values():
            fallback.set_shards([*assignment.shards, *assignment.deputised_shards])

    @property
    def load_age_s(self) -> float:
        """Seconds since all owned shards were last read to the end of the horizon."""
        return max((loader.age_s for loader in self.loaders.values()), default=0.0)

    # ---- inside

    def _make_claimers(self, topic: str, first: int) -> dict[int, Claimer]:
        """One for each database with jobs in the slots of database `first`; none if that is `first` alone."""
        routing, amount = self._settings.routing, self._settings.slots_of(topic)
        slot = next(slot for slot in range(amount) if self._database_of_slot(slot) == first)
        databases = {routing.database(s) for s in routing.shards_of_slot(slot, amount)}
        if len(databases) == 1:
            return {}
        for database in databases - self.claimers.keys():
            self.claimers[database] = Claimer(database, self._worker)
        return {database: self.claimers[database] for database in sorted(databases)}

    def _database_of_slot(self, slot: int) -> int:
        """The database of a slot's first shard."""
        return self._settings.routing.database(slot)

    def _slots_in_lane(
        self, slots: Iterable[int], database: int, lane: int | None = None
    ) -> list[int]:
        """Those of the slots that belong to a database, and to a lane if one is given."""
        return [
            slot
            for slot in slots
            if self._database_of_slot(slot) == database and lane in (None, slot % LANES)
        ]

    def _make_wakeup_callback(self, topic: str) -> OnWakeup:
        def hear(slot: int, in_s: float) -> None:
            poller = self.pollers.get((topic, self._database_of_slot(slot), slot % LANES))
            if poller is not None:  # wake-ups come for every slot, also of other nodes
                poller.on_wakeup(slot, in_s)

        return hear

    def _make_next_due_callback(self, topic: str) -> OnHeadSeen:
        def see(slot: int, in_s: float) -> None:
            self.pollers[topic, self._database_of_slot(slot), slot % LANES].on_head_seen(slot, in_s)

        return see

    def _make_scanner(self, database: int, lane: int) -> Scanner:
        settings, reminders, worker = self._settings, self._reminders, self._worker
        scanner = Scanner(
            f"toc-scanner-{database}-{lane}",
            self._pages,
            worker,
            lambda: worker.types,
            lambda: reminders is None or (reminders.available and self._timer_may_fire()),
            settings.routing,
            self._clock,
            grace_ms=round(settings.scanner.grace_s * 1000) if reminders is not None else 0,
            tick_s=settings.scanner.tick_s,
            page_rows=settings.scanner.page,
        )
        worker.add_room_listener(scanner.wake_for_room)
        return scanner

    def _make_fallback(self, database: int) -> Fallback:
        settings, worker = self._settings, self._worker
        fallback = Fallback(
            f"toc-fallback-{database}",
            self._pages,
            worker,
            lambda: worker.types,
            database,
            self._databases[database].shards,
            self._clock,
            start_at=crc32(worker.identity.encode()),
            # A deputy, too, takes an owner's rows only after this time.
            grace_ms=round((2 * settings.scanner.grace_s + settings.scanner.tick_s) * 1000),
            period_s=FALLBACK_TICKS * settings.scanner.tick_s,
            page_rows=settings.scanner.page,
        )
        worker.add_room_listener(fallback.wake_for_room)
        return fallback

    def _make_loader(self, reminders: Reminders, topic: str, database: int) -> Loader:
        settings, timer = self._settings, self._settings.timer
        return Loader(
            f"toc-loader-{topic}-{database}",
            reminders,
            self._pages,
            topic,
            settings.slots_of(topic),
            settings.routing,
            lambda no: self._topic_of_type(no, self._databases[database]) == topic,
            self._clock,
            horizon_ms=round(timer.horizon_s * 1000),
            slack_ms=round(timer.slack_s * 1000),
            tick_s=timer.load_tick_s,
            page_rows=timer.load_page,
        )

    def _topic_of_type(self, type_no: int, database: Database) -> str:
        try:
            return self._settings.topic_of(self._types.find_name(type_no, database))
        except NotFound:
            # The row was not written by toc: it must not stop the loader. In the wrong topic it is only
            # looked at once too often, or left to the scanner.
            return "default"

    def _make_poller(self, reminders: Reminders, topic: str, database: int, lane: int) -> Poller:
        timer = self._settings.timer
        poller = Poller(
            f"toc-poller-{topic}-{database}-{lane}",
            reminders,
            topic,
            self._settings.slots_of(topic),
            database,
            self._worker,
            self._settings.routing,
            self._clock,
            pop_max=timer.pop_max,
            stay_ms=round(timer.stay_s * 1000),
            paused=lambda: not self._timer_may_fire(),
            claimers=self._make_claimers(topic, database),
        )
        self._worker.add_room_listener(poller.wake)
        return poller
