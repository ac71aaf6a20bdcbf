"""A node: one process that pops, scans, loads and runs handlers."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
from collections import defaultdict
from collections.abc import Callable

from toc.errors import NotFound, StoreUnavailable, TimerUnavailable
from toc.handlers.registry import Registry, registry
from toc.node.clocks import ClockWatch
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.service import Service, stop_all
from toc.runtime.settings import Settings
from toc.scanner.scanner import Scanner
from toc.store import migrate
from toc.store.catalogue import Catalogue
from toc.store.databases import Databases
from toc.store.pages import Pages
from toc.timer.loader import Loader
from toc.timer.poller import Poller
from toc.timer.slots import Slots
from toc.timer.wakeup import Hear, Wakeup
from toc.worker.worker import Worker

log = logging.getLogger(__name__)

FEEDING_STOP_S = 10.0


def node_name() -> str:
    """host:pid"""
    return f"{socket.gethostname()[:40]}:{os.getpid()}"


class Node:
    """Everything of one worker process; owns every slot and shard.

    `start` checks the schema, the routing's fingerprint and Redis, and refuses what does not fit.
    `stop` ends it gracefully: nothing new is taken, what runs may finish, the rest is given back.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        handlers: Registry | None = None,
        clock: Clock | None = None,
        restart_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.name = node_name()
        self._clock = clock or SystemClock()
        self._handlers = handlers if handlers is not None else registry
        self._restart_wanted = restart_wanted
        self._feeding: list[Service] = []  # everything that brings work in
        self.databases = Databases(
            settings.databases,
            settings.routing,
            self._clock,
            pool_size=settings.pool_size,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
        self.slots: Slots | None = None
        if settings.has_timer:
            self.slots = Slots(
                settings.redis_url,
                settings.namespace,
                self._clock,
                timeout_s=settings.connect_timeout_s,
            )
        self.worker: Worker | None = None

    def start(self) -> None:
        """Raises SchemaMismatch and StoreUnavailable. An absent Redis is no reason not to start."""
        settings = self.settings
        migrate.check(self.databases)
        catalogue = Catalogue(self.databases)
        catalogue.check(settings.facts)
        if self.slots is not None:
            try:
                self.slots.check()
            except TimerUnavailable as error:
                log.warning("starting without the timer, the scanner fires: %s", error)
        self.worker = worker = Worker(
            self.name,
            self.databases,
            catalogue,
            self.slots,
            settings.slots_of,
            settings.topic_of,
            round((settings.timer.horizon_s + settings.timer.slack_s) * 1000),
            self._handlers,
            self._clock,
            random.Random(),  # noqa: S311 - jitter and names
            settings.worker,
            self._restart_wanted,
        )
        pages = Pages(self.databases)
        watch: ClockWatch | None = None
        if self.slots is not None:
            skew_s_max = settings.timer.skew_s_max
            watch = ClockWatch(self.slots, self.databases, skew_s_max=skew_s_max)
            self._feeding.append(watch)
            self._feeding += self._timer(self.slots, worker, pages, catalogue, watch)
        self._feeding += self._scanners(worker, pages, watch)
        for database in self.databases:
            database.warm(
                singles=min(4, settings.pool_size), transactions=min(2, settings.pool_size)
            )
        # What start-up has made stays: a full collection over it would stop every thread for 20 ms.
        gc.collect()
        gc.freeze()
        worker.start()
        for service in self._feeding:
            service.start()

    def stop(self) -> bool:
        """True when nothing was left behind."""
        clean = stop_all(self._feeding, FEEDING_STOP_S)
        if self.worker is not None:
            clean &= self.worker.stop(self.settings.worker.stop_s)
        if self.slots is not None:
            self.slots.close()
        self.databases.close()
        return clean

    def _scanners(self, worker: Worker, pages: Pages, watch: ClockWatch | None) -> list[Service]:
        """One per database: one that hangs must not hold up the net under the others."""
        settings, slots = self.settings, self.slots
        services: list[Service] = []
        for database in self.databases:
            scanner = Scanner(
                f"toc-scanner-{database.index}",
                pages,
                database.shards,
                worker,
                lambda: worker.types,
                lambda: slots is None or (slots.available and not (watch and watch.beyond)),
                settings.routing,
                self._clock,
                grace_ms=round(settings.scanner.grace_s * 1000) if slots is not None else 0,
                tick_s=settings.scanner.tick_s,
                page_rows=settings.scanner.page,
            )
            worker.on_room(scanner.room_again)
            services.append(scanner)
        return services

    def _timer(
        self,
        slots: Slots,
        worker: Worker,
        pages: Pages,
        catalogue: Catalogue,
        watch: ClockWatch,
    ) -> list[Service]:
        settings = self.settings
        services: list[Service] = []
        hear: dict[str, Hear] = {}
        for topic in settings.topic_names:
            pollers = self._pollers(slots, topic, worker, watch)
            for poller in pollers.values():
                worker.on_room(poller.wake)
            services += pollers.values()
            by_slot = {slot: poller for slots_, poller in pollers.items() for slot in slots_}
            hear[topic] = lambda slot, in_s, by_slot=by_slot: (  # type: ignore[misc]
                by_slot[slot].hear(slot, in_s) if slot in by_slot else None
            )
            services += self._loaders(slots, topic, pages, catalogue)
        services.append(Wakeup(slots, settings.namespace, hear))
        return services

    def _loaders(
        self, slots: Slots, topic: str, pages: Pages, catalogue: Catalogue
    ) -> list[Service]:
        """One per database, with the slots whose first shard is there."""
        settings, timer, routing = self.settings, self.settings.timer, self.settings.routing
        amount = settings.slots_of(topic)
        owned: dict[int, list[int]] = defaultdict(list)
        for slot in range(amount):
            owned[routing.database(slot)].append(slot)
        return [
            Loader(
                f"toc-loader-{topic}-{database}",
                slots,
                pages,
                topic,
                owned[database],
                amount,
                routing,
                lambda no: self._topic_of_type(catalogue, no) == topic,
                self._clock,
                horizon_ms=round(timer.horizon_s * 1000),
                slack_ms=round(timer.slack_s * 1000),
                tick_s=timer.load_tick_s,
                page_rows=timer.load_page,
            )
            for database in owned
        ]

    def _topic_of_type(self, catalogue: Catalogue, type_no: int) -> str:
        try:
            return self.settings.topic_of(catalogue.name(type_no))
        except (NotFound, StoreUnavailable):
            # Written by hand, or new while the catalogue's database is away: it must not stop the
            # loader. In the wrong topic it is only looked at once too often, or left to the scanner.
            return "default"

    def _pollers(
        self, slots: Slots, topic: str, worker: Worker, watch: ClockWatch
    ) -> dict[tuple[int, ...], Poller]:
        """Pollers by the slots they own: two per database, each with the slots whose first shard is there.

        Two, because one of them works in Python while the other waits for the database.
        """
        settings, routing = self.settings, self.settings.routing
        lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for slot in range(settings.slots_of(topic)):
            lanes[routing.database(slot), slot % 2].append(slot)
        return {
            tuple(owned): Poller(
                f"toc-poller-{topic}-{database}-{lane}",
                slots,
                topic,
                owned,
                database,
                worker,
                routing,
                self._clock,
                pop_max=settings.timer.pop_max,
                stay_ms=round(settings.timer.stay_s * 1000),
                slow_poll_s=settings.timer.slow_poll_s,
                paused=lambda: watch.beyond,
            )
            for (database, lane), owned in lanes.items()
        }
