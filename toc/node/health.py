"""The health of a node, one part per server or duty: up or not, since when, and the effect on jobs.

This module asks no server: it describes the results of the probes and the services. The texts of parts that
the dashboard shows are Sentences; those that only a node reports need not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toc.cluster.membership import ClusterView
from toc.cluster.ownership_times import format_number_ranges
from toc.domain.disagreements import Disagreement
from toc.domain.node_assignment import process_of_member
from toc.node.probes import ClockComparison, Probe
from toc.node.work_sources import WorkSources
from toc.reconcile.nightly import LOG_FILE, NightlyScheduler
from toc.reconcile.watch import ShardWatch
from toc.runtime.settings import Settings
from toc.scanner.fallback import OverdueShardCount
from toc.sentences import Sentence, sentence
from toc.store.biz_types import Conflicts, describe_type_conflict
from toc.store.nightly_status import KILLED, NightlyStatus
from toc.store.reconcile_status import LastReconcileResult
from toc.store.table_check import WAY_OUT, TableCheck
from toc.timer.reminders import Reminders

FOREIGN_MEANS = sentence(
    "no job waits for it; another program writes into the queues of toc in Redis: find it, or give toc a "
    "namespace of its own"
)
WHOLE_MS_MAX = 26 * 3_600_000  # the time between two nightly runs, with their durations
CONFLICTS_SHOWN = 3
State = Literal["up", "degraded", "down"]
RANK: Mapping[str, int] = {"up": 0, "degraded": 1, "down": 2}


@dataclass(frozen=True, slots=True)
class HealthPart:
    """One server or duty. `since_ms`: when `state` last changed, by the wall clock; None: not known."""

    part: str
    state: State
    since_ms: int | None
    how: str
    means: str = ""


class Health:
    """Describes the state of the servers and duties of one node as HealthParts."""

    def __init__(
        self,
        settings: Settings,
        reminders: Reminders | None,
        probes: Sequence[Probe],
        clocks: ClockComparison | None,
    ) -> None:
        self._settings, self._reminders, self._clocks = settings, reminders, clocks
        self._probes = {probe.server: probe for probe in probes}
        self._databases = len(settings.databases)

    def describe_parts(
        self,
        view: ClusterView | None,
        since_ms: int | None,
        zookeeper_error: str,
        work_sources: WorkSources | None,
    ) -> Iterator[HealthPart]:
        """`view`: of the cluster; `since_ms`: since when ZooKeeper is (not) reached; `zookeeper_error`: why
        it refuses this node; `work_sources`: None for a command that is no node.
        """
        for database in range(self._databases):
            yield self._health_of_database(database)
        yield self._health_of_redis()
        yield from self._health_of_queues()
        yield self._health_of_zookeeper(view, since_ms, zookeeper_error)
        if work_sources is not None:
            yield _health_of_overdue_jobs(
                [fallback.overdue for fallback in work_sources.fallbacks.values()]
            )
            if self._reminders is not None:
                yield self._health_of_loading(work_sources)

    def _health_of_database(self, database: int) -> HealthPart:
        name = f"database_{database}"
        finding = self._probes[name].current_result
        clock = self._probes[name].server_clock
        if finding.up and clock is not None and clock.stepped_s:
            how = sentence("its clock has stepped by {step_s:+.1f} s", step_s=clock.stepped_s)
            means = sentence(
                "toc goes on by the time before the step; set the clock, or restart the workers"
            )
            return HealthPart(name, "degraded", None, how, means)
        if finding.up:
            return HealthPart(name, "up", finding.since_ms, sentence("answers"))
        shards = format_number_ranges(self._settings.routing.shards_of_database(database))
        means = sentence("jobs of shards {shards} wait for it; all others go on", shards=shards)
        if not any(self._probes[f"database_{n}"].current_result.up for n in range(self._databases)):
            means = sentence(
                "jobs of shards {shards} wait for it; no database answers, so no job is fired",
                shards=shards,
            )
        return HealthPart(name, "down", finding.since_ms, finding.error, means)

    def _health_of_redis(self) -> HealthPart:
        scanner = self._settings.scanner
        if self._reminders is None:
            fires = sentence("the scanner fires, up to {late_s:g} s late", late_s=scanner.tick_s)
            return HealthPart("redis", "up", None, sentence("not used"), fires)
        finding, reminders = self._probes["redis"].current_result, self._reminders
        if not finding.up:
            means = sentence("the scanner fires from the databases, about 1 to 3 s late")
            return HealthPart("redis", "down", finding.since_ms, finding.error, means)
        if self._clocks is not None and self._clocks.skew_is_too_large:
            how = sentence("its clock is too far from a database's")
            means = sentence(
                "the timer is stopped; the scanner fires from the databases, about 1 to 3 s late"
            )
        elif not reminders.is_available:
            how = sentence("some calls are refused")
            means = sentence("the scanner fires the jobs of the refused slots, about 1 to 3 s late")
        elif not reminders.takes_reminders:
            how = sentence("full: it takes no reminders")
            means = sentence(
                "the scanner fires new jobs from the databases, up to {late_s:g} s late",
                late_s=scanner.grace_s + scanner.tick_s,
            )
        else:
            return HealthPart("redis", "up", finding.since_ms, sentence("answers"))
        return HealthPart("redis", "degraded", None, how, means)

    def _health_of_queues(self) -> Iterator[HealthPart]:
        """Yields a part only if members that toc did not write were found in Redis' queues."""
        if self._reminders is None:
            return
        number, since_ms = self._reminders.foreign.recent_removals
        if number:
            how = sentence(
                "{number} members that are no job_id were removed; the log names some",
                number=number,
            )
            yield HealthPart("queues", "degraded", since_ms, how, FOREIGN_MEANS)

    def _health_of_zookeeper(
        self, view: ClusterView | None, since_ms: int | None, zookeeper_error: str
    ) -> HealthPart:
        if not self._settings.has_cluster:
            return HealthPart(
                "zookeeper", "up", None, sentence("not used"), sentence("each node owns everything")
            )
        if view is not None and view.connected:
            how = sentence("no nodes")
            if view.leader is not None:
                how = sentence(
                    "{nodes} nodes, {leader} leads",
                    nodes=len(view.members), leader=process_of_member(view.leader),
                )  # fmt: skip
            return HealthPart("zookeeper", "up", since_ms, how)
        means = sentence(
            "when a node dies, its slots get no new owner: deputies fire them, 1 to 2 s late"
        )
        if self._reminders is None:
            means = sentence(
                "when a node dies, the others' scanners take its shards, late by the tick"
            )
        return HealthPart(
            "zookeeper", "down", since_ms, zookeeper_error or sentence("is not reached"), means
        )

    def _health_of_loading(self, work_sources: WorkSources) -> HealthPart:
        age_s, horizon_s = work_sources.load_age_s, self._settings.timer.horizon_s
        how = f"all shards were read {age_s:.0f} s ago"
        if age_s <= horizon_s / 2:
            return HealthPart("loader", "up", None, how)
        means = "jobs that come due are not in Redis: the scanner fires them, late by its grace"
        return HealthPart("loader", "degraded", None, how, means)


