"""A page refreshes itself every five seconds, and takes nothing from the person who reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.chromium import WAIT_MS, visitor
from tests.browser.refreshing import EVERY_MS, does_not_refresh, refresh
from tests.browser.world import HOUR, ORDER, Shop

expect.set_options(timeout=WAIT_MS)


@pytest.fixture
def job_id(shop: Shop) -> Iterator[int]:
    job_id: int = shop.center.schedule(
        "order-2001", HOUR, biz_type=ORDER, attribute={f"item {n}": "x" * 300 for n in range(40)}
    )
    yield job_id
    shop.center.cancel(job_id)


@pytest.fixture
def page(shop: Shop, browser: Browser, job_id: int) -> Iterator[Page]:
    """The page of the job, on a small screen."""
    with visitor(browser, shop, shop.admin, viewport={"width": 360, "height": 500}) as opened:
        opened.clock.install()
        opened.goto(f"/ui/jobs/{job_id}?said=rescheduled")
        yield opened


def test_a_refresh_shows_what_is_new(shop: Shop, page: Page, job_id: int) -> None:
    shop.center.reschedule(job_id, HOUR, reason="the buyer needs time")
    cell = page.get_by_text("the buyer needs time")
    assert cell.count() == 0
    refresh(page)
    expect(cell).to_have_count(1)
    expect(page.get_by_role("status")).to_contain_text("rescheduled")
    for time in page.locator("time").all():  # in the reader's zone again
        assert "UTC" not in (time.text_content() or "")
        assert "UTC" in (time.get_attribute("title") or "")


def test_an_open_form_and_its_text_and_the_scroll_position_stay(
    shop: Shop, page: Page, job_id: int
) -> None:
    verb = page.locator("details.verb", has_text="Cancel the job")
    verb.locator("summary").click()
    verb.get_by_label("Why").fill("typed text")
    page.locator("body").press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 300)")
    assert page.evaluate("scrollY") == 300
    shop.center.reschedule(job_id, HOUR, reason="a new line")
    refresh(page)
    expect(page.get_by_text("a new line")).to_have_count(1)
    expect(verb).to_have_attribute("open", "")
    expect(verb.get_by_label("Why")).to_have_value("typed text")
    assert page.evaluate("scrollY") == 300
    assert f"{job_id}/cancel" in str(verb.locator("form").get_attribute("action"))


def test_a_form_never_becomes_the_form_of_another_button(shop: Shop, page: Page) -> None:
    """What a person types for one button must not be sent by another one."""
    job_id = shop.center.schedule("order-2002", HOUR, biz_type=ORDER, attribute={"dies": "no"})
    page.goto(f"/ui/jobs/{job_id}")
    verb = page.locator("details.verb", has_text="Run now")
    verb.locator("summary").click()
    verb.get_by_label("Why").fill("typed text")
    page.evaluate("document.activeElement.blur()")
    shop.center.run_now(job_id)
    shop.wait_for_status("DEAD", job_id)
    refresh(page)
    redrive = page.locator("details.verb", has_text="Redrive")
    expect(redrive).to_contain_text("Redrive")
    assert redrive.get_attribute("open") is None
    expect(redrive.get_by_label("Why")).to_have_value("")


def test_no_refresh_while_a_person_types_or_selects(page: Page) -> None:
    verb = page.locator("details.verb", has_text="Cancel the job")
    verb.locator("summary").click()
    verb.get_by_label("Why").focus()
    assert does_not_refresh(page)
    page.evaluate("document.activeElement.blur()")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('pre'))")
    assert does_not_refresh(page)
    assert page.evaluate("String(getSelection()).length") > 1000
    page.evaluate("getSelection().removeAllRanges()")
    refresh(page)


def test_no_refresh_in_a_hidden_tab(page: Page) -> None:
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {value: 'hidden', writable: true})"
    )
    assert does_not_refresh(page)
    page.evaluate("document.visibilityState = 'visible'")
    refresh(page)


@pytest.mark.parametrize("status", [None, 503, 429])
def test_a_page_keeps_its_content_while_the_server_is_away(
    page: Page, job_id: int, status: int | None
) -> None:
    def refuse(route: Route) -> None:
        route.abort() if status is None else route.fulfill(
            status=status, content_type="text/html", body="<main id=main>away</main>"
        )

    away = page.locator("#away")
    page.route("**/ui/jobs/**", refuse)
    expect(away).to_be_hidden()
    page.clock.run_for(EVERY_MS)
    expect(away).to_be_visible()
    expect(page.locator("h1")).to_contain_text(str(job_id))
    page.unroute_all()
    refresh(page)
    expect(away).to_be_hidden()
