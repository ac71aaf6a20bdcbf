"""Extends the leases of a remote worker's jobs, from a third of each lease on; tells progress with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from toc.client.lease_run import LeaseRun
from toc.client.lease_settler import settle_items
from toc.client.leases import item_content, progress_document
from toc.client.transport import AsyncTransport
from toc.errors import TocError
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.worker.handler_pool import HandlerPool

log = logging.getLogger(__name__)

LEASES_MAX = 500  # in one call: the server's `leases.items_max`
PERIOD_S_MIN, PERIOD_S_MAX = 0.1, 5.0


class LeaseExtension:
    """Extends the leases of runs. `held()`: the runs whose leases have not ended."""

    def __init__(
        self,
        transport: AsyncTransport,
        pool: HandlerPool,
        clock: Clock,
        held: Callable[[], Collection[LeaseRun]],
    ) -> None:
        self._transport, self._pool, self._clock, self._held = transport, pool, clock, held
        self._log_throttle = LogThrottle(log)

    async def run(self) -> None:
        """Extends leases until the task is cancelled."""
        while True:
            shortest_s = min((run.lease_s for run in self._held()), default=6 * PERIOD_S_MAX)
            await asyncio.sleep(min(PERIOD_S_MAX, max(PERIOD_S_MIN, shortest_s / 12)))
            now_s = self._clock.monotonic_s()
            due = [run for run in self._held() if run.needs_extension(now_s)]
            for at in range(0, len(due), LEASES_MAX):
                await self._extend(due[at : at + LEASES_MAX])

    async def _extend(self, runs: Sequence[LeaseRun]) -> None:
        asked_s = self._clock.monotonic_s()
        told = [run.control.progress for run in runs]
        contents = [
            item_content(
                run.job.job_id, run.token, lease_s=run.lease_s, progress=progress_document(progress)
            )
            for run, progress in zip(runs, told, strict=True)
        ]
        try:
            outcomes = await self._transport.run_verb(settle_items("extend", contents))
        except TocError as error:
            self._log_throttle.warning(error.code, "leases are not extended: %s", error)
            return
        held = {id(run) for run in self._held()}
        for run, outcome, progress in zip(runs, outcomes, told, strict=True):
            if outcome == "extended":
                run.lease_end_s = asked_s + run.lease_s
                run.control.written_progress = progress
            elif id(run) not in held or not run.may_extend:
                continue  # it has ended meanwhile: it has not lost its lease
            elif outcome in ("lost", "unknown"):
                log.warning(
                    "job %d of %s has lost its lease while this worker holds it: its outcome will be refused",
                    run.job.job_id, run.job.biz_type,
                )  # fmt: skip
                self._pool.tell_claim_lost(run)
            elif outcome == "limit":
                run.may_extend = False
                log.warning(
                    "job %d of %s: the server extends its lease no further",
                    run.job.job_id,
                    run.job.biz_type,
                )
