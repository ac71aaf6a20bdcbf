"""A worker process of the rig: `python -m tests.chaos.worker FILE`, its plan as JSON.

It ends in good order on SIGTERM, and at once when its standard input does: when the rig was killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.observations import Observations
from tests.chaos.plan import (
    ASYNC,
    BATCH_TYPES,
    NO_DATABASE,
    TYPES,
    Lines,
    Now,
    dump_threads_when_asked,
    end_with_the_rig,
    true_clock,
)
from tests.chaos.restricted import RESTRICTED_TYPES, SLEEPS_S
from toc.domain.job import Job
from toc.errors import StoreUnavailable
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.process_info import process_name
from toc.runtime.settings import Settings
from toc.testing import Ended, Journal, Started


class Handlers:
    """They write down each start, first of all, and each end; between them, what the attribute says."""

    def __init__(self, journal: Journal, seen: Lines, now: Now, lease_s: float) -> None:
        self._journal, self._now = journal, now
        self._process = process_name()
        self.observations = Observations(seen, now, self._process)
        self._timeouts_s: dict[str, float] = {}
        self._lease_s = lease_s

    def registry(self, timeouts_s: dict[str, float]) -> Registry:
        found = Registry()
        for name, terms in TYPES.items():
            function = self.act_async if name == ASYNC else self.act
            found.handler(name, timeout=timeouts_s[name], **terms)(function)
        for name, terms in BATCH_TYPES.items():
            found.handler(name, timeout=timeouts_s[name], **terms)(self.act_batch)
        for name, terms in RESTRICTED_TYPES.items():
            found.handler(name, timeout=timeouts_s[name], **terms)(self.act_restricted)
        self._timeouts_s = timeouts_s
        return found

    def act(self, job: Job) -> None:
        self._started(job)
        failed = True
        try:
            wants = job.attribute
            if wants.get("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if "sleep_s" in wants:
                time.sleep(wants["sleep_s"])
            if job.lost.wait(wants.get("leases", 0) * self._lease_s):
                raise RuntimeError("the claim is lost")
            self._fail(job)
            failed = False
        finally:
            self._ended(job, failed=failed)

    def act_restricted(self, job: Job) -> None:
        self.observations.note_start(job)
        self._started(job)
        failed = True
        try:
            time.sleep(SLEEPS_S.get(job.biz_type, 0))
            self._fail(job)
            failed = False
        finally:
            self._ended(job, failed=failed)

    def act_batch(self, jobs: list[Job]) -> list[RuntimeError | None]:
        """Each job has its own start, end and outcome."""
        for job in jobs:
            self._started(job)
        outcomes = [self._failure_of(job) for job in jobs]
        for job, failure in zip(jobs, outcomes, strict=True):
            self._ended(job, failed=failure is not None)
        return outcomes

    async def act_async(self, job: Job) -> None:
        self._started(job)
        failed, verdict, began_s = True, "", time.monotonic()
        try:
            await asyncio.sleep(job.attribute["sleep_s"] if job.attempts == 1 else 0)
            failed = False
        except asyncio.CancelledError:  # by the timeout, or because the process ends
            in_time = time.monotonic() - began_s < self._timeouts_s[job.biz_type]
            verdict = "stopped" if in_time and not job.lost.is_set() else ""
            raise
        finally:
            self._ended(job, failed=failed, verdict=verdict)

    def _fail(self, job: Job) -> None:
        failure = self._failure_of(job)
        if failure is not None:
            raise failure

    def _failure_of(self, job: Job) -> RuntimeError | None:
        wants = job.attribute
        if job.attempts <= wants.get("fail", 0) or self._now() < wants.get("fail_until_ms", 0):
            return RuntimeError(f"attempt {job.attempts} fails")
        return None

    def _started(self, job: Job) -> None:
        self._journal.write(
            Started(job.job_id, job.biz_type, job.attempts, self._now(), self._process, job.token or "")
        )  # fmt: skip

    def _ended(self, job: Job, *, failed: bool, verdict: str = "") -> None:
        self._journal.write(
            Ended(
                job.job_id,
                job.attempts,
                failed,
                self._now(),
                self._process,
                job.token or "",
                verdict,
            )
        )


def main(plan: dict[str, Any]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    dump_threads_when_asked()
    ended, restart = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_the_rig, daemon=True).start()

    def restart_wanted() -> None:
        restart.set()
        ended.set()

    journal = Journal(Path(plan["journal"]))
    settings = Settings(**plan["settings"])
    handlers = Handlers(
        journal, Lines(Path(plan["seen"])), true_clock(plan["wrong_by_s"]), settings.worker.lease_s
    )
    handlers.observations.watch_process()
    node = Node(
        settings, handlers=handlers.registry(plan["timeouts_s"]), restart_wanted=restart_wanted
    )
    try:
        node.start()
    except StoreUnavailable as error:
        logging.getLogger(__name__).warning("not started: %s", error)
        os._exit(NO_DATABASE)
    Path(plan["ready"]).touch()
    ended.wait()
    node.stop()
    return settings.worker.shutdown_exit_code if restart.is_set() else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
