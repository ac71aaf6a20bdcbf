"""Signing in with a token, signing out, and choosing the language."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.dashboard.render import render
from toc.dashboard.texts import LANGUAGES
from toc.dashboard.visit import LANGUAGE_COOKIE, TOKEN_COOKIE, Visit
from toc.errors import Unauthenticated

SESSION_S = 12 * 3600
_YEAR_S = 31_536_000
_TOKEN_CHARS_MAX = 200


async def show_sign_in(visit: Visit) -> Response:
    """GET /ui/sign-in."""
    return HTMLResponse(render(visit, "sign_in.html", refused=False))


async def sign_in(visit: Visit) -> Response:
    """POST /ui/sign-in: the cookie gets the token, if it is valid. Scripts cannot read it."""
    token, request = visit.form.get("token", "").strip(), visit.request
    address = None if request.client is None else request.client.host
    try:
        visit.backend.access.identify(f"Bearer {token[:_TOKEN_CHARS_MAX]}", address)
    except Unauthenticated:
        html = render(visit, "sign_in.html", refused=True)
        return HTMLResponse(html, HTTPStatus.UNAUTHORIZED)
    response = RedirectResponse(f"{visit.root}/ui/", HTTPStatus.SEE_OTHER)
    response.set_cookie(
        TOKEN_COOKIE, token, max_age=SESSION_S, path=f"{visit.root}/ui", httponly=True,
        secure=request.url.scheme == "https", samesite="strict",
    )  # fmt: skip
    return response


async def sign_out(visit: Visit) -> Response:
    """POST /ui/sign-out."""
    response = RedirectResponse(f"{visit.root}/ui/sign-in", HTTPStatus.SEE_OTHER)
    response.delete_cookie(TOKEN_COOKIE, path=f"{visit.root}/ui")
    return response


async def choose_language(visit: Visit) -> Response:
    """POST /ui/language: the cookie gets the language; the browser goes back to the page."""
    response = RedirectResponse(_page_before(visit), HTTPStatus.SEE_OTHER)
    language = visit.form.get("language", "")
    if language in LANGUAGES:
        response.set_cookie(
            LANGUAGE_COOKIE, language, max_age=_YEAR_S, path=f"{visit.root}/ui", httponly=True,
            secure=visit.request.url.scheme == "https", samesite="lax",
        )  # fmt: skip
    return response


def _page_before(visit: Visit) -> str:
    """The page that the form says, if it is one of ours."""
    home = f"{visit.root}/ui/"
    wanted = visit.form.get("page", "")
    is_ours = wanted.startswith(home) and wanted.isprintable() and "\\" not in wanted
    return wanted if is_ours else home
