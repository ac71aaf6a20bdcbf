"""The pages Dead, Recurring and Cluster."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from dataclasses import dataclass

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.cluster.roster import read_roster
from toc.dashboard.actions import said
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.job import DeadJob
from toc.errors import ClusterUnavailable
from toc.http import recurring_calls

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
    seen = [job for job in jobs if is_allowed(caller, "read", job.biz_type, job.tenant)]
    html = render(
        visit, "dead.html", groups=group_dead(seen), is_cut=len(jobs) == limit, limit=limit
    )
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


def error_class_of(error: str) -> str:
    """What stands before the first colon of the first line, as ValueError; else the line, cut off."""
    line = next(iter(error.strip().splitlines()), "")
    name, colon, _ = line.partition(":")
    return (name if colon and name.replace(".", "").isidentifier() else line)[:80]


async def show_recurring(visit: Visit) -> Response:
    """GET /ui/recurring."""
    reply = await recurring_calls.list_schedules(visit.backend, visit.call())
    schedules = reply.document["recurring"]
    operable = {
        each["name"]
        for each in schedules
        if is_allowed(visit.person, "operate", each["biz_type"], visit.person.tenant)
    }
    html = render(visit, "recurring.html", schedules=schedules, operable=operable, said=said(visit))
    return HTMLResponse(html)


async def show_cluster(visit: Visit) -> Response:
    """GET /ui/cluster: the nodes in ZooKeeper."""
    settings, members, failure = visit.backend.settings, [], ""
    if settings.has_cluster:
        try:
            members = await asyncio.to_thread(read_roster, settings)
        except ClusterUnavailable as error:
            failure = str(error)
    return HTMLResponse(
        render(visit, "cluster.html", settings=settings, members=members, failure=failure)
    )
