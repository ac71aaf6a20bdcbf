"""Asks each server every few seconds whether it answers and what time it is there.

There is one thread per server, so that a server that hangs delays no other probe. Then the clocks are
compared: Redis' clock with the databases', and a database's clock that has stepped with all others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from toc.errors import TocError, text_of
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.server_clock import ClockOffset, ServerClock
from toc.runtime.service import Service
from toc.sentences import sentence

log = logging.getLogger(__name__)

TICK_S = 5.0
FIRST_TICK_S = 1.0  # the time between two questions before the server's first answer
PATIENCE_S = 3.0  # a question that has been open for longer counts as not answered
AGREE_MS = 2000  # clocks that are no further apart count as equal


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether a server answers without an error, since when (ms by this machine's wall clock); the error."""

    up: bool
    since_ms: int
    error: str = ""


class Probe(Service):
    """Asks one server. `ask_ms()`: the time of each of its nodes; raises when it does not answer.

    `server_clock`: this process' estimate of a database's clock; it is given each answer.
    """

    def __init__(
        self,
        server: str,
        ask_ms: Callable[[], Sequence[int]],
        clock: Clock,
        server_clock: ServerClock | None = None,
    ) -> None:
        super().__init__(f"toc-probe-{server}")
        self.server, self.server_clock = server, server_clock
        self._ask_ms, self._clock = ask_ms, clock
        self._finding = ProbeResult(up=True, since_ms=clock.wall_ms())
        self._answered_ms = clock.wall_ms()
        self._asked_s: float | None = None
        self.offsets: Sequence[ClockOffset] = ()
        """The clocks of the server's nodes against this process' monotonic clock, which is never set."""
        self.exact = False
        """Whether `offsets` come from a quick answer. If not, they only bound this server's clock."""
        self.wall_leap_ms = 0.0
        """How far the machine's clock leapt ahead of the monotonic one between the last two answers."""
        self._wall_offset: ClockOffset | None = None
        self.first_ask_done = threading.Event()
        """Set after the first question, also if it failed."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each answer."""

    def run_once(self) -> float:
        try:
            return self._ask_server()
        finally:
            self.first_ask_done.set()

    def _ask_server(self) -> float:
        # Computed when it is scraped: a question that hangs could not set it.
        metrics.SERVER_UP.labels(self.server).set_function(lambda: self.current_result.up)
        self._asked_s = before_s = self._clock.monotonic_s()
        before_ms = self._clock.wall_ms()
        try:
            server_ms = self._ask_ms()
            after_ms = self._clock.wall_ms()
        except TocError as error:
            self._asked_s = None
            # A server with another schema or release does answer: its error says so.
            text = text_of(error)
            if not error.retryable:
                text = sentence("answers, and does not fit: {error}", error=text)
            self._record_result(ProbeResult(up=False, since_ms=self._answered_ms, error=text))
            return TICK_S if self.offsets else FIRST_TICK_S
        after_s = self._clock.monotonic_s()
        self._asked_s = None
        self._answered_ms = after_ms
        quick = after_s - before_s < PATIENCE_S
        if quick:  # a slow answer would look like skew
            asked_ms = (before_ms + after_ms) / 2
            offsets_s = [(time_ms - asked_ms) / 1000 for time_ms in server_ms]
            metrics.CLOCK_OFFSET.labels(self.server).set(max(offsets_s, key=abs))
        if quick or not self.exact:
            # As long as no answer has been quick, a slow one counts: without any, its jobs would never be
            # due. Its offset is as wide as it was slow, and nothing starts earlier than by its lower end.
            self.exact = quick
            self._record_clock_offsets(server_ms, after_ms, before_s, after_s)
        self._record_result(ProbeResult(up=True, since_ms=self._answered_ms))
        self.on_answer()
        return TICK_S

    @property
    def current_result(self) -> ProbeResult:
        """The state now: a server that has not answered for PATIENCE_S is not up."""
        asked_s, finding = self._asked_s, self._finding
        if finding.up and asked_s is not None:
            waited_s = self._clock.monotonic_s() - asked_s
            if waited_s > PATIENCE_S:
                error = sentence("no answer for {seconds:.0f} s", seconds=waited_s)
                return ProbeResult(up=False, since_ms=self._answered_ms, error=error)
        return finding

    def _record_clock_offsets(
        self, server_ms: Sequence[int], wall_ms: int, asked_s: float, answered_s: float
    ) -> None:
        self.offsets = [
            ClockOffset.from_answer(time_ms, asked_s, answered_s) for time_ms in server_ms
        ]
        wall, before = ClockOffset.from_answer(wall_ms, asked_s, answered_s), self._wall_offset
        self.wall_leap_ms = 0.0 if before is None else wall.ms_later_than(before)
        self._wall_offset = wall
        if self.server_clock is not None:
            self.server_clock.record_offset(self.offsets[0])

    def _record_result(self, finding: ProbeResult) -> None:
        """Keeps the time of the last change between up and down, and logs each change."""
        before = self._finding
        if finding.up == before.up:
            self._finding = replace(before, error=finding.error)
            return
        self._finding = finding
        if finding.up:
            log.info("%s answers again", self.server)
        else:
            log.warning("%s is down: %s", self.server, finding.error)


