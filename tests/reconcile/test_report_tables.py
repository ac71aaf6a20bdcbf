"""The part of the report that is read from the analysts' tables, and the layout of the page in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reconcile import screenshots, test_report
from tests.reconcile.test_report import Page, page_of
from toc.reconcile.delta_tables import open_table
from toc.reconcile.report.chart_scale import ChartScale, scale_of_bars, scale_of_columns
from toc.reconcile.report.html_page import read_table_figures
from toc.reconcile.report.report import write_report
from toc.reconcile.tables.table_checks import TableCheck, write_checks
from toc.reconcile.tables.table_specs import LATENESS
from toc.runtime.settings import Settings


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return screenshots.make_report(tmp_path_factory.mktemp("report"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    reconcile = {"directory": str(tmp_path / "reports"), "archive": str(tmp_path / "archive")}
    return Settings(reconcile=reconcile)


def test_the_charts_are_those_of_the_tables(page: Path) -> None:
    shown = page_of(page.parent)
    types = shown.table("type", "50 %", "99 %")
    assert [row[0] for row in types] == ["report", "order.close"]
    hours = shown.table("hour (UTC)", "scheduled", "done")
    cohorts = shown.table("created on", "live")
    assert [row[0] for row in cohorts] == ["2026-01-04", "2026-01-03", "2026-01-02"]
    scheduled = sum(int(row[1].replace(",", "")) for row in hours)
    assert f"{scheduled:,}" == cohorts[0][1]
    nights = shown.table("began (UTC)", "exit code", "parts")
    assert [row[1] for row in nights] == ["0", "0", "1", "0", "0"]
    assert nights[0][3].count(",") == 2
    for text in ("come due per minute", "come due per hour", "the most done lately"):
        assert text in shown.text


def test_one_bar_does_not_hide_the_others(page: Path) -> None:
    shown = page_of(page.parent)
    assert "By kind (logarithmic scale)" in shown.text
    widths = [
        float(value)
        for tag, key, value in shown.attributes
        if (tag, key) == ("rect", "width") and value != "12"
    ]
    assert min(width for width in widths if width) > 10


def test_scales() -> None:
    assert scale_of_bars([]) == ChartScale(1, is_log=False)
    assert scale_of_bars([7]).part(7) == 1
    assert not scale_of_bars([2, 100]).is_log
    assert scale_of_bars([1, 51, 0]).is_log
    assert not scale_of_columns([1, 51, 50]).is_log
    log = scale_of_columns([1, 1, 51])
    assert log.is_log
    assert (log.part(0), log.part(51)) == (0, 1)
    assert abs(log.part(log.middle) - 0.5) < 1e-9
    assert ChartScale(10, is_log=False).part(5) == 0.5


def test_without_tables_the_page_says_nothing_of_them(settings: Settings) -> None:
    shown = Page(test_report.text_of(write_report(test_report.outcome_of(), settings)))
    assert "How the system did" not in shown.text
    open_table(str(settings.reconcile.archive), LATENESS)  # without a day
    assert read_table_figures(str(settings.reconcile.archive)) is None


def test_failed_checks_are_named(page: Path, settings: Settings) -> None:
    from datetime import date  # noqa: PLC0415 - only here

    archive = str(page.parents[2] / "archive")
    day = date(2027, 1, 1)
    checks = [TableCheck("lateness", "count", day, 1, n) for n in (1, 2)]
    write_checks(archive, 0, checks, 0, [day])
    changed = settings.model_copy(
        update={"reconcile": settings.reconcile.model_copy(update={"archive": archive})}
    )
    shown = Page(test_report.text_of(write_report(test_report.outcome_of(), changed)))
    assert "1 check of these tables failed" in shown.text


def test_tables_that_cannot_be_read_leave_the_report(settings: Settings) -> None:
    root = str(settings.reconcile.archive)
    open_table(root, LATENESS)
    log = next((Path(root) / "lateness/_delta_log").glob("*.json"))
    log.write_text("no JSON")
    shown = Page(test_report.text_of(write_report(test_report.outcome_of(), settings)))
    assert "The tables could not be read:" in shown.text


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut(page: Path, width: int) -> None:
    browser = screenshots.find_browser()
    if browser is None:
        pytest.skip("Chromium is not installed")
    assert screenshots.measure_page(browser, page, width) == []
