"""What is measured now and then, not counted as it happens: slots, watermarks, who owns how much."""

from __future__ import annotations

from toc.domain.placement import Assignment
from toc.node.feeding import Feeding
from toc.runtime import metrics
from toc.runtime.service import Service
from toc.timer.slots import Slots

TICK_S = 10.0


class Gauges(Service):
    """Sets the gauges of one node. `assignment` is what it does, told by the node."""

    def __init__(self, slots: Slots | None, feeding: Feeding) -> None:
        super().__init__("toc-gauges")
        self._slots, self._feeding = slots, feeding
        self.assignment = Assignment({}, {}, (), ())

    def run_once(self) -> float:
        assignment = self.assignment
        metrics.LOAD_AGE.set(self._feeding.load_age_s)
        metrics.SHARDS_OWNED.set(len(assignment.shards))
        for topic, owned in assignment.slots.items():
            metrics.SLOTS_OWNED.labels(topic).set(len(owned))
            if self._slots is not None:
                sizes = self._slots.sizes(topic, owned)
                metrics.SLOT_ENTRIES.labels(topic, "store").set(sizes.armed)
                metrics.SLOT_ENTRIES.labels(topic, "prepare").set(sizes.out)
                metrics.SLOT_ENTRIES_MAX.labels(topic).set(sizes.fullest)
        return TICK_S
