"""A process that serves remote consumers: a lease server with its databases, Redis, clocks and catalogue.

`toc web` has one. It takes part in no cluster: each such process serves the consumers that wait in it.
"""

from __future__ import annotations

import logging
import random
from functools import partial

from toc.errors import TimerUnavailable
from toc.leases.lease_server import LeaseServer
from toc.node.activity_marks import find_marks
from toc.node.biz_type_refresher import BizTypeRefresher
from toc.node.limit_follower import LimitFollower
from toc.node.pass_runner import PassRunner
from toc.node.pause_follower import PauseFollower
from toc.node.probes import PATIENCE_S, ClockComparison, Probe
from toc.node.type_catalogue import TypeCatalogue
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.process_info import process_name
from toc.runtime.service import stop_services
from toc.runtime.setting_groups import LEASE_S_MAX
from toc.runtime.settings import Settings
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.schema_check import check_databases
from toc.store.table_check import TableCheck
from toc.timer.activity_reporter import ActivityReporter
from toc.timer.reminders import Reminders
from toc.worker.context import ProcessContext

log = logging.getLogger(__name__)

STOP_S = 10.0


class LeaseNode:
    """Connects a lease server, `server`, to the servers of the settings.

    Give a TimeoutCenter of the same process the same Settings object: it then arms jobs of pull types in
    their own topics from the moment on that this process knows of them.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.databases = Databases.from_settings(settings, self._clock)
        self.reminders = (
            Reminders.from_settings(settings, self._clock) if settings.has_timer else None
        )
        self._database_metadata = DatabaseMetadata(self.databases)
        self.catalogue = TypeCatalogue(
            self.databases,
            self._database_metadata.declared,
            settings.catalogue.refresh_s,
            completes=True,
        )
        database_probes = [
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
        self.probes = database_probes if redis is None else [*database_probes, redis]
        self._clocks = ClockComparison(redis, database_probes, skew_s_max=settings.timer.skew_s_max)
        self.pauses = PauseFollower(settings, self._clock, self.databases)
        self.limits = LimitFollower(
            settings,
            self._clock,
            self._database_metadata.declared,
            self.reminders,
            self.pauses.gate,
        )
        # The other processes that lease jobs are not known here.
        self.limits.set_nodes(None, settings.leases.replicas)
        types = self._database_metadata.types
        self._type_readers = [BizTypeRefresher(database, types) for database in self.databases]
        self.server = LeaseServer(
            ProcessContext(
                process_name(),
                settings,
                self._clock,
                random.Random(),  # noqa: S311 - jitter of retries; tokens use `secrets`
                self.databases,
                self._database_metadata,
                self.reminders,
                self.pauses.gate,
                self.limits.limits,
            ),
            self.catalogue,
            lambda: not self._clocks.skew_is_too_large,
        )

        self._passes = [
            PassRunner(
                database, settings.routing, self.pauses.gate,
                lambda: self.server.scan_permits, partial(self.server.inbox_of, database.index),
                self._clock,
            )
            for database in self.databases
        ]  # fmt: skip

        reminders = self.reminders
        self._activity: ActivityReporter | None = None
        if reminders is not None:
            self._activity = ActivityReporter(
                lambda: reminders, settings.namespace, self._clock, is_node=True,
                find_marks=partial(find_marks, self._clock.wall_ms(), self.probes),
            )  # fmt: skip

    def start(self) -> None:
        """Raises SchemaMismatch and StoreUnavailable. Redis may be absent."""
        table_check = TableCheck(self._clock, self._settings.routing.meta_values())
        check_databases(
            self.databases, self._database_metadata, self._settings.facts, table_check.check_tables
        )
        if self.reminders is not None:
            try:
                self.reminders.raise_if_unfit()
            except TimerUnavailable as error:
                log.warning("leases start without the timer; a scanner finds the jobs: %s", error)
        for database in self.databases:
            # As long as the longest lease: an expired lease is judged by the database's believed clock.
            database.server_clock.start_following(float(LEASE_S_MAX))
        for probe in self.probes:
            probe.start()
        for probe in self.probes:
            probe.first_ask_done.wait(PATIENCE_S)
        self.catalogue.start()
        self.pauses.read_now()
        self.limits.start()
        for reader in (*self._type_readers, *self.pauses.services, *self.limits.services):
            reader.start()
        self.server.start()
        for runner in self._passes:
            runner.start()
        if self._activity is not None:
            self._activity.start()

    def stop(self) -> bool:
        """Answers the consumers that wait, then stops all parts; True if all of them ended in time."""
        clean = stop_services(self._passes, STOP_S)
        clean &= self.server.stop()
        clean &= self.catalogue.stop()
        readers = [*self._type_readers, *self.pauses.services, *self.limits.services]
        clean &= stop_services([*readers, *self.probes], STOP_S)
        clean &= self.limits.stop(STOP_S)
        if self._activity is not None:
            clean &= self._activity.stop(STOP_S)
        if self.reminders is not None:
            self.reminders.close()
        self.databases.close()
        return clean
