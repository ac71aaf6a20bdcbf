"""Where a compare reads the rows of a shard: on the primary, or on a replica that is not too far behind.

Only the first reading of rows can be on a replica. What looks like a disagreement there is looked up on the
primary before it counts, and once more after the grace. So a replica that lags makes work, and no finding.
What it can hide: a disagreement that began less than its lag ago, until the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, TypeVar

from toc.errors import SettingsError, TimerUnavailable, TocError
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.store.databases import Database, Databases
from toc.store.reconcile_reads import ReconcileReads
from toc.store.recorded_meta import read_recorded_meta
from toc.store.replica import Replica, ReplicaUnavailable, open_replica
from toc.store.row_defects import RowDefects

log = logging.getLogger(__name__)

T = TypeVar("T")


class RowSource(NamedTuple):
    """The reads of rows on some servers."""

    databases: Databases
    reads: ReconcileReads
    defects: RowDefects
    is_replica: bool = False


class RowSources:
    """Chooses a RowSource for each part of a compare. `primary`: also for all that is looked up again."""

    def __init__(self, sides: DatabasesAndRedis, lease_ms_max: int) -> None:
        self._sides, self._lease_ms_max = sides, lease_ms_max
        self._settings = sides.settings
        self.primary = self._make_source(sides.databases)

    def read_rows(self, shard: int, work: Callable[[RowSource], T]) -> T:
        """Returns `work(source)`, with a replica if one follows closely enough, from the beginning to the
        end of the work; else with the primary. Raises as `work` with the primary.
        """
        index = self._settings.routing.database_index(shard)
        for url in self._settings.reconcile_replicas(index):
            replica = Replica(url, self._settings.connect_timeout_s, self._settings.mysql)
            if not self._follows_closely(replica):
                continue
            try:
                with closing(
                    open_replica(self._settings, index, url, self._sides.clock)
                ) as databases:
                    self._refuse_other_data(databases[index])
                    result = work(self._make_source(databases, is_replica=True))
            except TimerUnavailable:
                raise
            except TocError as error:
                log.warning("shard %d is read again, from the primary: %s", shard, error)
                continue
            if self._follows_closely(replica):
                return result
        return work(self.primary)

    def _refuse_other_data(self, replica: Database) -> None:
        """Raises SettingsError unless the server has a copy of this database, not of another one."""
        ours = read_recorded_meta(self._sides.databases[replica.index])
        if read_recorded_meta(replica) != ours:
            raise SettingsError(
                f"retention.replicas.{replica.index}: toc_meta there differs from that of database "
                f"{replica.index}: it is no replica of it"
            )

    def _follows_closely(self, replica: Replica) -> bool:
        lag_s_max = self._settings.reconcile.replica_lag_s_max
        try:
            lag_s = replica.read_lag_s()
        except ReplicaUnavailable as error:
            log.warning("the primary is read instead of %s: %s", replica.name, error.orig)
            return False
        if lag_s is None:
            log.warning("the primary is read instead of %s, which does not replicate", replica.name)
            return False
        if lag_s > float(lag_s_max):
            text = "the primary is read instead of %s, which is %g s behind (reconcile.replica_lag_s_max: %s)"
            log.warning(text, replica.name, lag_s, lag_s_max)
            return False
        return True

    def _make_source(self, databases: Databases, *, is_replica: bool = False) -> RowSource:
        time_ms = self._sides.reminders.read_time_ms
        defects = RowDefects(databases, self._lease_ms_max, time_ms)
        return RowSource(databases, ReconcileReads(databases), defects, is_replica)
