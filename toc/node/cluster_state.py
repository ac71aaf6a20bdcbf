"""The members of the cluster and the servers of toc, with their versions and clocks: for the page Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from toc.cluster.roster import Member
from toc.errors import TimerUnavailable, TocError, text_of
from toc.node.probes import Probe
from toc.runtime.clock import Clock
from toc.runtime.server_clock import ClockOffset
from toc.store.databases import Database, Databases
from toc.store.server_info import read_server_info
from toc.timer.redis_node_state import RedisNodeState
from toc.timer.reminders import Reminders

PARALLEL_MAX = 8


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """A database. version: with the kind of the server; "": it does not answer, error says why."""

    index: int
    version: str
    clock: ClockOffset | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """roster_failure: why the members are not known. machine_clock: that of this process."""

    members: Sequence[Member]
    roster_failure: str
    databases: Sequence[DatabaseState]
    redis: Sequence[RedisNodeState]
    redis_failure: str
    machine_clock: ClockOffset

    def seconds_ahead(self, clock: ClockOffset | None) -> float | None:
        """How far a clock is ahead of that of the first database that answers; None: not known.

        0 while the difference is smaller than what the time of the answers allows to see.
        """
        known = (database.clock for database in self.databases)
        first = next((each for each in known if each is not None), None)
        return None if clock is None or first is None else clock.ms_later_than(first) / 1000


def read_cluster_state(
    members: Sequence[Member],
    roster_failure: str,
    databases: Databases,
    probes: Sequence[Probe],
    reminders: Reminders | None,
    clock: Clock,
) -> ClusterState:
    """Asks each server once. probes: those of the databases, in their order, asked just before."""
    with ThreadPoolExecutor(PARALLEL_MAX) as pool:
        asked = list(pool.map(_read_database_state, databases, probes))
    redis: Sequence[RedisNodeState] = ()
    redis_failure = ""
    if reminders is not None:
        try:
            redis = reminders.read_node_states()
        except TimerUnavailable as error:
            redis_failure = text_of(error)
    now_s = clock.monotonic_s()
    machine_clock = ClockOffset.from_answer(clock.wall_ms(), now_s, now_s)
    return ClusterState(members, roster_failure, asked, redis, redis_failure, machine_clock)


def _read_database_state(database: Database, probe: Probe) -> DatabaseState:
    """Of a database that did not answer its probe nothing is asked: it would cost another timeout."""
    result = probe.current_result
    if not result.up:
        return DatabaseState(database.index, "", None, result.error)
    try:
        info = read_server_info(database)
    except TocError as error:
        return DatabaseState(database.index, "", None, text_of(error))
    offset = next(iter(probe.offsets), None)
    return DatabaseState(database.index, f"{info.kind} {info.version}", offset)
