"""The actions that pause a type, a topic or everything, resume it, and list the pauses.

A pause concerns the jobs of all tenants, so a token of a tenant cannot make one. A topic may hold any types,
so the pause of a topic, as that of everything, needs a token for all types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypedDict

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.domain.argument_checks import check_biz_type
from toc.domain.pauses import PauseInfo, biz_type_of_target, check_topic
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import declared_types, not_allowed
from toc.http.job_documents import parse_when
from toc.http.problems import HttpProblem
from toc.http.wire_times import format_time

_DATABASE = 0  # a call about pauses takes a place of this database, though it asks all of them


async def pause_type(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}:pause."""
    target = _check_type(call)
    _require_declared(backend, target["biz_type"])
    return await _pause(backend, call, target)


async def pause_topic(backend: Backend, call: Call) -> Reply:
    """POST /v1/topics/{topic}:pause."""
    return await _pause(backend, call, _check_topic(call))


async def pause_everything(backend: Backend, call: Call) -> Reply:
    """POST /v1/all:pause."""
    return await _pause(backend, call, _check_everything(call))


async def resume_type(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}:resume."""
    return await _resume(backend, call, _check_type(call))


async def resume_topic(backend: Backend, call: Call) -> Reply:
    """POST /v1/topics/{topic}:resume."""
    return await _resume(backend, call, _check_topic(call))


async def resume_everything(backend: Backend, call: Call) -> Reply:
    """POST /v1/all:resume."""
    return await _resume(backend, call, _check_everything(call))


async def list_pauses(backend: Backend, call: Call) -> Reply:
    """GET /v1/pauses."""
    found, caller = await backend.calls.run(_DATABASE, backend.center.pauses), call.caller
    seen = [info for info in found if _may_see(caller, info)]
    return Reply(
        {"pauses": [_document(info, with_author=_may_pause(caller, info)) for info in seen]}
    )


def readable_pauses(caller: Caller, pauses: Sequence[PauseInfo]) -> list[PauseInfo]:
    """The pauses that the caller may see; without who has paused and why, if that is not for the caller."""
    return [
        info if _may_pause(caller, info) else replace(info, actor="", reason=None)
        for info in pauses
        if _may_see(caller, info)
    ]


class _Target(TypedDict, total=False):
    """The arguments of `TimeoutCenter.pause` that say what is paused."""

    biz_type: str
    topic: str
    everything: bool


def _check_type(call: Call) -> _Target:
    biz_type = call.path["biz_type"]
    if not is_allowed(call.caller, "operate", biz_type, None):
        raise not_allowed("operate")
    return {"biz_type": check_biz_type(biz_type)}


def _check_topic(call: Call) -> _Target:
    _require_all_types(call.caller)
    return {"topic": check_topic(call.path["topic"])}


def _check_everything(call: Call) -> _Target:
    _require_all_types(call.caller)
    return {"everything": True}


def _require_all_types(caller: Caller) -> None:
    if not is_allowed(caller, "admin", None, None):
        raise HttpProblem(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            "the token must be for all types, and have no tenant, to pause a topic or everything",
        )


async def _pause(backend: Backend, call: Call, target: _Target) -> Reply:
    body, until = call.body, None
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
            **target, until=until, reason=body.reason, actor=call.caller.actor
        )

    return await _change(backend, pause)


async def _resume(backend: Backend, call: Call, target: _Target) -> Reply:
    body = call.body

    def resume() -> PauseInfo:
        return backend.center.resume(
            **target, now=bool(body.now), reason=body.reason, actor=call.caller.actor
        )

    return await _change(backend, resume)


def _require_declared(backend: Backend, biz_type: str) -> None:
    """Raises InvalidInput: a mistyped name would pause nothing, and names without end would fill a table that
    every process reads twice a second."""
    if biz_type not in declared_types(backend):
        raise InvalidInput("biz_type", biz_type, "must be a declared type")


def _may_see(caller: Caller, info: PauseInfo) -> bool:
    """Pauses of a type: who may read its jobs; others: who may read jobs of all types."""
    return is_allowed(caller, "read", biz_type_of_target(info.target), caller.tenant)


def _may_pause(caller: Caller, info: PauseInfo) -> bool:
    """Who has paused, and why, is for operators: it may name people, systems and other tenants."""
    biz_type = biz_type_of_target(info.target)
    return is_allowed(caller, "admin" if biz_type is None else "operate", biz_type, None)


async def _change(backend: Backend, change: Callable[[], PauseInfo]) -> Reply:
    info = await backend.calls.run(_DATABASE, change)
    return Reply(_document(info, with_author=True), outcome=info.state, target=info.target)


def _document(info: PauseInfo, *, with_author: bool) -> dict[str, Any]:
    return {
        "target": info.target,
        "state": info.state,
        "from": format_time(info.from_ms),
        "until": format_time(info.until_ms),
        "rate_per_s": info.rate_per_s,
        "actor": info.actor if with_author else None,
        "reason": info.reason if with_author else None,
    }
