"""Adds what this process has counted to the minutes in Redis, every 5 s.

While Redis does not answer, the counts are dropped: jobs never wait for it, and nothing is kept for later but
a few marks, which say since when a server was away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from toc.errors import TimerUnavailable
from toc.runtime.activity_counts import activity_counts
from toc.runtime.clock import Clock
from toc.runtime.service import Service

if TYPE_CHECKING:
    from toc.timer.timer_server import TimerServer

PERIOD_MS = 5000
WAIT_S_MIN = 1.0
MARKS_MAX = 20  # marks that wait for Redis, and those that were sent and must not be sent again
MINUTE_MS = 60_000

Mark = tuple[int, str]
"""Something that a chart should show: (ms since 1970, "start:VERSION" or "away:SERVER")."""


class ActivityReporter(Service):
    """Reports at full multiples of 5 s, so that a minute has its own jobs.

    open_server: called in this thread. is_node: report also when there is nothing to count; a minute without
    any report is shown as unknown. find_marks: what is to be marked now.
    """

    def __init__(
        self,
        open_server: Callable[[], TimerServer],
        namespace: str,
        clock: Clock,
        *,
        is_node: bool = False,
        find_marks: Callable[[], Iterable[Mark]] = lambda: (),
    ) -> None:
        super().__init__("toc-activity")
        self._open_server, self._namespace, self._clock = open_server, namespace, clock
        self._is_node, self._find_marks = is_node, find_marks
        self._waiting: deque[Mark] = deque(maxlen=MARKS_MAX)
        self._seen: deque[Mark] = deque(maxlen=MARKS_MAX)
        self._is_away = False

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def run_once(self) -> float:
        """Reports, and returns the seconds until the next full multiple of the period."""
        self.report()
        return max(WAIT_S_MIN, (PERIOD_MS - self._clock.wall_ms() % PERIOD_MS) / 1000)

    def _run_until_stopped(self) -> None:
        super()._run_until_stopped()
        if not self._is_away:  # the last counts; who stops this waits for them, as long as it likes
            with suppress(Exception):  # the counts are only of help, and this thread ends
                self.report()

    def report(self) -> None:
        """Sends the new counts and marks, or drops the counts. Blocks as long as Redis may take."""
        counts = activity_counts.take_new_counts()
        for mark in self._find_marks():
            if mark not in self._seen:
                self._seen.append(mark)
                self._waiting.append(mark)
        if not (counts or self._waiting or self._is_node):
            return
        try:
            server = self._open_server()  # imports redis if nobody has: never two threads at once
            from toc.timer.activity import REPORTS, ActivityStore  # noqa: PLC0415 - clients start without redis

            store = ActivityStore(server, self._namespace)
            # The counts are of the last period: the middle of it lies in their minute.
            minute = (server.read_time_ms() - PERIOD_MS // 2) // MINUTE_MS
            store.add(minute, {**counts, REPORTS: 1})
            while self._waiting:
                at_ms, text = self._waiting[0]
                store.add(at_ms // MINUTE_MS, {f"mark:{text}": 1})
                self._waiting.popleft()
            self._is_away = False
        except TimerUnavailable:  # the probes of Redis say so
            self._is_away = True
