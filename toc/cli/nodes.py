"""`toc nodes`: the nodes in ZooKeeper, and what each owns since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, SETTINGS, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, time_for_people
from toc.cluster.roster import Member, find_owners, read_roster
from toc.runtime.settings import Settings, load_settings


@answering_command
def show_nodes(
    output: Output,
    *,
    owners: Annotated[
        bool, typer.Option("--owners", help="Each slot and shard, its owner, and since when.")
    ] = False,
) -> int:
    """Show the nodes in ZooKeeper: who leads, what each owns, and since when.

    Exits 1 when a slot or shard has no owner (for a moment that is normal, after a node has come or gone).
    """
    settings = load_settings()
    if not settings.has_cluster:
        text = "there are no members: zookeeper_hosts is 'none', so each node owns everything"
        raise CommandError(text, SETTINGS)
    members = read_roster(settings)
    holders = {f"{kind} {number}": found for kind, number, found in find_owners(settings, members)}
    orphans = [thing for thing, found in holders.items() if not found]
    value = {
        "nodes": [_member_as_json(member) for member in members],
        "owners": {
            thing: [{"node": owner, "since": iso_utc(since_ms)} for owner, since_ms in found]
            for thing, found in holders.items()
        },
        "without_owner": orphans,
    }
    rows = _make_owner_rows(settings, members) if owners else map(_make_node_row, members)
    columns = _OWNER_COLUMNS if owners else _NODE_COLUMNS
    last = f"{len(members)} nodes; {len(orphans)} of {len(holders)} slots and shards have no owner"
    output.print_table(value, columns, rows, empty="no nodes", last=last)
    return NO if orphans else OK


_OWNER_COLUMNS = ("what", ">no", "owner", "since")
_NODE_COLUMNS = ("node", "leads", "joined", ">slots", ">shards", "handles", "version", "http")


def _make_owner_rows(settings: Settings, members: Sequence[Member]) -> Iterator[Sequence[object]]:
    for kind, number, owners in find_owners(settings, members):
        for owner, since_ms in owners:
            yield kind, number, owner, time_for_people(since_ms)
        if not owners:
            yield kind, number, "no owner", "-"


def _make_node_row(member: Member) -> Sequence[object]:
    return (
        member.identity,
        "leads" if member.leads else "",
        time_for_people(member.joined_ms),
        sum(map(len, member.slots.values())),
        len(member.shards),
        ", ".join(member.handles),
        member.version,
        member.http or "",
    )


def _member_as_json(member: Member) -> dict[str, object]:
    return {
        "node": member.identity,
        "leads": member.leads,
        "joined": iso_utc(member.joined_ms),
        "handles": list(member.handles),
        "version": member.version,
        "http": member.http,
        "slots": {topic: sorted(slots) for topic, slots in member.slots.items()},
        "shards": sorted(member.shards),
    }
