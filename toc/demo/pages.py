"""The dashboard of a demo, for as long as the demo runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toc.center.center import TimeoutCenter
from toc.demo.orders import MAX_ATTEMPTS
from toc.errors import SettingsError
from toc.http import import_web_module
from toc.runtime.settings import Settings


@contextmanager
def serve_pages(settings: Settings) -> Iterator[str]:
    """Serves the pages. Yields their address; without the extra `web`, the reason why there are none."""
    try:
        site = import_web_module("toc.dashboard.site")
        server = import_web_module("toc.http.serve").WebServer(settings, site.make_site)
    except SettingsError as error:
        yield f"no pages: {error}"
        return
    with TimeoutCenter(settings) as center:
        for name in MAX_ATTEMPTS:  # the pages show jobs of declared types
            center.types.declare(name)
    server.start()
    try:
        yield f"{server.url}/ui/"
    finally:
        server.stop()
