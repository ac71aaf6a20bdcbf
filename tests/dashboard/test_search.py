"""The filters of the pages Jobs and Audit."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dashboard.site_world import HOUR, Elements, Site, token_of
from tests.http.served_world import declare_type
from tests.worker.waiting import wait_until
from toc.dashboard.form_times import field_time_of, parse_time_ms, rfc_time_of
from toc.dashboard.job_search import find_refusal
from toc.dashboard.site import make_site
from toc.domain.ids import JOB_ID_MAX
from toc.errors import InvalidInput
from toc.http.backend import SEARCHES_MAX
from toc.http.serve import WebServer
from toc.http.wire_times import format_time
from toc.runtime.settings import Settings
from toc.runtime.web_settings import WebSettings
from toc.store import migrate
from toc.store.job_search import SearchKey, place_between

HOSTILE = "<img src=x onerror=alert(1)>"
FAR = timedelta(days=3000)


def jobs_of(page: str) -> list[str]:
    """The ids of the table's jobs, in its order."""
    hrefs = [attrs.get("href") or "" for tag, attrs in Elements(page).found if tag == "a"]
    return [href.rsplit("/", 1)[1] for href in hrefs if re.fullmatch(r"/ui/jobs/\d+", href)]


def next_page_of(page: str) -> str | None:
    hrefs = [attrs.get("href") or "" for tag, attrs in Elements(page).found if tag == "a"]
    return next((href for href in hrefs if "after=" in href or "before=" in href), None)


def walk(visitor: httpx.Client, **query: str) -> list[str]:
    """The jobs of all pages."""
    page = visitor.get("/ui/jobs", params=query).text
    found = jobs_of(page)
    for _ in range(20):
        following = next_page_of(page)
        if following is None:
            return found
        page = visitor.get(following).text
        found += jobs_of(page)
    pytest.fail("the pages do not end")


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ({"type": "mail"}, "refuse_alone"),
        ({"until": "2030-01-01T00:00"}, "refuse_alone"),
        ({"key": "k", "status": "pending"}, "refuse_key"),
        ({"error": "x", "status": "done"}, "refuse_error"),
        ({"error": "x", "biz_id": "7"}, "refuse_error_of_business"),
        ({"status": "done", "type": "mail"}, "refuse_ended"),
        ({"status": "cancelled", "until": "2030-01-01T00:00"}, "refuse_ended"),
        ({"status": "done", "from": "2030-01-01T00:00"}, ""),
        ({"status": "pending"}, ""),
        ({"status": "dead", "error": "x"}, ""),
        ({"error": "x"}, ""),
        ({"biz_id": "7", "key": "k", "status": "done"}, ""),
    ],
)
def test_a_filter_that_would_read_a_table_says_which_field_to_add(
    site: Site, query: dict[str, str], refusal: str
) -> None:
    assert find_refusal(query) == refusal
    with site.visitor(token_of(site)) as visitor:
        answer = visitor.get("/ui/jobs", params=query)
    assert answer.status_code == 200
    assert ('role="alert"' in answer.text) is bool(refusal)


def test_pending_jobs_are_paged_by_due_time(site: Site) -> None:
    later = FAR + timedelta(days=100)  # than the jobs of all other tests
    wanted = [
        str(site.center.schedule(n, later + timedelta(seconds=n), biz_type=("mail", "shop.close")[n % 2]))
        for n in range(130)
    ]  # fmt: skip
    since = field_time(site, later - timedelta(hours=1))
    with site.visitor(token_of(site)) as visitor:
        found = walk(visitor, status="pending", **{"from": since})
        mails = walk(visitor, status="pending", type="mail", **{"from": since})
        page = visitor.get("/ui/jobs", params={"status": "pending", "from": since}).text
        assert f'value="{since}"' in page
        before = walk(visitor, status="pending", until=since)
    assert found == wanted
    assert mails == wanted[::2]
    assert not set(before) & set(wanted)
    with site.visitor(token_of(site, biz_types=("shop.*",))) as other:
        assert walk(other, status="pending", **{"from": since}) == wanted[1::2]
    with site.visitor(token_of(site, tenant="acme")) as tenant:
        assert walk(tenant, status="pending", **{"from": since}) == []
        query = {"status": "pending", "from": since}
        assert "Jobs looked at" not in tenant.get("/ui/jobs", params=query).text
        job_id = site.center.schedule("a", later, biz_type="mail", tenant="acme")
        assert walk(tenant, status="pending", **{"from": since}) == [str(job_id)]


