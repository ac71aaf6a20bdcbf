"""How a node finds what it stands on, in one line each: up or not, since when, and what it means.

Nothing here asks a server: the probes and the services have, and this is what they found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toc.cluster.holdings import as_ranges
from toc.cluster.membership import View
from toc.domain.disagreements import Disagreement
from toc.domain.placement import identity_of
from toc.node.feeding import Feeding
from toc.node.probes import Clocks, Probe
from toc.reconcile.nightly import LOG_FILE, Nightly
from toc.reconcile.watch import Watch
from toc.runtime.settings import Settings
from toc.store.reconciled import Reconciled
from toc.timer.slots import Slots

WHOLE_MS_MAX = 26 * 3_600_000  # between two nightly runs, with their durations
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
        self._databases = len(settings.databases)

    def parts(
        self, view: View | None, since_ms: int | None, trouble: str, feeding: Feeding | None
    ) -> Iterator[Part]:
        """`view` of the cluster; since when ZooKeeper is reached or not; why it refuses this node."""
        for database in range(self._databases):
            yield self._database(database)
        yield self._redis()
        yield self._zookeeper(view, since_ms, trouble)
        if feeding is not None and self._slots is not None:
            yield self._loading(feeding)

    def _database(self, database: int) -> Part:
        name = f"database_{database}"
        finding = self._probes[name].finding
        if finding.up:
            return Part(name, "up", finding.since_ms, "answers")
        shards = as_ranges(self._settings.routing.shards_of_database(database))
        others = "all others go on"
        if not any(self._probes[f"database_{n}"].finding.up for n in range(self._databases)):
            others = "no database answers, so no job is fired"
        means = f"jobs of shards {shards} wait for it; {others}"
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

    def _zookeeper(self, view: View | None, since_ms: int | None, trouble: str) -> Part:
        if not self._settings.has_cluster:
            return Part("zookeeper", "up", None, "not used", "each node owns everything")
        if view is not None and view.connected:
            how = "no nodes"
            if view.leader is not None:
                how = f"{len(view.members)} nodes, {identity_of(view.leader)} leads"
            return Part("zookeeper", "up", since_ms, how)
        if self._slots is None:
            means = "when a node dies, the others' scanners take its shards, late by the tick"
        else:
            means = (
                "nobody inherits the slots of a node that dies: deputies fire them, 1 to 2 s late"
            )
        return Part("zookeeper", "down", since_ms, trouble or "is not reached", means)

    def _loading(self, feeding: Feeding) -> Part:
        age_s, horizon_s = feeding.load_age_s, self._settings.timer.horizon_s
        how = f"all shards were read {age_s:.0f} s ago"
        if age_s <= horizon_s / 2:
            return Part("loader", "up", None, how)
        means = "jobs that come due are not in Redis: the scanner fires them, late by its grace"
        return Part("loader", "degraded", None, how, means)


def of_watches(watches: Sequence[Watch]) -> Part:
    """Whether the databases and Redis agree, as far as this node's shards were compared."""
    how = f"all shards were compared in the last {max(watch.age_s for watch in watches):.0f} s"
    left = sum((watch.left for watch in watches), Counter[Disagreement]())
    if not left:
        return Part("watch", "up", None, how)
    found = ", ".join(f"{number} {kind}" for kind, number in left.most_common())
    means = "the log of the node names jobs; `toc reconcile` compares everything, --repair repairs"
    return Part("watch", "degraded", None, f"disagreements: {found}", means)


def of_nightly(nightly: Nightly) -> Part:
    """What a node knows of its nightly runs. What the last one of all nodes came to is in the database."""
    last, when = nightly.last, f"at {nightly.at} UTC, on the node that leads"
    if nightly.since_ms is not None:
        return Part("nightly", "up", nightly.since_ms, "it runs")
    if last is not None and last.is_good:
        return Part("nightly", "up", last.ended_ms, f"{when}; last: {last.words}")
    if last is not None:
        means = f"see {nightly.log_file} on this node; `toc nightly` runs it again"
        return Part("nightly", "degraded", last.ended_ms, last.words, means)
    if nightly.lack:
        means = f"nothing is reconciled in a night in which this node leads ({nightly.at} UTC)"
        return Part("nightly", "degraded", None, nightly.lack, means)
    return Part("nightly", "up", None, when)


def of_reconciled(settings: Settings, last: Reconciled | None, now_ms: int) -> Part | None:
    """What the last reconciliation of all nodes came to; None: there was none, and none is wanted.

    It is degraded when nights pass without a whole one, and when one left disagreements. Where there
    are no nights, what a person has run is told, and is no state of the system.
    """
    own = settings.reconcile
    nightly = own.nightly != "none" and settings.has_timer
    if last is None:
        means = f"the first run is at {own.nightly} UTC; `toc nightly` does it now"
        return Part("reconciled", "up", None, "never", means) if nightly else None
    found = f"disagreements: {last.disagreements}"
    words = {
        "repaired": f"{found}, all repaired",
        "left": f"{found}, {last.repaired} repaired",
        "unable": "not everything could be compared",
    }
    how = f"{_hours(now_ms - last.ended_ms)} ago: {words.get(last.verdict, last.verdict)}"
    if nightly and (last.whole_ms is None or now_ms - last.whole_ms > WHOLE_MS_MAX):
        since = "" if last.whole_ms is None else f" for {_hours(now_ms - last.whole_ms)}"
        means = f"no run has compared everything{since}: see {LOG_FILE} on the node that leads"
        return Part("reconciled", "degraded", None, how, means)
    if last.verdict == "left":
        state: State = "degraded" if nightly else "up"
        means = f"the newest report in {own.directory} names jobs"
        return Part("reconciled", state, None, how, means)
    return Part("reconciled", "up", None, how)


def _hours(ms: int) -> str:
    minutes = max(0, ms) // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def worst(parts: Sequence[Part]) -> State:
    """The state of the whole: down only when no database answers, since then nothing can fire."""
    databases = [part.state for part in parts if part.part.startswith("database_")]
    if databases and all(state == "down" for state in databases):
        return "down"
    return "up" if all(part.state == "up" for part in parts) else "degraded"