class ClockComparison:
    """Compares the servers' clocks after each answer of one of them.

    `skew_is_too_large` is True while a clock of Redis and one of a database are too far apart: then the timer
    stops and the scanner fires, by the database's clock alone (I4). A server that does not answer keeps its
    last known time. `redis` None: there is no timer.

    A database's clock that has stepped is believed again when it comes back, or when all other servers that
    answer have its new time. If no other answers, this machine's own clock is the last witness: it confirms
    the step if it has leapt by as much, against its monotonic clock, in the same time.
    """

    def __init__(
        self, redis: Probe | None, databases: Sequence[Probe], *, skew_s_max: float
    ) -> None:
        self._redis, self._databases, self._skew_s_max = redis, databases, skew_s_max
        self._probes = [*databases] if redis is None else [*databases, redis]
        self._lock = threading.Lock()
        self._stepped: set[str] = set()  # databases whose clocks are not believed
        self._compared: set[str] = set()  # databases that were compared with two others, once
        self.skew_is_too_large = False
        for probe in self._probes:
            probe.on_answer = self._compare_clocks

    def _compare_clocks(self) -> None:
        with self._lock:
            self._check_redis_skew()
            for probe in self._databases:
                if probe.server_clock is not None and probe.offsets:
                    self._check_for_clock_step(probe, probe.server_clock)

    def _check_redis_skew(self) -> None:
        skew_s = max(self._measure_skews_s(), key=abs, default=0.0)
        metrics.CLOCK_SKEW.set(skew_s)
        skew_is_too_large = abs(skew_s) > self._skew_s_max
        if skew_is_too_large != self.skew_is_too_large:
            result = "so the timer stops and the scanner fires"
            if not skew_is_too_large:
                result = f"no more than {self._skew_s_max:g} s, so the timer goes on"
            log.error("Redis' clock differs by %+.1f s from a database's, %s", skew_s, result)
        self.skew_is_too_large = skew_is_too_large

    def _measure_skews_s(self) -> Iterator[float]:
        """The clock of each Redis node minus each database's in seconds, as far as both are known."""
        if self._redis is None or not self._redis.exact:
            return
        for database in self._databases:
            for offset in database.offsets if database.exact else ():
                yield from (
                    (redis.middle_ms - offset.middle_ms) / 1000 for redis in self._redis.offsets
                )

    def _check_for_clock_step(self, probe: Probe, clock: ServerClock) -> None:
        probed = probe.offsets[0]
        witnesses = [
            other.offsets
            for other in self._probes
            if other is not probe and other.current_result.up and other.exact
        ]
        others = [offset for offsets in witnesses for offset in offsets]
        agree = all(abs(offset.ms_later_than(probed)) <= AGREE_MS for offset in others)
        if clock.stepped_s:
            if agree if others else abs(probe.wall_leap_ms - clock.stepped_s * 1000) <= AGREE_MS:
                text = "the clock of %s has stepped by %+.1f s; the new time is confirmed, and used"
                log.warning(text, probe.server, clock.stepped_s)
                clock.trust_last_measurement()
        elif (
            # Only once, at the start: later, a clock that this process has followed counts more than the
            # others. The nodes of a Redis Cluster are one witness: one wrong NTP server sets them all.
            len(witnesses) > 1
            and probe.server not in self._compared
            and probed.ms_later_than(max(others)) > AGREE_MS
            and _clocks_agree(others)
        ):
            clock.follow_other_servers(max(others))
        if len(witnesses) > 1:
            self._compared.add(probe.server)
        self._log_clock_step(probe.server, clock.stepped_s)

    def _log_clock_step(self, server: str, stepped_s: float) -> None:
        """Logs once when a clock has stepped, and once when it is believed again."""
        metrics.CLOCK_STEP.labels(server).set(stepped_s)
        if stepped_s and server not in self._stepped:
            self._stepped.add(server)
            text = (
                "the clock of %s has stepped by %+.1f s, and no other server confirms the new time. "
                "Jobs start and leases end by the time before the step. Set the clock of the server; if the "
                "new time is right, restart the workers"
            )
            log.error(text, server, stepped_s)
        elif server in self._stepped and not stepped_s:
            self._stepped.remove(server)
            log.info("the clock of %s is in use again", server)


def _clocks_agree(offsets: Sequence[ClockOffset]) -> bool:
    """Whether no two of these clocks differ by more than AGREE_MS."""
    return all(
        abs(offset.ms_later_than(other)) <= AGREE_MS for offset in offsets for other in offsets
    )