def test_the_jobs_of_two_databases_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.dashboard.job_search.KEYS_MAX", 20)
    settings = Settings(
        databases=tuple(f"sqlite:///{tmp_path}/{n}.db" for n in range(2)), shards=2,
        redis_url="none", web=WebSettings(port=0),
    )  # fmt: skip
    migrate.upgrade(settings)
    declare_type(settings, "mail")
    server = WebServer(settings, make_site)
    server.start()
    try:
        site = Site(settings, server)
        wanted = [
            str(site.center.schedule(n, FAR + timedelta(seconds=n), biz_type="mail"))
            for n in range(130)
        ]
        with site.visitor(token_of(site)) as visitor:
            assert walk(visitor, status="pending") == wanted
            assert walk(visitor, status="pending", type="mail") == wanted
            assert walk(visitor, **{"from": "2025-01-01T00:00"}) == sorted(
                wanted, key=int, reverse=True
            )
    finally:
        assert server.stop()


def test_the_place_of_a_page_is_no_id_of_a_foreign_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.dashboard.job_search.KEYS_MAX", 20)
    late = FAR + timedelta(days=1)
    jobs = [
        str(site.center.schedule(n, late + timedelta(seconds=n // 90), biz_type=biz_type))
        for n, biz_type in enumerate(["shop.close", *["mail"] * 178, "shop.close"])
    ]
    foreign, own = jobs[1:-1], [jobs[0], jobs[-1]]
    with site.visitor(token_of(site, biz_types=("shop.*",))) as visitor:
        for query in (
            {"status": "pending", "from": field_time(site, late - HOUR)},
            {
                "status": "pending",
                "from": "2025-01-01T00:00",
            },  # also before the jobs of other tests
            {"from": "2025-01-01T00:00"},
        ):
            found, places = [], []
            page = visitor.get("/ui/jobs", params=query).text
            while (following := next_page_of(page)) is not None:
                assert len(places) < 200
                places += re.findall(r"after=\d+-(\d+)", following)
                found += jobs_of(page)
                page = visitor.get(following).text
            found += jobs_of(page)
            assert len(places) > 3
            assert not set(places) & set(foreign)
            assert set(own) <= set(found)
            assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ((5, 8), (5, 16), (5, 12)),
        ((5, 16), (5, 8), (5, 12)),  # descending
        ((5, 7), (5, 9), (5, 8)),
        ((5, 7), (5, 8), None),
        ((5, 7), (6, 7), (6, 0)),
        ((3, 7), (9, 7), (8, 0)),
        ((5, JOB_ID_MAX), (6, 0), None),
    ],
)
def test_a_place_lies_between_two_keys(
    one: tuple[int, int], other: tuple[int, int], place: tuple[int, int] | None
) -> None:
    assert place_between(SearchKey(*one), SearchKey(*other)) == place


def field_time(site: Site, later: timedelta) -> str:
    """The time of a form's field."""
    now_ms = site.server.backend.clock.wall_ms()
    return field_time_of(format_time(now_ms + int(later.total_seconds() * 1000)) or "")


def test_the_jobs_of_a_business_are_filtered_by_status_and_time(site: Site) -> None:
    jobs = [
        site.center.schedule("b-1", HOUR, biz_type="mail", dedup_key=f"k{n}") for n in range(70)
    ]
    for job_id in jobs[::2]:
        site.center.cancel(job_id)
    with site.visitor(token_of(site)) as visitor:
        cancelled = walk(visitor, biz_id="b-1", status="cancelled")
        pending = walk(visitor, biz_id="b-1", status="pending", type="mail")
        assert walk(visitor, biz_id="b-1", until="2025-01-01T00:00") == []
        assert walk(visitor, biz_id="b-1", **{"from": "2999-01-01T00:00"}) == []
        assert len(walk(visitor, biz_id="b-1", **{"from": "2025-01-01T00:00"})) == 70
        made = walk(visitor, status="cancelled", **{"from": "2025-01-01T00:00"})
    assert cancelled == [str(job_id) for job_id in jobs[::2][::-1]]
    assert pending == [str(job_id) for job_id in jobs[1::2][::-1]]
    assert set(cancelled) <= set(made)


@pytest.mark.parametrize(
    "query",
    [
        {"status": "lost", "from": "2025-01-01T00:00"},
        {"status": "pending", "from": "yesterday"},
        {"status": "pending", "until": HOSTILE},
        {"status": "pending", "from": "2030-01-02T00:00", "until": "2030-01-01T00:00"},
        {"status": "pending", "after": "1-x"},
        {"status": "pending", "after": f"1-{'9' * 19}"},
        {"status": "pending", "after": f"{'9' * 15}-1"},
        {"status": "dead", "error": "x" * 101},
        {"status": "pending", "type": HOSTILE},
    ],
)
def test_a_wrong_filter_is_refused_with_its_field(site: Site, query: dict[str, str]) -> None:
    with site.visitor(token_of(site)) as visitor:
        answer = visitor.get("/ui/jobs", params=query)
    assert answer.status_code == 200
    assert 'role="alert"' in answer.text
    assert not jobs_of(answer.text)
    assert not [tag for tag, _ in Elements(answer.text).found if tag == "img"]


@pytest.mark.parametrize(("query", "calls"), [("status=pending", 1), ("biz_id=7", 2)])
def test_searches_of_one_viewer_leave_places_for_all_other_calls(
    site: Site, monkeypatch: pytest.MonkeyPatch, query: str, calls: int
) -> None:
    backend = site.server.backend
    run, running, most = backend.calls.run, 0, 0

    async def run_slowly(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        return await run(*arguments)

    monkeypatch.setattr(backend.calls, "run", run_slowly)
    with site.visitor(token_of(site)) as visitor, ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda _: visitor.get(f"/ui/jobs?{query}"), range(12))
        assert {answer.status_code for answer in answers} == {200}
    assert most == SEARCHES_MAX * calls  # of a business there is a call for each of two types


# ---- the audit


def test_the_audit_is_filtered_and_paged(site: Site) -> None:
    token = token_of(site)
    token_id = token.split("_")[1]
    with site.visitor(token) as admin:
        job_id = site.center.schedule(77, HOUR, biz_type="mail")
        header = {"Sec-Fetch-Site": "same-origin"}
        for _ in range(120):
            admin.post(f"/ui/jobs/{job_id}/run_now", headers=header)
        admin.post(f"/ui/jobs/{job_id}/cancel", headers=header)

        def rows_of(page: str) -> list[str]:
            return re.findall(r'<td>(jobs\.\w+)</td><td class="long">' + str(job_id), page)

        def show(**query: Any) -> str:
            return admin.get("/ui/audit", params=query).text

        wait_until(lambda: rows_of(show(action="cancel", target=str(job_id))), "the audit", 60)
        first = show(who=token_id)
        assert rows_of(first)[0] == "jobs.cancel"
        following = next_page_of(first)
        assert following is not None
        rest = admin.get(following).text
        assert "jobs.cancel" not in rows_of(rest)
        assert len(rows_of(first)) == 100
        assert len(rows_of(first) + rows_of(rest)) == 121
        assert not rows_of(show(who=token_id, until="2025-01-01T00:00"))
        assert len(rows_of(show(who=token_id, **{"from": "2025-01-01T00:00"}))) == 100
        assert rows_of(show(who="TEST", action="jobs.cancel", target=str(job_id))) == [
            "jobs.cancel"
        ]
        for wrong in ({"after": "1-2-3"}, {"from": HOSTILE}, {"who": "x" * 101}):
            page = show(**wrong)
            assert 'role="alert"' in page
            assert not [tag for tag, _ in Elements(page).found if tag == "img"]


@pytest.mark.parametrize(
    ("text", "time", "shown"),
    [
        ("2030-01-31T18:00", "2030-01-31T18:00:00Z", "2030-01-31T18:00:00"),
        ("2030-01-31T18:00:05", "2030-01-31T18:00:05Z", "2030-01-31T18:00:05"),
        ("2030-01-31T18:00:00+08:00", "2030-01-31T18:00:00+08:00", "2030-01-31T10:00:00"),
        ("soon", "soon", ""),
        ("2030-02-31T18:00", "2030-02-31T18:00:00Z", ""),
    ],
)
def test_times_of_fields_are_utc(text: str, time: str, shown: str) -> None:
    assert rfc_time_of(text) == time
    assert field_time_of(text) == shown
    if not shown:
        with pytest.raises(InvalidInput, match="from"):
            parse_time_ms("from", text)
