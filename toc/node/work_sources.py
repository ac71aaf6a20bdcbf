"""The services that bring work to a worker: pollers, loaders and scanners, and the share of each.

The number of services depends on the databases and topics only; an assignment tells each service its slots
and shards. A database that hangs delays only the services of that database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from zlib import crc32

from toc.domain.node_assignment import Assignment
from toc.errors import NotFound
from toc.node.hold_sources import HoldSources, is_hold_topic
from toc.node.pass_runner import PassRunner
from toc.runtime.service import Service
from toc.scanner.fallback import FallbackScanner
from toc.scanner.overdue_page import OverduePages
from toc.scanner.scanner import Scanner
from toc.store.databases import Database
from toc.store.due_pages import DuePages
from toc.timer.head_watchers import NextDueWatcher, WakeupListener
from toc.timer.loader import Loader
from toc.timer.poller import Poller
from toc.timer.reminders import Reminders
from toc.worker.claim_stage import CLAIM_LANES, ClaimStage
from toc.worker.context import ProcessContext
from toc.worker.gate import ScannedTypes
from toc.worker.worker import Worker

LANES = CLAIM_LANES  # lanes of pollers and of scanners: each lane has a claim stage of its own
FALLBACK_TICKS = 3  # ticks of the scanner between two runs of the fallback


class WorkSources:
    """The services that bring work to one worker; idle until `assign_shares`."""

    def __init__(
        self, process: ProcessContext, worker: Worker, timer_may_fire: Callable[[], bool]
    ) -> None:
        self._process, self._worker, self._timer_may_fire = process, worker, timer_may_fire
        self._settings, self._clock = process.settings, process.clock
        settings, databases, reminders = process.settings, process.databases, process.reminders
        self._pages = DuePages(databases)
        self.scanners = {
            (database.index, lane): self._make_scanner(database.index, lane)
            for database in databases
            for lane in range(LANES)
        }
        self.fallbacks = {database.index: self._make_fallback(database) for database in databases}
        self.pass_runners = [
            PassRunner(
                database, settings.routing, process.gate, lambda: worker.permits,
                partial(worker.claims[0].__getitem__, database.index), self._clock,
            )
            for database in databases
        ]  # fmt: skip
        self.loaders: dict[tuple[str, int], Loader] = {}
        self.pollers: dict[tuple[str, int, int], Poller] = {}
        self._next_due_watcher: NextDueWatcher | None = None
        self._wakeup: WakeupListener | None = None
        self.hold_sources: HoldSources | None = None
        if reminders is None:
            return
        self.hold_sources = HoldSources(
            reminders,
            range(len(settings.databases)),
            self._make_hold_poller,
            self._database_of_slot,
            self._clock,
            namespace=settings.namespace,
            period_s=settings.timer.slow_poll_s,
            ageing_s=settings.priorities.ageing_s,
            lead_s_of_type=process.gate.lead_s_of_type,
        )
        for topic in settings.topic_names:
            for database in sorted(
                {self._database_of_slot(slot) for slot in range(settings.slot_amount_of(topic))}
            ):
                self.loaders[topic, database] = self._make_loader(reminders, topic, database)
                for lane in range(LANES):
                    self.pollers[topic, database, lane] = self._make_poller(
                        reminders, topic, database, lane
                    )
        self._next_due_watcher = NextDueWatcher(
            reminders,
            {topic: partial(self._on_queue_head_seen, topic) for topic in settings.topic_names},
            period_s=settings.timer.slow_poll_s,
        )
        self._wakeup = WakeupListener(
            reminders,
            settings.namespace,
            {topic: partial(self._on_wakeup, topic) for topic in settings.topic_names},
        )

    def __iter__(self) -> Iterator[Service]:
        yield from self.pollers.values()
        yield from self.loaders.values()
        if self._next_due_watcher is not None and self._wakeup is not None:
            yield from (self._next_due_watcher, self._wakeup)
        yield from self.scanners.values()
        yield from self.fallbacks.values()
        yield from self.pass_runners

    def assign_shares(self, assignment: Assignment, *, scan_all_in: int | None = None) -> None:
        """Tells each service its share from now on.

        `scan_all_in`: set while some nodes may have died without an heir. Then this node scans all shards, in
        so many ticks, and loads the slots whose deputy it is as well.
        """
        topics = self._settings.topic_names
        owned = {topic: assignment.slots.get(topic, ()) for topic in topics}
        deputised = {topic: assignment.deputised.get(topic, ()) for topic in topics}
        both = {topic: sorted({*owned[topic], *deputised[topic]}) for topic in topics}
        for (topic, database, lane), poller in self.pollers.items():
            poller.set_slots(
                self._slots_in_lane(owned[topic], database, lane),
                self._slots_in_lane(deputised[topic], database, lane),
            )
        if self._next_due_watcher is not None:
            self._next_due_watcher.set_slots(both)
        if self.hold_sources is not None:
            self.hold_sources.assign_slots(
                {topic: slots for topic, slots in assignment.slots.items() if is_hold_topic(topic)},
                assignment.deputised,
            )
        for (topic, database), loader in self.loaders.items():
            slots = owned if scan_all_in is None else both
            loader.set_slots(self._slots_in_lane(slots[topic], database))
        for (database, lane), scanner in self.scanners.items():
            here = self._process.databases[database].shards[lane::LANES]  # a range: `in` is cheap
            if scan_all_in is None:
                scanner.set_shards(
                    [shard for shard in assignment.shards if shard in here],
                    [shard for shard in assignment.deputised_shards if shard in here],
                )
            else:
                scanner.set_shards(here, stretch=scan_all_in)
        for fallback in self.fallbacks.values():
            fallback.set_own_shards([*assignment.shards, *assignment.deputised_shards])

    def wake_fetchers(self) -> None:
        """Pauses or limits have changed: the pollers ask for admission at once. Any thread."""
        for poller in self.pollers.values():
            poller.wake()
        if self.hold_sources is not None:
            self.hold_sources.wake()

    def stop_hold_sources(self) -> bool:
        """Stops the pollers of the hold topics, which start when a type is held. True: all have ended."""
        return self.hold_sources is None or self.hold_sources.stop()

    @property
    def load_age_s(self) -> float:
        """Seconds since all owned shards were last read to the end of the horizon."""
        return max((loader.oldest_read_age_s for loader in self.loaders.values()), default=0.0)

    # ---- inside

    def _claim_stages_by_database(self, topic: str, first: int, lane: int) -> dict[int, ClaimStage]:
        """The claim stage of each database that has jobs in the slots of database `first`."""
        routing, amount = self._settings.routing, self._settings.slot_amount_of(topic)
        slot = next(slot for slot in range(amount) if self._database_of_slot(slot) == first)
        databases = {
            routing.database_index(shard) for shard in routing.shards_of_slot(slot, amount)
        }
        return {database: self._worker.claims[lane][database] for database in sorted(databases)}

    def _database_of_slot(self, slot: int) -> int:
        """The database of a slot's first shard."""
        return self._settings.routing.database_index(slot)

    def _slots_in_lane(
        self, slots: Iterable[int], database: int, lane: int | None = None
    ) -> list[int]:
        """Those of the slots that belong to a database, and to a lane if one is given."""
        return [
            slot
            for slot in slots
            if self._database_of_slot(slot) == database and lane in (None, slot % LANES)
        ]

    def _on_wakeup(self, topic: str, slot: int, in_s: float) -> None:
        poller = self.pollers.get((topic, self._database_of_slot(slot), slot % LANES))
        if poller is not None:  # wake-ups come for every slot, also of other nodes
            poller.on_wakeup(slot, in_s)

    def _on_queue_head_seen(self, topic: str, slot: int, in_s: float) -> None:
        self.pollers[topic, self._database_of_slot(slot), slot % LANES].on_head_seen(slot, in_s)

    def _make_overdue_pages(self, database: int, lane: int) -> OverduePages:
        worker = self._worker
        return OverduePages(
            database,
            self._pages,
            worker.permits,
            worker.claims[lane][database],
            lambda: worker.context.handlers.handled_type_numbers,
            self._settings.scanner.page,
            ScannedTypes(
                self._process.gate, lambda: self._process.database_metadata.types.known.names
            ),
        )

    def _make_scanner(self, database: int, lane: int) -> Scanner:
        settings, reminders = self._settings, self._process.reminders
        scanner = Scanner(
            f"toc-scanner-{database}-{lane}",
            self._pages,
            self._make_overdue_pages(database, lane),
            lambda: reminders is None or (reminders.is_available and self._timer_may_fire()),
            self._clock,
            grace_ms=round(settings.scanner.grace_s * 1000) if reminders is not None else 0,
            tick_s=settings.scanner.tick_s,
        )
        self._worker.permits.add_permit_listener(scanner.wake_if_waiting_for_permits)
        return scanner

    def _make_fallback(self, database: Database) -> FallbackScanner:
        settings, reminders = self._settings.scanner, self._process.reminders
        fallback = FallbackScanner(
            f"toc-fallback-{database.index}",
            self._pages,
            self._make_overdue_pages(database.index, 0),
            database.index,
            database.shards,
            self._clock,
            start_at=crc32(self._worker.process_identity.encode()),
            # A deputy, too, takes an owner's rows only after this time.
            grace_ms=round((2 * settings.grace_s + settings.tick_s) * 1000),
            period_s=FALLBACK_TICKS * settings.tick_s,
            rest_s_max=settings.fallback_rest_s,
            are_limits_in_parts=lambda: reminders is None or not reminders.is_available,
        )
        self._worker.permits.add_permit_listener(fallback.wake_if_waiting_for_permits)
        return fallback

    def _make_loader(self, reminders: Reminders, topic: str, database: int) -> Loader:
        settings, timer = self._settings, self._settings.timer
        return Loader(
            f"toc-loader-{topic}-{database}",
            reminders,
            self._pages,
            topic,
            settings.slot_amount_of(topic),
            settings.routing,
            lambda no: self._topic_of_type(no, self._process.databases[database]) == topic,
            self._clock,
            horizon_ms=round(timer.horizon_s * 1000),
            slack_ms=round(timer.slack_s * 1000),
            tick_s=timer.load_tick_s,
            page_rows=timer.load_page,
        )

    def _topic_of_type(self, type_no: int, database: Database) -> str:
        try:
            return self._settings.topic_of_biz_type(
                self._process.database_metadata.types.find_name(type_no, database)
            )
        except NotFound:
            # The row was not written by toc: it must not stop the loader. In the wrong topic the row is only
            # read once too often, or left to the scanner.
            return "default"

    def _make_hold_poller(self, reminders: Reminders, topic: str, database: int) -> Poller:
        return self._make_poller(reminders, topic, database, 0)

    def _make_poller(self, reminders: Reminders, topic: str, database: int, lane: int) -> Poller:
        timer = self._settings.timer
        poller = Poller(
            f"toc-poller-{topic}-{database}-{lane}",
            reminders,
            topic,
            self._settings.slot_amount_of(topic),
            self._worker.permits,
            self._claim_stages_by_database(topic, database, lane),
            self._settings.routing,
            self._clock,
            pop_max=timer.pop_max,
            stay_ms=round(timer.stay_s * 1000),
            paused=lambda: not self._timer_may_fire(),
            admission=partial(self._process.gate.admission_of_topic, topic),
        )
        self._worker.permits.add_permit_listener(poller.wake)
        return poller
