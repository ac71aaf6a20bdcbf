"""The page Now: is anything late, how late, and why."""

from __future__ import annotations

import asyncio

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.dashboard.activity_view import make_view
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.dashboard.watcher import Overview
from toc.http.pause_calls import readable_pauses
from toc.node.health import HealthPart
from toc.node.status_reader import health_of_pauses

LATE_S = 1.0  # a job that waits for less is about to start
OLD_MS = 30_000


async def show_now(visit: Visit) -> Response:
    """GET /ui/."""
    overview = require_overview(await asyncio.to_thread(visit.watcher.look))
    overdue = overview.overdue
    headline = "late" if overdue.late_s > LATE_S else "unknown" if overdue.silent else "fine"
    person = visit.person

    def may_read(biz_type: str | None) -> bool:
        # The counts are of all tenants: who may read one tenant alone sees none of them.
        return is_allowed(person, "read", biz_type, None)

    view = None
    if overview.activity is not None:
        view = make_view(overview.activity, overview.pauses, may_read, visit.texts)
    html = render(
        visit, "now.html", overview=overview, headline=headline, is_old=is_old(visit, overview),
        parts=readable_parts(person, overview), activity=view,
        has_timer=visit.backend.settings.has_timer, sees_all=may_read(None),
    )  # fmt: skip
    return HTMLResponse(html)


def readable_parts(caller: Caller, overview: Overview) -> list[HealthPart]:
    """The parts, without what the caller may not see: other types, and who has paused them and why."""
    sees_all = is_allowed(caller, "read", None, None)
    parts: list[HealthPart] = []
    for part in overview.parts:
        if part.part == "pauses":
            parts += health_of_pauses(readable_pauses(caller, overview.pauses))
        elif part.part != "limits" or sees_all:  # their use is that of all types and tenants
            parts.append(part)
    return parts


def require_overview(overview: Overview | None) -> Overview:
    """Raises TimeoutError for None."""
    if overview is None:
        raise TimeoutError("no server has answered yet")
    return overview


def is_old(visit: Visit, overview: Overview) -> bool:
    """Whether the servers answer so slowly that the page must say it."""
    return visit.backend.clock.wall_ms() - overview.taken_ms > OLD_MS
