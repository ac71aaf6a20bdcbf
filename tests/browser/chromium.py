"""Chromium, its visitors, and a record of all that a page must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard.site_world import OWN, Site
from tests.servers.programs import find

WAIT_MS = 60_000.0  # a loaded machine is slow
MARK = "__xss"
"""The name that hostile texts set in the window, if they run."""

_RECORD = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.__violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Raises ServerUnavailableError if Chromium is not on this machine."""
    program = find("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visitor(
    browser: Browser, site: Site, token: str | None = None, language: str = "en", **options: Any
) -> Iterator[Page]:
    """A page of a new browser, signed in with a token if one is given. `options`: of its context."""
    options = {"locale": "en-GB", "timezone_id": "Asia/Shanghai"} | options
    context = browser.new_context(base_url=site.server.url, **options)
    try:
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(_RECORD)
        forms = {"language": {"language": language}} | (
            {"sign-in": {"token": token}} if token else {}
        )
        for name, fields in forms.items():  # the browser gets the cookies as from the pages
            assert context.request.post(f"/ui/{name}", form=fields, headers=OWN).ok
        yield context.new_page()
    finally:
        context.close()


class Misdeeds:
    """Records what a page must not do: run a hostile text, ask another host, break its own policy."""

    def __init__(self, page: Page, url: str) -> None:
        self._page, self._host = page, urlsplit(url).netloc
        self.found: list[str] = []
        page.on("dialog", self._see_dialog)
        page.on("request", self._see_request)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("popup", lambda popup: self.found.append(f"popup: {popup.url}"))

    def _see_dialog(self, dialog: Any) -> None:
        self.found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _see_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.netloc != self._host:
            self.found.append(f"request: {request.url}")

    def check(self) -> None:
        """Fails if the page that is shown, or one before it, did anything of this."""
        self.found += self._page.evaluate("window.__violations")
        if self._page.evaluate(f"window.{MARK} !== undefined"):
            self.found.append("a hostile text ran")
        assert self.found == [], f"{self._page.url}: {self.found}"
