"""The pages Types (all declared types) and Type (settings, limits and their use, pause of one)."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.cluster.roster import read_roster
from toc.dashboard.actions import said
from toc.dashboard.render import fill, render
from toc.dashboard.visit import Visit
from toc.domain.pauses import ALL, TOPIC_PREFIX, TYPE_PREFIX
from toc.errors import ClusterUnavailable, InvalidInput
from toc.http import declaration_calls, pause_calls
from toc.http.declared import declared_types
from toc.node.limit_use import TypeLimitUse, read_limit_uses

USES_READ_MAX = 100  # limited types whose use the list shows
NODES_SHOWN_MAX = 20
_INTEGER = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


async def show_types(visit: Visit) -> Response:
    """GET /ui/types."""
    reply = await declaration_calls.list_types(visit.backend, visit.call())
    types = reply.document["types"]
    names = [each["name"] for each in types]
    uses, pauses = await asyncio.gather(_read_uses(visit, names), _read_pauses(visit))
    operable = {name for name in names if is_allowed(visit.person, "operate", name, None)}
    html = render(
        visit, "types.html", types=types, pauses=pauses, operable=operable, uses=uses,
        said=said(visit), ramp_terms=_describe_ramp(visit),
    )  # fmt: skip
    return HTMLResponse(html)


async def show_type(visit: Visit) -> Response:
    """GET /ui/types/{biz_type}."""
    reply = await declaration_calls.get_type(visit.backend, visit.call(visit.request.path_params))
    found, caller = reply.document, visit.person
    name = found["name"]
    uses, pauses, nodes = await asyncio.gather(
        _read_uses(visit, [name]), _read_pauses(visit), _find_handling_nodes(visit, name)
    )
    topic = visit.backend.settings.topic_of_biz_type(name)
    targets = (TYPE_PREFIX + name, TOPIC_PREFIX + topic, ALL)
    may = {scope for scope in ("operate", "admin") if is_allowed(caller, scope, name, None)}
    if visit.backend.settings.web.dashboard_read_only:  # admin is there, for the pages to look at
        may.clear()
    html = render(
        visit, "type.html", type=found, use=uses.get(name), nodes=nodes, said=said(visit),
        pauses=[pauses[target] for target in targets if target in pauses],
        own_pause=pauses.get(TYPE_PREFIX + name), fields=list(FORM_FIELDS), may=may,
        ramp_terms=_describe_ramp(visit),
    )  # fmt: skip
    return HTMLResponse(html)


def _describe_ramp(visit: Visit) -> Markup:
    """The ramp of a pause that begins now, in words: `TimeoutCenter.pause` takes it from the settings."""
    terms = visit.backend.settings.pauses
    return fill(
        visit.texts["ramp_terms"], start=f"{terms.ramp_start * 100:g}",
        growth=f"{terms.ramp_growth * 100:g}", step_s=f"{terms.ramp_step_s:g}",
        rate_min=f"{terms.ramp_rate_min:g}",
    )  # fmt: skip


async def _read_pauses(visit: Visit) -> dict[str, dict[str, Any]]:
    """The pauses and ramps that the person may see, by target."""
    reply = await pause_calls.list_pauses(visit.backend, visit.call())
    return {each["target"]: each for each in reply.document["pauses"]}


async def _read_uses(visit: Visit, names: Collection[str]) -> dict[str, TypeLimitUse]:
    """How far the limits of these types are used now: by all tenants, so one tenant does not see it."""
    declared = declared_types(visit.backend)
    found = {
        name: declared[name].limit_terms
        for name in names
        if name in declared and is_allowed(visit.person, "read", name, None)
    }
    terms = {name: each for name, each in found.items() if each is not None}
    if not terms:
        return {}
    async with visit.backend.explanations:  # each reading opens connections
        read = functools.partial(
            read_limit_uses, visit.backend.settings, dict(list(terms.items())[:USES_READ_MAX])
        )
        return await asyncio.to_thread(read)


async def _find_handling_nodes(visit: Visit, name: str) -> list[str]:
    """The nodes whose handlers have the type, as ZooKeeper tells now; none without ZooKeeper."""
    settings = visit.backend.settings
    if not settings.has_cluster:
        return []
    try:
        async with visit.backend.explanations:
            members = await asyncio.to_thread(read_roster, settings)
    except ClusterUnavailable:
        return []
    return [member.identity for member in members if name in member.handles][:NODES_SHOWN_MAX]


# ---- the form that changes a type


def _parse_integer(field: str, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise InvalidInput(field, text, "must be a whole number of up to 9 digits")
    return int(text)


def _parse_number(field: str, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(field, text, "must be a number, as 30 or 2.5")
    return float(text)


def _parse_text(field: str, text: str) -> str:
    return text


FORM_FIELDS: Mapping[str, Callable[[str, str], object]] = {
    "rate": _parse_text,
    "burst": _parse_integer,
    "concurrency": _parse_integer,
    "per": _parse_text,
    "priority": _parse_integer,
    "timeout_s": _parse_number,
    "max_attempts": _parse_integer,
}


def changes_of_form(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields that differ from those that the form showed ("was_…"): what others change meanwhile stays.

    An empty field is not set any more.
    """
    changes: dict[str, Any] = {}
    for field, parse in FORM_FIELDS.items():
        text, shown = form.get(field, "").strip(), form.get(f"was_{field}", "").strip()
        if text != shown:
            changes[field] = parse(field, text) if text else None
    reason = form.get("reason", "").strip()
    return changes | ({"reason": reason} if reason else {})
