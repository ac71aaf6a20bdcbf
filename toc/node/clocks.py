"""Compares Redis' time with the database's. Too far apart, the timer stops and the scanner fires."""

from __future__ import annotations

import logging

from toc.runtime import metrics
from toc.runtime.service import Service
from toc.store.databases import Databases
from toc.timer.slots import Slots

log = logging.getLogger(__name__)

TICK_S = 10.0


class ClockWatch(Service):
    """`beyond` is True while the skew is larger than `skew_s_max`."""

    def __init__(self, slots: Slots, databases: Databases, *, skew_s_max: float) -> None:
        super().__init__("toc-clocks")
        self._slots, self._databases, self._skew_s_max = slots, databases, skew_s_max
        self.beyond = False

    def run_once(self) -> float:
        # The database is asked in between, so a slow answer does not look like skew.
        before_ms = self._slots.time_ms()
        database_ms = self._databases[0].now_ms()
        redis_ms = (before_ms + self._slots.time_ms()) / 2
        skew_s = (redis_ms - database_ms) / 1000
        metrics.CLOCK_SKEW.set(skew_s)
        beyond = abs(skew_s) > self._skew_s_max
        if beyond != self.beyond:
            log.error("Redis' clock is %+.1f s from the database's: %s", skew_s,
                      "the timer stops, the scanner fires" if beyond else "the timer goes on")  # fmt: skip
        self.beyond = beyond
        return TICK_S
