"""Gauges that are measured every few seconds, not counted as events happen: slots, load age, shares."""

from __future__ import annotations

from toc.domain.node_assignment import Assignment
from toc.node.work_sources import WorkSources
from toc.runtime import metrics
from toc.runtime.service import Service
from toc.timer.reminders import Reminders

TICK_S = 10.0


class Gauges(Service):
    """Sets the gauges of one node. `assignment`: the node's share, set by the node."""

    def __init__(self, reminders: Reminders | None, work_sources: WorkSources) -> None:
        super().__init__("toc-gauges")
        self._reminders, self._work_sources = reminders, work_sources
        self.assignment = Assignment({}, {}, (), ())

    def run_once(self) -> float:
        assignment = self.assignment
        metrics.LOAD_AGE.set(self._work_sources.load_age_s)
        metrics.SHARDS_OWNED.set(len(assignment.shards))
        for topic, owned in assignment.slots.items():
            metrics.SLOTS_OWNED.labels(topic).set(len(owned))
            if self._reminders is not None:
                sizes = self._reminders.read_queue_sizes(topic, owned)
                metrics.SLOT_ENTRIES.labels(topic, "store").set(sizes.armed)
                metrics.SLOT_ENTRIES.labels(topic, "prepare").set(sizes.out)
                metrics.SLOT_ENTRIES_MAX.labels(topic).set(sizes.fullest)
        return TICK_S
