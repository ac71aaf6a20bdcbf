"""Which of the nodes below `members` in ZooKeeper are members, and in which order they came.

Whoever may write there may write anything, so only what ZooKeeper itself says counts: a member is a node
that a session owns (an ephemeral one), and the order is that of creation by ZooKeeper's transactions, not
that of the numbers in names. Names have a form, and there are at most `members_max` members: those that
came first. With `cluster.auth`, a member's ACL names our own account alone: nodes that were made while
`members` was open to others do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from toc.cluster.zookeeper import Stat, ZooKeeper
from toc.errors import SettingsError
from toc.runtime.clock import Clock
from toc.runtime.metrics import MEMBERS_IGNORED
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

MEMBERS = "members"
NAME_CHARS_MAX = 200
DIGITS = 10  # of the number that ZooKeeper appends
LOOKUPS_MAX = 1000  # in one look; the next one goes on
NAMED_MAX = 5  # in a line of `toc doctor`
RECHECK_S = 60.0  # a name that was checked is not asked for again sooner


def member_of(name: str) -> str:
    """The member behind a node's name."""
    return name.rpartition("-")[0]


def is_member_node_name(name: str) -> bool:
    """Whether a node's name is "MEMBER-0123456789"."""
    member, _, number = name.rpartition("-")
    return (
        0 < len(member) <= NAME_CHARS_MAX
        and member.isprintable()
        and len(number) == DIGITS
        and number.isascii()
        and number.isdigit()
    )


def restrict_acls(zookeeper: ZooKeeper) -> list[str]:
    """Sees to it that only who has `cluster.auth` may write members; a line for what could not be mended.

    Such nodes may have been made without it, or by somebody who came first.
    """
    left = []
    for path in ("", MEMBERS):
        name = f"the ZooKeeper node {zookeeper.full_path(path)}"
        try:
            strangers = "; ".join(zookeeper.foreign_acls(path))
            if strangers:
                zookeeper.restrict_acl(path)
                log.warning("%s was open to others (%s): its ACL is mended", name, strangers)
        except SettingsError as error:
            left.append(
                f"{name} is open to others, or its ACL cannot be read, and this node may not change it"
                f" ({error}): set its ACL with an account that may (setAcl of zkCli.sh)"
            )
    return left


def _describe_foreign_members(zookeeper: ZooKeeper) -> list[str]:
    """A line that names members which were made without `cluster.auth`; none where there are none."""
    names = sorted(filter(is_member_node_name, zookeeper.children(MEMBERS)))[:LOOKUPS_MAX]
    kept = zookeeper.made_with_auth([f"{MEMBERS}/{name}" for name in names])
    foreign = [name for name, ours in zip(names, kept, strict=True) if not ours]
    if not foreign:
        return []
    named = ", ".join(foreign[:NAMED_MAX]) + (", ..." if len(foreign) > NAMED_MAX else "")
    text = (
        f"{zookeeper.full_path(MEMBERS)}: {len(foreign)} nodes were not made with cluster.auth and do not"
        f" count as members ({named}): restart these nodes with cluster.auth, or delete what is not toc's"
    )
    return [text]


def open_to(settings: Settings) -> list[str]:
    """Who besides toc's own account may do what with its nodes, a line each. Raises ClusterUnavailable."""
    zookeeper = ZooKeeper(settings, lambda: None)
    try:
        zookeeper.wait(settings.connect_timeout_s)
        found = [
            f"{zookeeper.full_path(path)}: {stranger}"
            for path in ("", MEMBERS)
            for stranger in zookeeper.foreign_acls(path)
        ]
        return found + _describe_foreign_members(zookeeper)
    finally:
        zookeeper.close()


class Members:
    """Checks nodes, and remembers for a while which it has checked. One thread."""

    def __init__(self, zookeeper: ZooKeeper, members_max: int, clock: Clock) -> None:
        self._zookeeper, self._members_max, self._clock = zookeeper, members_max, clock
        self._checked: dict[str, tuple[float, Stat]] = {}
        self._with_auth: dict[str, tuple[int, bool]] = {}
        """By name: the transaction that made the node, and whether its ACL is ours: asked once a node."""

    def read_members(self, *, watch: bool = False) -> dict[str, Stat]:
        """The members' nodes by name, the first that came first. Raises ClusterUnavailable."""
        children = self._zookeeper.children(MEMBERS, watch=watch)
        found = self._read_stats([name for name in children if is_member_node_name(name)])
        living = self._keep_made_with_auth(
            {name: stat for name, stat in found.items() if stat.session}
        )
        ordered = sorted(living, key=lambda name: living[name].created)[: self._members_max]
        MEMBERS_IGNORED.set(len(children) - len(ordered))
        return {name: living[name] for name in ordered}

    def forget(self, names: Iterable[str]) -> None:
        """The next look checks these anew."""
        for name in names:
            self._checked.pop(name, None)

    def _keep_made_with_auth(self, found: Mapping[str, Stat]) -> dict[str, Stat]:
        known = self._with_auth
        new = [name for name, stat in found.items() if known.get(name, (0,))[0] != stat.created]
        kept = self._zookeeper.made_with_auth([f"{MEMBERS}/{name}" for name in new])
        known |= {name: (found[name].created, ours) for name, ours in zip(new, kept, strict=True)}
        self._with_auth = {name: known[name] for name in found}
        return {name: stat for name, stat in found.items() if self._with_auth[name][1]}

    def _read_stats(self, names: Collection[str]) -> Mapping[str, Stat]:
        now_s = self._clock.monotonic_s()
        there = set(names)
        self._checked = {name: known for name, known in self._checked.items() if name in there}
        unknown = [name for name in names if name not in self._checked]
        old = [name for name, (at_s, _) in self._checked.items() if now_s - at_s > RECHECK_S]
        asked = [*unknown, *old][:LOOKUPS_MAX]
        stats = self._zookeeper.stats([f"{MEMBERS}/{name}" for name in asked])
        for name, stat in zip(asked, stats, strict=True):
            if stat is None:  # it has gone since
                self._checked.pop(name, None)
            else:
                self._checked[name] = now_s, stat
        return {name: stat for name, (_, stat) in self._checked.items()}


def members_of(names: Iterable[str]) -> list[str]:
    """The members behind nodes' names, in their order; each once."""
    return list(dict.fromkeys(map(member_of, names)))
