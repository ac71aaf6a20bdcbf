"""People whom a proxy has signed in; the read-only dashboard; masks; the name of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.site_world import HOUR, OWN, Elements, Site, open_site, token_of
from tests.http.served_world import open_client
from tests.worker.waiting import wait_until
from toc.access.audit_list import list_audit
from toc.access.caller import Caller
from toc.dashboard.operation_pages import group_dead
from toc.dashboard.visit import kind_of_environment
from toc.domain.job import DeadJob
from toc.errors import SettingsError
from toc.http.masks import MASKED, mask_dead_job, mask_reason
from toc.runtime.settings import load_settings

ALICE = {"X-Forwarded-User": "alice@example.com", "X-Forwarded-Groups": "staff, operators"}
ROLES = [
    {"groups": ["admins"], "role": "admin"},
    {"groups": ["operators"], "role": "operator", "types": ["mail"]},
]


def proxy_settings(*proxies: str, **more: Any) -> dict[str, Any]:
    sign_in = {"proxy_header": "X-Forwarded-User", "proxies": proxies, "roles": ROLES}
    return {"sign_in": sign_in, **more}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # What X-Forwarded-For says is believed; whether the header of the person is, depends on the connection.
    web = proxy_settings("127.0.0.0/8", trusted_proxies=["127.0.0.1"])
    with open_site(tmp_path_factory.mktemp("proxied"), web=web) as made:
        yield made


def test_a_person_of_a_proxy_has_the_role_of_a_group(proxied: Site) -> None:
    mail = proxied.center.schedule(1, HOUR, biz_type="mail")
    shop = proxied.center.schedule(1, HOUR, biz_type="shop.close")
    headers = ALICE | {"X-Forwarded-For": "203.0.113.9"}
    with proxied.visitor() as visitor:
        page = visitor.get("/ui/jobs?biz_id=1", headers=headers).text
        assert f"/ui/jobs/{mail}" in page
        assert f"/ui/jobs/{shop}" not in page
        assert visitor.post(f"/ui/jobs/{mail}/cancel", headers=headers).status_code == 403
        answer = visitor.post(f"/ui/jobs/{mail}/cancel", headers=headers | OWN)
        assert answer.status_code == 303
        assert (
            "token:-:proxy:alice@example.com"
            in visitor.get(f"/ui/jobs/{mail}", headers=headers).text
        )
    proxied.server.backend.access.audit.run_once()
    (entry,) = [
        each.row
        for each in list_audit(proxied.server.backend.databases, 20)
        if each.row.action == "jobs.cancel"
    ]
    assert (entry.owner, entry.token_id, entry.address) == (
        "proxy:alice@example.com", None, "203.0.113.9",
    )  # fmt: skip


def test_the_header_of_the_person_counts_only_for_pages(proxied: Site) -> None:
    token_of(proxied)
    with open_client(proxied.server.url) as client:
        assert client.get("/v1/types", headers=ALICE).status_code == 401


def test_a_person_of_a_proxy_on_this_machine_is_no_program_here(tmp_path: Path) -> None:
    # The proxy connects from loopback, and its call may have no other header that tells it from a program's.
    with open_site(tmp_path, web=proxy_settings("127.0.0.1")) as site:
        with open_client(site.server.url) as client:
            assert client.get("/v1/types", headers=ALICE).status_code == 401
            assert client.post("/v1/all:pause", headers=ALICE).status_code == 401
            assert client.get("/v1/types").status_code == 200
        assert not site.center.pauses()


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "bob")],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", "a" * 100)],
        [("X-Forwarded-User", b"\xff\xfe")],
        [("X-Forwarded-User", "alice"), ("X-Forwarded-Groups", "strangers")],
        [("X-Forwarded-User", "alice")],
    ],
)
def test_a_person_who_is_not_clear_or_has_no_role_is_refused(
    proxied: Site, headers: list[tuple[str, Any]]
) -> None:
    with proxied.visitor() as visitor:
        assert visitor.get("/ui/jobs", headers=headers).status_code == 403


def test_without_the_header_the_page_asks_for_a_token(proxied: Site) -> None:
    with proxied.visitor() as visitor:
        assert visitor.get("/ui/jobs").headers["location"].startswith("/ui/sign-in")


def test_the_header_from_elsewhere_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # X-Forwarded-For names the proxy: but the connection does not come from there.
    web = proxy_settings("10.1.2.3", trusted_proxies=["127.0.0.1"])
    with open_site(tmp_path, web=web) as site:
        token = token_of(site)
        with site.visitor(token) as visitor:
            for more in ({}, {"X-Forwarded-For": "10.1.2.3"}):
                for path in ("/ui/jobs", "/ui/sign-in"):
                    answer = visitor.get(path, headers=ALICE | more)
                    assert answer.status_code == 403
                    assert "accepted only from web.sign_in.proxies" in answer.text
            assert visitor.get("/ui/jobs").status_code == 200
    assert "it comes from none of web.sign_in.proxies" in caplog.text


def test_a_header_that_no_setting_names_means_nothing(site: Site) -> None:
    token_of(site)
    with site.visitor() as visitor:
        assert visitor.get("/ui/jobs", headers=ALICE).status_code == 303


# ---- read-only


def test_a_read_only_dashboard_shows_no_button_and_changes_nothing(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"dashboard_read_only": True, "sql": True}) as site:
        job_id = site.center.schedule(1, HOUR, biz_type="mail")
        with site.visitor(token_of(site)) as visitor:
            paths = ("/ui/types", "/ui/types/mail", "/ui/recurring", "/ui/sql")
            for path in (f"/ui/jobs/{job_id}", *paths):
                page = visitor.get(path).text
                assert "Read-only" in page
                forms = [it for tag, it in Elements(page).found if tag == "form"]
                posted = {it["action"] for it in forms if it.get("method") == "post"}
                assert posted == {"/ui/language", "/ui/sign-out"}
            answer = visitor.post(f"/ui/jobs/{job_id}/cancel", headers=OWN)
            assert answer.status_code == 403
            assert "read-only" in answer.text
            assert visitor.post("/ui/types/mail/pause", headers=OWN).status_code == 403
            assert visitor.get("/ui/audit").status_code == 200
            assert "it runs no statements" in visitor.get("/ui/sql").text
            assert (
                visitor.post("/ui/sql", data={"statement": "SELECT 1"}, headers=OWN).status_code
                == 403
            )
            assert visitor.post("/ui/sign-out", headers=OWN).status_code == 303
        assert site.center.get(job_id).status.name == "PENDING"
        with open_client(site.server.url, token_of(site)) as client:  # HTTP is not concerned
            assert client.post(f"/v1/jobs/{job_id}:cancel").status_code == 200


# ---- masks


def test_payloads_of_masked_types_are_for_admins_alone(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"masked_types": ["ma*"]}) as site:
        job_id = site.center.schedule(1, HOUR, attribute={"card": "4111"}, biz_type="mail")
        plain = site.center.schedule(1, HOUR, attribute={"card": "4222"}, biz_type="shop.close")
        reader = token_of(site, scopes=("read", "operate"))
        with site.visitor(reader) as visitor, open_client(site.server.url, reader) as client:
            page = visitor.get(f"/ui/jobs/{job_id}").text
            assert "4111" not in page
            assert "only to the scope admin" in page
            assert "4222" in visitor.get(f"/ui/jobs/{plain}").text
            for path in (
                f"/v1/jobs/{job_id}",
                f"/v1/jobs/{job_id}/explain",
                "/v1/types/mail/jobs?biz_id=1",
            ):
                text = client.get(path).text
                assert "4111" not in text
                assert '"masked":true' in text
            assert client.get(f"/v1/jobs/{plain}").json()["masked"] is False
        admin = token_of(site)
        with site.visitor(admin) as visitor, open_client(site.server.url, admin) as client:
            assert "4111" in visitor.get(f"/ui/jobs/{job_id}").text
            assert client.get(f"/v1/jobs/{job_id}").json()["payload"] == {"card": "4111"}


def test_a_schedule_tells_the_payload_of_a_masked_type_to_admins_alone(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"masked_types": ["mail"]}) as site:
        admin, reader = token_of(site), token_of(site, scopes=("read", "operate"))
        body = {"biz_type": "mail", "cron": "0 3 * * *", "payload": {"card": "4111"}}
        with open_client(site.server.url, admin) as client:
            made = client.put("/v1/recurring/nightly", json=body)
            assert made.json()["payload"] == {"card": "4111"}, made.text
            plain = body | {"biz_type": "shop.close"}
            assert client.put("/v1/recurring/plain", json=plain).status_code == 200
            assert client.get("/v1/recurring/nightly").json()["masked"] is False
        with open_client(site.server.url, reader) as client:
            answers = [
                client.get("/v1/recurring/nightly"),
                client.post("/v1/recurring/nightly:pause"),
                client.post("/v1/recurring/nightly:resume"),
            ]
            listed = client.get("/v1/recurring").json()["recurring"]
        for each in (*(answer.json() for answer in answers), listed[0]):
            assert (each["payload"], each["masked"]) == ({}, True)
        assert (listed[1]["payload"], listed[1]["masked"]) == ({"card": "4111"}, False)


def test_errors_of_masked_types_are_for_admins_alone(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"masked_types": ["mail"]}) as site:
        reader = Caller("a" * 12, "r", frozenset({"read"}), ("*",), None)
        admin = Caller("b" * 12, "a", frozenset({"read", "admin"}), ("*",), None)
        job = DeadJob(1, 2, "mail", 3, "ValueError: card 4111", 5)
        plain = replace(job, error="card 4111: refused")
        backend = site.server.backend
        masked = [mask_dead_job(backend, reader, each) for each in (job, plain)]
        assert [each.error for each in masked] == [f"ValueError: {MASKED}", MASKED]
        assert {group.error for group in group_dead(masked)} == {"ValueError", MASKED}
        assert mask_dead_job(backend, admin, job) == job
    for what, reason in (("bury", None), ("retry", None), ("cancel", "paid"), ("discard", "paid")):
        assert mask_reason({"what": what, "reason": "paid"})["reason"] == reason


# ---- the environment


def test_each_page_names_the_environment(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"environment": "Prod"}) as site, site.visitor() as visitor:
        for path in ("/ui/sign-in", "/ui/types", "/ui/jobs/1"):
            page = visitor.get(path).text
            assert "<title>[Prod] " in page
            assert 'class="environment production"' in page


@pytest.mark.parametrize(
    ("name", "kind"), [("production", "production"), ("Staging", "staging"), ("team 7", "other")]
)
def test_an_environment_has_a_kind(name: str, kind: str) -> None:
    assert kind_of_environment(name) == kind


def test_the_name_of_an_environment_is_short_and_plain() -> None:
    for name in ("<b>", "x" * 33, " x", ""):
        with pytest.raises(SettingsError, match=r"web\.environment"):
            load_settings(web={"environment": name})


def test_a_mass_change_of_a_person_without_a_token_goes_on(proxied: Site) -> None:
    token_of(proxied)  # there are tokens, and the person has none
    jobs = [proxied.center.schedule(f"mass-{n}", HOUR, biz_type="mail") for n in range(6)]
    fields = {"verb": "cancel", "biz_type": "mail"}
    with proxied.visitor() as visitor:
        page = visitor.get("/ui/mass_changes/new", params=fields, headers=ALICE).text
        for name in ("as_of", "expected_count"):
            fields[name] = page.split(f'name="{name}" value="')[1].split('"')[0]
        data = fields | {"rate_per_s": "3", "reason": "a test"}
        answer = visitor.post("/ui/mass_changes", data=data, headers=ALICE | OWN)
        assert answer.status_code == 303, answer.text
        path = answer.headers["location"]

        def has_ended() -> bool:
            shown = visitor.get(path, headers=ALICE)
            assert shown.status_code == 200
            return "data-refresh" not in shown.text

        wait_until(has_ended, "its end", 60)
    assert {proxied.center.get(job_id).status.name for job_id in jobs} == {"CANCELLED"}


def test_the_class_of_masked_errors_is_for_admins_alone(tmp_path: Path) -> None:
    with open_site(tmp_path, web={"masked_types": ["mail"]}) as site:
        operator = token_of(site, scopes=("read", "operate", "cancel"))
        admin = token_of(site)
        body = {"verb": "redrive", "biz_type": "mail", "error_class": "ValueError"}
        with open_client(site.server.url, operator) as client:
            refused = client.post("/v1/mass_changes:count", json=body)
            assert (refused.status_code, refused.json()["field"]) == (422, "error_class")
            allowed = client.post("/v1/mass_changes:count", json=body | {"error_class": None})
            assert allowed.status_code == 200
        with open_client(site.server.url, admin) as client:
            counted = client.post("/v1/mass_changes:count", json=body).json()
            start = body | {
                "as_of": counted["as_of"], "expected_count": 0, "rate_per_s": 1, "reason": "a test",
            }  # fmt: skip
            path = (
                "/v1/mass_changes/"
                + client.post("/v1/mass_changes", json=start).json()["mass_change_id"]
            )
            assert client.get(path).json()["error_class"] == "ValueError"
        with open_client(site.server.url, operator) as client:
            assert client.get(path).json()["error_class"] == MASKED
            assert "ValueError" not in client.get("/v1/mass_changes").text
