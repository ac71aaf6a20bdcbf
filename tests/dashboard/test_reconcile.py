"""The page Reconcile: the last result in the database, and the reports of this machine."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.dashboard.site_world import Elements, Site, open_site, token_of
from tests.reconcile import test_report
from toc.dashboard.reconcile_page import REPORTS_MAX
from toc.domain.disagreements import Disagreement
from toc.reconcile.findings import RepairResult, ShardFailure
from toc.reconcile.report.report import write_report
from toc.reconcile.report.summary import SUMMARY
from toc.runtime.clock import SystemClock
from toc.store.databases import Databases
from toc.store.nightly_status import record_nightly_status
from toc.store.reconcile_status import record_reconcile_result

HOSTILE = test_report.HOSTILE
DAY_MS = test_report.DAY_MS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Path]]:
    """Three reports: of a run that repaired, of one that could not compare everything, of one that agreed."""
    folder = tmp_path_factory.mktemp("reconcile")
    directory = folder / "reports"
    with open_site(folder, reconcile={"directory": str(directory), "reports_max": 60}) as site:
        where = {"namespace": site.settings.namespace}
        began_ms = test_report.BEGAN_MS
        agreed = test_report.outcome_of(began_ms=began_ms - 2 * DAY_MS, **where)
        failed = test_report.outcome_of(
            test_report.missing(biz_type=HOSTILE), compared=6, began_ms=began_ms - DAY_MS, **where
        )
        failed.failures = [ShardFailure(shard, HOSTILE) for shard in (6, 7)]
        repaired = test_report.outcome_of(
            test_report.missing(), test_report.missing(1), repairing=True, **where
        )
        repaired.repairs = [
            RepairResult(finding, done=True, how="armed") for finding in repaired.findings
        ]
        for outcome in (agreed, failed, repaired):
            write_report(outcome, site.settings)
        yield site, directory


@pytest.fixture
def admin(world: tuple[Site, Path]) -> Iterator[httpx.Client]:
    with world[0].visitor(token_of(world[0])) as visitor:
        yield visitor


def test_reports_are_listed_newest_first_with_what_to_do(admin: httpx.Client) -> None:
    page = admin.get("/ui/reconcile").text
    _, table, rest = page.partition('aria-labelledby="reports"><table>')
    rows = rest.partition("</table>")[0].split("<tr>")[2:]
    assert table
    assert len(rows) == 3
    new, middle, old = rows
    assert "all repaired" in new
    assert '<td class="number">5</td>' in new
    assert "missing 2 / 2" in new
    assert "8 / 8" in new
    assert "43.5 s" in new
    assert "not everything was compared" in middle
    assert "6 / 8" in middle
    assert "database 1: 6-7" in middle
    assert "toc status" in middle
    assert "Nothing to do." in old
    assert '<td class="number">0</td>' in old
    assert test_report.KINDS[Disagreement.MISSING].repair in html.unescape(page)


def test_hostile_texts_of_reports_are_text_and_types_are_not_shown(admin: httpx.Client) -> None:
    page = admin.get("/ui/reconcile").text
    assert "&lt;script&gt;" in page
    assert all(tag != "img" for tag, _ in Elements(page).found)
    assert "order.close" not in page
    assert str(test_report.JOB) not in page


def test_the_last_result_of_any_node_is_shown(
    world: tuple[Site, Path], admin: httpx.Client
) -> None:
    assert "never compared" in admin.get("/ui/reconcile").text
    with closing(Databases.from_settings(world[0].settings, SystemClock())) as databases:
        record_reconcile_result(databases, "left", 77, 70, 12.5, is_whole=True, unclaimable=3)
        record_nightly_status(
            databases, seconds=900.0, code=1, failed="archive", findings=2, is_good=False
        )
    page = admin.get("/ui/reconcile").text
    assert "77 / 70" in page
    assert "disagreements are left" in page
    assert "3 live jobs that no worker will claim" in page
    assert "15 min 0 s" in page
    assert "archive" in page


def test_it_needs_a_token_for_all_types(world: tuple[Site, Path]) -> None:
    for limits in ({"biz_types": ("shop.*",)}, {"tenant": "acme"}):
        with world[0].visitor(token_of(world[0], **limits)) as visitor:
            assert visitor.get("/ui/reconcile").status_code == 403
            assert "/ui/reconcile" not in visitor.get("/ui/jobs").text
    with world[0].visitor(token_of(world[0], scopes=("read",))) as viewer:
        assert viewer.get("/ui/reconcile").status_code == 200


def test_at_most_the_newest_reports_are_read_and_broken_ones_are_named(
    world: tuple[Site, Path], admin: httpx.Client
) -> None:
    directory = world[1]
    first = max(path for path in directory.iterdir() if path.is_dir())
    made = [directory / f"2027-01-01T0000{second:02}Z" for second in range(REPORTS_MAX + 3)]
    broken = directory / "2027-02-01T000000Z"
    foreign = directory / "2027-02-02T000000Z"
    try:
        for folder in (*made, broken, foreign):
            shutil.copytree(first, folder)
        (broken / SUMMARY).write_text('{"schema": 1}')
        summary = json.loads((foreign / SUMMARY).read_text())
        (foreign / SUMMARY).write_text(json.dumps(summary | {"namespace": "other"}))
        page = admin.get("/ui/reconcile").text
        assert page.count("/index.html") == REPORTS_MAX
        assert made[-1].name in page
        assert made[0].name not in page
        assert f"Cannot be read: {broken.name}" in page
        assert foreign.name not in page
    finally:
        for folder in (*made, broken, foreign):
            shutil.rmtree(folder, ignore_errors=True)
