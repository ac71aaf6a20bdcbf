"""The job of the handler that runs now.

Log lines of handlers, and of libraries that handlers call, can name this job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

from toc.domain.job import Job
from toc.domain.run_control import TraceIds

running_job: ContextVar[Job | None] = ContextVar("toc_job", default=None)
"""Set by the worker around each handler."""


def current_job() -> Job | None:
    """The job whose handler calls this, in its thread or task; None outside of handlers.

    `asyncio.to_thread` and new tasks of the handler get the job too; a thread that the handler starts
    itself does not.
    """
    return running_job.get()


SpanReader = Callable[[], TraceIds | None]
"""Reads the ids of the active span; None: there is none."""

_span_readers: list[SpanReader] = []


def set_span_reader(reader: SpanReader) -> None:
    """Sets how log records get the ids of the active span: for a library of traces."""
    _span_readers[:] = [reader]


class JobFilter(logging.Filter):
    """Gives every log record `job_id`, `biz_type`, `biz_id` and `attempt`; None outside of handlers.

    Also `trace_id` and `span_id`: of the active span, or of the job's run; None without
    `toc.integrations.opentelemetry`.

        handler = logging.StreamHandler()
        handler.addFilter(toc.JobFilter())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s [job %(job_id)s]"))

    Add it to a logging handler, not to a logger: a logger's filter does not see the records of its children.
    The commands of toc add the filter themselves.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in log_fields_of_job(running_job.get()).items():
            vars(record).setdefault(name, value)  # records about a job have the fields already
        return True


def log_fields_of_job(job: Job | None) -> dict[str, object]:
    """The fields that a log record gets for a job."""
    if job is None:
        fields = dict.fromkeys(("job_id", "biz_type", "biz_id", "attempt"))
    else:
        fields = {
            "job_id": job.job_id,
            "biz_type": job.biz_type,
            "biz_id": job.biz_id,
            "attempt": job.attempts,
        }
    return fields | _trace_fields(job)


def _trace_fields(job: Job | None) -> dict[str, str | None]:
    found = _span_readers[0]() if _span_readers else None
    if found is None and job is not None and job._control is not None:  # noqa: SLF001 - its run's state
        found = job._control.trace_ids  # noqa: SLF001
    return {"trace_id": None, "span_id": None} if found is None else found._asdict()
