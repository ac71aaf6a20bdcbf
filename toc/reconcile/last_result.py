"""Stores the result of a run in database 0, where `toc status` and `toc doctor` on every machine find it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from toc.errors import TocError
from toc.reconcile.findings import ReconcileResult, RunVerdict
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.nightly_status import KILLED, read_nightly_status, record_nightly_status
from toc.store.reconcile_status import (
    LastReconcileResult,
    read_last_reconcile_result,
    record_reconcile_result,
)

log = logging.getLogger(__name__)


def store_result(
    outcome: ReconcileResult, settings: Settings, clock: Clock
) -> LastReconcileResult | None:
    """Stores the result of a run that has just ended; None: database 0 does not answer, which is logged.

    Does not raise, so that the run's own report is made in any case.
    """
    with _open_databases_logging_errors(settings, clock) as databases:
        return record_reconcile_result(
            databases,
            outcome.verdict.name.lower(),
            outcome.found.total(),
            sum(repair.done for repair in outcome.repairs),
            (outcome.ended_ms - outcome.began_ms) / 1000,
            is_whole=not outcome.failures and outcome.compared >= outcome.shards,
            unclaimable=outcome.unclaimable,
        )
    return None


def store_night(
    settings: Settings,
    clock: Clock,
    *,
    seconds: float,
    code: int,
    failed: Sequence[str],
    findings: int = 0,
) -> None:
    """Stores the result of a nightly run that has just ended. `failed`: names of parts. Errors are logged."""
    with _open_databases_logging_errors(settings, clock) as databases:
        record_nightly_status(
            databases,
            seconds=seconds,
            code=code,
            failed=" ".join(failed),
            findings=findings,
            is_good=not failed,
        )


def store_failed_night(settings: Settings, clock: Clock, began_s: float, code: int) -> None:
    """Stores that a nightly run has ended badly. `began_s`: by the monotonic clock. code: negative if killed.

    Stores nothing if a nightly run has stored its own result since then. Errors are logged.
    """
    failed = KILLED if code < 0 else f"exit-code-{code}"
    with _open_databases_logging_errors(settings, clock) as databases:
        before, seconds = read_nightly_status(databases), clock.monotonic_s() - began_s
        if before is None or before.ended_ms < databases.now_ms() - seconds * 1000:
            record_nightly_status(
                databases, seconds=seconds, code=code, failed=failed, findings=0, is_good=False
            )


def store_failed_run_result(settings: Settings, clock: Clock, began_s: float) -> None:
    """Stores that a run has ended now without a result of its own. `began_s`: by the monotonic clock.

    Stores nothing if another reconciliation has ended since the run began: that result counts. Errors are
    logged.
    """
    with _open_databases_logging_errors(settings, clock) as databases:
        before, now_ms = read_last_reconcile_result(databases), databases.now_ms()
        seconds = clock.monotonic_s() - began_s
        if before is None or before.ended_ms < now_ms - seconds * 1000:
            record_reconcile_result(
                databases, RunVerdict.UNABLE.name.lower(), 0, 0, seconds, is_whole=False
            )


@contextmanager
def _open_databases_logging_errors(settings: Settings, clock: Clock) -> Iterator[Databases]:
    """The databases, for a block whose errors are logged and not raised."""
    with closing(Databases.from_settings(settings, clock, pool_size=1)) as databases:
        try:
            yield databases
        except TocError as error:
            log.warning(
                "the result of this run is not stored, so `toc status` does not show it: %s", error
            )
