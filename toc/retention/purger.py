"""The purger: deletes one page in one small transaction, then rests for longer than the transaction took."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from toc.errors import NotFound, StoreUnavailable
from toc.retention.replica_lag import ReplicaLag
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.setting_groups import Days, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.archive_status import EVENTS_ARCHIVED, ArchiveStatus, read_archive_status
from toc.store.audit_rows import delete_old_audit_rows
from toc.store.biz_types import BizTypeCache
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.store.declared_types import delete_old_versions
from toc.store.ended_jobs import DAY_MS
from toc.store.pauses import delete_old_changes
from toc.store.purge_pages import EventAges, PurgeCandidate, PurgePages, delete_oldest_counts
from toc.store.replica import Replica
from toc.store.token_rows import delete_ended_tokens

log = logging.getLogger(__name__)

LAG_CHECK_S = 1.0  # the pause while a replica lags
REST_S_MAX = 60.0  # the longest pause, after a slow page
SESSION_DAYS = 1.0  # tokens of sessions stay for so long after their end


class PurgeResult(NamedTuple):
    """How many rows a pass has deleted.

    events: with replaced declarations of types. held, events_held: jobs and events that are old enough to
    delete but not in the archive yet. audited: entries of the audit of HTTP, and tokens that were revoked or
    are over.
    """

    jobs: int
    events: int
    held: int
    events_held: int
    audited: int = 0


class Purger(Service):
    """Purges the shards of one database that `set_shards` names; no shard before its first call.

    After each page the purger rests, so that all nodes together keep the database busy for at most `share`
    of the time. `type_name(type_no)`: the biz_type, for settings by type. `archives`: jobs and events are
    deleted only when they are in the archive. Once the database records how far the archive is, that record
    counts instead of `archives`, because settings may differ between nodes.
    """

    def __init__(
        self,
        database: Database,
        purges: PurgePages,
        settings: RetentionSettings,
        type_name: Callable[[int], str],
        replicas: ReplicaLag,
        clock: Clock,
        *,
        archives: bool,
        audit_days: Days = "none",
    ) -> None:
        super().__init__(f"toc-purger-{database.index}")
        self._database, self._purges, self._settings = database, purges, settings
        self._type_name, self._replicas, self._clock = type_name, replicas, clock
        self._archives, self._audit_days = archives, audit_days
        self._new_shards: deque[tuple[Sequence[int], int]] = deque(maxlen=1)
        self._owned: Sequence[int] = ()
        self._nodes = 1
        # The state of the current pass: the shards that are left, and where to continue.
        self._shards: deque[int] = deque()
        self._after = 0
        self._events_left = False
        self._is_at_audit = False
        self._now_ms = 0
        self._deleted_jobs = self._deleted_events = self._deleted_audit = 0
        self._held = self._events_held = 0
        self._archived: ArchiveStatus | None = None
        self._events_archived: ArchiveStatus | None = None
        self._began_s: float | None = None
        self._denial_was_logged = False

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        databases: Databases,
        database: Database,
        types: BizTypeCache,
        clock: Clock,
    ) -> Purger:
        """Makes the purger of one database."""
        urls = settings.retention.replicas.get(database.index, ())
        replicas = [Replica(url, settings.connect_timeout_s, settings.mysql) for url in urls]
        return cls(
            database,
            PurgePages(databases),
            settings.retention,
            partial(types.find_name, database=database),
            ReplicaLag(replicas, clock),
            clock,
            archives=settings.reconcile.archive != "none",
            audit_days=settings.web.audit_days,
        )

    def run_pass(self, rest: Callable[[float], bool]) -> PurgeResult | None:
        """Runs one whole pass now. `rest(seconds)` waits; if it returns True, the pass ends with None.

        Raises StoreUnavailable, also when the account has no right to delete.
        """
        self._began_s = None
        while True:
            wait_s = self._purge_next_page()
            if not self._pass_is_running:
                return PurgeResult(
                    self._deleted_jobs,
                    self._deleted_events,
                    self._held,
                    self._events_held,
                    self._deleted_audit,
                )
            if rest(wait_s):
                return None

    def set_shards(self, shards: Sequence[int], nodes: int) -> None:
        """Replaces the shards to purge, from the next page on. May be called by any thread.

        `nodes`: how many nodes purge this database.
        """
        self._new_shards.append((tuple(shards), nodes))
        self.wake()

    def run_once(self) -> float:
        """Purges one page. Returns the seconds to wait before the next page."""
        try:
            return self._purge_next_page()
        except StoreUnavailable as error:
            if not error.denied:
                raise
            return self._end_denied_pass(error)

    def _purge_next_page(self) -> float:
        if self._new_shards:
            self._owned, self._nodes = self._new_shards.popleft()
            self._shards = deque(shard for shard in self._shards if shard in self._owned)
        if not self._pass_is_running:
            wait_s = self._seconds_until_pass()
            if wait_s > 0:
                return wait_s
            self._begin_pass()
        if self._replicas.lag_s > self._settings.lag_s_max:
            return LAG_CHECK_S
        asked_s = self._clock.monotonic_s()
        if self._shards:
            self._purge_job_page(self._shards[0])
        elif self._is_at_audit:
            self._purge_audit_page()
        else:
            self._purge_event_page()
        took_s = self._clock.monotonic_s() - asked_s
        if not self._pass_is_running:
            self._log_pass_result()
        return min(REST_S_MAX, took_s * (self._nodes / self._settings.share - 1))

    @property
    def _pass_is_running(self) -> bool:
        return bool(self._shards) or self._events_left

    def _end_denied_pass(self, error: StoreUnavailable) -> float:
        """Ends the pass, because the account has no right to delete; logs the error once."""
        if not self._denial_was_logged:
            self._denial_was_logged = True
            log.warning(
                "database %d: nothing is purged here: %s: set retention.in_workers = false and run "
                "`toc purge` with an account of the role purger, or grant this account that role's rights",
                self._database.index,
                error,
            )
        self._shards.clear()
        self._events_left = False
        return self._settings.pass_s

    def _seconds_until_pass(self) -> float:
        if self._began_s is None:
            return 0.0
        return self._began_s + self._settings.pass_s - self._clock.monotonic_s()

    def _begin_pass(self) -> None:
        self._now_ms = self._database.server_clock.clamp_server_time_ms(self._database.now_ms())
        self._archived = read_archive_status(self._database)
        self._events_archived = read_archive_status(self._database, EVENTS_ARCHIVED)
        self._began_s = self._clock.monotonic_s()
        self._shards, self._after = deque(self._owned), 0
        self._deleted_jobs = self._deleted_events = self._deleted_audit = 0
        self._held = self._events_held = 0
        # Events and audit entries belong to no shard: the node with the database's first shard purges them.
        self._events_left = self._database.shards[0] in self._owned
        self._is_at_audit = False

    def _purge_job_page(self, shard: int) -> None:
        limit = self._settings.page
        made_before_ms = self._days_ago_ms(self._settings.shortest_retention_days)
        page = self._purges.read_purge_page(shard, self._after, made_before_ms, limit)
        old = [
            row
            for row in page
            if row.has_ended and row.changed_ms < self._days_ago_ms(self._days_to_keep(row))
        ]
        gone = [row for row in old if self._may_delete(row)]
        self._held += len(old) - len(gone)
        if gone:
            deleted = self._purges.delete_unchanged_jobs(shard, gone)
            metrics.PURGED.labels("job").inc(deleted)
            self._deleted_jobs += deleted
        if len(page) < limit:
            self._shards.popleft()
            self._after = 0
        else:
            self._after = page[-1].job_id

    def _purge_event_page(self) -> None:
        ages = EventAges(self._days_ago_ms(self._settings.event_days), self._now_ms)
        page = self._purges.delete_old_events(
            self._database, self._after, ages, self._settings.page, self._may_delete_event
        )
        metrics.PURGED.labels("event").inc(page.deleted)
        self._deleted_events += page.deleted
        self._events_held += page.held
        self._after = page.after or 0
        if page.after is None:  # the last page of events
            deleted = delete_old_versions(self._database, ages.before_ms, self._settings.page)
            metrics.PURGED.labels("declaration").inc(deleted)
            pauses = delete_old_changes(self._database, ages.before_ms, self._settings.page)
            metrics.PURGED.labels("pause").inc(pauses)
            deleted += pauses
            sessions = delete_ended_tokens(
                self._database, self._days_ago_ms(SESSION_DAYS), sessions_only=True
            )
            metrics.PURGED.labels("session").inc(sessions)
            self._deleted_audit += sessions
            self._deleted_events += deleted
        # Counts are deleted one day at a time; while some are left, the events step is repeated.
        more = page.after is not None or delete_oldest_counts(
            self._database, sql_time_of_ms(self._days_ago_ms(self._settings.count_days))[:10]
        )
        if not more:
            self._is_at_audit = self._events_left = self._audit_days != "none"

    def _purge_audit_page(self) -> None:
        before_ms = self._days_ago_ms(self._audit_days)
        deleted, after = delete_old_audit_rows(
            self._database, self._after, before_ms, self._settings.page
        )
        if after is None:
            deleted += delete_ended_tokens(self._database, before_ms)
        metrics.PURGED.labels("audit").inc(deleted)
        self._deleted_audit += deleted
        self._after = after or 0
        self._events_left = after is not None

    def _may_delete(self, row: PurgeCandidate) -> bool:
        if self._archived is None:
            return not self._archives
        return self._archived.covers_ended_job(row.job_id, row.changed_ms)

    def _may_delete_event(self, event_id: int, event_ms: int) -> bool:
        if self._events_archived is None:
            # A system that archives jobs archives events too, from its next nightly run on.
            return not self._archives and self._archived is None
        return self._events_archived.covers_event(event_id, event_ms)

    def _log_pass_result(self) -> None:
        deleted = self._deleted_jobs + self._deleted_events + self._deleted_audit
        if deleted:
            log.info("purged %d rows of database %d", deleted, self._database.index)
        for rows, held, archived in (
            ("jobs", self._held, self._archived),
            ("events", self._events_held, self._events_archived),
        ):
            if held:
                log.warning(
                    "database %d: %d %s are old enough to go and not in the archive, which is %s",
                    self._database.index,
                    held,
                    rows,
                    f"until {archived}" if archived is not None else "empty",
                )

    def _days_to_keep(self, row: PurgeCandidate) -> Days:
        if row.is_dead:
            return self._settings.dead_days
        try:
            return self._settings.types.get(self._type_name(row.type_no), self._settings.days)
        except NotFound:  # another program wrote the number
            return self._settings.days

    def _days_ago_ms(self, days: Days) -> int:
        """The time `days` days ago, in ms since 1970; 0, which is before all jobs, for "none"."""
        return 0 if days == "none" else max(0, self._now_ms - round(days * DAY_MS))
