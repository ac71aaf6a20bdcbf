"""One look at everything without being a node: what `toc status` adds to what the nodes say."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

from toc.cluster.membership import View
from toc.cluster.roster import Member, roster
from toc.errors import ClusterUnavailable, NotFound, SettingsError, StoreUnavailable
from toc.node.health import Health, Part, of_reconciled
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store.databases import Database
from toc.store.pages import DueRow, Pages
from toc.store.reconciled import last

PARALLEL_MAX = 8
LATE_S = 5.0  # beyond the scanner's grace and tick, after which nothing should be left

Late = tuple[float, DueRow]


class Look:
    """A context manager: connects to nothing by itself, and closes what it used."""

    def __init__(self, settings: Settings) -> None:
        # Whoever looks waits: what keeps silent for as long as a connection may take is away.
        read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
        self._settings = settings.model_copy(update={"read_timeout_s": read_s})
        self._refused = ""  # by ZooKeeper
        self._node = Node(self._settings)  # not started: only its probes and connections are used

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *exc: object) -> None:
        self._node.stop()

    @cached_property
    def members(self) -> Sequence[Member] | None:
        """Who is in ZooKeeper, asked once; None: it is not used, or not reached."""
        if not self._settings.has_cluster:
            return None
        try:
            return roster(self._settings)
        except ClusterUnavailable:
            return None
        except (
            SettingsError
        ) as error:  # it answers, and refuses: the rest is looked at all the same
            self._refused = str(error)
            return None

    def servers(self) -> list[Part]:
        """Asks every server once, side by side. A hanging one costs its timeout."""
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            list(pool.map(lambda probe: probe.run_once(), self._node.probes))
        health = Health(self._settings, self._node.slots, self._node.probes, None)
        view = None
        if self.members is not None:
            view = View([member.identity for member in self.members], connected=True)
        # A look knows nothing of before.
        parts = health.parts(view, None, self._refused, None)
        return [replace(part, since_ms=None) for part in parts]

    def jobs(self) -> Part:
        """How late the latest job is that nobody has taken: the one line that counts."""
        databases = list(self._node.databases)
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            answers = list(pool.map(self._oldest, databases))
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
            return Part("jobs", "degraded" if unknown else "up", None, how)
        late_s, row = max(oldest)
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
        return Part("jobs", "degraded" if late or unknown else "up", None, how, means)

    def reconciled(self) -> Part | None:
        """What the last reconciliation came to; None: there was none, and none is asked for."""
        if self._is_away(self._node.databases[0]):
            return None
        try:
            found, now_ms = last(self._node.databases), self._node.databases[0].now_ms()
        except StoreUnavailable:  # another part says so
            return None
        return of_reconciled(self._settings, found, now_ms)

    def _oldest(self, database: Database) -> list[Late] | None:
        """The most overdue row of each shard, with how late it is in seconds; None: no answer."""
        if self._is_away(database):
            return None
        pages, found = Pages(self._node.databases), []
        try:
            now_ms = database.now_ms()
            for shard in database.shards:
                found += pages.overdue(shard, (0, 0), 0, None, 1)
        except (StoreUnavailable, NotFound):
            return None
        return [((now_ms - row.due_ms) / 1000, row) for row in found]

    def _is_away(self, database: Database) -> bool:
        """Whether it did not answer a moment ago."""
        probe = self._node.probes[database.index]
        return probe.first.is_set() and not probe.finding.up
