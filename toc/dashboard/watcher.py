"""Reads the state of toc every few seconds while somebody looks, once for all who look at this process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from toc.dashboard.activity_view import HISTORY_MINUTES
from toc.dashboard.backlog import Backlog, BacklogMeter
from toc.dashboard.due_reader import DueReader
from toc.dashboard.watched_reader import WatchedReader
from toc.domain.pauses import PauseInfo
from toc.node.cluster_state import ClusterState
from toc.node.health import HealthPart
from toc.node.status_reader import MostOverdue, StatusReader
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.timer.activity import MinuteActivity

log = logging.getLogger(__name__)

REFRESH_S = 5.0
FIRST_WAIT_S = 5.0
OVERDUE_MS = 1000  # a job that waits for less is about to start


@dataclass(frozen=True, slots=True)
class Overview:
    """What was read, and when, in ms since 1970 by this machine's clock.

    activity: the last minutes, of which the last one is running; None: no Redis, or no answer. backlog: None:
    a database does not answer.
    """

    taken_ms: int
    parts: Sequence[HealthPart]
    overdue: MostOverdue
    pauses: Sequence[PauseInfo]
    cluster: ClusterState
    activity: Sequence[MinuteActivity] | None
    backlog: Backlog | None

    @property
    def problems(self) -> list[HealthPart]:
        """The parts that are not up."""
        return [part for part in self.parts if part.state != "up"]


class Watcher(WatchedReader[Overview]):
    """Has the newest Overview. Its thread starts with a visit, and ends when nobody looks any more.

    due: has the newest forecast.
    """

    def __init__(self, settings: Settings, clock: Clock, refresh_s: float = REFRESH_S) -> None:
        super().__init__("toc-dashboard", clock, FIRST_WAIT_S)
        self._settings, self._refresh_s = settings, refresh_s
        self.due = DueReader(settings, clock)
        self._meter = BacklogMeter()

    def look(self, wait_s: float = FIRST_WAIT_S) -> Overview | None:
        """The newest Overview; waits for the first one. None: it did not come in time. Blocks."""
        return self.wait_for_news(wait_s)

    def stop(self) -> None:
        """Ends the threads."""
        self.due.stop()
        super().stop()

    def read_until_over(self) -> None:
        with StatusReader(self._settings) as reader:
            while not self.is_over():
                self._read_once(reader)
                self._stop.wait(self._refresh_s)

    def _read_once(self, reader: StatusReader) -> None:
        try:
            servers = reader.check_servers()
            duties = reader.check_duties()
            cluster = reader.read_cluster_state()
            activity = reader.read_activity(HISTORY_MINUTES)
            overdue = reader.count_overdue(OVERDUE_MS)
        except Exception:
            # What was read before stays, and the page tells how old it is.
            log.exception("the dashboard cannot read the state of toc")
            return
        parts = [*duties.parts, *servers]
        backlog = None
        if overdue is not None:
            backlog = self._meter.add_count(self._clock.monotonic_s(), overdue)
        self.publish(
            Overview(
                self._clock.wall_ms(),
                parts,
                duties.overdue,
                duties.pauses,
                cluster,
                activity,
                backlog,
            )
        )
