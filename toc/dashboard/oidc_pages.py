"""Signing in by OpenID Connect: the way to the provider, and the way back."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.access.audit import AuditEntry
from toc.access.roles import find_role
from toc.dashboard.door import Page
from toc.dashboard.oidc_provider import OidcProvider, ProviderUnavailable, SignInRefused
from toc.dashboard.render import render
from toc.dashboard.sign_in_attempt import SignInAttempt, own_page
from toc.dashboard.sign_in_page import set_token_cookie, show_sign_in_form
from toc.dashboard.visit import Visit, read_cookie
from toc.domain.secret_masking import reveal_secret
from toc.errors import InvalidInput, StoreUnavailable
from toc.http.backend import Backend
from toc.http.front_door import REQUEST_ID
from toc.http.problems import overloaded
from toc.runtime.log_throttle import LogThrottle

log = logging.getLogger(__name__)

ATTEMPT_COOKIE = "toc_sign_in"
ATTEMPT_S = 600
OPEN_ATTEMPTS_MAX = 16
"""How many sign-ins ask the provider at the same time."""
PROVIDER_S_MAX = 15.0
"""All requests of one sign-in to the provider, and the wait for those of others, end after this time."""
CODE_CHARS_MAX = 4096
KNOWN_AFTER_S = 3.0
"""Replicas read new tokens every 2 s: the browser is answered when each of them knows the session."""


class OidcPages:
    """The two pages of the sign-in by the provider of the settings."""

    def __init__(self, backend: Backend) -> None:
        self._settings = backend.settings.web.sign_in
        self._provider = OidcProvider(self._settings.oidc, backend.clock)
        self._places = asyncio.Semaphore(OPEN_ATTEMPTS_MAX)
        self._throttle = LogThrottle(log)

    def pages(self) -> tuple[Page, ...]:
        """The lines of the table of pages."""
        return (
            Page("/ui/sign-in/oidc", self.begin, None),
            Page("/ui/sign-in/oidc/callback", self.end, None),
        )

    async def begin(self, visit: Visit) -> Response:
        """GET /ui/sign-in/oidc?next=: sends the browser to the provider."""
        attempt = SignInAttempt(own_page(visit.root, visit.query.get("next", "")))
        try:
            async with self._place():
                address = await self._provider.authorization_url(attempt, _redirect_uri(visit))
        except ProviderUnavailable as error:
            return self._show_unavailable(visit, error)
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        response.set_cookie(
            ATTEMPT_COOKIE, attempt.as_cookie(), max_age=ATTEMPT_S, path=_cookie_path(visit),
            httponly=True, secure=visit.request.url.scheme == "https",
            samesite="lax",  # the provider sends the browser back: to it a Strict cookie is a foreign site's
        )  # fmt: skip
        return response

    async def end(self, visit: Visit) -> Response:
        """GET /ui/sign-in/oidc/callback?code=&state=: begins the session."""
        limits = visit.backend.access.failed_logins
        limits.check(visit.address)
        try:
            response = await self._begin_session(visit)
        except SignInRefused as error:
            limits.count(visit.address)
            self._throttle.warning("refused", "a sign-in was refused: %s", error)
            self._record(visit, None, "refused")
            response = show_sign_in_form(visit, "oidc_refused", HTTPStatus.FORBIDDEN)
        except ProviderUnavailable as error:
            response = self._show_unavailable(visit, error)
        response.delete_cookie(ATTEMPT_COOKIE, path=_cookie_path(visit))  # it is used only once
        return response

    async def _begin_session(self, visit: Visit) -> Response:
        attempt = SignInAttempt.from_cookie(read_cookie(visit.request, ATTEMPT_COOKIE))
        if attempt is None:
            raise SignInRefused("this browser has not begun a sign-in, or more than 10 minutes ago")
        state = visit.query.get("state", "").encode()
        if not hmac.compare_digest(attempt.state.encode(), state):
            raise SignInRefused("the state is not that of this browser")
        code = visit.query.get("code", "")
        if not 1 <= len(code) <= CODE_CHARS_MAX:
            raise SignInRefused(f"the provider said {visit.query.get('error', 'nothing')!r:.80}")
        async with self._place():
            claims = await self._provider.redeem_code(
                code, visit.query.get("iss"), attempt, _redirect_uri(visit)
            )
        person = self._name_of(claims)
        groups = claims.get(self._settings.oidc.groups_claim)
        listed = (
            [each for each in groups if isinstance(each, str)] if isinstance(groups, list) else []
        )
        role = find_role(self._settings.roles, listed)
        if role is None:
            self._record(visit, person, "no_role")
            return show_sign_in_form(visit, "no_role", HTTPStatus.FORBIDDEN, person)
        access = visit.backend.access
        try:
            made = await asyncio.to_thread(access.sessions.open, person, role)
        except InvalidInput as error:
            self._record(visit, person, "refused")
            log.warning("no session for a person whom the provider has signed in: %s", error)
            return show_sign_in_form(visit, "no_session", HTTPStatus.FORBIDDEN, error.rule)
        except StoreUnavailable as error:
            self._throttle.warning("store", "no session can begin: %s", error)
            raise
        with suppress(StoreUnavailable):  # the next read comes in 2 s
            await asyncio.to_thread(access.refresh_now)
        await asyncio.sleep(
            KNOWN_AFTER_S
        )  # a delayed refresh in the browser confuses screen readers
        page = own_page(visit.root, attempt.page)
        html = render(visit, "signed_in.html", person=person, page=page)
        response = HTMLResponse(html)
        set_token_cookie(response, visit, reveal_secret(made.text), self._settings.session_s)
        return response

    def _name_of(self, claims: Mapping[str, Any]) -> str:
        """The person's name for the audit. Raises SignInRefused."""
        claim = self._settings.oidc.person_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise SignInRefused(
                f"the id_token has no text {claim!r} (web.sign_in.oidc.person_claim)"
            )
        if claim == "email" and claims.get("email_verified") is not True:
            raise SignInRefused(
                "the provider does not say that the e-mail address is verified: verify it there, or name "
                "another claim (web.sign_in.oidc.person_claim)"
            )
        return name

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place for requests to the provider. Raises HttpProblem (503) if all are taken."""
        if self._places.locked():
            raise overloaded("too many people sign in at the same time")
        async with self._places:
            try:
                async with asyncio.timeout(PROVIDER_S_MAX):
                    yield
            except TimeoutError:
                raise ProviderUnavailable(f"no answer within {PROVIDER_S_MAX:g} s") from None

    def _show_unavailable(self, visit: Visit, error: ProviderUnavailable) -> Response:
        self._throttle.warning("away", "the provider of web.sign_in.oidc cannot be used: %s", error)
        return show_sign_in_form(visit, "oidc_unavailable", HTTPStatus.SERVICE_UNAVAILABLE)

    def _record(self, visit: Visit, person: str | None, outcome: str) -> None:
        """Records a refused sign-in in the audit. (The token of a session has an entry of its own.)"""
        request_id = visit.request.scope[REQUEST_ID]
        visit.backend.access.audit.record_refused(
            AuditEntry(None, visit.address, "sign_in", person, None, outcome, request_id)
        )


def _redirect_uri(visit: Visit) -> str:
    """The address that the provider sends the browser back to. The name in Host is one of `web.hosts`."""
    request = visit.request
    return f"{request.url.scheme}://{request.headers['host']}{_cookie_path(visit)}/callback"


def _cookie_path(visit: Visit) -> str:
    return f"{visit.root}/ui/sign-in/oidc"
