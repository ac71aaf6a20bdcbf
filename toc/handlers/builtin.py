"""Handlers that come with toc."""

from __future__ import annotations

from collections.abc import Callable

from toc.domain.job import Job


def printer(write: Callable[[str], None], now_ms: Callable[[], int]) -> Callable[[Job], None]:
    """A handler for every type that writes one line per fired job: what `toc dev` runs by default.

    `now_ms()`: the current time in milliseconds since 1970; the lateness is measured by it.
    """

    def fired(job: Job) -> None:
        late_ms = now_ms() - job.action_ms
        write(f"fired job {job.job_id} {job.biz_type} biz_id {job.biz_id}, {late_ms} ms late")

    return fired
