"""Signing in with a token, signing out, and choosing the language."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.dashboard.render import render
from toc.dashboard.sign_in_attempt import own_page
from toc.dashboard.texts import LANGUAGES
from toc.dashboard.visit import LANGUAGE_COOKIE, TOKEN_COOKIE, Visit
from toc.errors import StoreUnavailable, Unauthenticated

log = logging.getLogger(__name__)

SESSION_S = 12 * 3600
_YEAR_S = 31_536_000
_TOKEN_CHARS_MAX = 200


async def show_sign_in(visit: Visit) -> Response:
    """GET /ui/sign-in?next=."""
    return show_sign_in_form(visit)


def show_sign_in_form(
    visit: Visit, refused: str = "", status: HTTPStatus = HTTPStatus.OK, detail: str = ""
) -> Response:
    """The form, and the link to the provider. refused: the name of the text that says what went wrong."""
    page = own_page(visit.root, visit.form.get("next") or visit.query.get("next", ""))
    has_oidc = visit.backend.settings.web.sign_in.oidc.issuer is not None
    html = render(
        visit, "sign_in.html", refused=refused, detail=detail, page=page, has_oidc=has_oidc
    )
    return HTMLResponse(html, status)


async def sign_in(visit: Visit) -> Response:
    """POST /ui/sign-in: the cookie gets the token, if it is valid. Scripts cannot read it."""
    token = visit.form.get("token", "").strip()
    try:
        visit.backend.access.identify(f"Bearer {token[:_TOKEN_CHARS_MAX]}", visit.address)
    except Unauthenticated:
        return show_sign_in_form(visit, "token_refused", HTTPStatus.UNAUTHORIZED)
    page = own_page(visit.root, visit.form.get("next", ""))
    response = RedirectResponse(page, HTTPStatus.SEE_OTHER)
    set_token_cookie(response, visit, token, SESSION_S)
    return response


def set_token_cookie(response: Response, visit: Visit, token: str, age_s: int) -> None:
    """Gives the browser its session: a token, for the pages alone."""
    response.set_cookie(
        TOKEN_COOKIE, token, max_age=age_s, path=f"{visit.root}/ui", httponly=True,
        secure=visit.request.url.scheme == "https", samesite="strict",
    )  # fmt: skip


async def sign_out(visit: Visit) -> Response:
    """POST /ui/sign-out: takes the cookie back, and ends a session of OpenID Connect everywhere."""
    if visit.caller is not None:
        try:
            await asyncio.to_thread(visit.backend.mass_runs.note_sign_out, visit.caller)
            await asyncio.to_thread(visit.backend.access.sessions.close, visit.caller)
        except StoreUnavailable as error:
            log.warning("a session could not be revoked, and lasts until its end: %s", error)
    response = RedirectResponse(f"{visit.root}/ui/sign-in", HTTPStatus.SEE_OTHER)
    response.delete_cookie(TOKEN_COOKIE, path=f"{visit.root}/ui")
    return response


async def choose_language(visit: Visit) -> Response:
    """POST /ui/language: the cookie gets the language; the browser goes back to the page."""
    page = own_page(visit.root, visit.form.get("page", ""))
    response = RedirectResponse(page, HTTPStatus.SEE_OTHER)
    language = visit.form.get("language", "")
    if language in LANGUAGES:
        response.set_cookie(
            LANGUAGE_COOKIE, language, max_age=_YEAR_S, path=f"{visit.root}/ui", httponly=True,
            secure=visit.request.url.scheme == "https", samesite="lax",
        )  # fmt: skip
    return response
