"""A node: one process that pops, scans, loads and runs handlers. This module puts its parts together."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from toc.cluster.membership import ClusterView, Membership
from toc.cluster.ownership_times import OwnershipTimes
from toc.domain.node_assignment import (
    add_group_to_name,
    compute_assignment,
    place_in_group,
)
from toc.errors import TimerUnavailable
from toc.handlers.registry import Registry, registry
from toc.node.activity_marks import find_marks
from toc.node.alarms import make_alarm_services
from toc.node.biz_type_refresher import BizTypeRefresher
from toc.node.gauges import Gauges
from toc.node.health import (
    Health,
    HealthPart,
    health_of_conflicts,
    health_of_nightly,
    health_of_tables,
    health_of_watches,
)
from toc.node.hold_sources import hold_slot_amounts
from toc.node.http_server import HttpServer
from toc.node.limit_follower import LimitFollower
from toc.node.nightly_gauges import NightlyGauges
from toc.node.pause_follower import PauseFollower
from toc.node.probes import PATIENCE_S, TICK_S, ClockComparison, Probe
from toc.node.recurring_keeper import RecurringKeeper
from toc.node.sinks import WEBHOOK, BrokerSinks, WebhookSink
from toc.node.type_catalogue import TypeCatalogue
from toc.node.type_settings import log_differences
from toc.node.work_sources import WorkSources
from toc.reconcile.compare import ShardComparer
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.nightly import NightlyScheduler
from toc.reconcile.repair import Repairer
from toc.reconcile.watch import ShardWatch, limit_settings_for_watch
from toc.retention.purger import Purger
from toc.runtime import metrics
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.process_info import process_name, toc_version
from toc.runtime.service import Service, stop_services
from toc.runtime.settings import Settings
from toc.store.biz_types import BizTypeCache
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.pull_type_follower import follow_pull_types
from toc.store.recurring_chains import MadeOccurrence
from toc.store.recurring_changes import RecurringChanges
from toc.store.schema_check import check_databases
from toc.store.table_check import TableCheck
from toc.timer.activity_reporter import ActivityReporter
from toc.timer.reminders import Reminders
from toc.webhooks.gate import HandlerShares
from toc.worker.acks import Ack
from toc.worker.context import ProcessContext
from toc.worker.handler_table import SinkHandlers
from toc.worker.worker import Worker

log = logging.getLogger(__name__)

SOURCES_STOP_S = 10.0
JOIN_S_MAX = 5.0  # how long a start waits for ZooKeeper; without it the node then owns everything
HANDLES_MAX = 50  # type names that a member shows in ZooKeeper
HAND_OVER_S = 0.5  # a leaving node goes on popping for so long, while others take over


class Node:
    """All parts of one worker process.

    It takes its share of slots and shards among the members in ZooKeeper; without ZooKeeper, all of them.
    `start` checks the schema, the routing's fingerprint and Redis, and refuses what does not fit. `stop` ends
    it gracefully: the other nodes get its share first, it takes no new jobs, running handlers may finish, and
    it gives back the jobs that have not started. `sinks`: handlers of further
    kinds of sinks, beside "webhook" and those of the settings.
    """

    limits: LimitFollower | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        handlers: Registry | None = None,
        clock: Clock | None = None,
        restart_wanted: Callable[[], None] = lambda: None,
        sinks: SinkHandlers | None = None,
    ) -> None:
        self.settings = settings
        self._view: ClusterView | None = None  # the last one that was applied
        self._popped_slot_amounts: Mapping[str, int] = {}
        self.name = process_name()
        self._clock = clock or SystemClock()
        self._handlers = handlers if handlers is not None else registry
        self._restart_wanted = restart_wanted
        self.databases = Databases.from_settings(settings, self._clock)
        shares = HandlerShares.of_worker(settings.worker)  # of webhooks and brokers together
        self._webhooks = WebhookSink(settings, self.databases, self._clock, self.name, shares)
        self._brokers = BrokerSinks(settings, self._clock, shares)
        self._sinks: SinkHandlers = {
            WEBHOOK: self._webhooks.make_handler,
            **self._brokers.makers,
            **(sinks or {}),
        }
        self.reminders: Reminders | None = None
        if settings.has_timer:
            self.reminders = Reminders.from_settings(settings, self._clock)
        probes = [
            Probe(
                f"database_{database.index}",
                lambda d=database: [d.now_ms()],  # type: ignore[misc]
                self._clock,
                database.server_clock,
            )
            for database in self.databases
        ]
        redis = None
        if self.reminders is not None:
            redis = Probe("redis", self.reminders.read_times_ms, self._clock)
        self.probes = probes if redis is None else [*probes, redis]
        self._clocks = ClockComparison(redis, probes, skew_s_max=settings.timer.skew_s_max)
        self._activity: ActivityReporter | None = None
        self.worker: Worker | None = None
        self.work_sources: WorkSources | None = None
        self.membership: Membership | None = None
        self.http: HttpServer | None = None
        self.purgers: list[Purger] = []
        self.type_readers: list[BizTypeRefresher] = []
        self.catalogue: TypeCatalogue | None = None
        self.pauses: PauseFollower | None = None
        self.watches: list[ShardWatch] = []
        self.recurring_keepers: list[RecurringKeeper] = []
        self.nightly: NightlyScheduler | None = None
        if settings.reconcile.nightly != "none":
            self.nightly = NightlyScheduler(settings, self._is_leader, self._clock)
        self._types: BizTypeCache | None = None
        self._gauges: Gauges | None = None
        self._services: list[Service] = []  # services that bring or delete work, or measure
        self._stopping_ms: int | None = None  # since when this node is stopping; None: it is not
        self._table_check = TableCheck(self._clock, settings.routing.meta_values())
        self._health = Health(settings, self.reminders, self.probes, self._clocks)
        self._assignment_lock = threading.Lock()
        # The shards (under "") and slots (under their topic) that this node owns, and since when.
        self._holdings = {name: OwnershipTimes() for name in ("", *settings.slot_amounts)}

    def start(self) -> None:
        """Raises SchemaMismatch and StoreUnavailable. Redis and ZooKeeper may be absent."""
        settings = self.settings
        if settings.http.port is not None:
            self.http = HttpServer(settings.http.host, settings.http.port, self.health)
        database_metadata = DatabaseMetadata(self.databases)
        self._types = database_metadata.types
        check_databases(
            self.databases, database_metadata, settings.facts, self._table_check.check_tables
        )
        catalogue, pauses, limits = self._read_catalogue(database_metadata)
        if self.reminders is not None:
            try:
                self.reminders.raise_if_unfit()
            except TimerUnavailable as error:
                log.warning(
                    "this node starts without the timer; the scanner runs the jobs: %s", error
                )
        for database in self.databases:
            database.server_clock.start_following(self.settings.worker.lease_s + 2 * TICK_S)
        for probe in self.probes:
            probe.start()
        for probe in self.probes:
            # The servers' clocks are compared before any job starts by these clocks.
            probe.first_ask_done.wait(PATIENCE_S)
        process = ProcessContext(
            self.name,
            settings,
            self._clock,
            random.Random(),  # noqa: S311 - jitter and names
            self.databases,
            database_metadata,
            self.reminders,
            pauses.gate,
            limits.limits,
        )
        self.worker = worker = Worker(process, self._handlers, self._restart_wanted, self._sinks)
        worker.pool.async_handlers.closers += [
            self._webhooks.close_connections,
            self._brokers.close_connections,
        ]
        self.work_sources = WorkSources(process, worker, self._timer_may_fire)
        self.recurring_keepers = list(self._make_recurring_keepers(database_metadata, worker))
        types = database_metadata.types
        self.type_readers = [BizTypeRefresher(database, types) for database in self.databases]
        self.purgers = list(self._make_purgers(types))
        self.watches = list(self._make_shard_watches(database_metadata))
        readers = [*self.type_readers, *catalogue.services, *pauses.services]
        readers += limits.services
        services = [*self.work_sources, *self.purgers, *self.watches, *readers]
        services += self.recurring_keepers
        services += [NightlyGauges(self.databases)] * (self.nightly is not None)
        services += make_alarm_services(
            process, types, worker.process_identity, pauses.gate.is_held_back
        )
        self._gauges = Gauges(self.reminders, self.work_sources)
        self._services = [*services, self._gauges]
        self._warm_up_connections()
        worker.start()
        for service in services:
            service.start()
        self._join_cluster()
        catalogue.add_listener(self._on_catalogue_change)
        pauses.gate.add_listener(self._on_gate_change)
        limits.limits.add_listener(self._on_place_free)
        self._gauges.start()
        self._report_activity()
        if self.nightly is not None:
            self.nightly.start()
        if self.http is not None:
            self.http.start()

    def _report_activity(self) -> None:
        """Tells the dashboard's history, in Redis, what this process has counted."""
        reminders, started_ms = self.reminders, self._clock.wall_ms()
        if reminders is not None:
            self._activity = ActivityReporter(
                lambda: reminders, self.settings.namespace, self._clock, is_node=True,
                find_marks=partial(find_marks, started_ms, self.probes),
            )  # fmt: skip
            self._activity.start()

    def _read_catalogue(
        self, database_metadata: DatabaseMetadata
    ) -> tuple[TypeCatalogue, PauseFollower, LimitFollower]:
        """Reads what people have declared about types: modes, pauses and limits."""
        # Before the worker claims: jobs of pull types are none of its handlers' business.
        settings = self.settings
        self.catalogue = TypeCatalogue(
            self.databases, database_metadata.declared, settings.catalogue.refresh_s, completes=True
        )
        follow_pull_types(database_metadata.declared, settings.pull_types)
        self.catalogue.read_now()
        self.pauses = PauseFollower(settings, self._clock, self.databases)
        self.pauses.read_now()
        self.limits = LimitFollower(
            settings, self._clock, database_metadata.declared, self.reminders, self.pauses.gate
        )
        self.limits.start()
        log_differences(settings, self.catalogue.all())
        return self.catalogue, self.pauses, self.limits

    def stop(self) -> bool:
        """Stops all parts; True if all of them ended in time."""
        self._stopping_ms = self._clock.wall_ms()
        if self.membership is not None:
            has_peers = len(self.membership.view.members) > 1
            self.membership.stop()
            if has_peers:
                self._clock.sleep_s(HAND_OVER_S)
        clean = stop_services([*self._services, *self.probes], SOURCES_STOP_S)
        if self.work_sources is not None:
            clean &= self.work_sources.stop_hold_sources()
        if self.nightly is not None:
            clean &= self.nightly.stop()
        if self.worker is not None:
            clean &= self.worker.stop(self.settings.worker.stop_s)
        if self.limits is not None:
            clean &= self.limits.stop(SOURCES_STOP_S)
        if self._activity is not None:  # the outcomes of the last jobs too
            clean &= self._activity.stop(SOURCES_STOP_S)
        clean &= self._webhooks.stop()
        if self.http is not None:
            self.http.stop()
        if self.reminders is not None:
            self.reminders.close()
        self.databases.close()
        return clean

    def health(self) -> list[HealthPart]:
        """The health of each server and duty, and what it means for jobs. Asks no server."""
        member = self.membership
        view, since_ms, zookeeper_error = None, None, ""
        if member is not None:
            view, since_ms, zookeeper_error = member.view, member.since_ms, member.refusal
        parts = list(
            self._health.describe_parts(view, since_ms, zookeeper_error, self.work_sources)
        )
        if self._types is not None and self._types.known.conflicts:
            parts.append(health_of_conflicts(self._types.known.conflicts))
        if self._table_check.fault_lines:
            parts.append(health_of_tables(self._table_check))
        if self.watches:
            parts.append(health_of_watches(self.watches))
        if self.nightly is not None:
            parts.append(health_of_nightly(self.nightly))
        if self._stopping_ms is not None:
            means = "other nodes take over the slots and shards of this node"
            parts.append(HealthPart("node", "degraded", self._stopping_ms, "stopping", means))
        return parts

    def _warm_up_connections(self) -> None:
        most = self.settings.pool_size
        for database, probe in zip(self.databases, self.probes, strict=False):
            if probe.current_result.up and probe.first_ask_done.is_set():
                database.open_connections(singles=min(4, most), transactions=min(2, most))

    # ---- the cluster

    @property
    def identity(self) -> str:
        """This process' name among the members; the tokens of its claims begin with it."""
        return self.worker.process_identity if self.worker is not None else self.name

    @property
    def _member_name(self) -> str:
        """This node's name in ZooKeeper: only nodes that run the same types share work with each other."""
        return add_group_to_name(self.identity, (spec.biz_type for spec in self._handlers))

    def _handled_slot_amounts(self) -> dict[str, int]:
        """The topics with a type that this node handles: popping other jobs would only delay them."""
        amounts = self.settings.slot_amounts
        if self._handlers.handler_of_every_type:
            return amounts | self._hold_slot_amounts(lambda name: True)
        names = {spec.biz_type for spec in self._handlers}
        if self.worker is not None:
            names |= self.worker.context.handlers.sink_type_names
        topics = {self.settings.topic_of_biz_type(name) for name in names}
        handled = {topic: amount for topic, amount in amounts.items() if topic in topics}
        return handled | self._hold_slot_amounts(names.__contains__)

    def _hold_slot_amounts(self, is_handled: Callable[[str], bool]) -> dict[str, int]:
        """The hold topics of the held types that this node handles."""
        if self.pauses is None:
            return {}
        gate = self.pauses.gate
        held = filter(is_handled, gate.held_types.values())
        return hold_slot_amounts(self.settings, held, gate.priorities)

    def _on_gate_change(self) -> None:
        """Pops the hold topics of the types that are held now, and wakes the fetchers."""
        self._on_catalogue_change()
        if self.work_sources is not None:
            self.work_sources.wake_fetchers()

    def _on_place_free(self) -> None:
        """A job has ended that held the concurrency of its type: the next one may start."""
        if self.work_sources is not None and self.work_sources.hold_sources is not None:
            self.work_sources.hold_sources.wake()

    def _join_cluster(self) -> None:
        if self.settings.has_cluster:
            self.membership = Membership(
                self.settings,
                self._member_name,
                self._describe_member,
                self._on_view_change,
                self._clock,
            )
            self.membership.start()
            self.membership.joined.wait(JOIN_S_MAX)
        with self._assignment_lock:
            if self.membership is None or not self.membership.joined.is_set():
                if self.membership is not None:
                    log.warning(
                        "without an answer of ZooKeeper, this node owns all slots and shards"
                    )
                self._apply_member_view(
                    ClusterView((self._member_name,), connected=self.membership is None)
                )

    def _on_view_change(self, view: ClusterView) -> None:
        """Called by the membership, after `joined` was set."""
        with self._assignment_lock:
            self._apply_member_view(view)

    def _on_catalogue_change(self) -> None:
        """Pops the topics of types that were declared for a sink since the members changed last."""
        with self._assignment_lock:
            if self._view is not None and self._popped_slot_amounts != self._handled_slot_amounts():
                self._apply_member_view(self._view)

    def _apply_member_view(self, view: ClusterView) -> None:
        """Takes this node's share of the work, given the members."""
        if self.work_sources is None or self._gauges is None:
            return
        settings, amounts = self.settings, self._handled_slot_amounts()
        self._view, self._popped_slot_amounts = view, amounts
        if self.limits is not None:
            self.limits.set_nodes(*place_in_group(self._member_name, view.members))
        assignment = compute_assignment(self._member_name, view.members, amounts, settings.shards)
        # While ZooKeeper is down, nobody inherits the shards of a node that dies: every node scans all
        # shards, the more slowly the more nodes there are.
        self.work_sources.assign_shares(
            assignment, scan_all_in=len(view.members) if view.frozen else None
        )
        for database in self.databases:
            shards = [shard for shard in assignment.shards if shard in database.shards]
            if self.purgers:
                self.purgers[database.index].set_shards(shards, len(view.members))
            if self.watches:
                self.watches[database.index].set_shards(shards, len(view.members))
        self._gauges.assignment = assignment
        self._gauges.wake()
        metrics.MEMBERS.set(len(view.members))
        metrics.LEADS.set(view.connected and view.leader == self._member_name)
        now_ms = self._clock.wall_ms()
        self._holdings[""].set_owned(assignment.shards, now_ms)
        for topic in settings.slot_amounts:
            self._holdings[topic].set_owned(assignment.slots.get(topic, ()), now_ms)

    def _describe_member(self) -> bytes:
        """The JSON that the member publishes about itself in ZooKeeper."""
        shards, *slots = self._holdings.items()
        text = {
            "version": toc_version(),
            "handles": sorted(spec.biz_type for spec in self._handlers)[:HANDLES_MAX],
            "moving": sorted(self.settings.moving),
            "http": self.http.url if self.http is not None else None,
            "shards": shards[1].as_time_by_range(),
            "slots": {topic: holding.as_time_by_range() for topic, holding in slots},
        }
        return json.dumps(text).encode()

    def _make_purgers(self, types: BizTypeCache) -> Iterator[Purger]:
        """Makes a purger per database, unless only `toc purge` deletes."""
        if self.settings.retention.in_workers:
            for database in self.databases:
                yield Purger.from_settings(
                    self.settings, self.databases, database, types, self._clock
                )

    def _make_recurring_keepers(
        self, database_metadata: DatabaseMetadata, worker: Worker
    ) -> Iterator[RecurringKeeper]:
        """Makes a keeper of recurring schedules per database."""
        settings = self.settings
        changes = RecurringChanges.from_settings(
            settings, self.databases, database_metadata, worker.chains
        )
        schedules = [
            *(group.to_schedule(name) for name, group in settings.recurring.items()),
            *self._handlers.schedules,
        ]

        def arm(made: MadeOccurrence, now_ms: int) -> None:
            reminder = worker.context.reminder_to_put_back(now_ms, made.due_ms, made.job_id)
            topic = settings.topic_of_biz_type(made.biz_type)
            worker.acks.enqueue([Ack(topic, made.job_id, reminder)])

        for database in self.databases:
            yield RecurringKeeper(
                database,
                changes,
                schedules,
                self._clock,
                self.name,
                check_s=settings.worker.recurring_check_s,
                schedules_max=settings.limits.recurring,
                occurrence_days=settings.retention.occurrence_days,
                arm=arm,
                is_leader=self._is_leader,
            )

    def _make_shard_watches(self, database_metadata: DatabaseMetadata) -> Iterator[ShardWatch]:
        """Makes a watch per database, if there is a Redis to compare the database with."""
        reconcile = self.settings.reconcile
        if self.reminders is None or reconcile.watch_s == "none":
            return
        settings, repair, types = (
            limit_settings_for_watch(self.settings),
            None,
            database_metadata.types,
        )
        if reconcile.repair:  # only of jobs that ShardComparer has just read: their types are known
            sides = DatabasesAndRedis(self.databases, self.reminders, settings, types.cached_name)
            repair = Repairer(sides, self.name).repair_findings
        for database in self.databases:
            name = partial(types.find_name, database=database)
            yield ShardWatch(
                database.index,
                ShardComparer(DatabasesAndRedis(self.databases, self.reminders, settings, name)),
                self._clock,
                watch_s=reconcile.watch_s,
                grace_s=reconcile.grace_s,
                repair=repair,
                watches=len(settings.databases),
            )

    def _is_leader(self) -> bool:
        """Whether this node does the work that only one node may do."""
        if not self.settings.has_cluster:
            return True
        return self.membership is not None and self.membership.is_leader

    def _timer_may_fire(self) -> bool:
        """Whether Redis' and the databases' clocks agree well enough for the timer to fire."""
        return not self._clocks.skew_is_too_large
