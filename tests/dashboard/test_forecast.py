"""The page Forecast, its reader, and who sees what."""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.site_world import HOUR, Elements, Site, open_site, token_of
from tests.http.served_world import make_settings
from tests.servers.endpoint import Endpoint
from toc.dashboard.due_outlook import DueOutlook
from toc.dashboard.due_reader import DueReader, DueRounds
from toc.dashboard.forecast_page import Capacity, capacity_of, gates_of
from toc.dashboard.forecast_question import Question
from toc.dashboard.forecast_view import ForecastView, ForecastViews, make_view
from toc.dashboard.watched_reader import WATCHED_S
from toc.domain.declared_type import DeclaredType
from toc.domain.due_grid import make_grid
from toc.domain.forecast import TypeGate
from toc.domain.pauses import PauseInfo
from toc.http.backend import FORECASTS_MAX
from toc.runtime.clock import SystemClock
from toc.store.databases import Databases
from toc.testing import TestClock
from toc.timer.activity import ActivityStore
from toc.timer.reminders import Reminders

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{type}{0}"
MAILS, CLOSES = 200, 40
EMPTY = DueOutlook(0, make_grid(0), {}, 4, 4, 0, 0, 0, 0, 0, 0, 0, [], [], {})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Jobs that are due in an hour: 200 mails and 40 of another type; one of a tenant."""
    folder: Path = tmp_path_factory.mktemp("forecast")
    with open_site(folder) as made:
        for name, number in (("mail", MAILS), ("shop.close", CLOSES)):
            for n in range(number):
                made.center.schedule(n, HOUR / 2, biz_type=name)
        made.center.schedule(1, HOUR / 2, biz_type="mail", tenant="acme")
        yield made


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(token_of(site)) as visitor:
        yield visitor


def show(visitor: httpx.Client, **query: str) -> str:
    """The page, when all shards were read."""
    for _ in range(100):
        page = visitor.get("/ui/forecast", params=query).text
        if "shards are being read" not in page:
            return page
    raise AssertionError(page)


def chart_of(page: str) -> dict[str, list[float]]:
    """The values of the lines of the charts, by their labels; of a label in both charts, the first one."""
    texts = (attrs["data-chart"] for _, attrs in Elements(page).found if "data-chart" in attrs)
    charts = [json.loads(text or "") for text in texts]
    lines = [line for chart in charts for line in chart["series"]]
    assert all(
        len(line["values"]) == len(chart["times"]) - 1
        for chart in charts
        for line in chart["series"]
    )
    return {line["name"]: line["values"] for line in reversed(lines)}


@pytest.mark.parametrize("span", ["hour", "day", "month"])
def test_what_is_due_is_shown_by_type(admin: httpx.Client, span: str) -> None:
    page = show(admin, span=span)
    lines = chart_of(page)
    assert sum(lines["Due"]) == pytest.approx(MAILS + CLOSES + 1, abs=1)
    assert sum(lines["mail"]) == pytest.approx(MAILS + 1, abs=1)
    assert sum(lines["shop.close"]) == pytest.approx(CLOSES, abs=1)
    assert "Enter it below" in page
    assert "4 of 4 shards were read" in page
    assert "241 were counted one by one" in page


def test_a_capacity_that_is_too_small_is_told_in_a_sentence(admin: httpx.Client) -> None:
    page = show(admin, capacity="0.5")
    assert "jobs wait at once" in page or "jobs a minute are due" in page
    assert "and 30 a minute can be done" in page
    late = chart_of(page)["Late, minutes"]
    # 241 jobs, all due within a few minutes: the last waits for 8 minutes less these.
    assert 3 < max(late) < 8.1
    assert "No job will be late" in show(admin, capacity="1000")


def test_a_limit_and_a_pause_are_tried(site: Site, admin: httpx.Client) -> None:
    page = show(admin, capacity="1000", type="mail", rate="20/m")
    assert "With this change" in page
    assert "mail: " in page
    assert "its limit allows 20 a minute" in page
    until = datetime.now(UTC) + timedelta(hours=3)
    page = show(admin, type="shop.close", pause_until=until.strftime("%Y-%m-%dT%H:%M"))
    assert "shop.close is paused until" in page
    assert "40 jobs wait by then" in page
    before, after = chart_of(page)["Done, by this forecast"], chart_of(page)["With this change"]
    assert sum(before) - sum(after) == pytest.approx(CLOSES, abs=1)
    assert not site.center.pauses()  # it was only a question


def test_a_pause_beyond_the_last_year_is_only_a_question(admin: httpx.Client) -> None:
    page = show(admin, type="mail", pause_until="9999-12-31T23:59-14:00")
    assert "mail is paused until" in page
    assert "9999-12-31 23:59 UTC" in page


def test_limits_and_pauses_that_hold_types_back(site: Site) -> None:
    declared = {
        "mail": DeclaredType("mail", rate="120/m"),
        "sms": DeclaredType("sms", rate="5/s", per="biz_id"),
    }
    pauses = [
        PauseInfo("type:sms", "paused", 1, 5000, None, "ann", HOSTILE),
        PauseInfo("type:mail", "ramping", 1, 4000, 2.0, "ann", None),
        PauseInfo("topic:default", "paused", 1, 3000, None, "ann", None),
    ]
    names = ["mail", "sms", "fax"]
    found = gates_of(names, declared, pauses, site.settings)
    assert found == {
        "mail": TypeGate(2.0, 3000), "sms": TypeGate(None, 5000), "fax": TypeGate(None, 3000)
    }  # fmt: skip
    all_paused = PauseInfo("all", "paused", 1, None, None, "ann", None)
    found = gates_of(names, declared, [all_paused], site.settings)
    assert {gate.closed_until_ms for gate in found.values()} == {inf}


def test_the_most_that_was_done_is_the_capacity_unless_one_is_given() -> None:
    outlook = replace(EMPTY, done_per_min={"": 120, "mail": 90})
    assert capacity_of(Question(), outlook) == Capacity(2.0, is_measured=True)
    assert capacity_of(Question(capacity_per_s=9.0), outlook) == Capacity(9.0, is_measured=False)
    assert capacity_of(Question(), EMPTY) is None


def test_a_measured_capacity_is_only_a_hint(
    site: Site, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(admin)
    look = DueReader.look

    def look_with_capacity(reader: DueReader) -> DueOutlook | None:
        found = look(reader)
        return found and replace(found, done_per_min={"": 30, "mail": 12})

    monkeypatch.setattr(DueReader, "look", look_with_capacity)
    page = show(admin)
    assert "More is due than was ever done in the last 24 hours" in page
    assert "at most 30 were done in a minute" in page
    assert '<td class="number">12</td>' in page
    with site.visitor(token_of(site, biz_types=("ma*",))) as viewer:
        assert '<td class="number">12</td>' in show(viewer)
    with site.visitor(token_of(site, tenant="acme")) as tenant:  # the number is that of all tenants
        page_of_tenant = show(tenant)
    assert ">mail</a>" in page_of_tenant
    assert '<td class="number">12</td>' not in page_of_tenant
    assert "at most 30 were done in a minute" not in show(admin, capacity="1000")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"span": "year"}, "must be one of hour, day, month"),
        ({"capacity": "many"}, "must be jobs a second"),
        ({"capacity": "nan"}, "must be jobs a second"),
        ({"capacity": "-1"}, "must be jobs a second"),
        ({"type": HOSTILE}, "must be a type that you may read"),
        ({"type": "mail", "rate": "0/s"}, "must be N/s, N/m or N/h"),
        ({"type": "mail", "pause_until": "soon"}, "must be a time"),
        ({"type": "mail", "pause_until": "2001-01-01T00:00"}, "must lie in the future"),
        ({"type": "mail", "pause_until": "0001-01-01T00:00+14:00"}, "must"),
        ({"rate": "5/s"}, "needs a type"),
        ({"capacity": HOSTILE, "type": HOSTILE, "rate": HOSTILE, "pause_until": HOSTILE}, "must be"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused_and_harmless(
    admin: httpx.Client, query: dict[str, str], words: str
) -> None:
    page = show(admin, **query)
    (refused,) = (
        part.split("</p>")[0] for part in page.split('<p class="alert" role="alert">')[1:]
    )
    assert words in html.unescape(refused)
    for tag, attrs in Elements(page).found:
        assert tag != "img"
        assert not [name for name in attrs if name.startswith("on")]
        if tag == "script":
            assert (attrs["src"] or "").startswith("/ui/static/")


def test_a_token_sees_its_types_and_tenant_alone(site: Site) -> None:
    with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
        page = show(visitor, capacity="0.5")
        assert "mail" not in page
        lines = chart_of(page)
        assert sum(lines["Due"]) == pytest.approx(CLOSES, abs=1)
        assert "Late, minutes" not in lines
        assert "Only the types that your token may read" in page
        assert "must be a type that you may read" in show(visitor, type="mail")
    with site.visitor(token_of(site, tenant="acme")) as visitor:
        assert sum(chart_of(show(visitor))["Due"]) == pytest.approx(1, abs=0.1)


def test_the_page_is_there_while_nothing_was_read(
    site: Site, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DueReader, "look", lambda self: None)
    page = admin.get("/ui/forecast")
    assert page.status_code == 200
    assert "shards are being read" in page.text


def test_viewers_who_ask_the_same_share_a_view() -> None:
    views, made = ForecastViews(), []

    def make() -> ForecastView:
        made.append(1)
        return make_view(outlook, {}, {}, Question(), None)

    outlook = EMPTY
    first = views.get(outlook, "a", make)
    assert views.get(outlook, "a", make) is first
    views.get(outlook, "b", make)
    assert len(made) == 2
    outlook = replace(EMPTY, taken_ms=1)
    assert views.get(outlook, "a", make) is not first


def test_questions_of_one_viewer_leave_time_for_all_other_calls(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(admin)
    lock = threading.Lock()
    running = most = 0

    def make_slowly(*arguments: Any) -> ForecastView:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.1)
        with lock:
            running -= 1
        return make_view(*arguments)

    monkeypatch.setattr("toc.dashboard.forecast_page.make_view", make_slowly)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: admin.get(f"/ui/forecast?capacity={n + 7}"), range(8))
        assert {answer.status_code for answer in answers} == {200}
    assert most == FORECASTS_MAX


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "toc-forecast"}


def test_the_reader_ends_when_nobody_looks(tmp_path: Path) -> None:
    before, clock = threads(), TestClock()
    reader = DueReader(make_settings(tmp_path), clock, round_s=0.05)
    try:
        first = reader.look(60)
        assert first is not None
        assert (first.shards_read, first.shards, first.estimated) == (4, 4, 0)
        (thread,) = threads() - before
        clock.advance(WATCHED_S + 1)
        thread.join(60)
        assert not thread.is_alive()
        assert reader.look(60) is not None
    finally:
        reader.stop()
    for each in threads() - before:
        each.join(60)
    reader.look(0.01)  # no visit starts it again after a stop
    assert not threads() - before


def test_a_round_reads_some_shards_and_all_in_turn(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    databases = Databases.from_settings(settings, SystemClock())
    try:
        rounds = DueRounds(settings, databases, shards_per_round=3)
        assert rounds.run_once().shards_read == 3
        assert not rounds.is_complete
        found = rounds.run_once()
        assert (found.shards_read, found.silent) == (4, [])
        assert rounds.is_complete
        # What cannot be read any more counts as it was, and is named.
        databases[0].run_transaction(
            lambda connection: connection.exec_driver_sql("DROP TABLE toc_job_0003")
        )
        for _ in range(2):
            found = rounds.run_once()
        assert (found.shards_read, found.silent) == (4, ["database_0"])
    finally:
        databases.close()


def test_the_most_that_was_done_comes_from_redis(tmp_path: Path, redis_server: Endpoint) -> None:
    settings = make_settings(tmp_path, redis_server.url)
    with closing(Reminders.from_settings(settings, SystemClock())) as redis:
        store = ActivityStore(redis, settings.namespace)
        now = store.now_minute()
        store.add(now - 600, {"reports": 1, "done:mail": 70, "dead:mail": 5, "done:sms": 20})
        store.add(now - 300, {"reports": 1, "done:mail": 50, "done:sms": 60})
    reader = DueReader(settings, SystemClock())
    try:
        found = reader.look(60)
    finally:
        reader.stop()
    assert found is not None
    assert found.done_per_min == {"mail": 75, "sms": 60, "": 110}
