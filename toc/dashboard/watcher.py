"""Reads the state of toc every few seconds while somebody looks, once for all who look at this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from toc.dashboard.activity_view import HISTORY_MINUTES
from toc.dashboard.backlog import Backlog, BacklogMeter
from toc.dashboard.due_reader import DueReader
from toc.domain.pauses import PauseInfo
from toc.node.cluster_state import ClusterState
from toc.node.health import HealthPart
from toc.node.status_reader import MostOverdue, StatusReader
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.timer.activity import MinuteActivity

log = logging.getLogger(__name__)

REFRESH_S = 5.0
WATCHED_S = 60.0  # the reading goes on for so long after the last visit
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


class Watcher:
    """Has the newest Overview. Its thread starts with a visit, and ends when nobody looks any more.

    due: has the newest forecast.
    """

    def __init__(self, settings: Settings, clock: Clock, refresh_s: float = REFRESH_S) -> None:
        self._settings, self._clock, self._refresh_s = settings, clock, refresh_s
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._overview: Overview | None = None
        self._last_visit_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.due = DueReader(settings, clock)
        self._meter = BacklogMeter()

    def look(self, wait_s: float = FIRST_WAIT_S) -> Overview | None:
        """The newest Overview; waits for the first one. None: it did not come in time. Blocks."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._last_visit_s > WATCHED_S:
                self._overview = None  # nobody looked: it is old
            self._last_visit_s = now_s
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="toc-dashboard", daemon=True)
                self._thread.start()
            self._news.wait_for(lambda: self._overview is not None, wait_s)
            return self._overview

    def stop(self) -> None:
        """Ends the threads."""
        self.due.stop()
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(FIRST_WAIT_S)

    def _run(self) -> None:
        try:
            with StatusReader(self._settings) as reader:
                while not self._is_over():
                    self._read_once(reader)
                    self._stop.wait(self._refresh_s)
        except Exception:
            log.exception("the dashboard's reader has ended; the next visit starts it again")
            self._forget_thread()

    def _is_over(self) -> bool:
        with self._lock:
            unwatched_s = self._clock.monotonic_s() - self._last_visit_s
            if unwatched_s <= WATCHED_S and not self._stop.is_set():
                return False
            self._thread = None
            return True

    def _forget_thread(self) -> None:
        with self._lock:
            self._thread = None

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
        found = Overview(
            self._clock.wall_ms(), parts, duties.overdue, duties.pauses, cluster, activity, backlog
        )
        with self._lock:
            self._overview = found
            self._news.notify_all()
