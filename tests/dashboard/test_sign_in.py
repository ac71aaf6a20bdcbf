"""Who may see a page, and where its forms may come from."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.dashboard.site_world import HOUR, OWN, Site, open_site, token_of
from tests.http.served_world import revoke_token
from toc.dashboard.site import PAGES


def test_a_visitor_without_a_token_is_sent_to_the_page_that_asks_for_one(site: Site) -> None:
    token_of(site)  # from now on there are tokens
    with site.visitor() as visitor:
        for page in PAGES:
            if page.scope is None:
                continue
            path = page.path.format(
                job_id="1", biz_type="mail", name="x", mass_change_id="0123456789abcdef"
            )
            answer = visitor.request(page.method, path, headers=OWN)
            assert answer.status_code == 303, path
            assert answer.headers["location"].partition("?")[0] == "/ui/sign-in"
        assert visitor.get("/ui/sign-in").status_code == 200


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(site: Site) -> None:
    token = token_of(site)
    with site.visitor() as visitor:
        answer = visitor.post("/ui/sign-in", data={"token": token}, headers=OWN)
        cookie = answer.headers["set-cookie"].lower()
        assert {"httponly", "samesite=strict", "path=/ui"} <= set(cookie.split("; "))
        assert visitor.get("/ui/jobs").status_code == 200
        assert token not in visitor.get("/ui/jobs").text


@pytest.mark.parametrize("token", ["", "toc_aaaaaaaaaaaa_bbb", "é", "x" * 5000, "a\r\nb"])
def test_a_wrong_token_is_refused(site: Site, token: str) -> None:
    token_of(site)
    with site.visitor() as visitor:
        answer = visitor.post("/ui/sign-in", data={"token": token}, headers=OWN)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert visitor.get("/ui/").status_code == 303


def test_a_revoked_token_signs_out(site: Site) -> None:
    token = token_of(site)
    with site.visitor(token) as visitor:
        assert visitor.get("/ui/jobs").status_code == 200
        revoke_token(site.settings, token)
        site.server.backend.access.refresh_now()
        assert visitor.get("/ui/jobs").headers["location"] == "/ui/sign-in?next=%2Fui%2Fjobs"


def test_signing_out_takes_the_cookie_back(site: Site) -> None:
    with site.visitor(token_of(site)) as visitor:
        visitor.post("/ui/sign-out", headers=OWN)
        assert visitor.get("/ui/jobs").status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    ],
)
def test_a_form_of_another_site_is_refused(site: Site, headers: dict[str, str]) -> None:
    job_id = site.center.schedule(7, HOUR, biz_type="mail")
    with site.visitor(token_of(site)) as visitor:
        for path in (f"/ui/jobs/{job_id}/cancel", "/ui/sign-in", "/ui/sign-out", "/ui/language"):
            assert visitor.post(path, headers=headers).status_code == 403, path
    assert site.center.get(job_id).status.name == "PENDING"


def test_a_form_with_the_origin_of_this_server_is_accepted(site: Site) -> None:
    with site.visitor(token_of(site)) as visitor:
        answer = visitor.post("/ui/sign-out", headers={"Origin": site.server.url})
        assert answer.status_code == 303


def test_a_token_that_may_not_read_sees_nothing(site: Site) -> None:
    with site.visitor(token_of(site, scopes=("schedule",))) as visitor:
        assert visitor.get("/ui/jobs").status_code == 403


def test_without_any_token_only_this_machine_sees_pages(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, site.visitor() as visitor:
        assert visitor.get("/ui/jobs").status_code == 200
        for headers in ({"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}):
            assert visitor.get("/ui/jobs", headers=headers).status_code == 303
        assert visitor.get("/ui/jobs", headers={"Host": "evil.example"}).status_code == 421


def test_the_pages_can_be_left_out(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"dashboard": False}) as site, site.visitor() as visitor:
        assert visitor.get("/ui/").status_code == 404
        assert visitor.get("/v1/types").status_code == 200


def test_every_page_forbids_frames_and_foreign_scripts(site: Site) -> None:
    with site.visitor(token_of(site)) as visitor:
        for path in ("/ui/", "/ui/sign-in", "/ui/jobs/1", "/ui/jobs?biz_id=%01"):
            headers = visitor.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"


def test_too_large_a_form_is_refused(site: Site) -> None:
    with site.visitor(token_of(site)) as visitor:
        answer = visitor.post("/ui/language", data={"page": "x" * 20_000}, headers=OWN)
        assert answer.status_code == 413
        many = httpx.QueryParams({f"f{n}": "" for n in range(60)})
        answer = visitor.post("/ui/language", content=str(many), headers=OWN)
        assert answer.status_code == 400


def test_the_language_is_chosen_and_leads_back_to_a_page_of_ours(site: Site) -> None:
    with site.visitor(token_of(site)) as visitor:
        answer = visitor.post(
            "/ui/language", data={"language": "zh", "page": "/ui/jobs"}, headers=OWN
        )
        assert answer.headers["location"] == "/ui/jobs"
        assert 'lang="zh"' in visitor.get("/ui/jobs").text.splitlines()[1]
        for page in ("https://evil.example", "//evil.example", "/ui/\\evil", "/ui/\r\nX: y"):
            answer = visitor.post(
                "/ui/language", data={"language": "en", "page": page}, headers=OWN
            )
            assert answer.headers["location"] == "/ui/"
