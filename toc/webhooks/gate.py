"""Which requests to a destination may start now: a limit of concurrency, and a circuit breaker.

A request waits for its turn in the process only if the turn will come soon. Otherwise its job waits in the
database: the handler snoozes. So a slow receiver keeps only its share of the handler tasks, and a failing
receiver keeps none.

The circuit breaker opens after `failures_max` failed requests in a row. When it has been open for its time,
one request probes the receiver; all others wait. If the probe fails, the breaker is open for twice the time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from typing import NamedTuple, Protocol

from toc.runtime.clock import Clock
from toc.runtime.setting_groups import WorkerSettings

QUEUE_S_MAX = 1.0  # a request waits for its turn in the process only if the turn comes so soon
WAIT_S_MIN = 1.0
_SPREAD = 0.25  # waits are longer by a random part of this, so that jobs do not all return at once
_NEWEST_WEIGHT = 0.1  # of the newest request in the mean duration of requests
_MEAN_S_MIN = 0.001
_SHARE_OF_TASKS = 0.75  # the rest is for requests that wait, and for other handlers


class GateSettings(Protocol):
    """The settings of a destination's turns: those of `[webhooks]`, or of a sink."""

    @property
    def concurrency(self) -> int: ...
    @property
    def failures_max(self) -> int: ...
    @property
    def open_s(self) -> float: ...
    @property
    def open_s_max(self) -> float: ...
    @property
    def wait_s_max(self) -> float: ...


class MustWaitError(Exception):
    """The request may not start now: the job should try again after `wait_s` seconds."""

    def __init__(self, wait_s: float, reason: str) -> None:
        self.wait_s = wait_s
        super().__init__(reason)


class Turn(NamedTuple):
    """The right to send one request. `is_probe`: it probes an open circuit breaker."""

    is_probe: bool
    began_s: float


