"""The actions about declared types: list, show, declare, change and forget them.

A declaration concerns the jobs of all tenants, so a token of a tenant cannot change one. Two fields have
rules of their own over HTTP, since a token may be stolen. A sink says where jobs go: only one that
`web.sinks` allows can be declared. A codec keeps payloads unreadable at rest: it can be added, but neither
replaced nor removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from typing import Any

from toc.access.authorise import is_allowed, matches_pattern
from toc.access.caller import Caller
from toc.center.type_verbs import Guard, TypeVerbs
from toc.domain.argument_checks import check_biz_type
from toc.domain.declared_type import FIELDS, DeclaredType
from toc.domain.retry_policies import retry_policy_to_json
from toc.domain.type_fields import TypeInfo
from toc.errors import InvalidInput, NotFound
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import declared_types
from toc.http.models import TypeIn
from toc.http.problems import HttpProblem
from toc.http.wire_times import format_time

_DATABASE = 0  # a call about types takes a place of this database, though it asks all of them


async def list_types(backend: Backend, call: Call) -> Reply:
    """GET /v1/types."""
    declared_types(backend)  # refused while they are not known
    caller = call.caller
    found = [
        _document(caller, info)
        for info in backend.catalogue.infos()
        if is_allowed(caller, "read", info.declared.name, caller.tenant)
    ]
    return Reply({"types": found})


async def get_type(backend: Backend, call: Call) -> Reply:
    """GET /v1/types/{biz_type}."""
    name, caller = check_biz_type(call.path["biz_type"]), call.caller
    if not is_allowed(caller, "read", name, caller.tenant):
        raise NotFound("no such type")
    info = await backend.calls.run(_DATABASE, lambda: backend.center.types.get(name))
    return Reply(_document(caller, info))


async def declare_type(backend: Backend, call: Call) -> Reply:
    """PUT /v1/types/{biz_type}."""
    body: TypeIn = call.body
    fields = {key: value for key, value in _given_fields(body).items() if value is not None}

    def declare(verbs: TypeVerbs, name: str) -> TypeInfo:
        return verbs.declare(name, reason=body.reason, actor=call.caller.actor, **fields)

    return await _change(backend, call, declare)


async def set_type(backend: Backend, call: Call) -> Reply:
    """PATCH /v1/types/{biz_type}."""
    body: TypeIn = call.body
    fields = _given_fields(body)

    def change(verbs: TypeVerbs, name: str) -> TypeInfo:
        return verbs.set(name, reason=body.reason, actor=call.caller.actor, **fields)

    return await _change(backend, call, change)


async def forget_type(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}:forget."""

    def forget(verbs: TypeVerbs, name: str) -> TypeInfo:
        found = verbs.get(name)
        verbs.forget(name, reason=call.body.reason, actor=call.caller.actor)
        return found

    return await _change(backend, call, forget)


async def _change(
    backend: Backend, call: Call, change: Callable[[TypeVerbs, str], TypeInfo]
) -> Reply:
    name, caller = check_biz_type(call.path["biz_type"]), call.caller
    if not is_allowed(caller, "admin", name, None):
        raise HttpProblem(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            "the token must be for this type, and have no tenant, to change its declaration",
        )
    settings = backend.settings
    guard = make_guard(settings.web.sinks, settings.codecs)
    changed = True

    def check_and_note(now: DeclaredType | None, wanted: DeclaredType | None) -> None:
        nonlocal changed
        guard(now, wanted)
        changed = now != wanted

    def change_and_read() -> TypeInfo:
        info = change(backend.center.types.with_guard(check_and_note), name)
        backend.catalogue.read_now()  # for the next call to this server
        return info

    info = await backend.calls.run(_DATABASE, change_and_read)
    return Reply(_document(caller, info), target=name, rows_changed=int(changed))


def make_guard(sinks: Sequence[str], codecs: Collection[str]) -> Guard:
    """Refuses changes that are not for HTTP. sinks: patterns; codecs: the names that this server has."""

    def guard(now: DeclaredType | None, wanted: DeclaredType | None) -> None:
        codec = None if now is None else now.codec
        new_codec = None if wanted is None else wanted.codec
        if codec is not None and new_codec != codec:
            rule = f"must stay {codec!r} over HTTP: `toc types` replaces or removes a codec"
            raise InvalidInput("codec", new_codec, rule)
        if new_codec is not None and codec is None and new_codec not in codecs:
            raise InvalidInput("codec", new_codec, "must be a codec that the server has")
        sink = None if wanted is None else wanted.sink
        is_new = sink is not None and (now is None or now.sink != sink)
        if is_new and not any(matches_pattern(each, str(sink)) for each in sinks):
            raise InvalidInput("sink", sink, "must be one that web.sinks of the server allows")

    return guard


def _given_fields(body: TypeIn) -> dict[str, Any]:
    return {key: getattr(body, key) for key in FIELDS if key in body.model_fields_set}


def _document(caller: Caller, info: TypeInfo) -> dict[str, Any]:
    """`TypeOut`."""
    declared = info.declared
    fields = {key: getattr(declared, key) for key in FIELDS}
    # Who changes types is not the business of those who share the installation.
    has_no_tenant = caller.tenant is None
    return {
        "name": declared.name,
        **fields,
        "retry": retry_policy_to_json(declared.retry),
        "sets": sorted(declared.set_fields),
        "version": info.version,
        "changed": format_time(info.changed_ms),
        "actor": info.actor if has_no_tenant else None,
        "reason": info.reason if has_no_tenant else None,
        "away": list(info.away),
    }
