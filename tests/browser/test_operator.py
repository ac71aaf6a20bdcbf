"""What a person on call does in the pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import WAIT_MS, visitor
from tests.browser.world import HOUR, ORDER, PARCEL, STOCK, Shop
from tests.dashboard.site_world import token_of
from tests.http.served_world import revoke_token

expect.set_options(timeout=WAIT_MS)


@pytest.fixture
def page(shop: Shop, browser: Browser) -> Iterator[Page]:
    with visitor(browser, shop, shop.admin) as opened:
        yield opened


def open_verb(within: Any, name: str) -> Any:
    """Opens the form of a button; returns it."""
    verb = within.locator("details.verb", has_text=name)
    verb.locator("summary").click()
    return verb


def press(verb: Any, name: str, reason: str) -> None:
    verb.get_by_label("Why").fill(reason)
    verb.get_by_role("button", name=name).click()


def test_a_late_order_is_found_and_explained(shop: Shop, page: Page) -> None:
    job_id = shop.center.schedule("order-1001", -timedelta(minutes=5), biz_type=PARCEL)
    try:
        page.goto("/ui/")
        headline = page.locator("h1")
        expect(headline).to_contain_text("waits for")
        expect(headline).to_contain_text("min")
        page.get_by_role("link", name="Explain this job").click()
        page.wait_for_url(f"**/ui/jobs/{job_id}")
        expect(page.locator(".means")).to_contain_text("handler")
        page.get_by_role("link", name="Jobs").click()
        page.get_by_label("Business id").fill("order-1001")
        page.keyboard.press("Enter")
        page.get_by_role("row", name=PARCEL).get_by_role("link", name=str(job_id)).click()
        expect(page.locator("h1")).to_contain_text(str(job_id))
    finally:
        shop.center.cancel(job_id)


def test_a_dead_job_is_redriven(shop: Shop, page: Page) -> None:
    shop.warehouse_is_down = True
    job_id = shop.center.schedule("parcel-7", timedelta(), biz_type=STOCK)
    shop.wait_for_status("DEAD", job_id)
    shop.warehouse_is_down = False
    page.goto("/ui/dead")
    row = page.get_by_role("row", name=STOCK).filter(has_text="ConnectionError")
    row.get_by_role("link", name=str(job_id)).click()
    expect(page.get_by_text("the warehouse does not answer").first).to_be_visible()
    press(open_verb(page, "Redrive"), "Redrive", "the warehouse is back")
    expect(page.get_by_role("status")).to_contain_text("redriven")
    expect(page.locator("h1 .status")).to_have_text("done")  # the page refreshes itself
    expect(page.get_by_text("the warehouse is back")).to_be_visible()


def test_a_type_is_paused_and_resumed(shop: Shop, page: Page) -> None:
    page.goto("/ui/types")
    row = page.get_by_role("row", name=PARCEL)
    verb = open_verb(row, "Pause")
    verb.get_by_label("For how long").select_option("PT1H")
    press(verb, "Pause", "the parcel service is away")
    expect(page.get_by_role("status")).to_contain_text("paused")
    page.goto("/ui/types")
    expect(row).to_contain_text("Paused")
    (pause,) = shop.center.pauses()
    assert (pause.target, pause.reason) == (f"type:{PARCEL}", "the parcel service is away")
    press(open_verb(row, "Resume"), "Resume", "it is back")
    expect(page.get_by_role("status")).to_contain_text("ramping")
    shop.center.resume(PARCEL, now=True)
    assert not shop.center.pauses()


def test_a_person_without_the_scope_is_refused(shop: Shop, browser: Browser) -> None:
    job_id = shop.center.schedule("order-1002", HOUR, biz_type=ORDER)
    with visitor(browser, shop, token_of(shop, scopes=("read",))) as page:
        page.goto(f"/ui/jobs/{job_id}")
        expect(page.locator("h1")).to_contain_text("pending")
        assert page.locator("details.verb").count() == 0
        page.evaluate(
            """(path) => {
                const form = document.createElement("form");
                form.method = "post";
                form.action = path;
                document.body.append(form);
                form.submit();
            }""",
            f"/ui/jobs/{job_id}/cancel",
        )
        page.wait_for_url("**/cancel")
        expect(page.locator("main")).to_contain_text("scope")
    assert shop.center.get(job_id).status.name == "PENDING"
    shop.center.cancel(job_id)


def test_signing_in_and_out(shop: Shop, browser: Browser) -> None:
    token = token_of(shop)
    with visitor(browser, shop) as page:
        page.goto("/ui/jobs")
        page.wait_for_url("**/ui/sign-in**")
        for text, is_right in (("toc_aaaaaaaaaaaa_wrong", False), (token, True)):
            page.get_by_label("Token").fill(text)
            page.get_by_role("button", name="Sign in").click()
            if not is_right:
                expect(page.get_by_role("alert")).to_be_visible()
        page.wait_for_url("**/ui/jobs")  # where the person wanted to go
        assert page.evaluate("document.cookie") == ""  # no script reads the token
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/ui/sign-in**")
        page.go_back()
        page.wait_for_url("**/ui/sign-in**")
    with visitor(browser, shop, token) as page:
        page.goto("/ui/jobs")
        revoke_token(shop.settings, token)
        shop.server.backend.access.refresh_now()
        page.reload()
        page.wait_for_url("**/ui/sign-in**")


def test_the_language_is_chosen_and_the_filter_stays(shop: Shop, page: Page) -> None:
    page.goto(f"/ui/jobs?biz_id=order-1003&type={PARCEL}")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.get_by_label("业务编号")).to_have_value("order-1003")
    expect(page.locator("select[name=type]")).to_have_value(PARCEL)
    page.get_by_role("button", name="English").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")


def test_everything_is_reached_by_the_keyboard(shop: Shop, page: Page) -> None:
    job_id = shop.center.schedule("order-1004", HOUR, biz_type=ORDER)
    page.goto(f"/ui/jobs/{job_id}")
    page.keyboard.press("Tab")
    skip = page.locator("a.skip")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.reload()
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
            .filter((each) => each.checkVisibility() && each.type !== "hidden").length"""
    )
    seen: list[str] = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => {
                    const focused = document.activeElement, style = getComputedStyle(focused);
                    const number = [...document.querySelectorAll("*")].indexOf(focused);
                    return `${number} ${style.outlineStyle} ${focused.tagName}`;
                }"""
            )
        )
    assert len(set(seen)) == wanted, seen  # each once, and none keeps the focus
    assert not [each for each in seen if " none " in each or "BODY" in each]
    assert [int(each.split()[0]) for each in seen] == sorted(int(each.split()[0]) for each in seen)
    page.locator("summary", has_text="Cancel the job").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("cancelled")
    assert shop.center.get(job_id).status.name == "CANCELLED"


def test_the_pages_work_without_scripts(shop: Shop, browser: Browser) -> None:
    job_id = shop.center.schedule("order-1005", HOUR, biz_type=ORDER)
    with visitor(browser, shop, java_script_enabled=False) as page:
        page.goto("/ui/")
        page.get_by_label("Token").fill(shop.admin)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Jobs").click()
        page.get_by_label("Business id").fill("order-1005")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name=str(job_id)).click()
        expect(page.locator("dl time").first).to_contain_text("UTC")
        press(open_verb(page, "Cancel the job"), "Cancel the job", "without scripts")
        expect(page.get_by_role("status")).to_contain_text("cancelled")
