"""The page Audit: who did what over HTTP."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from starlette.responses import HTMLResponse, Response

from toc.access.audit_search import AuditFilter, AuditPage, search_audit
from toc.access.authorise import is_allowed
from toc.access.token_text import is_token_id
from toc.dashboard.form_times import field_time_of, parse_time_ms
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.errors import InvalidInput
from toc.http.declared import not_allowed
from toc.http.routes import ROUTES
from toc.sentences import sentence

PAGE = 100
FILTERS = ("who", "action", "target", "from", "until")
TEXT_CHARS_MAX = 100
ACTIONS = sorted({route.audited for route in ROUTES if route.audited is not None})
_DATABASE = 0  # a page about all databases takes a place of this one
_ENDS = re.compile(r"[0-9]{1,19}(-[0-9]{1,19}){0,99}", re.ASCII)


async def show_audit(visit: Visit) -> Response:
    """GET /ui/audit with a filter: it concerns all types and tenants."""
    if not is_allowed(visit.person, "admin", None, None):
        raise not_allowed("admin")
    backend, query = visit.backend, {name: text.strip() for name, text in visit.query.items()}
    found, wrong = AuditPage((), 0, None, ()), ""
    try:
        wanted = filter_of(query)
        ends = _parse_ends(query.get("after", ""), len(backend.databases.all))
    except InvalidInput as error:
        wrong = visit.texts.refusal(error)
    else:
        read = functools.partial(search_audit, backend.databases, wanted, ends, PAGE)
        found = await backend.calls.run(_DATABASE, read)
    following = None
    if found.ends is not None:
        fields = {name: query[name] for name in FILTERS if query.get(name)}
        following = fields | {"after": "-".join(map(str, found.ends))}
    html = render(
        visit, "audit.html", found=found, query=query, wrong=wrong, actions=ACTIONS,
        following=following,
        times={name: field_time_of(query.get(name, "")) for name in ("from", "until")},
    )  # fmt: skip
    return HTMLResponse(html)


def filter_of(query: Mapping[str, str]) -> AuditFilter:
    """The filter that the fields ask for. Raises InvalidInput."""
    for name in ("who", "action", "target"):
        if len(query.get(name, "")) > TEXT_CHARS_MAX:
            raise InvalidInput(
                name,
                query[name],
                sentence("must have at most {most} characters", most=TEXT_CHARS_MAX),
            )
    who = query.get("who") or None
    is_token = who is not None and is_token_id(who)
    return AuditFilter(
        token_id=who if is_token else None,
        owner=None if is_token else who,
        action=query.get("action") or None,
        target=query.get("target") or None,
        since_ms=parse_time_ms("from", query["from"]) if query.get("from") else None,
        until_ms=parse_time_ms("until", query["until"]) if query.get("until") else None,
    )


def _parse_ends(text: str, databases: int) -> list[int] | None:
    if not text:
        return None
    ends = [int(part) for part in text.split("-")] if _ENDS.fullmatch(text) else []
    if len(ends) != databases:
        raise InvalidInput("after", text, "must be the place of a page, as its link has it")
    return ends
