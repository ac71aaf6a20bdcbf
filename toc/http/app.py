"""Makes the ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from toc.http.backend import Backend
from toc.http.call import Call, Reply, Route
from toc.http.endpoint import Endpoint
from toc.http.front_door import REQUEST_ID, FrontDoor
from toc.http.openapi import make_openapi
from toc.http.problems import HttpProblem
from toc.http.responses import encode_json, problem_response
from toc.http.routes import ROUTES
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings, load_settings

MakeSite = Callable[[Backend], Sequence[BaseRoute]]
OPENAPI_PATH = "/v1/openapi.json"


def make_app(
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    make_site: MakeSite | None = None,
) -> Starlette:
    """Makes the app; it connects when its lifespan starts, or at the first call.

    settings: default from toc.toml and TOC_… variables. Mounted into another app, it is served under the
    mount's path; that app should run this app's lifespan (`app.router.lifespan_context`), which writes the
    audit at the end. make_site: makes further routes, those of the dashboard. Raises SettingsError.
    """
    backend = Backend(load_settings() if settings is None else settings, clock)
    document = _encode_openapi()

    async def send_openapi(backend: Backend, call: Call) -> Reply:
        return Reply(document, headers={"Cache-Control": "max-age=60"})

    table = (*ROUTES, Route("GET", OPENAPI_PATH, send_openapi, None, "This document."))

    @asynccontextmanager
    async def run_backend(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await backend.stop()

    app = Starlette(
        routes=[
            StarletteRoute(route.path, Endpoint(route, backend), methods=[route.method])
            for route in table
        ]
        + list(() if make_site is None else make_site(backend)),
        middleware=[Middleware(FrontDoor, hosts=backend.settings.web.hosts)],
        exception_handlers={HTTPException: _answer_http_error, Exception: _answer_error},
        lifespan=run_backend,
    )
    # A redirect is an answer that the OpenAPI document does not have, and would go to strangers too.
    app.router.redirect_slashes = False
    app.state.backend = backend
    return app


@cache
def _encode_openapi() -> bytes:
    """Once in a process: it takes 0.1 s, and strangers may ask for it as often as they like."""
    return encode_json(make_openapi(ROUTES))


_CODES = {HTTPStatus.NOT_FOUND: "no_such_path", HTTPStatus.METHOD_NOT_ALLOWED: "wrong_method"}


async def _answer_http_error(request: Request, error: Any) -> Response:
    """The answer to a path or method that the table does not have."""
    status = HTTPStatus(error.status_code)
    problem = HttpProblem(
        status, _CODES.get(status, "refused"), "the server has no such path or method",
        headers=error.headers,
    )  # fmt: skip
    return problem_response(problem, request.scope.get(REQUEST_ID))


async def _answer_error(request: Request, error: Exception) -> Response:
    problem = HttpProblem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the server failed")
    return problem_response(problem, request.scope.get(REQUEST_ID))
