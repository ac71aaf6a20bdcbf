"""The page Cluster: nodes, owners, versions, clocks, Redis, and the consumers that wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.cluster.ownership_times import format_number_ranges
from toc.cluster.roster import Member, find_owners
from toc.dashboard.now_page import is_old, require_overview
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.runtime.settings import Settings

NODES_SHOWN_MAX = 500
NAMED_MAX = 20  # slots and shards without an owner, or with two, that are named


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A member as the page shows it. is_other_version: most nodes have another version."""

    member: Member
    shards: str
    slots: int
    handles: Sequence[str]
    is_other_version: bool


async def show_cluster(visit: Visit) -> Response:
    """GET /ui/cluster."""
    overview = require_overview(await asyncio.to_thread(visit.watcher.look))
    caller, cluster, settings = visit.person, overview.cluster, visit.backend.settings
    waiting = {
        biz_type: count
        for biz_type, count in sorted(visit.backend.count_waiting_consumers().items())
        if is_allowed(caller, "read", biz_type, None)  # the count is that of all tenants
    }
    ownerless, doubly_owned = find_wrong_owners(settings, cluster.members)
    html = render(
        visit, "cluster.html", overview=overview, is_old=is_old(visit, overview), cluster=cluster,
        settings=settings, nodes=make_lines(caller, cluster.members), waiting=waiting,
        ownerless=ownerless, doubly_owned=doubly_owned, named_max=NAMED_MAX,
        members_left_out=max(0, len(cluster.members) - NODES_SHOWN_MAX),
    )  # fmt: skip
    return HTMLResponse(html)


def find_wrong_owners(settings: Settings, members: Sequence[Member]) -> tuple[list[str], list[str]]:
    """The slots and shards that no member owns, and those that several own."""
    if not settings.has_cluster or not members:
        return [], []
    found = [
        (f"{kind} {number}", owners) for kind, number, owners in find_owners(settings, members)
    ]
    return [name for name, owners in found if not owners], [
        name for name, owners in found if len(owners) > 1
    ]


def make_lines(caller: Caller, members: Sequence[Member]) -> list[NodeLine]:
    """The members as far as the caller may see them: of the types, those that the caller may read."""
    ((usual, _),) = Counter(member.version for member in members).most_common(1) or (("", 0),)
    return [
        NodeLine(
            member,
            format_number_ranges(member.shards),
            sum(map(len, member.slots.values())),
            [name for name in member.handles if is_allowed(caller, "read", name, caller.tenant)],
            member.version != usual,
        )
        for member in members[:NODES_SHOWN_MAX]
    ]
