"""The page of dead jobs, with jobs that a real node has given up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.dashboard.site_world import Elements, Site, token_of
from tests.dashboard.test_search import jobs_of, walk
from tests.worker.waiting import wait_until
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def dead_jobs(site: Site) -> dict[str, int]:
    """A dead job of each type."""
    handlers = Registry()

    @handlers.handler("mail", max_attempts=1)
    def mail(job: Job) -> None:
        raise ValueError(HOSTILE)

    @handlers.handler("shop.close", max_attempts=1)
    def close(job: Job) -> None:
        raise LookupError("no such order")

    jobs = {
        name: site.center.schedule(1, timedelta(), biz_type=name) for name in ("mail", "shop.close")
    }
    node = Node(site.settings, handlers=handlers)
    node.start()
    try:
        wait_until(
            lambda: all(site.center.get(job_id).status.name == "DEAD" for job_id in jobs.values()),
            "both jobs to be dead", 60,
        )  # fmt: skip
    finally:
        node.stop()
    return jobs


def test_dead_jobs_are_shown_by_type_and_error(site: Site, dead_jobs: dict[str, int]) -> None:
    with site.visitor(token_of(site)) as visitor:
        page = visitor.get("/ui/dead").text
        detail = visitor.get(f"/ui/jobs/{dead_jobs['mail']}").text
    assert "ValueError" in page
    assert "LookupError" in page
    for job_id in dead_jobs.values():
        assert f"/ui/jobs/{job_id}" in page
    assert "&lt;script&gt;alert(1)" in detail
    assert f"/ui/jobs/{dead_jobs['mail']}/redrive" in detail
    for html in (page, detail):
        assert all(tag != "img" for tag, _ in Elements(html).found)


def test_dead_jobs_of_other_types_and_tenants_are_not_shown(
    site: Site, dead_jobs: dict[str, int]
) -> None:
    with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
        page = visitor.get("/ui/dead").text
        assert "LookupError" in page
        assert "ValueError" not in page
        assert str(dead_jobs["mail"]) not in page
    with site.visitor(token_of(site, tenant="acme")) as visitor:
        assert "LookupError" not in visitor.get("/ui/dead").text


def test_dead_jobs_are_found_by_their_error(site: Site, dead_jobs: dict[str, int]) -> None:
    with site.visitor(token_of(site)) as visitor:
        page = visitor.get("/ui/jobs", params={"error": "ONERROR=alert"}).text
        assert jobs_of(page) == [str(dead_jobs["mail"])]
        assert "&lt;script&gt;alert(1)" in page
        assert not [tag for tag, _ in Elements(page).found if tag == "img"]
        assert walk(visitor, error="no such order") == [str(dead_jobs["shop.close"])]
        assert set(walk(visitor, status="dead")) >= set(map(str, dead_jobs.values()))
        assert walk(visitor, status="dead", until="2025-01-01T00:00") == []
    with site.visitor(token_of(site, biz_types=("shop.*",))) as other:
        assert walk(other, error="alert") == []
        assert walk(other, status="dead") == [str(dead_jobs["shop.close"])]


def test_the_error_of_a_masked_type_is_neither_shown_nor_found(
    site: Site, dead_jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = site.server.backend
    web = backend.settings.web.model_copy(update={"masked_types": ("mail",)})
    monkeypatch.setattr(backend, "settings", backend.settings.model_copy(update={"web": web}))
    mail, close = str(dead_jobs["mail"]), str(dead_jobs["shop.close"])
    with site.visitor(token_of(site, scopes=("read",))) as reader:
        assert walk(reader, error="alert") == []
        assert walk(reader, error="no such order") == [close]
        page = reader.get("/ui/jobs", params={"status": "dead"}).text
        assert {mail, close} <= set(jobs_of(page))
        assert "alert(1)" not in page
        assert "alert(1)" not in reader.get(f"/ui/jobs/{mail}").text
    with site.visitor(token_of(site)) as admin:
        assert walk(admin, error="alert") == [mail]
