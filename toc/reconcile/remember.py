"""The result of a run, kept where `toc status` and `toc doctor` of every machine find it."""

from __future__ import annotations

import logging

from toc.errors import StoreUnavailable, TocError
from toc.reconcile.findings import Outcome, Verdict
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.reconciled import Reconciled, last, record

log = logging.getLogger(__name__)


def remember(outcome: Outcome, settings: Settings, clock: Clock) -> Reconciled | None:
    """Keeps what a run that has just ended came to; None: database 0 does not answer, which is logged.

    The run itself has said so already, or has ended well; its report must not be lost for this.
    """
    databases = Databases.of(settings, clock, pool_size=1)
    try:
        return record(
            databases,
            outcome.verdict.name.lower(),
            outcome.found.total(),
            sum(mend.done for mend in outcome.mends),
            (outcome.ended_ms - outcome.began_ms) / 1000,
            is_whole=not outcome.failures and outcome.compared >= outcome.shards,
        )
    except StoreUnavailable as error:
        log.warning("`toc status` will not know of this run: %s", error)
        return None
    finally:
        databases.close()


def remember_unable(settings: Settings, clock: Clock, began_s: float) -> None:
    """Keeps that a run has ended now and could say nothing itself. `began_s`: when, by the monotonic clock.

    Not if a reconciliation has ended since it began: that counts. Trouble is logged.
    """
    databases = Databases.of(settings, clock, pool_size=1)
    try:
        before, now_ms = last(databases), databases.now_ms()
        seconds = clock.monotonic_s() - began_s
        if before is None or before.ended_ms < now_ms - seconds * 1000:
            record(databases, Verdict.UNABLE.name.lower(), 0, 0, seconds, is_whole=False)
    except TocError as error:
        log.warning("`toc status` will not know of this run: %s", error)
    finally:
        databases.close()
