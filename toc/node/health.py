"""How a node finds what it stands on, in one line each: up or not, since when, and what it means.

Nothing here asks a server: the probes and the services have, and this is what they found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toc.cluster.holdings import as_ranges
from toc.cluster.membership import View
from toc.node.feeding import Feeding
from toc.node.probes import Clocks, Probe
from toc.runtime.settings import Settings
from toc.timer.slots import Slots

State = Literal["up", "degraded", "down"]
RANK: Mapping[str, int] = {"up": 0, "degraded": 1, "down": 2}


@dataclass(frozen=True, slots=True)
class Part:
    """One server or duty. `since_ms`: when it became so, by the node's wall clock; None: not known."""

    part: str
    state: State
    since_ms: int | None
    how: str
    means: str = ""


class Health:
    """The parts of one node."""

    def __init__(
        self,
        settings: Settings,
        slots: Slots | None,
        probes: Sequence[Probe],
        clocks: Clocks | None,
    ) -> None:
        self._settings, self._slots, self._clocks = settings, slots, clocks
        self._probes = {probe.server: probe for probe in probes}

    def parts(
        self, view: View | None, since_ms: int | None, feeding: Feeding | None
    ) -> Iterator[Part]:
        """`view` of the cluster, and since when ZooKeeper is reached or not."""
        for database in range(len(self._settings.databases)):
            yield self._database(database)
        yield self._redis()
        yield self._zookeeper(view, since_ms)
        if feeding is not None and self._slots is not None:
            yield self._loading(feeding)

    def _database(self, database: int) -> Part:
        name = f"database_{database}"
        finding = self._probes[name].finding
        if finding.up:
            return Part(name, "up", finding.since_ms, "answers")
        shards = as_ranges(self._settings.routing.shards_of_database(database))
        means = f"jobs of shards {shards} wait for it; all others go on"
        return Part(name, "down", finding.since_ms, finding.error, means)

    def _redis(self) -> Part:
        scanner = self._settings.scanner
        if self._slots is None:
            means = f"the scanner fires, up to {scanner.tick_s:g} s late"
            return Part("redis", "up", None, "not used", means)
        finding, slots = self._probes["redis"].finding, self._slots
        if not finding.up:
            means = "the scanner fires from the databases, about 1 to 3 s late"
            return Part("redis", "down", finding.since_ms, finding.error, means)
        if self._clocks is not None and self._clocks.beyond:
            means = (
                "the timer is stopped; the scanner fires from the databases, about 1 to 3 s late"
            )
            return Part("redis", "degraded", None, "its clock is too far from a database's", means)
        if not slots.available:
            means = (
                "jobs of the slots that are refused are fired by the scanner, about 1 to 3 s late"
            )
            return Part("redis", "degraded", None, "some calls are refused", means)
        if not slots.accepting:
            late_s = scanner.grace_s + scanner.tick_s
            means = (
                f"new jobs stay in the databases; the scanner fires them, up to {late_s:g} s late"
            )
            return Part("redis", "degraded", None, "full: it takes no reminders", means)
        return Part("redis", "up", finding.since_ms, "answers")

    def _zookeeper(self, view: View | None, since_ms: int | None) -> Part:
        if not self._settings.has_cluster:
            return Part("zookeeper", "up", None, "not used", "each node owns everything")
        if view is not None and view.connected:
            how = f"{len(view.members)} nodes, {view.leader} leads" if view.members else "no nodes"
            return Part("zookeeper", "up", since_ms, how)
        means = "nobody inherits the slots of a node that dies: deputies fire them, 1 to 2 s late"
        return Part("zookeeper", "down", since_ms, "is not reached", means)

    def _loading(self, feeding: Feeding) -> Part:
        age_s, horizon_s = feeding.load_age_s, self._settings.timer.horizon_s
        how = f"all shards were read {age_s:.0f} s ago"
        if age_s <= horizon_s / 2:
            return Part("loader", "up", None, how)
        means = "jobs that come due are not in Redis: the scanner fires them, late by its grace"
        return Part("loader", "degraded", None, how, means)


def worst(parts: Sequence[Part]) -> State:
    """The state of the whole: down only when no database answers, since then nothing can fire."""
    databases = [part.state for part in parts if part.part.startswith("database_")]
    if databases and all(state == "down" for state in databases):
        return "down"
    return "up" if all(part.state == "up" for part in parts) else "degraded"
