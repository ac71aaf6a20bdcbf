"""The audit of calls: a call that changes jobs has its place in the audit before it changes any."""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus

from starlette.requests import Request

from toc.access.audit import AuditEntry, AuditPlace
from toc.access.caller import Caller
from toc.errors import TocError
from toc.http.backend import Backend
from toc.http.call import Call, Reply, Route
from toc.http.front_door import REQUEST_ID
from toc.http.problems import HttpProblem, overloaded, problem_of

_PLACE_WAIT_S = 0.05  # between two looks for a place in the audit


class CallAudit:
    """Records the calls of one route. A caller of None: anybody, or nobody knows who."""

    def __init__(self, route: Route, backend: Backend) -> None:
        self._route, self._backend = route, backend

    async def run(self, call: Call) -> Reply:
        """Runs the action and records it, for a caller who is known and has the scope of the route.

        Raises HttpProblem, TocError, TimeoutError.
        """
        place = await self.reserve_place()
        try:
            reply = await self._route.action(self._backend, call)
        except (HttpProblem, TocError, TimeoutError) as error:
            self.record_problem(place, call.caller, call.address, problem_of(error), call.request)
            raise
        finally:
            if place is not None and not place.filled:
                self.end_unfilled(place, call.caller, call.address, call.request)
        if place is not None:
            self.record_reply(place, call.caller, call.address, call.request, reply)
        return reply

    async def reserve_place(self) -> AuditPlace | None:
        """A place in the audit; None: none is needed. Raises HttpProblem if none becomes free in time."""
        if self._route.audited is None:
            return None
        audit, waited_s = self._backend.access.audit, 0.0
        while (place := audit.try_reserve()) is None:
            if waited_s >= self._backend.settings.web.limits.audit_wait_s:
                raise overloaded("too many calls wait to be audited")
            await asyncio.sleep(_PLACE_WAIT_S)
            waited_s += _PLACE_WAIT_S
        return place

    def record_reply(
        self,
        place: AuditPlace,
        caller: Caller | None,
        address: str | None,
        request: Request,
        reply: Reply,
    ) -> None:
        """Fills or releases the place of a call that was answered."""
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

    def record_problem(
        self,
        place: AuditPlace | None,
        caller: Caller | None,
        address: str | None,
        problem: HttpProblem,
        request: Request,
    ) -> None:
        """Records a call that was refused or failed. place: None: it had none."""
        entry = self._entry(caller, address, problem.code, request, None)
        is_refused = problem.status < HTTPStatus.INTERNAL_SERVER_ERROR  # it changed nothing
        if place is not None and is_refused:
            self._record_without_place(place, entry)
        elif place is not None:
            place.record(entry)
        elif self._route.scope is not None and is_refused:
            self._backend.access.audit.record_refused(entry)

    def end_unfilled(
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
            caller,
            address,
            self._route.audited or f"{self._route.method} {self._route.path}",
            (None if reply is None else reply.target) or request.url.path,
            None if reply is None else reply.rows_changed,
            outcome,
            request.scope[REQUEST_ID],
        )
