"""The job of the handler that runs now.

Log lines of handlers, and of libraries that they call, can name it.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

from toc.domain.job import Job

running_job: ContextVar[Job | None] = ContextVar("toc_job", default=None)
"""Set by the worker around each handler."""


def current_job() -> Job | None:
    """The job whose handler calls this, in its thread or task; None outside of handlers.

    Code that a handler hands to `asyncio.to_thread` or to a new task sees it too; a thread that a
    handler starts itself does not.
    """
    return running_job.get()


class JobFilter(logging.Filter):
    """Gives every log record `job_id`, `biz_type`, `biz_id` and `attempt`; None outside of handlers.

        handler = logging.StreamHandler()
        handler.addFilter(toc.JobFilter())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s [job %(job_id)s]"))

    Add it to a logging handler, not to a logger: a logger's filter does not see the records of its children.
    The command line does so by itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "job_id"):  # records of toc's own run log have these fields already
            vars(record).update(ids_of(running_job.get()))
        return True


def ids_of(job: Job | None) -> dict[str, object]:
    """The fields that a log record gets for a job."""
    if job is None:
        return {"job_id": None, "biz_type": None, "biz_id": None, "attempt": None}
    return {
        "job_id": job.job_id,
        "biz_type": job.biz_type,
        "biz_id": job.biz_id,
        "attempt": job.attempts,
    }
