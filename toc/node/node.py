"""A node: one process that pops, scans, loads and runs handlers. Here its parts are put together."""

from __future__ import annotations

import gc
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator

from toc.cluster.holdings import Holding
from toc.cluster.membership import Membership, View
from toc.domain.placement import assign, in_group
from toc.errors import TimerUnavailable
from toc.handlers.registry import Registry, registry
from toc.node.feeding import Feeding
from toc.node.gauges import Gauges
from toc.node.health import Health, Part, of_nightly, of_watches
from toc.node.http import HttpServer
from toc.node.probes import PATIENCE_S, Clocks, Probe
from toc.reconcile.compare import Compare
from toc.reconcile.nightly import Nightly
from toc.reconcile.repair import Repairs
from toc.reconcile.watch import Watch, gentle
from toc.retention.purger import Purger
from toc.retention.replicas import Replicas
from toc.runtime import metrics
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.process import process_name, release
from toc.runtime.service import Service, stop_all
from toc.runtime.settings import Settings
from toc.store.admission import admit
from toc.store.catalogue import Catalogue
from toc.store.databases import Database, Databases
from toc.store.purges import Purges
from toc.store.replicas import Replica
from toc.timer.slots import Slots
from toc.worker.worker import Worker

log = logging.getLogger(__name__)

FEEDING_STOP_S = 10.0
JOIN_S_MAX = 5.0  # at start; without ZooKeeper a node then owns everything
HANDLES_MAX = 50  # types that a member names in ZooKeeper, for people
HAND_OVER_S = 0.5  # a node that leaves pops on for so long, while the others take over


