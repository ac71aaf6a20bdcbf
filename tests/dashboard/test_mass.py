"""Mass changes in the browser: from a group of dead jobs to its result."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Elements, Site, token_of
from tests.worker.waiting import wait_until
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node

HOSTILE = "<script>alert(1)</script>: \"'><img src=x onerror=alert(2)>"


def make_dead(site: Site, biz_type: str, count: int) -> list[int]:
    """Dead jobs whose error is hostile: the first two lines are their class."""
    handlers = Registry()

    @handlers.handler(biz_type, max_attempts=1)
    def fail(job: Job) -> None:
        raise type("Hostile", (ValueError,), {})(HOSTILE)

    jobs = [site.center.schedule(n, timedelta(), biz_type=biz_type) for n in range(count)]
    node = Node(site.settings, handlers=handlers)
    node.start()
    try:
        wait_until(
            lambda: all(site.center.get(job_id).status.name == "DEAD" for job_id in jobs),
            "the jobs to be dead", 60,
        )  # fmt: skip
    finally:
        node.stop()
    return jobs


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(token_of(site)) as visitor:
        yield visitor


def links(page: str) -> list[str]:
    return [attrs.get("href") or "" for tag, attrs in Elements(page).found if tag == "a"]


def form_of(page: str, action: str) -> dict[str, str]:
    """The fields of a form of a page, with their values."""
    fields: dict[str, str] = {}
    is_inside = False
    for tag, attrs in Elements(page).found:
        if tag == "form":
            is_inside = attrs.get("action") == action
        elif tag == "input" and is_inside:
            fields[attrs.get("name") or ""] = attrs.get("value") or ""
    return fields


def status_of(site: Site, job_id: int) -> str:
    found: Any = site.center.get(job_id)
    return str(found.status.name)


def test_a_group_of_dead_jobs_is_redriven(site: Site, admin: httpx.Client) -> None:
    dead_jobs = make_dead(site, "mail", 3)
    (link,) = [each for each in links(admin.get("/ui/dead").text) if "verb=redrive" in each]
    page = admin.get(link).text
    fields = form_of(page, "/ui/mass_changes")
    assert fields["expected_count"] == "3"
    assert (fields["verb"], fields["biz_type"]) == ("redrive", "mail")
    assert all(f"/ui/jobs/{job_id}" in page for job_id in dead_jobs)
    refused = admin.post("/ui/mass_changes", data=fields, headers=OWN)  # without a reason
    assert refused.status_code == 422
    assert "reason" in refused.text
    differs = fields | {"reason": HOSTILE, "expected_count": "1"}
    refused = admin.post("/ui/mass_changes", data=differs, headers=OWN)
    assert refused.status_code == 409
    again = form_of(refused.text, "/ui/mass_changes")
    assert (again["expected_count"], again["reason"]) == ("3", HOSTILE)
    assert {status_of(site, job_id) for job_id in dead_jobs} == {"DEAD"}
    answer = admin.post("/ui/mass_changes", data=again, headers=OWN)
    assert answer.status_code == 303
    path = answer.headers["location"]
    wait_until(lambda: "data-refresh" not in admin.get(path).text, "the end of the change")
    page = admin.get(path).text
    assert "done" in page
    assert {status_of(site, job_id) for job_id in dead_jobs} == {"PENDING"}
    listed = admin.get("/ui/mass_changes").text
    assert path in links(listed)
    for html in (page, listed, refused.text):
        assert "&lt;script&gt;" in html
        assert all(tag != "img" for tag, _ in Elements(html).found)


def test_a_group_of_dead_jobs_is_cancelled(site: Site, admin: httpx.Client) -> None:
    dead_jobs = make_dead(site, "shop.close", 3)
    (link,) = [each for each in links(admin.get("/ui/dead").text) if "verb=discard" in each]
    page = admin.get(link).text
    assert "cannot be redriven" in page  # that it is final
    fields = form_of(page, "/ui/mass_changes")
    assert (fields["verb"], fields["biz_type"], fields["expected_count"]) == (
        "discard",
        "shop.close",
        "3",
    )
    path = admin.post(
        "/ui/mass_changes", data=fields | {"reason": "nobody wants them"}, headers=OWN
    ).headers["location"]
    wait_until(lambda: "data-refresh" not in admin.get(path).text, "the end of the change")
    page = admin.get(path).text
    assert "Cancel dead jobs" in page
    assert {status_of(site, job_id) for job_id in dead_jobs} == {"CANCELLED"}
    assert "Cancel dead jobs" in admin.get("/ui/mass_changes").text
    with site.visitor(token_of(site), language="zh") as visitor:
        assert "取消死信任务" in visitor.get("/ui/mass_changes").text


def test_a_dead_job_is_cancelled_by_its_button(site: Site, admin: httpx.Client) -> None:
    (job_id,) = make_dead(site, "shop.close", 1)
    path = f"/ui/jobs/{job_id}"
    with site.visitor(token_of(site, scopes=("read", "cancel"))) as visitor:
        assert f"{path}/discard" not in visitor.get(path).text
        assert visitor.post(f"{path}/discard", headers=OWN).status_code == 403
    assert status_of(site, job_id) == "DEAD"
    page = admin.get(path).text
    (form,) = [part for part in page.split("<form") if f'action="{path}/discard"' in part]
    assert '<button class="danger">Cancel the dead job</button>' in form
    assert "never runs again" in form
    answer = admin.post(f"{path}/discard", data={"reason": "nobody wants it"}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}?said=cancelled")
    page = admin.get(path).text
    assert "nobody wants it" in page
    assert f"{path}/discard" not in page
    assert status_of(site, job_id) == "CANCELLED"


def test_pending_jobs_of_a_business_are_cancelled_and_a_stop_is_shown(
    site: Site, admin: httpx.Client
) -> None:
    jobs = [
        site.center.schedule("order-9", HOUR, biz_type="shop.close", dedup_key=f"k{n}")
        for n in range(5)
    ]
    query = {"biz_id": "order-9", "type": "shop.close"}
    (link,) = [
        each for each in links(admin.get("/ui/jobs", params=query).text) if "verb=cancel" in each
    ]
    fields = form_of(admin.get(link).text, "/ui/mass_changes")
    assert fields["expected_count"] == "5"
    data = fields | {"reason": "wrong orders", "rate_per_s": "1"}
    path = admin.post("/ui/mass_changes", data=data, headers=OWN).headers["location"]
    page = admin.get(path).text
    assert "data-refresh" in page
    assert f"{path}/stop" in page
    answer = admin.post(f"{path}/stop", headers=OWN)
    assert answer.headers["location"] == f"{path}?said=stopping"
    wait_until(lambda: "data-refresh" not in admin.get(path).text, "the end of the change")
    page = admin.get(path).text
    assert "stopped" in page
    (link,) = [each for each in links(page) if "/ui/mass_changes/new?" in each]
    left = form_of(admin.get(link).text, "/ui/mass_changes")
    assert int(left["expected_count"]) == sum(status_of(site, each) == "PENDING" for each in jobs)


def test_a_viewer_sees_changes_and_makes_none(site: Site) -> None:
    with site.visitor(token_of(site, scopes=("read",))) as viewer:
        assert "/ui/mass_changes/new" not in viewer.get("/ui/mass_changes").text
        assert "/ui/mass_changes/new" not in viewer.get("/ui/jobs").text
        assert viewer.get("/ui/mass_changes/new").status_code == 403
        assert viewer.post("/ui/mass_changes", headers=OWN).status_code == 403


def test_wrong_fields_are_told_on_the_form(admin: httpx.Client) -> None:
    query = {"biz_type": "mail", "since": "soon"}
    answer = admin.get("/ui/mass_changes/new", params=query)
    assert answer.status_code == 422
    assert "since" in answer.text
    assert admin.get("/ui/mass_changes/0123456789abcdef").status_code == 404
