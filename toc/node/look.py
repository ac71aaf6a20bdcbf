"""One look at everything without being a node: what `toc status` adds to what the nodes say."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from toc.cluster.membership import View
from toc.cluster.roster import roster
from toc.errors import ClusterUnavailable, NotFound, StoreUnavailable
from toc.node.health import Health, Part
from toc.node.node import Node
from toc.runtime.settings import Settings
from toc.store.databases import Database
from toc.store.pages import DueRow, Pages

PARALLEL_MAX = 8
LATE_S = 5.0  # beyond the scanner's grace and tick, after which nothing should be left


class Look:
    """A context manager: connects to nothing by itself, and closes what it used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._node = Node(settings)  # not started: only its probes and connections are used

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *exc: object) -> None:
        self._node.stop()

    def servers(self) -> list[Part]:
        """Asks every server once, side by side. A hanging one costs its timeout."""
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            list(pool.map(lambda probe: probe.run_once(), self._node.probes))
        health = Health(self._settings, self._node.slots, self._node.probes, None)
        # A look knows nothing of before.
        return [replace(part, since_ms=None) for part in health.parts(self._view(), None, None)]

    def jobs(self) -> Part:
        """How late the latest job is that nobody has taken: the one line that counts."""
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            oldest = [row for rows in pool.map(self._oldest, self._node.databases) for row in rows]
        if not oldest:
            return Part("jobs", "up", None, "no job is overdue")
        late_s, row = max(oldest)
        scanner = self._settings.scanner
        how = f"{late_s:.1f} s overdue: job {row.job_id}"
        if late_s <= scanner.grace_s + scanner.tick_s + LATE_S:
            return Part("jobs", "up", None, how)
        means = "no worker takes it: are there any, with a handler for its type? (`toc job show`)"
        return Part("jobs", "degraded", None, how, means)

    def _oldest(self, database: Database) -> Iterator[tuple[float, DueRow]]:
        """The most overdue row of each shard, with how late it is in seconds."""
        pages, found = Pages(self._node.databases), []
        try:
            now_ms = database.now_ms()
            for shard in database.shards:
                found += pages.overdue(shard, (0, 0), 0, None, 1)
        except (StoreUnavailable, NotFound):
            return  # said in its own line
        for row in found:
            yield (now_ms - row.due_ms) / 1000, row

    def _view(self) -> View | None:
        if not self._settings.has_cluster:
            return None
        try:
            members = [member.identity for member in roster(self._settings)]
        except ClusterUnavailable:
            return None
        return View(members, connected=True)