def _health_of_overdue_jobs(databases: Sequence[OverdueShardCount]) -> HealthPart:
    """Whether jobs are overdue by more than any shard's owner and deputy would let them be."""
    grace_s, shards = databases[0].grace_s, sum(found.shards for found in databases)
    if not shards:
        return HealthPart("overdue", "up", None, f"no job is overdue by more than {grace_s:g} s")
    every = sum(found.of for found in databases)
    how = f"jobs in {shards} of {every} shards are overdue by more than {grace_s:g} s"
    means = (
        "their owners do not run them: every node does now, late. Is there a worker with a handler for each"
        " type (`toc status`)? Is each member a node of yours (`toc nodes`)?"
    )
    since_ms = min(found.since_ms for found in databases if found.since_ms is not None)
    return HealthPart("overdue", "degraded", since_ms, how, means)


def health_of_conflicts(conflicts: Conflicts) -> HealthPart:
    """The part about type numbers that stand for two biz_types."""
    how = "; ".join(
        describe_type_conflict(number, conflicts) for number in sorted(conflicts)[:CONFLICTS_SHOWN]
    )
    means = "these jobs wait; all others go on"
    return HealthPart("biz_types", "degraded", None, how, means)


def health_of_watches(watches: Sequence[ShardWatch]) -> HealthPart:
    """Whether the databases and Redis agree, as far as this node's shards were compared."""
    how = f"all shards were compared in the last {max(watch.oldest_compare_age_s for watch in watches):.0f} s"
    left = sum((watch.unrepaired_counts for watch in watches), Counter[Disagreement]())
    if not left:
        return HealthPart("watch", "up", None, how)
    found = ", ".join(f"{number} {kind}" for kind, number in left.most_common())
    means = "the log of the node names jobs; `toc reconcile` compares everything, --repair repairs"
    return HealthPart("watch", "degraded", None, f"disagreements: {found}", means)


def health_of_tables(found: TableCheck) -> HealthPart:
    """How the tables differ from what toc created, as found when this node began to use them."""
    means = f"slow, or writes fail: {WAY_OUT}; this node checks again when it is restarted"
    return HealthPart("schema", "degraded", found.checked_ms, "; ".join(found.fault_lines), means)


def health_of_nightly(nightly: NightlyScheduler) -> HealthPart:
    """The nightly runs of this node. The last run of all nodes is kept in the database."""
    last, when = nightly.last, f"at {nightly.at} UTC, on the node that leads"
    if nightly.since_ms is not None:
        return HealthPart("nightly", "up", nightly.since_ms, "the nightly run is in progress")
    if last is not None and last.is_good:
        return HealthPart("nightly", "up", last.ended_ms, f"{when}; last: {last.words}")
    if last is not None:
        means = f"see {nightly.log_file} on this node; `toc nightly` runs it again"
        return HealthPart("nightly", "degraded", last.ended_ms, last.words, means)
    if nightly.lack:
        means = f"nothing is reconciled in a night in which this node leads ({nightly.at} UTC)"
        return HealthPart("nightly", "degraded", None, nightly.lack, means)
    return HealthPart("nightly", "up", None, when)


