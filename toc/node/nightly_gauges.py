"""Metrics of the last nightly run of any node, read from database 0 once a minute: for alarms."""

from __future__ import annotations

import math

from toc.runtime import metrics
from toc.runtime.service import Service
from toc.store.databases import Databases
from toc.store.nightly_status import read_nightly_status

TICK_S = 60.0


class NightlyGauges(Service):
    """Sets the metrics of the last nightly run, on each node, whichever node led."""

    def __init__(self, databases: Databases) -> None:
        super().__init__("toc-nightly-gauges")
        self._databases = databases

    def run_once(self) -> float:
        """Raises StoreUnavailable."""
        status, now_ms = read_nightly_status(self._databases), self._databases[0].now_ms()
        good_ms = None if status is None else status.good_ms
        age_s = math.inf if good_ms is None else max(0, now_ms - good_ms) / 1000
        metrics.NIGHTLY_AGE.set(age_s)
        if status is not None:
            metrics.NIGHTLY_FAILED.set(bool(status.failed))
            metrics.NIGHTLY_FINDINGS.set(status.findings)
        return TICK_S
