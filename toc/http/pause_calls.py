"""The actions that pause a type, resume it, and list the pauses.

A pause concerns the jobs of all tenants, so a token of a tenant cannot make one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.domain.argument_checks import check_biz_type
from toc.domain.pauses import PauseInfo, biz_type_of_target
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import declared_types, not_allowed
from toc.http.job_documents import parse_when
from toc.http.wire_times import format_time

_DATABASE = 0  # a call about pauses takes a place of this database, though it asks all of them


async def pause_type(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}:pause."""
    biz_type, body = _checked_type(call), call.body
    _require_declared(backend, biz_type)
    until = None
    if body.until is not None or body.delay is not None:
        try:
            until = parse_when(body.until, body.delay)
        except InvalidInput as error:
            field = "until" if error.field == "action_time" else error.field
            raise InvalidInput(
                field, error.value, error.rule.replace("action_time", "until")
            ) from None

    def pause() -> PauseInfo:
        return backend.center.pause(
            biz_type, until=until, reason=body.reason, actor=call.caller.actor
        )

    return await _change(backend, pause)


async def resume_type(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}:resume."""
    biz_type, body = _checked_type(call), call.body

    def resume() -> PauseInfo:
        return backend.center.resume(
            biz_type, now=bool(body.now), reason=body.reason, actor=call.caller.actor
        )

    return await _change(backend, resume)


async def list_pauses(backend: Backend, call: Call) -> Reply:
    """GET /v1/pauses."""
    found = await backend.calls.run(_DATABASE, backend.center.pauses)
    return Reply({"pauses": [_document(info) for info in found if _may_see(call.caller, info)]})


def _checked_type(call: Call) -> str:
    biz_type = call.path["biz_type"]
    if not is_allowed(call.caller, "operate", biz_type, None):
        raise not_allowed("operate")
    return check_biz_type(biz_type)


def _require_declared(backend: Backend, biz_type: str) -> None:
    """Raises InvalidInput: a mistyped name would pause nothing, and names without end would fill a table that
    every process reads twice a second."""
    if biz_type not in declared_types(backend):
        raise InvalidInput("biz_type", biz_type, "must be a declared type")


def _may_see(caller: Caller, info: PauseInfo) -> bool:
    """Pauses of a type: who may read its jobs; others: who may read jobs of all types."""
    return is_allowed(caller, "read", biz_type_of_target(info.target), caller.tenant)


async def _change(backend: Backend, change: Callable[[], PauseInfo]) -> Reply:
    info = await backend.calls.run(_DATABASE, change)
    return Reply(_document(info), outcome=info.state, target=info.target)


def _document(info: PauseInfo) -> dict[str, Any]:
    return {
        "target": info.target,
        "state": info.state,
        "from": format_time(info.from_ms),
        "until": format_time(info.until_ms),
        "rate_per_s": info.rate_per_s,
        "actor": info.actor,
        "reason": info.reason,
    }
