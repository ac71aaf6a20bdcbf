"""Signing in by OpenID Connect, and what must not sign in."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from tests.dashboard.oidc_world import SECRET, Provider, open_provider, sign_in_settings
from tests.dashboard.site_world import HOUR, OWN, Site, open_site, token_of
from toc.access.audit_list import list_audit
from toc.access.sessions import Sessions
from toc.access.tokens import TokenStore
from toc.dashboard.oidc_provider import OidcProvider, ProviderUnavailable
from toc.dashboard.sign_in_attempt import SignInAttempt, own_page
from toc.dashboard.site import make_site
from toc.errors import InvalidInput, SettingsError
from toc.http.serve import WebServer
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.runtime.sign_in_settings import OidcSettings, RoleSettings

BEGIN = "/ui/sign-in/oidc"
SESSION = "toc_session"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with open_provider() as made:
        yield made


@pytest.fixture(autouse=True)
def tell_the_truth(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toc.dashboard.oidc_pages.KNOWN_AFTER_S", 0)
    provider.claims, provider.is_down, provider.unsigned = {}, False, False
    provider.signing_key = provider.key


@pytest.fixture(scope="module")
def signs(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    web = sign_in_settings(provider) | {"limits": {"failed_logins_per_min": 1000}}
    with open_site(tmp_path_factory.mktemp("oidc"), web=web) as made:
        yield made


def way_back(visitor: httpx.Client, page: str = "") -> str:
    """The browser goes to the provider; where the provider sends it back to."""
    answer = visitor.get(BEGIN, params={"next": page} if page else None)
    assert answer.status_code == 303, answer.text
    answer = httpx.get(answer.headers["location"], trust_env=False)
    assert answer.status_code == 303
    return str(answer.headers["location"])


def sign_in(visitor: httpx.Client, page: str = "") -> httpx.Response:
    return visitor.get(way_back(visitor, page))


def assert_refused(visitor: httpx.Client, answer: httpx.Response, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    assert SESSION not in answer.headers.get("set-cookie", "")
    assert SESSION not in visitor.cookies
    assert visitor.get("/ui/jobs").status_code == 303
    assert 'name="token"' in answer.text  # a token still signs in


def store_of(site: Site) -> TokenStore:
    return TokenStore(site.server.backend.databases, 1000, "tester")


# ---- who signs in


def test_a_person_signs_in_with_the_role_of_a_group(signs: Site) -> None:
    mail = signs.center.schedule(1, HOUR, biz_type="mail")
    shop = signs.center.schedule(1, HOUR, biz_type="shop.close")
    with signs.visitor() as visitor:
        answer = sign_in(visitor, "/ui/jobs?biz_id=1")
        assert answer.status_code == 200
        # A page of ours leads on: with a redirect, browsers would not send a Strict cookie.
        assert '<meta http-equiv="refresh" content="0; url=/ui/jobs?biz_id=1">' in answer.text
        page = visitor.get("/ui/jobs?biz_id=1").text
        assert f"/ui/jobs/{mail}" in page
        assert f"/ui/jobs/{shop}" not in page
        assert "oidc:alice@example.com" in page
        assert visitor.get(f"/ui/jobs/{shop}").status_code == 404
        assert visitor.get("/ui/audit").status_code == 403
        assert visitor.post(f"/ui/jobs/{mail}/cancel", headers=OWN).status_code == 303
        actor = visitor.get(f"/ui/jobs/{mail}").text
        assert re.search(r"token:[0-9a-z]{12}:oidc:alice@example.com", actor)
    signs.server.backend.access.audit.run_once()
    owners = {each.row.owner for each in list_audit(signs.server.backend.databases, 20)}
    assert "oidc:alice@example.com" in owners


def test_the_cookies_are_kept_from_scripts_and_the_session_from_other_sites(signs: Site) -> None:
    with signs.visitor() as visitor:
        begun = visitor.get(BEGIN).headers["set-cookie"].lower().split("; ")
        assert {"httponly", "samesite=lax", f"path={BEGIN}", "max-age=600"} <= set(begun)
        ended = sign_in(visitor).headers.get_list("set-cookie")
        (session,) = [each.lower() for each in ended if each.startswith(SESSION)]
        assert {"httponly", "samesite=strict", "path=/ui"} <= set(session.split("; "))
        (attempt,) = [each for each in ended if not each.startswith(SESSION)]
        assert "Max-Age=0" in attempt
        proto = {"X-Forwarded-Proto": "https"}
        assert "secure" not in visitor.get(BEGIN, headers=proto).headers["set-cookie"].lower()


def test_behind_a_proxy_with_tls_the_cookies_are_secure(provider: Provider, tmp_path: Path) -> None:
    web = sign_in_settings(provider) | {"trusted_proxies": ["127.0.0.1"]}
    with open_site(tmp_path, web=web) as site, site.visitor() as visitor:
        answer = visitor.get(BEGIN, headers={"X-Forwarded-Proto": "https"})
        assert "secure" in answer.headers["set-cookie"].lower().split("; ")
        asked = parse_qs(urlsplit(answer.headers["location"]).query)
        assert asked["redirect_uri"][0].startswith("https://127.0.0.1:")


@pytest.mark.parametrize(
    "page",
    ["https://evil.example/", "//evil.example", "/ui/\\evil", "/v1/types", "javascript:alert(1)"],
)
def test_nobody_is_sent_to_a_foreign_page(signs: Site, page: str) -> None:
    with signs.visitor() as visitor:
        assert 'content="0; url=/ui/">' in sign_in(visitor, page).text
        token = token_of(signs)
        answer = visitor.post("/ui/sign-in", data={"token": token, "next": page}, headers=OWN)
        assert answer.headers["location"] == "/ui/"


def test_a_visitor_comes_back_to_the_page_that_was_asked_for(signs: Site) -> None:
    with signs.visitor() as visitor:
        answer = visitor.get("/ui/jobs?biz_id=a%26b")
        page = visitor.get(answer.headers["location"]).text
        assert "/ui/sign-in/oidc?next=%2Fui%2Fjobs%3Fbiz_id%3Da%2526b" in page
        data = {"token": token_of(signs), "next": "/ui/jobs?biz_id=a%26b"}
        answer = visitor.post("/ui/sign-in", data=data, headers=OWN)
        assert answer.headers["location"] == "/ui/jobs?biz_id=a%26b"


def test_this_machine_needs_to_sign_in_too(provider: Provider, tmp_path: Path) -> None:
    with open_site(tmp_path, web=sign_in_settings(provider)) as site, site.visitor() as visitor:
        assert visitor.get("/ui/jobs").status_code == 303


# ---- who does not


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"}, {"aud": "another-client"}, {"aud": None}, {"nonce": "other"},
        {"nonce": None}, {"exp": 1_700_000_000}, {"exp": None}, {"exp": "soon"}, {"iat": 9_999_999_999},
        {"aud": ["toc-web", "other"]}, {"aud": ["toc-web", "other"], "azp": "other"}, {"azp": "other"},
        {"sub": None}, {"email": None}, {"email": 7}, {"email_verified": False}, {"email_verified": "true"},
    ],
)  # fmt: skip
def test_a_token_of_another_sign_in_is_refused(
    signs: Site, provider: Provider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    with signs.visitor() as visitor:
        assert_refused(visitor, sign_in(visitor))


def test_an_unsigned_token_and_one_with_a_foreign_key_are_refused(
    signs: Site, provider: Provider
) -> None:
    with signs.visitor() as visitor:
        provider.unsigned = True
        assert_refused(visitor, sign_in(visitor))
        provider.unsigned = False
        for kid in ("first", "second"):
            provider.signing_key = RSAKey.generate_key(2048, {"kid": kid}, auto_kid=False)
            assert_refused(visitor, sign_in(visitor))


def test_a_callback_counts_once_and_only_in_its_own_browser(signs: Site) -> None:
    with signs.visitor() as visitor, signs.visitor() as other:
        address = way_back(visitor)
        assert_refused(other, other.get(address))  # it has begun none
        other.get(BEGIN)
        assert_refused(other, other.get(address))  # it has begun another one
        cookies = dict(visitor.cookies)
        assert visitor.get(address).status_code == 200
        other.cookies.update(cookies)
        assert_refused(other, other.get(address))  # the provider has given out this code


@pytest.mark.parametrize(
    "change",
    [
        {"state": "x"}, {"state": ""}, {"code": ""}, {"code": "x"}, {"code": "x" * 5000},
        {"iss": "https://evil.example"}, {"iss": None}, {"error": "access_denied", "code": None},
        {"state": "é"},
    ],
)  # fmt: skip
def test_a_changed_callback_is_refused(signs: Site, change: dict[str, str | None]) -> None:
    with signs.visitor() as visitor:
        parts = urlsplit(way_back(visitor))
        query = {name: found[0] for name, found in parse_qs(parts.query).items()} | change
        left = {name: value for name, value in query.items() if value is not None}
        assert_refused(visitor, visitor.get(f"{parts.path}?{urlencode(left)}"))


@pytest.mark.parametrize("groups", [[], ["strangers"], None, "operators", [7, {"a": 1}]])
def test_a_person_without_a_role_is_told_so(
    signs: Site, provider: Provider, groups: object
) -> None:
    provider.claims = {"groups": groups}
    with signs.visitor() as visitor:
        answer = sign_in(visitor)
        assert_refused(visitor, answer)
        assert "none of your groups has a role" in answer.text
        assert "alice@example.com" in answer.text
    signs.server.backend.access.audit.run_once()
    found = list_audit(signs.server.backend.databases, 50)
    assert ("sign_in", "no_role") in {(each.row.action, each.row.outcome) for each in found}


def test_a_hostile_name_is_only_text(signs: Site, provider: Provider) -> None:
    provider.claims = {"email": "<script>alert(1)</script>", "groups": []}
    with signs.visitor() as visitor:
        assert "<script>alert" not in sign_in(visitor).text
    provider.claims = {"email": "x" * 300}
    with signs.visitor() as visitor:
        assert_refused(visitor, sign_in(visitor))


def test_while_the_provider_is_down_a_token_signs_in(provider: Provider, tmp_path: Path) -> None:
    with open_site(tmp_path, web=sign_in_settings(provider)) as site, site.visitor() as visitor:
        token = token_of(site)
        provider.is_down = True
        answer = visitor.get(BEGIN)
        assert_refused(visitor, answer, 503)
        assert "does not answer" in answer.text
        provider.is_down = False
        address = way_back(visitor)
        provider.is_down = True
        assert_refused(visitor, visitor.get(address), 503)
        visitor.post("/ui/sign-in", data={"token": token}, headers=OWN)
        assert visitor.get("/ui/jobs").status_code == 200


@pytest.mark.parametrize(
    "facts",
    [
        {"issuer": "https://evil.example"}, {"token_endpoint": None}, {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"}, {"padding": "x" * 300_000},
    ],
)  # fmt: skip
def test_a_provider_that_tells_nonsense_is_not_used(
    provider: Provider, facts: dict[str, Any]
) -> None:
    provider.facts = facts
    settings = OidcSettings(issuer=provider.issuer, client_id="toc-web")

    async def ask() -> None:
        asked = OidcProvider(settings, SystemClock())
        with pytest.raises(ProviderUnavailable, match=provider.issuer):
            await asked.authorization_url(SignInAttempt("/ui/"), "http://localhost/back")

    try:
        asyncio.run(ask())
    finally:
        provider.facts = {}


# ---- sessions


def test_signing_out_ends_the_session_in_another_replica(signs: Site) -> None:
    replica = WebServer(signs.settings, make_site)
    replica.start()
    try:
        with signs.visitor() as visitor:
            sign_in(visitor)
            token = visitor.cookies[SESSION]
            replica.backend.access.refresh_now()
            cookie = {"Cookie": f"{SESSION}={token}"}
            there = f"{replica.url}/ui/jobs"
            assert httpx.get(there, headers=cookie, trust_env=False).status_code == 200
            visitor.post("/ui/sign-out", headers=OWN)
            replica.backend.access.refresh_now()
            assert httpx.get(there, headers=cookie, trust_env=False).status_code == 303
    finally:
        assert replica.stop()


def test_signing_out_leaves_an_ordinary_token_valid(signs: Site) -> None:
    token = token_of(signs)
    for _ in range(2):
        with signs.visitor(token) as visitor:
            assert visitor.get("/ui/jobs").status_code == 200
            visitor.post("/ui/sign-out", headers=OWN)
            signs.server.backend.access.refresh_now()


def test_a_further_session_ends_the_oldest_one(provider: Provider, tmp_path: Path) -> None:
    web = sign_in_settings(provider, sessions_per_person=2, session_s=600)
    with open_site(tmp_path, web=web) as site:
        for _ in range(3):
            with site.visitor() as visitor:
                assert sign_in(visitor).status_code == 200
        tokens = store_of(site).list()  # the newest first
        assert [token.is_valid for token in tokens] == [True, True, False]
        assert {token.caller.owner for token in tokens} == {"oidc:alice@example.com"}
        lasts_ms = (tokens[0].expiry_ms or 0) - tokens[0].created_ms
        assert lasts_ms == 600_000


def test_a_person_cannot_fill_the_table_of_tokens(
    signs: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.access.sessions.SIGN_INS_PER_DAY_MAX", 3)
    backend = signs.server.backend
    sessions = Sessions(backend.databases, signs.settings.web.sign_in, 1000)
    role = RoleSettings(groups=("*",), role="viewer")
    person = f"{secrets.token_hex(4)}@example.com"
    for _ in range(3):
        sessions.open(person, role)
    with pytest.raises(InvalidInput, match="3 times within a day"):
        sessions.open(person, role)


# ---- settings


def test_no_setting_shows_the_secret(provider: Provider) -> None:
    made = Settings(web=sign_in_settings(provider))
    assert SECRET not in repr(made)
    assert SECRET not in made.model_dump_json()
    assert SignInAttempt("/ui/").secret not in repr(SignInAttempt("/ui/"))
    wrong = {"issuer": "ftp://x", "client_id": "a", "client_secret": SECRET}
    with pytest.raises(SettingsError) as caught:
        load_settings(web={"sign_in": {"oidc": wrong}})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("sign_in", "error"),
    [
        ({"oidc": {"issuer": "http://id.example", "client_id": "a"}}, "https://HOST/PATH"),
        ({"oidc": {"issuer": "https://u:p@id.example", "client_id": "a"}}, "https://HOST/PATH"),
        ({"oidc": {"issuer": "https://id.example"}}, "both issuer and client_id"),
        ({"oidc": {"issuer": "https://id.example", "client_id": "a"}}, "roles is empty"),
        ({"proxy_header": "X-User"}, "both proxy_header and proxies"),
        ({"proxies": ["10.0.0.0/33"], "proxy_header": "X-User"}, "10.0.0.0/33"),
        ({"roles": [{"groups": ["a"], "role": "king"}]}, "roles.0.role"),
        ({"roles": [{"groups": [], "role": "viewer"}]}, "roles.0.groups"),
        ({"roles": [{"groups": ["a"], "role": "viewer", "types": ["[a]"]}]}, "[a]"),
        ({"session_s": 43_201}, "session_s"),
    ],
)
def test_bad_settings_are_refused(sign_in: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(web={"sign_in": sign_in})
    assert error in str(caught.value)


def test_an_attempt_survives_its_cookie() -> None:
    attempt = SignInAttempt("/ui/jobs?biz_id=é &x=1")
    assert SignInAttempt.from_cookie(attempt.as_cookie()) == attempt
    assert len({attempt.state, attempt.nonce, attempt.verifier, attempt.secret}) == 4
    for text in ("", "x", "x" * 43, f"{attempt.secret}!{'x' * 4000}", None):
        assert SignInAttempt.from_cookie(text) is None
    assert own_page("/toc", "/ui/jobs") == "/toc/ui/"