class Node:
    """Everything of one worker process.

    It does its share of slots and shards among the members in ZooKeeper; without ZooKeeper, all.
    `start` checks the schema, the routing's fingerprint and Redis, and refuses what does not fit.
    `stop` ends it gracefully: its share goes to the others first, nothing new is taken, what runs may
    finish, the rest is given back.
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
        self.name = process_name()
        self._clock = clock or SystemClock()
        self._handlers = handlers if handlers is not None else registry
        self._restart_wanted = restart_wanted
        self.databases = Databases.of(settings, self._clock)
        self.slots: Slots | None = None
        if settings.has_timer:
            self.slots = Slots(
                settings.redis_url,
                settings.namespace,
                self._clock,
                timeout_s=settings.connect_timeout_s,
            )
        self.probes = [
            Probe(f"database_{database.index}", lambda d=database: [d.now_ms()], self._clock)  # type: ignore[misc]
            for database in self.databases
        ]
        self._clocks: Clocks | None = None
        if self.slots is not None:
            redis = Probe("redis", self.slots.times_ms, self._clock)
            self._clocks = Clocks(redis, self.probes, skew_s_max=settings.timer.skew_s_max)
            self.probes = [*self.probes, redis]
        self.worker: Worker | None = None
        self.feeding: Feeding | None = None
        self.membership: Membership | None = None
        self.http: HttpServer | None = None
        self.purgers: list[Purger] = []
        self.watches: list[Watch] = []
        self.nightly: Nightly | None = None
        if settings.reconcile.nightly != "none":
            self.nightly = Nightly(settings, self._leads, self._clock)
        self._gauges: Gauges | None = None
        self._stopping, self._stopping_ms = False, 0
        self._health = Health(settings, self.slots, self.probes, self._clocks)
        self._sharing = threading.Lock()
        # What this node owns, and since when: the shards under "", slots under their topic.
        self._holdings = {name: Holding() for name in ("", *settings.slot_amounts)}

    def start(self) -> None:
        """Raises SchemaMismatch and StoreUnavailable. Redis and ZooKeeper may be absent."""
        settings = self.settings
        if settings.http.port is not None:
            self.http = HttpServer(settings.http.host, settings.http.port, self.health)
        catalogue = Catalogue(self.databases)
        admit(self.databases, catalogue, settings.facts)
        if self.slots is not None:
            try:
                self.slots.check()
            except TimerUnavailable as error:
                log.warning("starting without the timer, the scanner fires: %s", error)
        for probe in self.probes:
            probe.start()
        for probe in self.probes:
            probe.first.wait(PATIENCE_S)  # the clocks are compared before anything is fired by them
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
        self.feeding = Feeding(
            settings, self.databases, self.slots, worker, catalogue, self._clock, self._fires
        )
        self.purgers = [self._purger(database, catalogue) for database in self.databases]
        self.watches = list(self._watches(catalogue))
        self._gauges = Gauges(self.slots, self.feeding)
        self._warm()
        # What start-up has made stays: a full collection over it would stop every thread for 20 ms.
        gc.collect()
        gc.freeze()
        worker.start()
        for service in (*self.feeding, *self.purgers, *self.watches):
            service.start()
        self._join()
        self._gauges.start()
        if self.nightly is not None:
            self.nightly.start()
        if self.http is not None:
            self.http.start()

    def stop(self) -> bool:
        """True when nothing was left behind."""
        self._stopping, self._stopping_ms = True, self._clock.wall_ms()
        if self.membership is not None:
            shared = len(self.membership.view.members) > 1
            self.membership.stop()
            if shared:
                self._clock.sleep_s(HAND_OVER_S)
        services: list[Service] = [
            *(self.feeding or ()), *self.purgers, *self.watches, *self.probes
        ]  # fmt: skip
        if self._gauges is not None:
            services.append(self._gauges)
        clean = stop_all(services, FEEDING_STOP_S)
        if self.nightly is not None:
            clean &= self.nightly.stop()
        if self.worker is not None:
            clean &= self.worker.stop(self.settings.worker.stop_s)
        if self.http is not None:
            self.http.stop()
        if self.slots is not None:
            self.slots.close()
        self.databases.close()
        return clean

    def health(self) -> list[Part]:
        """How everything is that this node stands on, and what that means for jobs. Asks nobody."""
        member = self.membership
        view, since_ms, trouble = None, None, ""
        if member is not None:
            view, since_ms, trouble = member.view, member.since_ms, member.trouble
        parts = list(self._health.parts(view, since_ms, trouble, self.feeding))
        if self.watches:
            parts.append(of_watches(self.watches))
        if self.nightly is not None:
            parts.append(of_nightly(self.nightly))
        if self._stopping:
            parts.append(
                Part("node", "degraded", self._stopping_ms, "stopping", "the others take over")
            )
        return parts

    def _warm(self) -> None:
        most = self.settings.pool_size
        for database, probe in zip(self.databases, self.probes, strict=False):
            if probe.finding.up and probe.first.is_set():
                database.warm(singles=min(4, most), transactions=min(2, most))

    # ---- the cluster

    @property
    def identity(self) -> str:
        """This process among the members; the tokens of its claims begin with it."""
        return self.worker.identity if self.worker is not None else self.name

    @property
    def _member(self) -> str:
        """Its name in ZooKeeper: only nodes that run the same types share with each other."""
        return in_group(self.identity, (spec.biz_type for spec in self._handlers))

    def _slot_amounts(self) -> dict[str, int]:
        """The topics of which it handles anything: popping others' jobs would only delay them."""
        amounts = self.settings.slot_amounts
        if self._handlers.takes_all:
            return amounts
        topics = {self.settings.topic_of(spec.biz_type) for spec in self._handlers}
        return {topic: amount for topic, amount in amounts.items() if topic in topics}

    def _join(self) -> None:
        if self.settings.has_cluster:
            self.membership = Membership(
                self.settings, self._member, self._describe, self._share, self._clock
            )
            self.membership.start()
            self.membership.joined.wait(JOIN_S_MAX)
        with self._sharing:
            if self.membership is None or not self.membership.joined.is_set():
                if self.membership is not None:
                    log.warning("ZooKeeper is not reached: until it is, this node owns everything")
                self._take(View((self._member,), connected=self.membership is None))

    def _share(self, view: View) -> None:
        """Called by the membership, after `joined` was set."""
        with self._sharing:
            self._take(view)

    def _take(self, view: View) -> None:
        """Takes this node's share of a view of the cluster."""
        if self.feeding is None or self._gauges is None:
            return
        settings = self.settings
        assignment = assign(self._member, view.members, self._slot_amounts(), settings.shards)
        # While ZooKeeper is away nobody inherits the shards of a node that dies: all scan all, the
        # more slowly the more they are.
        self.feeding.own(assignment, scan_all_in=len(view.members) if view.frozen else None)
        for purger, database in zip(self.purgers, self.databases, strict=True):
            shards = [shard for shard in assignment.shards if shard in database.shards]
            purger.own(shards, len(view.members))
        for watch, database in zip(self.watches, self.databases, strict=False):
            shards = [shard for shard in assignment.shards if shard in database.shards]
            watch.own(shards, len(view.members))
        self._gauges.assignment = assignment
        self._gauges.wake()
        metrics.MEMBERS.set(len(view.members))
        metrics.LEADS.set(view.connected and view.leader == self._member)
        now_ms = self._clock.wall_ms()
        self._holdings[""].hold(assignment.shards, now_ms)
        for topic in settings.slot_amounts:
            self._holdings[topic].hold(assignment.slots.get(topic, ()), now_ms)

    def _describe(self) -> bytes:
        """What the member says of itself in ZooKeeper."""
        shards, *slots = self._holdings.items()
        text = {
            "version": release(),
            "handles": sorted(spec.biz_type for spec in self._handlers)[:HANDLES_MAX],
            "moving": sorted(self.settings.moving),
            "http": self.http.url if self.http is not None else None,
            "shards": shards[1].as_text(),
            "slots": {topic: holding.as_text() for topic, holding in slots},
        }
        return json.dumps(text).encode()

    def _purger(self, database: Database, catalogue: Catalogue) -> Purger:
        settings, clock = self.settings, self._clock
        urls = settings.retention.replicas.get(database.index, ())
        replicas = [Replica(url, settings.connect_timeout_s) for url in urls]
        return Purger(
            database,
            Purges(self.databases),
            settings.retention,
            catalogue.name,
            Replicas(replicas, clock),
            clock,
            archives=settings.reconcile.archive != "none",
        )

    def _watches(self, catalogue: Catalogue) -> Iterator[Watch]:
        """One per database, where there is something to compare them with."""
        own = self.settings.reconcile
        if self.slots is None or own.watch_s == "none":
            return
        settings, repair = gentle(self.settings), None
        if own.repair:
            repair = Repairs(
                self.databases, self.slots, settings, catalogue.name, self._clock, self.name
            ).mend
        for database in self.databases:
            yield Watch(
                database.index,
                Compare(self.databases, self.slots, settings, catalogue.name),
                self._clock,
                watch_s=own.watch_s,
                grace_s=own.grace_s,
                repair=repair,
                watches=len(settings.databases),
            )

    def _leads(self) -> bool:
        """Whether this node does what must run once."""
        if not self.settings.has_cluster:
            return True
        return self.membership is not None and self.membership.leads

    def _fires(self) -> bool:
        """Whether the timer may fire."""
        return self._clocks is None or not self._clocks.beyond
