"""Makes the run of a claimed row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toc.domain.job import Job
from toc.domain.limits import attribute_of
from toc.handlers.registry import HandlerSpec
from toc.store.claims import ClaimedRow
from toc.store.databases import Database
from toc.worker.context import WorkerContext
from toc.worker.run import ClockReading, Run


def new_run(
    context: WorkerContext,
    database: Database,
    row: ClaimedRow,
    spec: HandlerSpec,
    token: str,
    found_s: float,
    asked: ClockReading,
) -> Run:
    """The run of a row that was claimed under `token`.

    `found_s`: the monotonic time before the job was found; its lease counts from there. `asked`: the clocks
    before the claim.
    """
    attribute: dict[str, Any] = {}
    try:
        attribute = attribute_of(row.attribute)
    except (ValueError, RecursionError) as error:
        # Another program wrote the attribute. Only this job fails, with a reason; the batch is run.
        spec = replace(spec, function=_failing_handler(error), is_async=False)
    job = Job(
        row.job_id, row.biz_id, spec.biz_type, row.status, row.action_ms,
        attribute, row.due_ms, row.attempts, row.token, row.dedup_key,
    )  # fmt: skip
    lease_end_s = found_s + context.handlers.lease_s(spec)  # guard: lease-from-the-question
    assert row.claimed_ms is not None  # noqa: S101 - its claim has set it
    return Run(
        job,
        spec,
        context.process.settings.topic_of(spec.biz_type),
        database.index,
        token,
        database.server_clock.clamp_ms(row.claimed_ms),
        lease_end_s,
        asked_s=asked.monotonic_s,
        queued_s=context.process.clock.monotonic_s(),
        asked_wall_ms=asked.wall_ms,
    )


def _failing_handler(error: Exception) -> Callable[[Job], None]:
    """A handler that fails, for a job whose attribute is not JSON."""

    def fail(job: Job) -> None:
        del job
        raise ValueError(f"the attribute is not JSON: {error}")

    return fail
