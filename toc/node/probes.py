"""Asks each server, every few seconds, whether it answers and what time it is there.

One thread per server: one that hangs holds up nobody's knowledge of the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from toc.errors import TocError
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service

log = logging.getLogger(__name__)

TICK_S = 5.0
PATIENCE_S = 3.0  # a question that has been open for longer counts as not answered


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a server answers as it should, since when, and what it said if not.

    Since when: by this machine's wall clock, in ms.
    """

    up: bool
    since_ms: int
    error: str = ""


class Probe(Service):
    """Asks one server. `ask_ms()`: its time (of each of its nodes); raises when it does not answer."""

    def __init__(self, server: str, ask_ms: Callable[[], Sequence[int]], clock: Clock) -> None:
        super().__init__(f"toc-probe-{server}")
        self.server = server
        self._ask_ms, self._clock = ask_ms, clock
        self._finding = Finding(up=True, since_ms=clock.wall_ms())
        self._answered_ms = clock.wall_ms()
        self._asked_s: float | None = None
        self.offsets_s: Sequence[float] = ()
        """Its nodes' clocks minus this machine's, in seconds, when it last answered."""
        self.first = threading.Event()
        """Set when it has asked for the first time, whatever came of it."""
        self.answered: Callable[[], None] = lambda: None
        """Called after each answer."""

    def run_once(self) -> float:
        try:
            return self._ask()
        finally:
            self.first.set()

    def _ask(self) -> float:
        # Read when it is scraped: a question that hangs sets nothing.
        metrics.SERVER_UP.labels(self.server).set_function(lambda: self.finding.up)
        self._asked_s = before_s = self._clock.monotonic_s()
        before_ms = self._clock.wall_ms()
        try:
            server_ms = self._ask_ms()
            after_ms = self._clock.wall_ms()
        except TocError as error:
            self._asked_s = None
            # A schema or a release that is not ours is not a server that keeps silent.
            text = str(error) if error.retryable else f"answers, and does not fit: {error}"
            self._turn(Finding(up=False, since_ms=self._answered_ms, error=text))
            return TICK_S
        self._asked_s = None
        self._answered_ms = after_ms
        if self._clock.monotonic_s() - before_s < PATIENCE_S:  # a slow answer would look like skew
            asked_ms = (before_ms + after_ms) / 2
            self.offsets_s = [(time_ms - asked_ms) / 1000 for time_ms in server_ms]
            metrics.CLOCK_OFFSET.labels(self.server).set(max(self.offsets_s, key=abs))
        self._turn(Finding(up=True, since_ms=self._answered_ms))
        self.answered()
        return TICK_S

    @property
    def finding(self) -> Finding:
        """As of now: a server that has kept us waiting is not up."""
        asked_s, finding = self._asked_s, self._finding
        if finding.up and asked_s is not None:
            waited_s = self._clock.monotonic_s() - asked_s
            if waited_s > PATIENCE_S:
                error = f"no answer for {waited_s:.0f} s"
                return Finding(up=False, since_ms=self._answered_ms, error=error)
        return finding

    def _turn(self, finding: Finding) -> None:
        """Keeps the time of the last change, and tells of it."""
        before = self._finding
        if finding.up == before.up:
            self._finding = replace(before, error=finding.error)
            return
        self._finding = finding
        if finding.up:
            log.info("%s answers again", self.server)
        else:
            log.warning("%s is down: %s", self.server, finding.error)


class Clocks:
    """`beyond` is True while a clock of Redis and one of a database are too far apart.

    Then the timer stops and the scanner fires, by the database's clock alone (I4). A server that does
    not answer keeps the offset that it had.
    """

    def __init__(self, redis: Probe, databases: Sequence[Probe], *, skew_s_max: float) -> None:
        self._redis, self._databases, self._skew_s_max = redis, databases, skew_s_max
        self.beyond = False
        for probe in (redis, *databases):
            probe.answered = self._compare

    def _compare(self) -> None:
        skew_s = max(self._skews(), key=abs, default=0.0)
        metrics.CLOCK_SKEW.set(skew_s)
        beyond = abs(skew_s) > self._skew_s_max
        if beyond != self.beyond:
            log.error("Redis' clock is %+.1f s from a database's: %s", skew_s,
                      "the timer stops, the scanner fires" if beyond else "the timer goes on")  # fmt: skip
        self.beyond = beyond

    def _skews(self) -> Iterator[float]:
        """The clock of each Redis node minus each database's, as far as both are known."""
        for database in self._databases:
            for database_s in database.offsets_s:
                yield from (redis_s - database_s for redis_s in self._redis.offsets_s)
