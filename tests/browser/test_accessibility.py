"""Each page in each language, light and dark: no violation that axe knows, and room on a small screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.chromium import visitor
from tests.browser.world import HOUR, ORDER, PARCEL, SCHEDULE, Shop, shown_pages
from toc.dashboard.texts import LANGUAGES

LONG = "ORDER-2026-11-26-000000000000000000000000000000000000000000042"


@pytest.fixture(scope="module")
def job_id(shop: Shop) -> Iterator[int]:
    """A job with long words, beside a dead one, a pause and a schedule."""
    job_id: int = shop.center.schedule(LONG, HOUR, biz_type=ORDER, attribute={"note": "x" * 500})
    shop.center.reschedule(job_id, HOUR, reason="y" * 300)
    shop.make_dead_job(LONG, "TimeoutError: " + "z" * 300)
    shop.center.pause(PARCEL, reason="the parcel service is away")
    shop.center.recur(SCHEDULE, cron="0 3 * * *", tz="Asia/Shanghai", biz_type=ORDER)
    yield job_id
    shop.center.resume(PARCEL, now=True)
    shop.center.cancel(job_id)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_accessible(shop: Shop, browser: Browser, job_id: int, language: str) -> None:
    found: list[str] = []
    with visitor(browser, shop, shop.admin, language) as page:
        for path in [*shown_pages(job_id), f"/ui/jobs?biz_id={LONG}", "/ui/jobs/1"]:
            page.set_viewport_size({"width": 1280, "height": 900})
            page.emulate_media(color_scheme="light")
            page.goto(path)
            page.evaluate(
                "for (const each of document.querySelectorAll('details')) each.open = true;"
            )
            found += violations(page)
            page.emulate_media(color_scheme="dark")
            found += violations(page, "color-contrast")
            page.set_viewport_size({"width": 360, "height": 740})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{path}: wider than a screen of 360 px")
    assert found == []


def violations(page: Page, *rules: str) -> list[str]:
    options = {"runOnly": list(rules)} if rules else {}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{page.url}: {each['id']}: {node['target']} {node['html'][:200]}"
        for each in found
        for node in each["nodes"]
    ]
