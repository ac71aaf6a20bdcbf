"""The thread that reads the state of toc for all pages."""

from __future__ import annotations

import threading
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from tests.http.served_world import make_settings
from tests.http.web_world import HERE, AppClient, LoopThread
from toc.dashboard.site import make_site
from toc.dashboard.watched_reader import WATCHED_S
from toc.dashboard.watcher import Watcher
from toc.http.app import make_app
from toc.testing import TestClock


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "toc-dashboard"}


def test_the_thread_ends_when_nobody_looks_and_starts_again(tmp_path: Path) -> None:
    before, clock = threads(), TestClock()
    watcher = Watcher(make_settings(tmp_path), clock, refresh_s=0.05)
    try:
        first = watcher.look(60)
        assert first is not None
        assert first.overdue.job_id is None
        assert [part.part for part in first.parts][:1] == ["jobs"]
        (thread,) = threads() - before
        clock.advance(WATCHED_S + 1)
        thread.join(60)
        assert not thread.is_alive()
        again = watcher.look(60)
        assert again is not None
        assert again is not first
    finally:
        watcher.stop()
    for each in threads() - before:
        each.join(60)
    watcher.look(0.01)  # no visit starts it again after a stop
    assert not threads() - before


def test_the_pages_work_below_a_prefix(tmp_path: Path) -> None:
    app = make_app(make_settings(tmp_path), make_site=make_site)
    outer, thread = Starlette(routes=[Mount("/tools/toc", app)]), LoopThread()
    client = AppClient(outer, thread, None, HERE)
    try:
        page = client.get("/tools/toc/ui/jobs").text
        assert 'href="/tools/toc/ui/jobs" aria-current="page"' in page
        paths = [part.split('"')[0] for part in page.split('="/')[1:]]
        assert paths
        assert all(path.startswith("tools/toc/ui/") for path in paths)
        for path in paths:
            if "static" in path:
                assert client.get(f"/{path}").status_code == 200
    finally:
        thread.run(client.http.aclose())
        thread.run(app.state.backend.stop())
        thread.close()
