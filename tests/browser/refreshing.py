"""The refresh of a page, when a test wants it. Needs `page.clock.install()` before the page is opened."""

from __future__ import annotations

from playwright.sync_api import Page

EVERY_MS = 5000
_COUNT = """
if (!window.__swaps) {
  window.__swaps = {number: 0};
  document.addEventListener("htmx:after:swap", () => { window.__swaps.number += 1; });
}
"""


def refresh(page: Page) -> None:
    """Lets the time of a refresh pass, and waits until the page has its new content."""
    page.evaluate(_COUNT)
    before = page.evaluate("window.__swaps.number")
    page.clock.run_for(EVERY_MS)
    page.wait_for_function("(before) => window.__swaps.number > before", arg=before)


def does_not_refresh(page: Page) -> bool:
    """Lets the time of three refreshes pass; whether the page asked for nothing."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(3):
        page.clock.run_for(EVERY_MS)
        page.evaluate("new Promise((done) => queueMicrotask(done))")
    return not asked
