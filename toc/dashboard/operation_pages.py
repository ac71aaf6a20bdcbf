"""The page Dead."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.job import DeadJob
from toc.domain.mass_change import error_class_of
from toc.http.masks import MASKED, mask_dead_job

DEAD_READ_MAX = 1000
_DATABASE = 0  # a page about all databases takes a place of this one


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead jobs of one type with the same class of error, as far as they were read."""

    biz_type: str
    error: str
    count: int
    first_ms: int
    last_ms: int
    example: DeadJob


async def show_dead(visit: Visit) -> Response:
    """GET /ui/dead: the newest dead jobs, by type and error."""
    limit = min(DEAD_READ_MAX, visit.backend.settings.limits.find)
    read = functools.partial(visit.backend.center.dead, limit)
    jobs = await visit.backend.calls.run(_DATABASE, read)
    caller = visit.person
    seen = [
        mask_dead_job(visit.backend, caller, job)
        for job in jobs
        if is_allowed(caller, "read", job.biz_type, job.tenant)
    ]
    groups = group_dead(seen)
    operable = {
        each.biz_type
        for each in groups
        if is_allowed(caller, "operate", each.biz_type, caller.tenant)
    }
    html = render(
        visit, "dead.html", groups=groups, is_cut=len(jobs) == limit, limit=limit,
        operable=operable, masked=MASKED,
    )  # fmt: skip
    return HTMLResponse(html)


def group_dead(jobs: list[DeadJob]) -> list[DeadGroup]:
    """The groups, the largest first."""
    groups: dict[tuple[str, str], list[DeadJob]] = defaultdict(list)
    for job in jobs:
        groups[job.biz_type, error_class_of(job.error)].append(job)
    made = [
        DeadGroup(
            biz_type, error, len(found), min(job.dead_ms for job in found),
            max(job.dead_ms for job in found), max(found, key=lambda job: job.dead_ms),
        )
        for (biz_type, error), found in groups.items()
    ]  # fmt: skip
    return sorted(made, key=lambda group: (-group.count, group.biz_type, group.error))