class HandlerShares:
    """How many requests one destination may run: an equal part of `tasks_max` for each active one.

    A destination is active while it has requests that run or wait for their turn in the process.
    """

    def __init__(self, tasks_max: int) -> None:
        self._tasks_max = tasks_max
        self.active = 0

    @classmethod
    def of_worker(cls, worker: WorkerSettings) -> HandlerShares:
        """The shares of three quarters of a worker's tasks for `async def` handlers."""
        tasks = min(worker.async_concurrency, worker.queue_max)
        return cls(max(1, int(tasks * _SHARE_OF_TASKS)))

    def share_of(self, *, is_active: bool) -> int:
        """The tasks of one destination, which counts as active from now on."""
        return max(1, self._tasks_max // max(1, self.active + (not is_active)))


class DestinationGate:
    """The turns of one destination. To be used on one event loop; `rng` varies the waits."""

    def __init__(
        self, settings: GateSettings, shares: HandlerShares, clock: Clock, rng: random.Random
    ) -> None:
        self._settings, self._shares, self._clock, self._rng = settings, shares, clock, rng
        self._running = 0
        self._counted = 0  # running requests whose turn has been returned
        self._began_sum_s = 0.0  # the sum of the times at which the running requests began
        self._queue: deque[asyncio.Future[None]] = deque()
        self._is_active = False
        self._mean_s = _MEAN_S_MIN  # duration of a request
        self._next_turn_s = (
            0.0  # the monotonic time of the turn that the last waiting job may expect
        )
        self._failures = 0
        self._open_until_s: float | None = None  # None: the circuit breaker is closed
        self._open_s = settings.open_s
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether the circuit breaker is open, or waits for the answer of its probe."""
        return self._open_until_s is not None

    # ---- turns

    async def begin(self) -> Turn:
        """Returns when the request may start. The caller must call `end` afterwards. Raises MustWaitError."""
        if not self._may_pass_breaker():
            if self._running < self._concurrency and not self._queue:
                self._running += 1
            else:
                await self._wait_for_turn()
            self._update_active()
            if self._open_until_s is None:
                return self._make_turn(is_probe=False)
            # The breaker has opened while this request waited for its turn.
            self._give_turn_back()
            raise self._must_wait(self._open_until_s - self._clock.monotonic_s(), "does not answer")
        self._is_probing = True
        self._running += 1
        self._update_active()
        return self._make_turn(is_probe=True)

    def _make_turn(self, *, is_probe: bool) -> Turn:
        turn = Turn(is_probe, self._clock.monotonic_s())
        self._counted += 1
        self._began_sum_s += turn.began_s
        return turn

    def end(self, turn: Turn, *, is_healthy: bool | None) -> None:
        """Ends a turn. is_healthy: whether the receiver answered as a working one; None: not known."""
        self._counted -= 1
        self._began_sum_s = self._began_sum_s - turn.began_s if self._counted else 0.0
        is_probe, seconds = turn.is_probe, self._clock.monotonic_s() - turn.began_s
        self._mean_s += _NEWEST_WEIGHT * (max(seconds, _MEAN_S_MIN) - self._mean_s)
        if is_probe:
            self._is_probing = False
        if is_healthy:
            if is_probe or self._open_until_s is None:
                self._failures, self._open_until_s = 0, None
                self._open_s = self._settings.open_s
        elif is_healthy is not None:
            self._failures += 1
            if is_probe or (
                self._open_until_s is None and self._failures >= self._settings.failures_max
            ):
                self._open_until_s = self._clock.monotonic_s() + self._open_s
                self._open_s = min(self._open_s * 2, self._settings.open_s_max)
        self._give_turn_back()

    def pause(self, seconds: float) -> None:
        """Opens the breaker for so long, at most `open_s_max`: the receiver has asked for it."""
        until_s = self._clock.monotonic_s() + min(seconds, self._settings.open_s_max)
        self._open_until_s = max(self._open_until_s or 0.0, until_s)

    def _may_pass_breaker(self) -> bool:
        """True: the breaker is open, and this request is its probe. False: the breaker is closed."""
        if self._open_until_s is None:
            return False
        left_s = self._open_until_s - self._clock.monotonic_s()
        if left_s > 0 or self._is_probing:
            raise self._must_wait(left_s, "does not answer")
        return True

    @property
    def _concurrency(self) -> int:
        share = self._shares.share_of(is_active=self._is_active)
        return min(self._settings.concurrency, share)

    @property
    def _expected_s(self) -> float:
        """How long a request takes. If none ends any more, as long as the running ones have taken by now."""
        age_s = 0.0
        if self._counted:
            age_s = self._clock.monotonic_s() - self._began_sum_s / self._counted
        return max(self._mean_s, age_s)

    async def _wait_for_turn(self) -> None:
        if (len(self._queue) + 1) * self._expected_s / self._concurrency > QUEUE_S_MAX:
            raise self._must_wait(0.0, "is busy")
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(2 * QUEUE_S_MAX):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # given in the moment in which the wait ended
                self._give_turn_back()
            else:
                with suppress(ValueError):  # `_give_turn_back` has removed it
                    self._queue.remove(turn)
                self._update_active()
            if isinstance(error, TimeoutError):
                raise self._must_wait(0.0, "is busy") from None
            raise

    def _give_turn_back(self) -> None:
        self._running -= 1
        while self._queue and self._running < self._concurrency:
            turn = self._queue.popleft()
            if not turn.done():  # else it is cancelled, and its request is about to leave
                self._running += 1
                turn.set_result(None)
        self._update_active()

    def _update_active(self) -> None:
        is_active = bool(self._running or self._queue)
        if is_active is not self._is_active:
            self._is_active = is_active
            self._shares.active += 1 if is_active else -1

    # ---- waits in the database

    def _must_wait(self, after_s: float, reason: str) -> MustWaitError:
        """Each job that must wait gets a turn of its own, as the receiver's speed lets expect them."""
        now_s, longest_s = self._clock.monotonic_s(), self._settings.wait_s_max
        base_s = max(now_s + max(after_s, WAIT_S_MIN), self._next_turn_s)
        base_s = min(base_s, now_s + longest_s)
        self._next_turn_s = base_s + self._expected_s / self._concurrency
        spread = 1 + _SPREAD * self._rng.random()
        return MustWaitError((base_s - now_s) * spread, reason)
