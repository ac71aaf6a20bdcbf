"""What happens with each call: identity, scope, limits, body, deadline, audit; and errors become problems.

The order matters: nothing of a body is read for a caller who is not known, and a call that changes jobs has
its place in the audit before it changes any.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toc.access.audit import AuditPlace
from toc.access.caller import LOOPBACK_CALLER, Caller
from toc.access.limits import LimitState
from toc.errors import TocError, Unauthenticated
from toc.http.backend import Backend
from toc.http.body import read_body, read_query
from toc.http.call import Call, Route
from toc.http.call_audit import CallAudit
from toc.http.front_door import REQUEST_ID, is_loopback_name
from toc.http.problems import HttpProblem, forbidden, problem_of
from toc.http.responses import document_response, problem_response

log = logging.getLogger(__name__)

_PUBLIC = Caller(None, "anybody", frozenset(), (), None)


class Endpoint:
    """The ASGI app of one route."""

    def __init__(self, route: Route, backend: Backend) -> None:
        self.route, self._backend = route, backend
        self._audit = CallAudit(route, backend)
        self._limits = backend.settings.web.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id: str = scope[REQUEST_ID]
        try:
            response = await self._answer(request, request_id)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request, request_id: str) -> Response:
        caller: Caller | None = None
        headers: dict[str, str] = {}
        place: AuditPlace | None = None
        address = None if request.client is None else request.client.host
        try:
            if not self._backend.is_started:
                await asyncio.to_thread(self._backend.start)
            caller = self._identify(request, address)
            self._require_scope(caller)
            headers = _limit_headers(self._take(caller, 1.0))
            with self._open_call(caller):
                async with asyncio.timeout(self._limits.call_s):
                    call = await self._read_call(request, request_id, caller, address)
                    place = await self._audit.reserve_place()
                    if not self.route.is_long_poll:
                        reply = await self.route.action(self._backend, call)
            if self.route.is_long_poll:
                reply = await self.route.action(self._backend, call)
        except (HttpProblem, TocError, TimeoutError) as error:
            problem = problem_of(error)
            if problem.code == "internal":
                log.exception("call %s failed", request_id)
            self._audit.record_problem(place, _named(caller), address, problem, request)
            return problem_response(problem, request_id, headers)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("call %s failed", request_id)
            problem = problem_of(AssertionError())
            self._audit.record_problem(place, _named(caller), address, problem, request)
            return problem_response(problem, request_id, headers)
        finally:
            if place is not None and not place.filled:
                self._audit.end_unfilled(place, _named(caller), address, request)
        if place is not None:
            self._audit.record_reply(place, _named(caller), address, request, reply)
        return document_response(reply, headers)

    # ---- who calls

    def _identify(self, request: Request, address: str | None) -> Caller:
        """The caller. Raises Unauthenticated, TooManyCalls."""
        if self.route.scope is None:
            return _PUBLIC
        access = self._backend.access
        header = request.headers.get("authorization")
        # What a proxy passes on for a person is no call of a program on this machine.
        person_header = self._backend.settings.web.sign_in.proxy_header
        is_of_person = person_header is not None and person_header in request.headers
        if (
            header is None
            and not is_of_person
            and not access.authenticator.has_tokens
            and is_local(request)
        ):
            return LOOPBACK_CALLER
        return access.identify(header, address)

    def _require_scope(self, caller: Caller) -> None:
        scope = self.route.scope
        if scope is not None and scope not in caller.scopes:
            raise forbidden(scope)

    def _take(self, caller: Caller, cost: float) -> LimitState | None:
        if caller is _PUBLIC:
            return None
        state = self._backend.access.limits.take(caller, cost)
        state.raise_if_refused()
        return state

    def _open_call(self, caller: Caller) -> AbstractContextManager[None]:
        """Counts a call while it runs. Raises TooManyCalls."""
        return nullcontext() if caller is _PUBLIC else self._backend.access.limits.open_call(caller)

    # ---- what is asked

    async def _read_call(
        self, request: Request, request_id: str, caller: Caller, address: str | None
    ) -> Call:
        route = self.route
        query = read_query(request, route.query)
        body: BaseModel | None = None
        if route.bodies:
            body = await read_body(request, route.bodies, self._limits, needed=route.needs_body)
            if not self._backend.access.authenticator.is_still_valid(caller):
                raise Unauthenticated("the token was revoked while the body came")
            items = len(getattr(body, "jobs", getattr(body, "items", ())))
            if items > self._limits.bulk:
                raise HttpProblem(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    "invalid_input",
                    f"at most {self._limits.bulk} items in one call",
                    rule="web.limits.bulk",
                )
            if items > 1:
                self._take(caller, self._backend.access.limits.cost_of(items) - 1.0)
        return Call(request, request_id, caller, address, request.path_params, query, body)


def _named(caller: Caller | None) -> Caller | None:
    """Who stands in the audit: None for anybody."""
    return None if caller is _PUBLIC else caller


def is_local(request: Request, *, origin_is_own: bool = False) -> bool:
    """Whether the call comes from a program on this machine, as far as one can tell.

    origin_is_own: an Origin may be there, because it was compared with this server's name.

    A proxy on this machine connects from loopback too, and so does a web page in a browser here: their calls
    have headers of their own, or another Host.
    """
    client = request.client
    try:
        is_loopback = client is not None and ipaddress.ip_address(client.host).is_loopback
    except ValueError:
        return False
    names = request.headers
    refused = ["forwarded", "x-forwarded-for", "via", *([] if origin_is_own else ["origin"])]
    is_passed_on = any(name in names for name in refused)
    return is_loopback and not is_passed_on and is_loopback_name(names.get("host", ""))


def _limit_headers(state: LimitState | None) -> dict[str, str]:
    if state is None:
        return {}
    return {
        "RateLimit-Limit": str(state.limit),
        "RateLimit-Remaining": str(state.remaining),
        "RateLimit-Reset": str(math.ceil(state.reset_s)),
    }
