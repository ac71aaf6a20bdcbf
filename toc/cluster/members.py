"""Decides which nodes below `members` in ZooKeeper are members of the cluster, and in which order they came.

Other programs may be able to write there, so only facts that ZooKeeper itself records count. A member is an
ephemeral node (a session owns it). The order is that of ZooKeeper's transactions, not of the numbers in
names. Names have a fixed form. At most `members_max` nodes count: those that joined first. With
`cluster.auth`, the ACL of a member names toc's account alone: nodes that were created while `members` was
open to others do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing

from toc.cluster.zookeeper_client import NodeStat, ZooKeeperClient
from toc.errors import SettingsError
from toc.runtime.clock import Clock
from toc.runtime.metrics import MEMBERS_IGNORED
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

MEMBERS = "members"
NAME_CHARS_MAX = 200
DIGITS = 10  # digits of the number that ZooKeeper appends to a name
LOOKUPS_MAX = 1000  # nodes per read; the next read continues
NAMED_MAX = 5  # names in a line of `toc doctor`
RECHECK_S = 60.0  # a node that was checked is not checked again sooner


def member_of_node_name(name: str) -> str:
    """The member that a node's name contains."""
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


def restrict_acls(zookeeper: ZooKeeperClient) -> list[str]:
    """Restricts the ACLs of toc's nodes to `cluster.auth`. Returns a line for each node that stays open.

    A node may be open because it was created without `cluster.auth`, or by another program.
    """
    left = []
    for path in ("", MEMBERS):
        name = f"the ZooKeeper node {zookeeper.full_path(path)}"
        try:
            strangers = "; ".join(zookeeper.read_foreign_acls(path))
            if strangers:
                zookeeper.restrict_acl(path)
                log.warning(
                    "%s was open to others (%s): its ACL is now restricted", name, strangers
                )
        except SettingsError as error:
            left.append(
                f"{name} is open to others, or its ACL cannot be read, and this account may not change it"
                f" ({error}): set its ACL with an account that may (setAcl in zkCli.sh)"
            )
    return left


def _describe_foreign_members(zookeeper: ZooKeeperClient) -> list[str]:
    """One line that names the nodes that were created without `cluster.auth`; [] if there are none."""
    names = sorted(filter(is_member_node_name, zookeeper.read_child_names(MEMBERS)))[:LOOKUPS_MAX]
    kept = zookeeper.are_made_with_auth([f"{MEMBERS}/{name}" for name in names])
    foreign = [name for name, ours in zip(names, kept, strict=True) if not ours]
    if not foreign:
        return []
    named = ", ".join(foreign[:NAMED_MAX]) + (", ..." if len(foreign) > NAMED_MAX else "")
    text = (
        f"{zookeeper.full_path(MEMBERS)}: {len(foreign)} nodes were not created with cluster.auth and do not"
        f" count as members ({named}): restart toc there with cluster.auth, or delete foreign nodes"
    )
    return [text]


def describe_rights_of_other_accounts(settings: Settings) -> list[str]:
    """A line for each other account that has rights on toc's nodes. Raises ClusterUnavailable."""
    with closing(ZooKeeperClient(settings, lambda: None)) as zookeeper:
        zookeeper.wait_until_connected(settings.connect_timeout_s)
        found = [
            f"{zookeeper.full_path(path)}: {stranger}"
            for path in ("", MEMBERS)
            for stranger in zookeeper.read_foreign_acls(path)
        ]
        return found + _describe_foreign_members(zookeeper)


class MemberReader:
    """Reads the members, and remembers for RECHECK_S which nodes it has checked. Not thread-safe."""

    def __init__(self, zookeeper: ZooKeeperClient, members_max: int, clock: Clock) -> None:
        self._zookeeper, self._members_max, self._clock = zookeeper, members_max, clock
        self._checked: dict[str, tuple[float, NodeStat]] = {}
        self._with_auth: dict[str, tuple[int, bool]] = {}
        """By name: the transaction that created the node, and whether its ACL is ours. Read once per node."""

    def read_members(self, *, watch: bool = False) -> dict[str, NodeStat]:
        """The members' nodes by name, in the order in which they joined. Raises ClusterUnavailable."""
        children = self._zookeeper.read_child_names(MEMBERS, watch=watch)
        found = self._read_node_stats([name for name in children if is_member_node_name(name)])
        living = self._keep_nodes_made_with_auth(
            {name: stat for name, stat in found.items() if stat.session}
        )
        ordered = sorted(living, key=lambda name: living[name].created)[: self._members_max]
        MEMBERS_IGNORED.set(len(children) - len(ordered))
        return {name: living[name] for name in ordered}

    def forget_checked_nodes(self, names: Iterable[str]) -> None:
        """Forgets who owns these nodes and when they were created: the next read asks ZooKeeper again."""
        for name in names:
            self._checked.pop(name, None)

    def _keep_nodes_made_with_auth(self, found: Mapping[str, NodeStat]) -> dict[str, NodeStat]:
        known = self._with_auth
        new = [name for name, stat in found.items() if known.get(name, (0,))[0] != stat.created]
        kept = self._zookeeper.are_made_with_auth([f"{MEMBERS}/{name}" for name in new])
        known |= {name: (found[name].created, ours) for name, ours in zip(new, kept, strict=True)}
        self._with_auth = {name: known[name] for name in found}
        return {name: stat for name, stat in found.items() if self._with_auth[name][1]}

    def _read_node_stats(self, names: Collection[str]) -> Mapping[str, NodeStat]:
        now_s = self._clock.monotonic_s()
        there = set(names)
        self._checked = {name: known for name, known in self._checked.items() if name in there}
        unknown = [name for name in names if name not in self._checked]
        old = [name for name, (at_s, _) in self._checked.items() if now_s - at_s > RECHECK_S]
        asked = [*unknown, *old][:LOOKUPS_MAX]
        stats = self._zookeeper.read_stats([f"{MEMBERS}/{name}" for name in asked])
        for name, stat in zip(asked, stats, strict=True):
            if stat is None:  # the node was deleted meanwhile
                self._checked.pop(name, None)
            else:
                self._checked[name] = now_s, stat
        return {name: stat for name, (_, stat) in self._checked.items()}


def members_of_node_names(names: Iterable[str]) -> list[str]:
    """The members that the names of nodes contain, each once, in the order of the names."""
    return list(dict.fromkeys(map(member_of_node_name, names)))
