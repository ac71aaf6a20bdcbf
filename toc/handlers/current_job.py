"""The job of the handler that runs now.

Log lines of handlers, and of libraries that handlers call, can name this job.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

from toc.domain.job import Job

running_job: ContextVar[Job | None] = ContextVar("toc_job", default=None)
"""Set by the worker around each handler."""


def current_job() -> Job | None:
    """The job whose handler calls this, in its thread or task; None outside of handlers.

    `asyncio.to_thread` and new tasks of the handler get the job too; a thread that the handler starts
    itself does not.
    """
    return running_job.get()


class JobFilter(logging.Filter):
    """Gives every log record `job_id`, `biz_type`, `biz_id` and `attempt`; None outside of handlers.

        handler = logging.StreamHandler()
        handler.addFilter(toc.JobFilter())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s [job %(job_id)s]"))

    Add it to a logging handler, not to a logger: a logger's filter does not see the records of its children.
    The commands of toc add the filter themselves.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "job_id"):  # records of toc's own run log have these fields already
            vars(record).update(log_fields_of_job(running_job.get()))
        return True


def log_fields_of_job(job: Job | None) -> dict[str, object]:
    """The fields that a log record gets for a job."""
    if job is None:
        return {"job_id": None, "biz_type": None, "biz_id": None, "attempt": None}
    return {
        "job_id": job.job_id,
        "biz_type": job.biz_type,
        "biz_id": job.biz_id,
        "attempt": job.attempts,
    }
