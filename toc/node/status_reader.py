"""Asks all servers once, without being a node: what `toc status` adds to what the nodes report."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

from toc.cluster.membership import View
from toc.cluster.roster import Member, roster
from toc.domain.ids import gene_of
from toc.errors import (
    ClusterUnavailable,
    SettingsError,
    TimerUnavailable,
    TocError,
)
from toc.node.health import FOREIGN_MEANS, Health, HealthPart, health_of_reconciliation
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store.databases import Database
from toc.store.due_pages import DuePages, DueRow
from toc.store.reconcile_status import read_last_result
from toc.store.schema import job_table_name
from toc.timer.foreign_members import format_members

PARALLEL_MAX = 8
STRANGERS_FIRST = 20  # members of each queue that are looked at
LATE_S = 5.0  # more than the scanner's grace and tick, after which no row should be left

OverdueRow = tuple[float, DueRow, int]
"""Seconds overdue, the row, its shard."""


class StatusReader:
    """Asks servers on demand; a context manager that closes its connections."""

    def __init__(self, settings: Settings) -> None:
        # A person waits for the answer: a server that is silent for connect_timeout_s counts as down.
        read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
        self._settings = settings.model_copy(update={"read_timeout_s": read_s})
        self._refused = ""  # why ZooKeeper refuses us
        self._node = Node(self._settings)  # not started: only its probes and connections are used

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._node.stop()

    @cached_property
    def members(self) -> Sequence[Member] | None:
        """The members in ZooKeeper, asked once; None: it is not used, or not reached."""
        if not self._settings.has_cluster:
            return None
        try:
            return roster(self._settings)
        except ClusterUnavailable:
            return None
        except SettingsError as error:  # it answers, and refuses: go on with the rest
            self._refused = str(error)
            return None

    def check_servers(self) -> list[HealthPart]:
        """Asks every server once, in parallel. One that hangs costs its timeout."""
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            list(pool.map(lambda probe: probe.run_once(), self._node.probes))
        health = Health(self._settings, self._node.reminders, self._node.probes, None)
        view = None
        if self.members is not None:
            view = View([member.identity for member in self.members], connected=True)
        # One question cannot tell since when.
        parts = health.parts(view, None, self._refused, None)
        return [replace(part, since_ms=None) for part in parts]

    def check_overdue_jobs(self) -> HealthPart:
        """How late the most overdue job is that no worker has taken: the most important line."""
        databases = list(self._node.databases)
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            answers = list(pool.map(self._read_most_overdue, databases))
        silent = [
            f"database_{database.index}"
            for database, rows in zip(databases, answers, strict=True)
            if rows is None
        ]
        unknown = ""
        if silent:
            unknown = f"not known: {', '.join(silent)} {'do' if silent[1:] else 'does'} not answer"
        oldest = [row for rows in answers for row in rows or ()]
        if not oldest:
            how = unknown or "no job is overdue"
            return HealthPart("jobs", "degraded" if unknown else "up", None, how)
        late_s, row, shard = max(oldest)
        scanner = self._settings.scanner
        how = f"{max(late_s, 0.0):.1f} s overdue: job {row.job_id}"
        if unknown:
            how += f"; of others {unknown}"
        means = ""
        late = late_s > scanner.grace_s + scanner.tick_s + LATE_S
        if late:
            means = (
                "no worker takes it: are there any, with a handler for its type? (`toc job show`)"
            )
            if self._settings.routing.shard(gene_of(row.job_id)) != shard:
                means = (
                    f"it lies in {job_table_name(shard)}, a table that its id does not belong to, and "
                    "is never run there: `toc reconcile --repair` moves it"
                )
        return HealthPart("jobs", "degraded" if late or unknown else "up", None, how, means)

    def check_queues(self) -> HealthPart | None:
        """The members of queues in Redis that are no job_id; None: there are none, or Redis is down."""
        reminders = self._node.reminders
        if reminders is None:
            return None
        try:
            found = [
                member
                for topic, amount in self._settings.slot_amounts.items()
                for member in reminders.foreign_members(topic, range(amount), STRANGERS_FIRST)
            ]
        except TimerUnavailable:  # another part says so
            return None
        if not found:
            return None
        how = f"{len(found)} members are no job_id: {format_members(found)}"
        return HealthPart("queues", "degraded", None, how, FOREIGN_MEANS)

    def check_reconciliation(self) -> HealthPart | None:
        """The result of the last reconciliation; None: there was none, and none is configured."""
        if self._has_not_answered(self._node.databases[0]):
            return None
        try:
            found, now_ms = read_last_result(self._node.databases), self._node.databases[0].now_ms()
        except TocError:  # another part says so
            return None
        return health_of_reconciliation(self._settings, found, now_ms)

    def _read_most_overdue(self, database: Database) -> list[OverdueRow] | None:
        """The most overdue row of each shard, with how late it is in seconds; None: no answer."""
        if self._has_not_answered(database):
            return None
        pages, found = DuePages(self._node.databases), list[tuple[DueRow, int]]()
        try:
            now_ms = database.now_ms()
            for shard in database.shards:
                found += [(row, shard) for row in pages.overdue_rows(shard, (0, 0), 0, None, 1)]
        except TocError:
            return None
        return [((now_ms - row.due_ms) / 1000, row, shard) for row, shard in found]

    def _has_not_answered(self, database: Database) -> bool:
        """Whether the probe of `check_servers` got no answer."""
        probe = self._node.probes[database.index]
        return probe.first_ask_done.is_set() and not probe.finding.up
