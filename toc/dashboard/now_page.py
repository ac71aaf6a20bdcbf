"""The page Now: is anything late, how late, and why."""

from __future__ import annotations

import asyncio

from starlette.responses import HTMLResponse, Response

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
    html = render(visit, "now.html", overview=overview, headline=headline, is_old=is_old)
    return HTMLResponse(html)