def health_of_reconciliation(
    settings: Settings, last: LastReconcileResult | None, now_ms: int
) -> HealthPart | None:
    """The result of the last reconciliation by any node; None: there was none, and none is configured.

    It is degraded when more than WHOLE_MS_MAX have passed since a complete run, and when the last run left
    disagreements. Without nightly runs, the result of a run that a person started degrades the health only if
    there are live jobs that no worker will claim.
    """
    reconcile = settings.reconcile
    nightly = reconcile.nightly != "none" and settings.has_timer
    if last is None:
        means = sentence(
            "the first run is at {at} UTC; `toc nightly` does it now", at=reconcile.nightly
        )
        return HealthPart("reconciled", "up", None, sentence("never"), means) if nightly else None
    how = sentence(
        "{ago} ago: {result}",
        ago=_round_age(now_ms - last.ended_ms), result=_describe_verdict(last),
    )  # fmt: skip
    if last.unclaimable:
        means = sentence(
            "they never run, or not in time: the newest report in {directory} names them",
            directory=reconcile.directory,
        )
        return HealthPart("reconciled", "degraded", None, how, means)
    if nightly and (last.whole_ms is None or now_ms - last.whole_ms > WHOLE_MS_MAX):
        means = sentence(
            "no run has compared everything: see {log} on the node that leads", log=LOG_FILE
        )
        if last.whole_ms is not None:
            means = sentence(
                "no run has compared everything for {time}: see {log} on the node that leads",
                time=_round_age(now_ms - last.whole_ms), log=LOG_FILE,
            )  # fmt: skip
        return HealthPart("reconciled", "degraded", None, how, means)
    if last.verdict == "left":
        state: State = "degraded" if nightly else "up"
        means = sentence(
            "the newest report in {directory} names jobs", directory=reconcile.directory
        )
        return HealthPart("reconciled", state, None, how, means)
    return HealthPart("reconciled", "up", None, how)


def _describe_verdict(last: LastReconcileResult) -> str:
    if last.unclaimable:
        return sentence("{jobs} live jobs that no worker will claim", jobs=last.unclaimable)
    found = last.disagreements
    match last.verdict:
        case "repaired":
            return sentence("disagreements: {found}, all repaired", found=found)
        case "left":
            return sentence(
                "disagreements: {found}, {repaired} repaired", found=found, repaired=last.repaired
            )
        case "unable":
            return sentence("not everything could be compared")
        case "agreed":
            return sentence("agreed")
    return last.verdict


def health_of_last_night(
    settings: Settings, last: NightlyStatus | None, now_ms: int
) -> HealthPart | None:
    """The result of the last `toc nightly` of any node; None: there was none, and none is configured.

    It is degraded when more than WHOLE_MS_MAX have passed since a good run, when the last run failed, and
    when checks of the analysts' tables failed. Without nightly runs only the last run counts, not its age.
    """
    planned = settings.reconcile.nightly != "none"
    if last is None:
        first = sentence("the first run is at {at} UTC", at=settings.reconcile.nightly)
        return HealthPart("last_night", "up", None, sentence("never"), first) if planned else None
    state: State = "degraded"
    result = sentence("good")
    means: str = ""
    if last.findings:
        result = sentence("{checks} checks of tables failed", checks=last.findings)
        means = sentence(
            "`toc nightly` fills their days again; the table checks and the log say which"
        )
    elif last.failed:
        result = sentence("killed")
        if last.failed != KILLED:
            result = sentence("failed: {parts}", parts=last.failed.replace(" ", ", "))
        means = sentence(
            "`toc nightly` runs it again; see {log} on the node that led", log=LOG_FILE
        )
    elif planned and (last.good_ms is None or now_ms - last.good_ms > WHOLE_MS_MAX):
        means = sentence("the next run is late: see {log} on the node that leads", log=LOG_FILE)
    else:
        state = "up"
    how = sentence(
        "{ago} ago, after {seconds:g} s: {result}",
        ago=_round_age(now_ms - last.ended_ms), seconds=last.seconds, result=result,
    )  # fmt: skip
    return HealthPart("last_night", state, None, how, means)


def _round_age(ms: int) -> Sentence:
    minutes = max(0, ms) // 60_000
    if minutes < 120:
        return sentence("{minutes} min", minutes=minutes)
    return sentence("{hours} h", hours=minutes // 60)


def overall_state(parts: Sequence[HealthPart]) -> State:
    """The state of the whole node: down only when no database answers, since then no job can be fired."""
    databases = [part.state for part in parts if part.part.startswith("database_")]
    if databases and all(state == "down" for state in databases):
        return "down"
    return "up" if all(part.state == "up" for part in parts) else "degraded"
