"""What happens with each call: identity, scope, limits, body, deadline, audit; and errors become problems.

The order matters: nothing of a body is read for a caller who is not known, and a call that changes jobs has
its place in the audit before it changes any.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toc.access.audit import AuditEntry, AuditPlace
from toc.access.caller import LOOPBACK_CALLER, Caller
from toc.access.limits import LimitState
from toc.errors import TocError, Unauthenticated
from toc.http.backend import Backend
from toc.http.body import read_body, read_query
from toc.http.call import Call, Reply, Route
from toc.http.front_door import REQUEST_ID, is_loopback_name
from toc.http.problems import HttpProblem, forbidden, overloaded, problem_of
from toc.http.responses import document_response, problem_response

log = logging.getLogger(__name__)

_PLACE_WAIT_S = 0.05  # between two looks for a place in the audit
_PUBLIC = Caller(None, "anybody", frozenset(), (), None)


class Endpoint:
    """The ASGI app of one route."""

    def __init__(self, route: Route, backend: Backend) -> None:
        self.route, self._backend = route, backend
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
                    place = await self._reserve_place()
                    if not self.route.is_long_poll:
                        reply = await self.route.action(self._backend, call)
            if self.route.is_long_poll:
                reply = await self.route.action(self._backend, call)
        except (HttpProblem, TocError, TimeoutError) as error:
            problem = problem_of(error)
            if problem.code == "internal":
                log.exception("call %s failed", request_id)
            self._record_problem(place, caller, address, problem, request)
            return problem_response(problem, request_id, headers)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("call %s failed", request_id)
            problem = problem_of(AssertionError())
            self._record_problem(place, caller, address, problem, request)
            return problem_response(problem, request_id, headers)
        finally:
            if place is not None and not place.filled:
                self._end_unfilled(place, caller, address, request)
        if place is not None:
            self._record_reply(place, caller, address, request, reply)
        return document_response(reply, headers)

    # ---- who calls

    def _identify(self, request: Request, address: str | None) -> Caller:
        """The caller. Raises Unauthenticated, TooManyCalls."""
        if self.route.scope is None:
            return _PUBLIC
        access = self._backend.access
        header = request.headers.get("authorization")
        if header is None and not access.authenticator.has_tokens and is_local(request):
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

    # ---- audit

    async def _reserve_place(self) -> AuditPlace | None:
        """A place in the audit; None: none is needed. Raises HttpProblem if none becomes free in time."""
        if self.route.audited is None:
            return None
        audit, waited_s = self._backend.access.audit, 0.0
        while (place := audit.try_reserve()) is None:
            if waited_s >= self._limits.audit_wait_s:
                raise overloaded("too many calls wait to be audited")
            await asyncio.sleep(_PLACE_WAIT_S)
            waited_s += _PLACE_WAIT_S
        return place

    def _record_reply(
        self,
        place: AuditPlace,
        caller: Caller,
        address: str | None,
        request: Request,
        reply: Reply,
    ) -> None:
        entry = self._entry(caller, address, reply.outcome, request, reply)
        if not reply.is_worth_auditing:
            place.release()
        elif reply.rows_changed == 0:  # as a refused call: a token can send any number of them
            self._record_without_place(place, entry)
        else:
            place.record(entry)

    def _record_without_place(self, place: AuditPlace, entry: AuditEntry) -> None:
        place.release()
        self._backend.access.audit.record_refused(entry)

    def _record_problem(
        self,
        place: AuditPlace | None,
        caller: Caller | None,
        address: str | None,
        problem: HttpProblem,
        request: Request,
    ) -> None:
        entry = self._entry(caller, address, problem.code, request, None)
        is_refused = problem.status < HTTPStatus.INTERNAL_SERVER_ERROR  # it changed nothing
        if place is not None and is_refused:
            self._record_without_place(place, entry)
        elif place is not None:
            place.record(entry)
        elif self.route.scope is not None and is_refused:
            self._backend.access.audit.record_refused(entry)

    def _end_unfilled(
        self, place: AuditPlace, caller: Caller | None, address: str | None, request: Request
    ) -> None:
        """For a call that was cancelled, or ended by an error here: it may have changed something."""
        if sys.exc_info()[0] is not None:
            place.record(self._entry(caller, address, "interrupted", request, None))

    def _entry(
        self,
        caller: Caller | None,
        address: str | None,
        outcome: str,
        request: Request,
        reply: Reply | None,
    ) -> AuditEntry:
        return AuditEntry(
            None if caller is _PUBLIC else caller,
            address,
            self.route.audited or f"{self.route.method} {self.route.path}",
            (None if reply is None else reply.target) or request.url.path,
            None if reply is None else reply.rows_changed,
            outcome,
            request.scope[REQUEST_ID],
        )


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
