"""The charts of the page Forecast: each line is drawn as its sample above, and a refresh keeps them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import WAIT_MS, Misdeeds, visitor
from tests.browser.refreshing import refresh
from tests.browser.world import HOUR, ORDER, Shop

expect.set_options(timeout=WAIT_MS)


@pytest.mark.parametrize("span", ["hour", "month"])
def test_the_lines_of_a_forecast_are_drawn_and_told(
    shop: Shop, browser: Browser, span: str
) -> None:
    job_id = shop.center.schedule("order-2101", HOUR / 2, biz_type=ORDER)
    with visitor(browser, shop, shop.admin) as page:
        page.clock.install()
        misdeeds = Misdeeds(page, shop.server.url)
        address = f"/ui/forecast?capacity=3&span={span}&type={ORDER}&rate=1/m"
        for _ in range(60):  # until the shards are read
            page.goto(address)
            if page.locator("figure").count():
                break
            page.wait_for_timeout(500)
        figure = page.locator("figure").first
        expect(figure.locator("canvas")).to_have_count(1)
        names = figure.locator(".series").all_text_contents()
        assert names[0] == "Due"
        assert {ORDER, "Can be done", "With this change"} <= set(names)
        figure.locator(".u-over").hover(position={"x": 60, "y": 60})
        readout = figure.locator(".readout")
        expect(readout).to_contain_text("Due: ")
        told = (readout.text_content() or "").split(" · ")
        assert [each.rpartition(": ")[0] for each in told[1:]] == names
        page.mouse.move(0, 0)
        refresh(page)
        expect(page.locator("figure canvas").first).to_be_visible()
        assert page.locator("figure").first.locator("canvas").count() == 1
        assert misdeeds.found == []
    shop.center.cancel(job_id)
