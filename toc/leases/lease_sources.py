"""The services that bring due jobs of pull types to a lease server: pollers, loaders and scanners.

The pull types may change at any time: `PullTypeWatch` follows the catalogue. Each lease server loads and
scans for all pull types; only pollers of types that consumers have waited for are started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from toc.domain.biz_types import type_no_of
from toc.leases.demand import Demand, Reoffer
from toc.leases.lease_context import LeaseContext
from toc.leases.lease_stage import SCANNED, LeaseStage
from toc.leases.service_group import ServiceGroup
from toc.leases.type_sources import TypeSources
from toc.runtime.job_batch import PermitSource
from toc.runtime.service import Service, stop_services
from toc.scanner.overdue_page import OverduePages
from toc.scanner.scanner import Scanner
from toc.store.databases import Database
from toc.store.due_pages import DuePages
from toc.timer.head_watchers import NextDueWatcher, OnHead, WakeupListener
from toc.worker.gate import ScannedTypes

POLLERS_KEPT_S = 60.0  # the pollers of a type stop when no consumer has waited for it for so long
WATCH_S = 1.0  # time between two looks at the catalogue, which is in memory
STOP_S = 10.0


class LeaseSources:
    """Brings due jobs of all pull types. `timer_may_fire()`: False stops the pollers for now."""

    def __init__(self, context: LeaseContext, timer_may_fire: Callable[[], bool]) -> None:
        self._context, self._timer_may_fire = context, timer_may_fire
        process = context.process
        self._process, self._clock = process, process.clock
        self._pages = DuePages(process.databases)
        self._lock = threading.Lock()
        self._stopped = False
        self._types: dict[str, TypeSources] = {}
        self._awaited_s: dict[str, float] = {}  # when a consumer last came for the type
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self.reoffers: dict[str, Reoffer] = {SCANNED: Reoffer()}
        self._scan_demand = Demand(
            context.room, context.outages, self._clock, context.room.awaited_types,
            self.reoffers[SCANNED],
        )  # fmt: skip
        self._stages: Mapping[int, LeaseStage] = {}
        self._scanners: list[Scanner] = []
        self._loaders = [
            ServiceGroup(f"toc-leases-loaders-{database.index}", self._clock)
            for database in process.databases
        ]
        self._head_callbacks: dict[str, OnHead] = {}
        self._watcher: NextDueWatcher | None = None
        self._listener: WakeupListener | None = None
        if process.reminders is not None:
            self._watcher = NextDueWatcher(
                process.reminders,
                self._head_callbacks,
                period_s=process.settings.timer.slow_poll_s,
            )

    def permits_of(self, topic: str) -> PermitSource:
        """Where the permits of a batch of this topic belong."""
        found = next((each for each in self._types.values() if each.topic == topic), None)
        return self._scan_demand if found is None else found.demand

    def start(self, stages: Mapping[int, LeaseStage]) -> None:
        """`stages`: the claim stage of each database."""
        self._stages = stages
        self._scanners = [self._make_scanner(each) for each in self._process.databases]
        watcher = () if self._watcher is None else (self._watcher,)
        for service in (*self._scanners, *self._loaders, *watcher):
            service.start()

    def stop(self) -> bool:
        with self._lock:
            self._stopped = True
            services: list[Service] = [*self._scanners, *self._loaders]
            for sources in self._types.values():
                services += sources.take_pollers()
            services += [each for each in (self._watcher, self._listener) if each is not None]
        return stop_services(services, STOP_S)

    def wake(self, types: Iterable[str]) -> None:
        """A consumer has come for these types: their pollers start, or go on at once."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for name in types:
                self._awaited_s[name] = now_s
                self._start_or_wake_pollers(name)
        for scanner in self._scanners:
            scanner.wake_if_waiting_for_permits()

    def wake_awaited(self) -> None:
        """Pauses have changed: the pollers ask for admission at once. Any thread."""
        self.wake(self._context.room.awaited_types())

    def _start_or_wake_pollers(self, name: str) -> None:
        """The caller holds the lock."""
        sources = self._types.get(name)
        if sources is None or self._stopped or not self._stages:
            return
        if not sources.pollers:
            sources.start_pollers(self._stages)
            self._watch_heads()
        sources.wake_pollers()

    # ---- the types

    def set_types(self, names: frozenset[str]) -> None:
        """Serves these pull types from now on."""
        settings = self._process.settings
        self._numbers = {name: type_no_of(name) for name in names}
        self._names = {number: name for name, number in self._numbers.items()}
        self._context.claims.set_claimed_types(self._numbers.values())
        reminders = self._process.reminders
        if reminders is None:
            return
        with self._lock:
            gone = [self._types.pop(name) for name in self._types.keys() - names]
            for name in sorted(names - self._types.keys()):
                sources = TypeSources(
                    self._context, name, reminders, self._pages, self._timer_may_fire
                )
                self._types[name] = sources
                self.reoffers[name] = sources.reoffer
            for database, group in enumerate(self._loaders):
                group.set_members(each.loaders[database] for each in self._types.values())
            self._watch_heads()
            old, self._listener = self._listener, None
            if self._types:
                self._listener = WakeupListener(
                    reminders,
                    settings.namespace,
                    {each.topic: each.on_wakeup for each in self._types.values()},
                )
                self._listener.start()
            for name in self._context.room.awaited_types():  # consumers that came before this call
                self._start_or_wake_pollers(name)
        stop_services([each for sources in gone for each in sources.take_pollers()], STOP_S)
        if (
            old is not None
        ):  # a message that was lost meanwhile is replaced by the next read of the heads
            old.stop(STOP_S)

    def stop_idle_pollers(self) -> None:
        """Stops the pollers of types for which no consumer has waited for a while."""
        now_s, awaited = self._clock.monotonic_s(), self._context.room.awaited_types()
        with self._lock:
            for name in awaited:
                self._awaited_s[name] = now_s
            idle = [
                poller
                for name, sources in self._types.items()
                if now_s - self._awaited_s.get(name, 0.0) > POLLERS_KEPT_S
                for poller in sources.take_pollers()
            ]
            if idle:
                self._watch_heads()
        stop_services(idle, STOP_S)

    def _watch_heads(self) -> None:
        """Reads the heads of the types whose pollers run. The caller holds the lock."""
        if self._watcher is None:
            return
        for sources in self._types.values():
            self._head_callbacks[sources.topic] = sources.on_head_seen
        amounts = self._process.settings.slot_amount_of
        self._watcher.set_slots(
            {
                sources.topic: range(amounts(sources.topic))
                for sources in self._types.values()
                if sources.pollers
            }
        )

    def _awaited_numbers(self) -> list[int]:
        awaited, numbers = self._context.room.awaited_types(), self._numbers
        return [numbers[name] for name in awaited if name in numbers]

    def _make_scanner(self, database: Database) -> Scanner:
        settings, reminders = self._process.settings, self._process.reminders
        pages = OverduePages(
            database.index,
            self._pages,
            self._scan_demand,
            self._stages[database.index],
            self._awaited_numbers,
            settings.scanner.page,
            ScannedTypes(self._process.gate, lambda: self._names, are_scarce=True),
        )
        scanner = Scanner(
            f"toc-leases-scanner-{database.index}",
            self._pages,
            pages,
            lambda: reminders is None or (reminders.is_available and self._timer_may_fire()),
            self._clock,
            grace_ms=round(settings.scanner.grace_s * 1000) if reminders is not None else 0,
            tick_s=min(settings.scanner.tick_s, 1.0)
            if reminders is None
            else settings.scanner.tick_s,
        )
        scanner.set_shards(database.shards)
        self._scan_demand.add_permit_listener(scanner.wake_if_waiting_for_permits)
        return scanner


class PullTypeWatch(Service):
    """Tells the sources when the pull types of the catalogue have changed."""

    def __init__(self, context: LeaseContext, sources: LeaseSources) -> None:
        super().__init__("toc-pull-types")
        self._context, self._sources = context, sources
        self._names: frozenset[str] | None = None

    def run_once(self) -> float:
        """Compares the catalogue with the types that the sources have."""
        self.apply_changes()
        self._sources.stop_idle_pollers()
        return WATCH_S

    def apply_changes(self) -> None:
        most = self._context.process.settings.leases.types_max
        names = sorted(self._context.catalogue.pull_types())
        if len(names) > most:
            text = "%d pull types are declared, and leases.types_max is %d: the last ones are not served"
            self._log_throttle.warning("types", text, len(names), most)
        # All of them have a topic of their own, whether this process serves them or not.
        self._context.process.settings.pull_types.replace_names(names)
        kept = frozenset(names[:most])
        if kept != self._names:
            self._sources.set_types(kept)
            self._names = kept
