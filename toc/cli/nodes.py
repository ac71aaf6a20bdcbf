"""`toc nodes`: who is there, and who owns what since when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from toc.cli.common_options import answers
from toc.cli.exit_codes import NO, OK, SETTINGS, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso, shown
from toc.cluster.roster import Member, roster
from toc.runtime.settings import Settings, load_settings


@answers
def nodes(
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
    members = roster(settings)
    things = dict(_find_owners(settings, members))
    orphans = [thing for thing, holders in things.items() if not holders]
    value = {
        "nodes": [_json(member) for member in members],
        "owners": {
            f"{kind} {number}": [
                {"node": m.identity, "since": iso(since_ms)} for m, since_ms in holders
            ]
            for (kind, number), holders in things.items()
        },
        "without_owner": [f"{kind} {number}" for kind, number in orphans],
    }
    last = f"{len(members)} nodes; {len(orphans)} of {len(things)} slots and shards have no owner"
    if owners:
        output.table(
            value,
            ("what", ">no", "owner", "since"),
            [
                (kind, number, owner, since)
                for (kind, number), holders in things.items()
                for owner, since in [
                    (member.identity, shown(since_ms)) for member, since_ms in holders
                ]
                or [("nobody", "-")]
            ],
            empty="",
            last=last,
        )
    else:
        output.table(
            value,
            ("node", "leads", "joined", ">slots", ">shards", "handles", "version", "http"),
            [
                (
                    member.identity,
                    "leads" if member.leads else "",
                    shown(member.joined_ms),
                    sum(len(slots) for slots in member.slots.values()),
                    len(member.shards),
                    ", ".join(member.handles),
                    member.version,
                    member.http or "",
                )
                for member in members
            ],
            empty="no nodes",
            last=last,
        )
    return NO if orphans else OK


Holders = list[tuple["Member", int]]


def _find_owners(
    settings: Settings, members: list[Member]
) -> Iterator[tuple[tuple[str, int], Holders]]:
    """For each slot and shard, the members that say they own it (for a moment there may be none, or two)."""

    def holders(number: int, held: list[Mapping[int, int]]) -> Holders:
        return [
            (member, numbers[number])
            for member, numbers in zip(members, held, strict=True)
            if number in numbers
        ]

    for topic, amount in settings.slot_amounts.items():
        of_topic = [member.slots.get(topic, {}) for member in members]
        for slot in range(amount):
            yield (f"slot of {topic}", slot), holders(slot, of_topic)
    of_shards = [member.shards for member in members]
    for shard in range(settings.shards):
        yield ("shard", shard), holders(shard, of_shards)


def _json(member: Member) -> dict[str, object]:
    return {
        "node": member.identity,
        "leads": member.leads,
        "joined": iso(member.joined_ms),
        "handles": list(member.handles),
        "version": member.version,
        "http": member.http,
        "slots": {topic: sorted(slots) for topic, slots in member.slots.items()},
        "shards": sorted(member.shards),
    }
