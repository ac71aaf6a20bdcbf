"""Writes the corrections of one database: jobs that no consumer got are given back."""

from __future__ import annotations

from collections.abc import Sequence

from toc.runtime.clock import Clock
from toc.runtime.service import Inbox, Service
from toc.store.claims import Claims
from toc.store.databases import Database
from toc.worker.acks import Ack
from toc.worker.row_corrections import CorrectionQueue

IDLE_S = 60.0  # may be any time, because a new correction wakes the thread


class CorrectionService(Service):
    """Writes the corrections in `queue`, one after the other."""

    def __init__(
        self, database: Database, claims: Claims, acks: Inbox[Sequence[Ack]], clock: Clock
    ) -> None:
        super().__init__(f"toc-leases-corrections-{database.index}")
        self.queue = CorrectionQueue(database, claims, acks, clock, self._log_throttle, self.wake)

    def run_once(self) -> float:
        """Writes one correction. Raises StoreUnavailable, and keeps it."""
        return min(IDLE_S, self.queue.write_next_correction())
