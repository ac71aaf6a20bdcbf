"""What the page Now tells of the last hour."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.dashboard.site_world import Elements, open_site, token_of
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.dashboard.activity_view import HISTORY_MINUTES, TYPES_SHOWN_MAX, make_view
from toc.dashboard.backlog import BacklogMeter
from toc.dashboard.texts import texts_of
from toc.domain.pauses import PauseInfo
from toc.runtime.clock import SystemClock
from toc.runtime.process_info import toc_version
from toc.store.overdue_count import OverdueCount
from toc.timer.activity import ActivityStore, MinuteActivity, TypeActivity, sum_types
from toc.timer.timer_server import TimerServer

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}"
T = texts_of("en")
FIRST = 29_000_000


def minutes(*parts: MinuteActivity) -> list[MinuteActivity]:
    """An hour that ends with these minutes, and one that is running."""
    empty = HISTORY_MINUTES - 1 - len(parts)
    made = [MinuteActivity(FIRST + n) for n in range(HISTORY_MINUTES)]
    for place, part in enumerate(parts):
        part.minute = FIRST + empty + place
        made[empty + place] = part
    return made


def test_rates_are_of_full_minutes_that_are_known() -> None:
    one = MinuteActivity(
        0, 12, {"a": TypeActivity(60, 120, 6, 30, 0), "": TypeActivity(cancelled=6)}
    )
    two = MinuteActivity(0, 12, {"a": TypeActivity(180)})
    view = make_view(minutes(one, MinuteActivity(0), two), (), lambda _: True, T)
    assert view.last is not None
    assert view.recent is not None
    assert view.last.scheduled == 3
    assert (view.recent.scheduled, view.recent.ended, view.recent.dead) == (2, 1.25, 0.25)
    assert view.recent.cancelled == 0.05
    assert [row.rates is None for row in view.newest_minutes[:3]] == [False, True, False]
    assert make_view(minutes(), (), lambda _: True, T).recent is None


def test_a_chart_has_a_gap_where_nothing_is_known() -> None:
    known = MinuteActivity(0, 1, {"a": TypeActivity(60)}, {"lateness": [0, 4] + [0] * 15})
    view = make_view(minutes(known, MinuteActivity(0)), (), lambda _: True, T)
    rates, lateness = json.loads(view.rates_chart.data), json.loads(view.lateness_chart.data)
    assert rates["series"][0]["values"][-2:] == [1.0, None]
    assert 0.001 < lateness["series"][0]["values"][-2] <= 0.0025
    assert len(rates["times"]) == len(rates["series"][0]["values"]) == HISTORY_MINUTES - 1


def test_who_may_not_read_a_type_sees_none_of_its_counts() -> None:
    part = MinuteActivity(
        0, 1, {"a": TypeActivity(60), "b": TypeActivity(600), "": TypeActivity(60)}
    )
    pauses = [PauseInfo("type:b", "paused", FIRST * 60_000, None, None, "x", None)]
    part.stages["lateness"] = [7] * 17
    view = make_view(minutes(part), pauses, lambda name: name == "a", T)
    assert [row.name for row in view.types] == ["a"]
    assert view.stages[0].p50_s is not None  # the lateness is of all types, and no number of jobs
    assert view.stages[0].jobs is None
    assert make_view(minutes(part), pauses, lambda _: True, T).stages[0].jobs == 7 * 17
    assert view.last is not None
    assert view.last.scheduled == 1
    assert not view.marks


def test_marks_say_what_happened_once() -> None:
    parts = [MinuteActivity(0, 1, marks=["away:redis", "start:1.0"]) for _ in range(3)]
    pauses = [PauseInfo("type:mail", "paused", (FIRST + 5) * 60_000, None, None, "x", None)]
    view = make_view(minutes(*parts), pauses, lambda _: True, T)
    assert [mark.text for mark in view.marks] == [
        "pause of mail", "no answer of redis", "start of 1.0",
    ]  # fmt: skip
    assert [row.name for row in view.types] == ["mail"]
    assert view.types[0].is_paused


def test_types_are_bounded_and_those_with_most_jobs_first() -> None:
    types = {f"t{n}": TypeActivity(scheduled=n) for n in range(3 * TYPES_SHOWN_MAX)}
    view = make_view(minutes(MinuteActivity(0, 1, types)), (), lambda _: True, T)
    assert len(view.types) == TYPES_SHOWN_MAX
    assert view.types[0].name == f"t{3 * TYPES_SHOWN_MAX - 1}"


def test_a_backlog_says_when_it_is_gone() -> None:
    meter = BacklogMeter()
    first = meter.add_count(0, OverdueCount(1000, is_at_least=False))
    assert (first.change_per_s, first.gone_in_s) == (None, None)
    falling = meter.add_count(20, OverdueCount(800, is_at_least=False))
    assert (falling.change_per_s, falling.gone_in_s) == (-10, 80)
    growing = meter.add_count(100, OverdueCount(2000, is_at_least=False))
    assert (growing.change_per_s, growing.gone_in_s) == (10, None)
    cut = meter.add_count(110, OverdueCount(64_000, is_at_least=True))
    assert cut.change_per_s is None
    again = meter.add_count(130, OverdueCount(900, is_at_least=False))
    assert again.change_per_s is None  # the cut number is no measurement


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0004, "0.4 ms"),
        (0.0254, "25 ms"),
        (3.24, "3.2 s"),
        (250, "4 min 10 s"),
        (float("inf"), "> 1 h"),
    ],
)
def test_a_measured_time_has_its_unit(seconds: float | None, text: str) -> None:
    assert T.lateness(seconds) == text


def test_now_without_redis_says_that_there_is_no_history(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, site.visitor(token_of(site)) as visitor:
        page = visitor.get("/ui/").text
        assert "counts by minute need a Redis" in page
        assert "No job is overdue." in page
        for terms in ({"tenant": "acme"}, {"biz_types": ("shop.*",)}):  # it is of all jobs
            with site.visitor(token_of(site, **terms)) as narrow:
                assert "No job is overdue." not in narrow.get("/ui/").text


def test_now_shows_the_history_and_hostile_names_are_only_text(
    tmp_path: Path, redis_server: Endpoint
) -> None:
    with open_site(tmp_path, redis_url=redis_server.url) as site:
        server = TimerServer(redis_server.url, SystemClock(), 5)
        try:
            store = ActivityStore(server, site.settings.namespace)
            now = store.now_minute()
            for minute in range(now - 10, now):
                store.add(
                    minute,
                    {
                        "reports": 1, "scheduled:mail": 600, "done:mail": 300, "late:lateness:4": 100,
                        f"done:{HOSTILE}": 60, f"mark:start:{HOSTILE}": 1, "scheduled:shop.close": 60,
                    },
                )  # fmt: skip
            site.center.schedule(1, timedelta(hours=1), biz_type="shop.close")

            def has_reported() -> bool:
                """The server itself, with its version, and the jobs that this process has scheduled."""
                own = store.read(range(now - 1, now + 3))
                marks = {mark for each in own for mark in each.marks}
                jobs = sum_types(own).get("shop.close", TypeActivity())
                return f"start:{toc_version()}" in marks and jobs.scheduled > 60

            wait_until(has_reported, "the report of toc web", 60)
            with site.visitor(token_of(site)) as visitor:
                page = visitor.get("/ui/").text
            with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
                narrow = visitor.get("/ui/").text
            with site.visitor(token_of(site, tenant="acme")) as visitor:
                foreign = visitor.get("/ui/").text
            for minute in range(now - 10, now + 5):
                server.connected_client().delete(f"activity_{site.settings.namespace}:{minute}")
        finally:
            server.close()
    found = Elements(page).found
    charts = [json.loads(attrs["data-chart"] or "") for _, attrs in found if "data-chart" in attrs]
    assert [len(chart["series"]) for chart in charts] == [3, 2]
    assert charts[0]["series"][0]["values"][-2] == 11.0
    for tag, attrs in found:
        assert tag != "img"
        assert not [name for name in attrs if name.startswith("on")]
        if tag == "script":
            assert (attrs["src"] or "").startswith("/ui/static/")
    assert "{{7*7}}" in page
    assert ">mail</th>" in page
    assert ">mail</th>" not in narrow
    assert ">shop.close</th>" in narrow
    assert ">shop.close</th>" not in foreign
