"""The pages of recurring schedules: times in both zones, runs, and the backfill of a range."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Elements, Site, token_of

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{7*7}}"
SHANGHAI = ZoneInfo("Asia/Shanghai")


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(token_of(site)) as visitor:
        yield visitor


def test_next_times_are_shown_in_both_zones(site: Site, admin: httpx.Client) -> None:
    site.center.recur("nightly", cron="0 3 * * *", tz="Asia/Shanghai", biz_type="mail")
    listed, page = admin.get("/ui/recurring").text, admin.get("/ui/recurring/nightly").text
    assert '/ui/recurring/nightly"' in listed
    for text in (listed, page):
        assert "03:00:00 +0800" in text
        assert "19:00:00 UTC" in text
    assert page.count("03:00:00 +0800") == 10


def test_runs_are_listed_with_who_made_them(site: Site, admin: httpx.Client) -> None:
    site.center.recur("often", every=HOUR, biz_type="mail")
    chain = site.center.recurring.get("often").job_id
    answer = admin.post("/ui/recurring/often/run", headers=OWN)
    assert answer.status_code == 303
    page = admin.get("/ui/recurring/often").text
    rows = page.split("<tbody>")[2].split("<tr>")[1:]
    assert len(rows) == 2
    assert f"/ui/jobs/{chain}" in rows[1]
    assert "the schedule" in rows[1]
    assert "a person" in rows[0]


def test_a_range_is_counted_before_it_is_made(site: Site, admin: httpx.Client) -> None:
    site.center.recur("hourly", every=HOUR, tz="Asia/Shanghai", biz_type="mail")
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    wall = {
        "start": f"{(end - 4 * HOUR).astimezone(SHANGHAI):%Y-%m-%dT%H:%M}",
        "end": f"{end.astimezone(SHANGHAI):%Y-%m-%dT%H:%M:%S}",
    }
    page = admin.get("/ui/recurring/hourly", params=wall).text
    assert "<strong>5</strong> jobs would be made; 0 times had a job already" in page
    assert len(site.center.find("hourly", "mail")) == 1  # nothing was made yet
    fields = {
        str(attrs["name"]): str(attrs["value"])
        for tag, attrs in Elements(page).found
        if tag == "input" and attrs.get("type") == "hidden" and attrs["name"] != "page"
    }
    answer = admin.post("/ui/recurring/hourly/backfill", data=fields, headers=OWN)
    assert answer.headers["location"] == "/ui/recurring/hourly?said=ok"
    assert len(site.center.find("hourly", "mail")) == 6
    page = admin.get("/ui/recurring/hourly", params=wall).text
    assert "<strong>0</strong> jobs would be made; 5 times had a job already" in page
    assert "/backfill" not in page


def test_an_end_that_lies_ahead_becomes_now(site: Site, admin: httpx.Client) -> None:
    site.center.recur("minutely", every=timedelta(minutes=1), biz_type="mail")
    start = datetime.now(UTC) - timedelta(minutes=10)
    wall = {"start": start.isoformat(), "end": (start + 24 * HOUR).isoformat()}
    page = admin.get("/ui/recurring/minutely", params=wall).text
    ends = [attrs for tag, attrs in Elements(page).found if attrs.get("name") == "end"]
    hidden = next(attrs["value"] for attrs in ends if attrs.get("type") == "hidden")
    assert hidden is not None
    assert datetime.fromisoformat(hidden) < start + HOUR


@pytest.mark.parametrize(
    ("wall", "words"),
    [
        ({"start": "soon", "end": "2026-01-01T00:00"}, "start: must be a time"),
        ({"start": HOSTILE, "end": HOSTILE}, "start: must be a time"),
        ({"start": "x" * 5000}, "start: must be a time"),
        ({"start": "2999-01-01T00:00", "end": "2999-01-02T00:00"}, "must not lie ahead"),
        ({"start": "2001-01-01T00:00", "end": "2001-01-02T00:00"}, "retention.occurrence_days"),
        ({"start": "0001-01-01T00:00+14:00", "end": "2001-01-02T00:00"}, "start: must be a time"),
    ],
)
def test_a_wrong_range_is_refused_with_the_reason(
    site: Site, admin: httpx.Client, wall: dict[str, str], words: str
) -> None:
    site.center.recur("strict", every=HOUR, biz_type="mail")
    answer = admin.get("/ui/recurring/strict", params=wall)
    assert answer.status_code == 200
    assert words in answer.text
    assert all(tag != "img" for tag, _ in Elements(answer.text).found)


def test_too_large_a_range_is_refused(site: Site, admin: httpx.Client) -> None:
    site.center.recur("secondly", every=timedelta(seconds=1), biz_type="mail")
    start = datetime.now(UTC) - 24 * HOUR
    wall = {"start": start.isoformat(), "end": (start + 23 * HOUR).isoformat()}
    assert "limits.backfill" in admin.get("/ui/recurring/secondly", params=wall).text


def test_schedules_of_other_types_are_not_there_and_viewers_have_no_forms(site: Site) -> None:
    site.center.recur("secretive", every=HOUR, biz_type="mail")
    range_ = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}
    for limits in ({"biz_types": ("shop.*",)}, {"tenant": "acme"}):
        with site.visitor(token_of(site, **limits)) as visitor:
            assert "secretive" not in visitor.get("/ui/recurring").text
            assert visitor.get("/ui/recurring/secretive").status_code == 404
            answer = visitor.post("/ui/recurring/secretive/backfill", data=range_, headers=OWN)
            assert answer.status_code == 404
    with site.visitor(token_of(site, scopes=("read",))) as viewer:
        page = viewer.get("/ui/recurring/secretive", params=range_).text
        assert "secretive" in page
        assert "Backfill" not in page
        answer = viewer.post("/ui/recurring/secretive/backfill", data=range_, headers=OWN)
        assert answer.status_code == 403
    assert len(site.center.find("secretive", "mail")) == 1


def test_hostile_reasons_are_text(site: Site, admin: httpx.Client) -> None:
    site.center.recur("odd", every=HOUR, biz_type="mail")
    site.center.recurring.pause("odd", reason=HOSTILE, actor=HOSTILE[:40])
    for path in ("/ui/recurring/odd", f"/ui/recurring/odd?said={HOSTILE}", "/ui/recurring/<img>"):
        answer = admin.get(path)
        assert all(tag != "img" for tag, _ in Elements(answer.text).found)
    assert "{{7*7}}" in admin.get("/ui/recurring/odd").text
