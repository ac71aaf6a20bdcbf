"""This process as a member of the cluster, and its view of the others.

A member is an ephemeral, sequential node "MEMBER-0000000007" whose data says what it owns. The
member with the lowest number leads: so the leader stays when others come and go.

- A create can succeed while its answer is lost: each look finds our own nodes by their name, keeps the
  one that this session knows it made, and deletes the others.
- SUSPENDED (no server reached) is not LOST (the session is over, and with it our node): in both the
  last view stays; when a server answers again, the next look tells, and joins anew where needed.
- A view without this process is not acted upon: it joins first.
- Who cannot reach ZooKeeper does not lead, whatever it believes: `leads` is False at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from toc.cluster.zookeeper import ZooKeeper
from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

MEMBERS = "members"
LOOK_S = 5.0  # a look every so often, should a watch be lost; a change is told at once
AWAY_S, AGAIN_S = 1.0, 0.2


@dataclass(frozen=True, slots=True)
class View:
    """The members in the order in which they came, the leader first.

    Not `connected`: ZooKeeper is not reached, and this is the last view. `frozen`: for longer than a
    session lasts, so that some of these members may have died since, and nobody has inherited theirs.
    """

    members: Sequence[str]
    connected: bool
    frozen: bool = False

    @property
    def leader(self) -> str | None:
        return self.members[0] if self.members else None


class Membership(Service):
    """Joins as `member` and calls `changed(view)`, from its own thread, when the view has changed.

    `describe()` is what the member says of itself; asked at each look.
    """

    def __init__(
        self,
        settings: Settings,
        member: str,
        describe: Callable[[], bytes],
        changed: Callable[[View], None],
        clock: Clock,
    ) -> None:
        super().__init__("toc-membership")
        self._zookeeper = ZooKeeper(settings, self.wake)
        self._member, self._describe, self._changed = member, describe, changed
        self._clock, self._session_s = clock, settings.cluster.session_timeout_s
        self.joined = threading.Event()
        """Set with the first view that this process is part of."""
        self._session: int | None = None  # in which the node was made
        self._node = ""
        self._said = b""
        self.view = View((), connected=False)
        self._connected_s = clock.monotonic_s()
        self.trouble = ""
        """Why this node is no member though ZooKeeper answers; empty: it is one, or there is no answer."""
        self.since_ms = clock.wall_ms()
        """When ZooKeeper was reached, or lost: this machine's wall clock."""

    @property
    def leads(self) -> bool:
        """Whether this process is the one that does what must run once."""
        return self._zookeeper.session is not None and (
            self.view.connected and self.view.leader == self._member
        )

    def run_once(self) -> float:
        """One look. Never raises because ZooKeeper is away: that is a state, not an error."""
        self._zookeeper.connect()
        session = self._zookeeper.session
        if session is None:
            self.trouble = ""
            self._tell_away()
            if self.view.frozen or not self.view.members:
                self._zookeeper.start_over()
            return AWAY_S
        try:
            members = self._look(session)
            self.trouble = ""
            self._tell(View(members, connected=True))
            self._say()
        except ClusterUnavailable as error:
            log.debug("a look at ZooKeeper failed: %s", error)
            self._tell_away()
            return AGAIN_S
        except SettingsError as error:
            self._seldom.warning("settings", "this node is no member: %s", error)
            self.trouble = str(error)
            self._tell_away()
            return AWAY_S
        return LOOK_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Leaves the cluster: the others take over at once."""
        gone = super().stop(timeout_s)
        self._zookeeper.close()
        return gone

    def _look(self, session: int) -> list[str]:
        names = self._zookeeper.children(MEMBERS, watch=True)
        if self._session != session or self._node not in names:
            for name in names:
                if member_of(name) == self._member:
                    self._zookeeper.delete(f"{MEMBERS}/{name}")
            self._join(session)
            names = self._zookeeper.children(MEMBERS, watch=True)
        return members_of(names)

    def _join(self, session: int) -> None:
        self._zookeeper.make_directory(MEMBERS)
        self._said = self._describe()
        self._node = self._zookeeper.create_member(f"{MEMBERS}/{self._member}-", self._said)
        self._session = session
        log.info("joined the cluster as %s", self._member)

    def _say(self) -> None:
        """Brings our node's data up to date."""
        text = self._describe()
        if text != self._said and self._zookeeper.set(f"{MEMBERS}/{self._node}", text):
            self._said = text

    def _tell_away(self) -> None:
        away_s = self._clock.monotonic_s() - self._connected_s
        self._tell(replace(self.view, connected=False, frozen=away_s > self._session_s))

    def _tell(self, view: View) -> None:
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
            self._changed(view)


_CONNECTION = {
    True: (logging.INFO, "ZooKeeper is connected"),
    False: (logging.WARNING, "ZooKeeper is not reached: the last assignment stays"),
}


def member_of(name: str) -> str:
    """The member behind a node's name."""
    return name.rpartition("-")[0]


def members_of(names: Sequence[str]) -> list[str]:
    """Members in the order in which they joined; each once."""
    ordered = sorted(names, key=lambda name: name.rpartition("-")[2])
    return list(dict.fromkeys(member_of(name) for name in ordered))
