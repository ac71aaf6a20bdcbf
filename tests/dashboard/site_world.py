"""A server of `toc web` with the dashboard on a new SQLite database, and visitors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from tests.http.served_world import NO_AUTHORITIES, declare_type, make_settings, make_token
from toc.dashboard.site import make_site
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

HOUR = timedelta(hours=1)
OWN = {"Sec-Fetch-Site": "same-origin"}


class Site:
    """The server, and its settings."""

    def __init__(self, settings: Settings, server: WebServer) -> None:
        self.settings, self.server = settings, server

    @property
    def center(self) -> Any:
        return self.server.backend.center

    @contextmanager
    def visitor(self, token: str | None = None, language: str = "en") -> Iterator[httpx.Client]:
        """A browser, signed in with a token if one is given. It follows no redirect by itself."""
        headers = {"Accept-Language": language}
        with httpx.Client(
            base_url=self.server.url, timeout=90, trust_env=False, headers=headers,
            verify=NO_AUTHORITIES,
        ) as client:  # fmt: skip
            if token is not None:
                answer = client.post("/ui/sign-in", data={"token": token}, headers=OWN)
                assert answer.status_code == 303, answer.text
            yield client


@contextmanager
def open_site(folder: Path, **changes: Any) -> Iterator[Site]:
    settings = make_settings(folder, **changes)
    for name in ("shop.close", "mail"):
        declare_type(settings, name)
    server = WebServer(settings, make_site)
    server.start()
    try:
        yield Site(settings, server)
    finally:
        assert server.stop()


def token_of(site: Site, **terms: Any) -> str:
    """A new token, which the server knows already."""
    token = make_token(site.settings, **terms)
    site.server.backend.access.refresh_now()
    return token


class Elements(HTMLParser):
    """The elements of a page: (name, attributes)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
