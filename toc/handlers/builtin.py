"""Handlers that come with toc."""

from __future__ import annotations

from collections.abc import Callable

from toc.domain.job import Job


def make_printing_handler(
    write: Callable[[str], None], now_ms: Callable[[], int]
) -> Callable[[Job], None]:
    """Makes the default handler of `toc dev`, for all types: a function that writes one line per job.

    `now_ms()`: the current time in milliseconds since 1970, to measure the lateness of a job.
    """

    def print_fired_job(job: Job) -> None:
        late_ms = now_ms() - job.action_ms
        write(f"fired job {job.job_id} {job.biz_type} biz_id {job.biz_id}, {late_ms} ms late")

    return print_fired_job
