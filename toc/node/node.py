"""A node: one process that pops, scans, loads and runs handlers."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
from collections import defaultdict
from collections.abc import Callable

from toc.errors import NotFound, TimerUnavailable
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
        catalogue.check(self.facts())
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
        scanner = self._scanner(worker, pages)
        worker.on_room(scanner.room_again)
        self._feeding.append(scanner)
        if self.slots is not None:
            self._feeding += self._timer(self.slots, worker, pages, catalogue)
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
        stop_all(self._feeding, 10.0)
        clean = self.worker.stop(self.settings.worker.stop_s) if self.worker is not None else True
        if self.slots is not None:
            self.slots.close()
        self.databases.close()
        return clean

    def facts(self) -> dict[str, str]:
        """What all nodes must agree on: routing and the topics' slot amounts."""
        settings = self.settings
        topics = {
            f"topic.{name}.slot_amount": str(settings.slots_of(name)) for name in self.topics()
        }
        return settings.routing.facts() | topics

    def topics(self) -> list[str]:
        return sorted({"default", *self.settings.topics})

    def _scanner(self, worker: Worker, pages: Pages) -> Scanner:
        settings = self.settings
        slots = self.slots
        return Scanner(
            pages,
            range(settings.shards),
            worker,
            lambda: worker.types,
            lambda: slots is None or slots.available,
            settings.routing,
            self._clock,
            grace_ms=round(settings.scanner.grace_s * 1000) if slots is not None else 0,
            tick_s=settings.scanner.tick_s,
            page_rows=settings.scanner.page,
        )

    def _timer(
        self, slots: Slots, worker: Worker, pages: Pages, catalogue: Catalogue
    ) -> list[Service]:
        settings, timer = self.settings, self.settings.timer
        watch = ClockWatch(slots, self.databases, skew_s_max=timer.skew_s_max)
        services: list[Service] = [watch]
        hear: dict[str, Hear] = {}
        for topic in self.topics():
            pollers = self._pollers(slots, topic, worker, watch)
            for poller in pollers.values():
                worker.on_room(poller.wake)
            services += pollers.values()
            by_slot = {slot: poller for slots_, poller in pollers.items() for slot in slots_}
            hear[topic] = lambda slot, in_s, by_slot=by_slot: (  # type: ignore[misc]
                by_slot[slot].hear(slot, in_s) if slot in by_slot else None
            )
            amount = settings.slots_of(topic)
            services.append(
                Loader(
                    slots,
                    pages,
                    topic,
                    range(amount),
                    amount,
                    settings.routing,
                    lambda no, topic=topic: self._topic_of_type(catalogue, no) == topic,  # type: ignore[misc]
                    self._clock,
                    horizon_ms=round(timer.horizon_s * 1000),
                    slack_ms=round(timer.slack_s * 1000),
                    tick_s=timer.load_tick_s,
                    page_rows=timer.load_page,
                )
            )
        services.append(Wakeup(slots, settings.namespace, hear))
        return services

    def _topic_of_type(self, catalogue: Catalogue, type_no: int) -> str:
        try:
            return self.settings.topic_of(catalogue.name(type_no))
        except NotFound:  # a row that somebody wrote by hand must not stop the loader
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
