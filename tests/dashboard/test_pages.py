"""What the pages show, and what their buttons do."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from importlib.resources import files
from typing import get_args

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Elements, Site, token_of
from tests.worker.waiting import wait_until
from toc.access.audit_list import list_audit
from toc.dashboard.operation_pages import group_dead
from toc.dashboard.site import PAGES
from toc.dashboard.static_files import _FILES, read_file
from toc.dashboard.texts import LANGUAGES, texts_of
from toc.domain.job import DeadJob
from toc.domain.mass_change import MassVerb, error_class_of

HOSTILE = (
    "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{1234*4321}}javascript:alert(3)"
)
MASS_STATES = ("running", "done", "stopped", "interrupted")
OF_MASS_CHANGES = {f"mass_{word}" for word in (*MASS_STATES, *get_args(MassVerb))}
SHOWN = [page.path for page in PAGES if page.method == "GET" and "{" not in page.path]


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(token_of(site)) as visitor:
        yield visitor


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("path", SHOWN)
def test_every_page_is_shown_in_every_language(site: Site, path: str, language: str) -> None:
    with site.visitor(token_of(site), language) as visitor:
        answer = visitor.get(path)
    assert answer.status_code == 200
    assert f'<html lang="{language}">' in answer.text


def test_now_says_how_late_the_oldest_job_is(site: Site, admin: httpx.Client) -> None:
    job_id = site.center.schedule(1, timedelta(), biz_type="mail")
    site.server.backend.center.cancel(job_id)
    assert "Nothing is late" in admin.get("/ui/").text


def test_jobs_are_found_by_business_id_over_all_types(site: Site, admin: httpx.Client) -> None:
    first = site.center.schedule("order-77", HOUR, biz_type="mail")
    second = site.center.schedule("order-77", HOUR, biz_type="shop.close")
    page = admin.get("/ui/jobs", params={"biz_id": "order-77"}).text
    assert page.index(f"/ui/jobs/{second}") < page.index(f"/ui/jobs/{first}")
    page = admin.get("/ui/jobs", params={"biz_id": "order-77", "type": "mail"}).text
    assert f"/ui/jobs/{first}" in page
    assert f"/ui/jobs/{second}" not in page
    assert "No job was found" in admin.get("/ui/jobs", params={"biz_id": "order-78"}).text


def test_pages_of_jobs_leave_out_none_and_repeat_none(site: Site, admin: httpx.Client) -> None:
    wanted = {
        str(
            site.center.schedule(
                4_242, HOUR, biz_type=("mail", "shop.close")[n % 2], dedup_key=f"k{n}"
            )
        )
        for n in range(120)
    }
    seen: list[str] = []
    path = "/ui/jobs?biz_id=4242"
    for _ in range(5):
        found = Elements(admin.get(path).text).found
        links = [attrs.get("href") or "" for tag, attrs in found if tag == "a"]
        seen += [link.rsplit("/", 1)[1] for link in links if link.startswith("/ui/jobs/")]
        following = [link for link in links if "before=" in link]
        if not following:
            break
        path = following[0]
    assert len(seen) == len(set(seen))
    assert set(seen) == wanted


def test_a_job_id_leads_to_the_page_of_the_job(site: Site, admin: httpx.Client) -> None:
    job_id = site.center.schedule(5, HOUR, attribute={"note": "fragile"}, biz_type="mail")
    answer = admin.get("/ui/jobs", params={"job_id": f" {job_id} "})
    assert answer.headers["location"] == f"/ui/jobs/{job_id}"
    page = admin.get(f"/ui/jobs/{job_id}").text
    assert "fragile" in page
    assert "pending" in page
    for wrong in ("abc", "-1", "1" * 30):
        assert admin.get("/ui/jobs", params={"job_id": wrong}).status_code == 422
    assert admin.get("/ui/jobs/12345").status_code == 404


def test_buttons_change_the_job_and_stand_in_the_audit(site: Site, admin: httpx.Client) -> None:
    job_id = site.center.schedule(6, HOUR, biz_type="mail")
    assert f"/ui/jobs/{job_id}/cancel" in admin.get(f"/ui/jobs/{job_id}").text
    answer = admin.post(f"/ui/jobs/{job_id}/cancel", data={"reason": "wrong one"}, headers=OWN)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/ui/jobs/{job_id}?said=cancelled"
    page = admin.get(answer.headers["location"]).text
    assert "wrong one" in page
    assert "<strong>cancelled</strong>" in page
    assert f"/ui/jobs/{job_id}/cancel" not in page
    again = admin.post(f"/ui/jobs/{job_id}/cancel", headers=OWN)
    assert again.headers["location"].endswith("?said=already_cancelled")
    databases = site.server.backend.databases

    def find_entry() -> bool:
        entries = (each.row for each in list_audit(databases, 100))
        return any((row.action, row.target) == ("jobs.cancel", str(job_id)) for row in entries)

    wait_until(find_entry, "the entry in the audit", 60)


def test_a_viewer_has_no_buttons_and_cannot_use_them(site: Site) -> None:
    job_id = site.center.schedule(8, HOUR, biz_type="mail")
    with site.visitor(token_of(site, scopes=("read",))) as viewer:
        assert "/cancel" not in viewer.get(f"/ui/jobs/{job_id}").text
        assert "/pause" not in viewer.get("/ui/types").text
        for path in (f"/ui/jobs/{job_id}/cancel", "/ui/types/mail/pause"):
            assert viewer.post(path, headers=OWN).status_code == 403
        refused = viewer.get("/ui/audit")
        assert refused.status_code == 403
        assert "it lacks the scope admin" in refused.text
    assert site.center.get(job_id).status.name == "PENDING"
    assert not site.center.pauses()


def test_a_token_for_one_type_sees_no_other(site: Site) -> None:
    job_id = site.center.schedule(9, HOUR, biz_type="mail")
    with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
        assert visitor.get(f"/ui/jobs/{job_id}").status_code == 404
        answer = visitor.post(f"/ui/jobs/{job_id}/cancel", headers=OWN)
        assert answer.headers["location"].endswith("?said=unknown")
        assert "mail" not in visitor.get("/ui/types").text
        assert visitor.post("/ui/types/mail/pause", headers=OWN).status_code == 403
        assert visitor.get("/ui/audit").status_code == 403
    assert site.center.get(job_id).status.name == "PENDING"


def test_a_type_is_paused_and_resumed(site: Site, admin: httpx.Client) -> None:
    answer = admin.post(
        "/ui/types/mail/pause", data={"delay": "PT1H", "reason": "mail is down"}, headers=OWN
    )
    assert answer.headers["location"] == "/ui/types/mail?said=paused"
    (pause,) = site.center.pauses()
    assert (pause.target, pause.reason) == ("type:mail", "mail is down")
    admin.post("/ui/types/mail/resume", data={"now": "true"}, headers=OWN)
    assert not [each for each in site.center.pauses() if each.state == "paused"]
    wrong = admin.post("/ui/types/mail/pause", data={"delay": "soon"}, headers=OWN)
    assert wrong.status_code == 422
    assert "delay" in wrong.text


def test_hostile_texts_are_only_text(site: Site, admin: httpx.Client) -> None:
    job_id = site.center.schedule(HOSTILE[:60], HOUR, attribute={"a": HOSTILE}, biz_type="mail")
    site.center.cancel(job_id, reason=HOSTILE, actor=HOSTILE[:60])
    site.center.pause("mail", reason=HOSTILE)
    try:
        pages = [
            admin.get(f"/ui/jobs/{job_id}?said={HOSTILE}").text,
            admin.get("/ui/jobs", params={"biz_id": HOSTILE[:60], "key": HOSTILE}).text,
            admin.get("/ui/jobs", params={"biz_id": "x", "type": HOSTILE}).text,
            admin.get("/ui/", params={"x": HOSTILE}).text,
            admin.get("/ui/types").text,
            admin.get("/ui/audit", params={"token": HOSTILE}).text,
        ]
    finally:
        site.center.resume("mail", now=True)
    assert "5332114" not in pages[1]
    for page in pages:
        for tag, attrs in Elements(page).found:
            assert tag != "img"
            assert not [name for name in attrs if name.startswith("on")], attrs
            if tag == "script":
                assert (attrs["src"] or "").startswith("/ui/static/")
            assert not (attrs.get("href") or "").startswith("javascript")


def test_dead_jobs_are_grouped_by_type_and_error() -> None:
    jobs = [
        DeadJob(1, 1, "mail", 3, "ValueError: a\n  File x", 100),
        DeadJob(2, 2, "mail", 3, "ValueError: b", 300),
        DeadJob(3, 3, "mail", 3, "KeyError: 'x'", 200),
        DeadJob(4, 4, "shop", 3, "", 200),
    ]
    groups = group_dead(jobs)
    first = groups[0]
    assert (first.biz_type, first.error, first.count) == ("mail", "ValueError", 2)
    assert (first.first_ms, first.last_ms, first.example.job_id) == (100, 300, 2)
    assert sum(group.count for group in groups) == 4
    assert error_class_of("no colon here") == "no colon here"
    assert error_class_of("http.client.HTTPException: x") == "http.client.HTTPException"
    assert error_class_of("a sentence: with more") == "a sentence: with more"


def test_every_text_has_all_languages_and_is_used() -> None:
    package = files("toc.dashboard")
    table = tomllib.loads(package.joinpath("texts.toml").read_text("utf-8"))
    sources = "".join(
        each.read_text("utf-8")
        for folder in (package, package.joinpath("templates"))
        for each in folder.iterdir()
        if each.name.endswith((".py", ".html"))
    )
    for name, both in table.items():
        assert set(both) == set(LANGUAGES), name
        assert all(both.values()), name
        is_made = (
            name.startswith(("state_", "verdict_", "step_", "ordered_by_", "field_"))
            or name in OF_MASS_CHANGES
        )
        assert is_made or f'"{name}"' in sources, f"{name} is not used"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (3.24, "3.2 s"),
        (59.99, "60.0 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert texts_of("en").duration(seconds) == text


def test_scripts_are_small_and_vendored_files_are_as_their_packages_have_them() -> None:
    folder = files("toc.dashboard").joinpath("static", "vendor")
    listed = tomllib.loads(folder.joinpath("VENDOR.toml").read_text())["file"]
    for each in listed:
        content = folder.joinpath(each["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == each["sha256"], each["name"]
    there = {each.name for each in folder.iterdir()} - {"VENDOR.toml"}
    assert there == {each["name"] for each in listed}
    scripts = sum(len(read_file(name).content) for name in _FILES if name.endswith(".js"))
    assert scripts < 120_000


def test_static_files_are_those_of_the_list(site: Site) -> None:
    with site.visitor() as visitor:
        found = read_file("app.css")
        answer = visitor.get(f"/ui/static/app.css?v={found.version}")
        assert answer.content == found.content
        assert "immutable" in answer.headers["cache-control"]
        assert "immutable" not in visitor.get("/ui/static/app.css").headers["cache-control"]
        for path in ("texts.toml", "../texts.toml", "%2e%2e/texts.toml", "vendor/VENDOR.toml", ""):
            assert visitor.get(f"/ui/static/{path}").status_code == 404
