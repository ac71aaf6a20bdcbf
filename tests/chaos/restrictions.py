"""Pauses a type again and again while a run breaks things, and keeps recurring schedules until its end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from tests.chaos.plan import Lines
from tests.chaos.restricted import PAUSED, SCHEDULES, Schedule
from tests.chaos.restricted_history import PauseSpan
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.errors import NotFound, StoreUnavailable

OPEN_S, PAUSED_S = (3.0, 8.0), (5.0, 10.0)
ENDS_BY_ITSELF = 0.3  # of the pauses
WITH_RAMP = 0.5  # of the resumes
TRY_S = 0.5
END_S = 150.0
CHAIN_S_MAX = 150.0
_Found = TypeVar("_Found")


class Restrictions:
    """Works on the servers past all proxies. `lines`: what was asked and answered, for people who read it."""

    def __init__(
        self, center: TimeoutCenter, rng: random.Random, lines: Lines, now: Callable[[], float]
    ) -> None:
        self._center, self._rng, self._lines, self._now = center, rng, lines, now
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pause_again_and_again, daemon=True)
        self.pauses: list[PauseSpan] = []
        self.error: BaseException | None = None
        """What has ended the thread, if it was not `end_pauses`."""

    def start(self) -> None:
        """Declares the schedules, and begins to pause."""
        for schedule in SCHEDULES:
            self._again(lambda s=schedule: self._center.recur(s.name, **s.options))  # type: ignore[misc]
        self._thread.start()

    def end_pauses(self) -> None:
        """From now on nothing is paused, and no ramp is left."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._again(lambda: self._center.resume(PAUSED, now=True))

    def give_up(self) -> None:
        """Begins nothing new: the servers are about to go."""
        self._ended.set()

    def end_chains(self) -> None:
        """Waits until each chain has reached the present, and removes the schedules.

        Raises AssertionError if a chain stands still, or is ahead of its next time.
        """
        for schedule in SCHEDULES:
            wait_until(
                lambda s=schedule: self._is_at_present(s),  # type: ignore[misc]
                f"{schedule.name} to have its next job, and no later one", CHAIN_S_MAX,
            )  # fmt: skip
        for schedule in SCHEDULES:
            self._again(lambda s=schedule: self._remove(s))  # type: ignore[misc]

    def _is_at_present(self, schedule: Schedule) -> bool:
        try:
            found = self._center.recurring.get(schedule.name)
        except StoreUnavailable:
            return False
        if found.nominal_time is None:
            return False
        ahead_ms = found.nominal_time.timestamp() * 1000 - self._now()
        return 0 < ahead_ms <= schedule.every_s * 1000

    def _remove(self, schedule: Schedule) -> None:
        with suppress(NotFound):  # the try before had removed it, and its answer was lost
            self._center.recurring.remove(schedule.name)

    # ---- pauses

    def _pause_again_and_again(self) -> None:
        rng = self._rng
        try:
            while not self._ended.wait(rng.uniform(*OPEN_S)):
                hold_s, ends, ramps = rng.uniform(*PAUSED_S), rng.random(), rng.random()
                self._pause(hold_s, by_clock=ends < ENDS_BY_ITSELF, with_ramp=ramps < WITH_RAMP)
        except BaseException as error:  # noqa: BLE001 - of whatever kind: the run has failed
            self.error = error

    def _pause(self, hold_s: float, *, by_clock: bool, with_ramp: bool) -> None:
        asked_ms = self._now()
        until = timedelta(seconds=hold_s) if by_clock else None
        try:
            self._center.pause(PAUSED, until=until, reason="chaos")
            answered_ms = self._now()
        except StoreUnavailable:
            answered_ms = None
        self._ended.wait(hold_s)
        to_ms = min(self._now(), asked_ms + hold_s * 1000) if by_clock else self._now()
        if answered_ms is not None:
            self.pauses.append(PauseSpan(PAUSED, answered_ms, to_ms, by_clock))
        if not by_clock or answered_ms is None or not with_ramp:
            self._again(lambda: self._center.resume(PAUSED, now=not with_ramp))
        self._lines.write(
            {"asked_ms": asked_ms, "answered_ms": answered_ms, "to_ms": to_ms, "by_clock": by_clock,
             "with_ramp": with_ramp, "over_ms": self._now()}
        )  # fmt: skip

    def _again(self, call: Callable[[], _Found]) -> _Found:
        """Until a database answers: each of these calls may be repeated."""

        def answered() -> tuple[_Found] | None:
            try:
                return (call(),)
            except StoreUnavailable:
                time.sleep(TRY_S)
                return None

        found = wait_until(answered, "a database to answer", END_S)
        assert found is not None
        return found[0]
