"""This process as a member of the cluster, and its view of the other members.

A member is an ephemeral, sequential node "MEMBER-0000000007"; its data lists the slots and shards that it
owns. The member that joined first leads, so the leader stays when other members come and go.

- A create can succeed while its answer is lost: each step finds this process' nodes by their name, keeps
  the one that this session has made, and deletes the others.
- Nodes written by others are not trusted (`members`, ADR 23): they can only make jobs late.
- SUSPENDED (no server reached) differs from LOST (the session is over, and its node is deleted). In both
  the last view stays; when a server answers again, the next step reads the members and joins if needed.
- A view without this process is not used: it joins first.
- A process that cannot reach ZooKeeper does not lead: `is_leader` is False at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from toc.cluster.members import (
    MEMBERS,
    MemberReader,
    member_of_node_name,
    members_of_node_names,
    restrict_acls,
)
from toc.cluster.zookeeper_client import NodeStat, ZooKeeperClient
from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

# The time between two reads, in case a watch is lost; a watch reports a change at once.
READ_EVERY_S = 5.0
RECONNECT_S, RETRY_S = 1.0, 0.2
# The next read waits this many times as long as the last read or its `changed` took.
REST_FACTOR = 4


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The members in the order in which they joined, the leader first.

    Not `connected`: ZooKeeper does not answer, and this is the last view. `frozen`: it has not answered for
    longer than a session lasts, so some of these members may have died without a successor.
    """

    members: Sequence[str]
    connected: bool
    frozen: bool = False

    @property
    def leader(self) -> str | None:
        return self.members[0] if self.members else None


class Membership(Service):
    """Joins as `member` and calls `changed(view)`, from its own thread, when the view has changed.

    `describe()` returns the data of the member's node; called at each read.
    """

    def __init__(
        self,
        settings: Settings,
        member: str,
        describe: Callable[[], bytes],
        changed: Callable[[ClusterView], None],
        clock: Clock,
    ) -> None:
        super().__init__("toc-membership")
        self._zookeeper = ZooKeeperClient(settings, self.wake)
        self._has_auth = settings.cluster.auth is not None
        self._members = MemberReader(self._zookeeper, settings.cluster.members_max, clock)
        self._member, self._describe, self._changed = member, describe, changed
        self._clock, self._session_s = clock, settings.cluster.session_timeout_s
        self.joined = threading.Event()
        """Set when the first view that contains this process is known."""
        self._rests_until_s = clock.monotonic_s()
        self._session: int | None = None  # the session that created the node
        self._node = ""
        self._node_data = b""
        self.view = ClusterView((), connected=False)
        self._connected_s = clock.monotonic_s()
        self.refusal = ""
        """Why ZooKeeper refuses this node as a member; empty: it does not, or does not answer."""
        self.since_ms = clock.wall_ms()
        """When the connection was last made or lost, by this machine's wall clock."""

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, which does the work that must run once per cluster."""
        return self._zookeeper.session_id is not None and (
            self.view.connected and self.view.leader == self._member
        )

    def run_once(self) -> float:
        """Reads the members once. Raises no error when ZooKeeper does not answer: the view says so."""
        rest_s = self._rests_until_s - self._clock.monotonic_s()
        # Nodes that come and go all the time must not take all of this process' time.
        if rest_s > 0:
            return rest_s
        self._zookeeper.start_connecting()
        session = self._zookeeper.session_id
        if session is None:
            self.refusal = ""
            self._report_disconnected()
            if self.view.frozen or not self.view.members:
                self._zookeeper.accept_older_server()
            return RECONNECT_S
        try:
            began_s = self._clock.monotonic_s()
            members = self._read_members_and_join(session)
            now_s = self._clock.monotonic_s()
            self._rests_until_s = now_s + min(REST_FACTOR * (now_s - began_s), READ_EVERY_S)
            self.refusal = ""
            self._report_view(ClusterView(members, connected=True))
            self._update_own_node_data()
        except ClusterUnavailable as error:
            log.debug("reading the members failed: %s", error)
            self._report_disconnected()
            return RETRY_S
        except SettingsError as error:
            self._log_throttle.warning(
                "settings", "ZooKeeper refuses this node as a member: %s", error
            )
            self.refusal = str(error)
            self._report_disconnected()
            return RECONNECT_S
        return READ_EVERY_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Leaves the cluster: other members take over at once."""
        gone = super().stop(timeout_s)
        self._zookeeper.close()
        return gone

    def _read_members_and_join(self, session: int) -> list[str]:
        found = self._members.read_members(watch=True)
        if self._session != session or not self._owns_own_node(found, session):
            for name in self._zookeeper.read_child_names(MEMBERS):
                if member_of_node_name(name) == self._member:
                    self._zookeeper.delete_node(f"{MEMBERS}/{name}")
            self._join_cluster(session)
            self._members.forget_checked_nodes([self._node])
            found = self._members.read_members(watch=True)
        # A node with our name that another program created, and that we may not delete, does not count.
        others = (
            name
            for name in found
            if member_of_node_name(name) != self._member or name == self._node
        )
        members = members_of_node_names(others)
        return members if self._member in members else [*members, self._member]

    def _owns_own_node(self, found: Mapping[str, NodeStat], session: int) -> bool:
        """Whether this process' node in ZooKeeper exists and belongs to this session, not to an older one."""
        stat = found.get(self._node)
        if stat is None and self._node:  # perhaps it is beyond members_max
            (stat,) = self._zookeeper.read_stats([f"{MEMBERS}/{self._node}"])
        return stat is not None and stat.session == session

    def _join_cluster(self, session: int) -> None:
        self._zookeeper.create_path(MEMBERS)
        if self._has_auth:
            for problem in restrict_acls(self._zookeeper):
                log.warning("%s", problem)
        self._node_data = self._describe()
        self._node = self._zookeeper.create_member_node(
            f"{MEMBERS}/{self._member}-", self._node_data
        )
        self._session = session
        log.info("joined the cluster as %s", self._member)

    def _update_own_node_data(self) -> None:
        """Writes the data of this process' node in ZooKeeper if the data have changed."""
        text = self._describe()
        if text != self._node_data and self._zookeeper.write_data(f"{MEMBERS}/{self._node}", text):
            self._node_data = text

    def _report_disconnected(self) -> None:
        away_s = self._clock.monotonic_s() - self._connected_s
        self._report_view(replace(self.view, connected=False, frozen=away_s > self._session_s))

    def _report_view(self, view: ClusterView) -> None:
        if view.connected:
            self._connected_s = self._clock.monotonic_s()
            self.joined.set()
        before, self.view = self.view, view
        if view == before:
            return
        if view.connected != before.connected:
            self.since_ms = self._clock.wall_ms()
            log.log(*_CONNECTION[view.connected])
        if view.members:
            began_s = self._clock.monotonic_s()
            self._changed(view)
            now_s = self._clock.monotonic_s()
            self._rests_until_s = max(self._rests_until_s, now_s + REST_FACTOR * (now_s - began_s))


_CONNECTION = {
    True: (logging.INFO, "ZooKeeper is connected"),
    False: (logging.WARNING, "ZooKeeper does not answer: this node keeps its last assignment"),
}
