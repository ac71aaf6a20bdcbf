"""The page Now: is anything late, how late, and why."""

from __future__ import annotations

import asyncio

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.activity_view import make_view
from toc.dashboard.render import render
from toc.dashboard.visit import Visit

LATE_S = 1.0  # a job that waits for less is about to start
OLD_MS = 30_000


async def show_now(visit: Visit) -> Response:
    """GET /ui/."""
    overview = await asyncio.to_thread(visit.watcher.look)
    if overview is None:
        raise TimeoutError("no server has answered yet")
    overdue = overview.overdue
    headline = "late" if overdue.late_s > LATE_S else "unknown" if overdue.silent else "fine"
    is_old = visit.backend.clock.wall_ms() - overview.taken_ms > OLD_MS
    person = visit.person

    def may_read(biz_type: str | None) -> bool:
        # The counts are of all tenants: who may read one tenant alone sees none of them.
        return is_allowed(person, "read", biz_type, None)

    view = None
    if overview.activity is not None:
        view = make_view(overview.activity, overview.pauses, may_read, visit.texts)
    html = render(
        visit, "now.html", overview=overview, headline=headline, is_old=is_old, activity=view,
        has_timer=visit.backend.settings.has_timer,
    )  # fmt: skip
    return HTMLResponse(html)
