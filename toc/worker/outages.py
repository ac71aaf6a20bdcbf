"""Which databases do not answer: no permits are given for them for a while, and their ids are put off."""

from __future__ import annotations

from toc.runtime.clock import Clock

DOWN_S = 3.0  # a database that did not answer is skipped for so long
# Ids of a database that does not answer are put off for as long as it has not answered, within these bounds.
PUT_OFF_S_MIN, PUT_OFF_S_MAX = 1.0, 5.0


class DatabaseOutages:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down_until_s: dict[int, float] = {}
        self._away_since_s: dict[int, float] = {}  # until a claim has been answered

    def record_no_answer(self, database: int) -> None:
        now_s = self._clock.monotonic_s()
        self._away_since_s.setdefault(database, now_s)
        self._down_until_s[database] = now_s + DOWN_S

    def record_answer(self, database: int) -> None:
        if self._away_since_s:
            self._away_since_s.pop(database, None)

    def is_down(self, database: int) -> bool:
        """Whether it did not answer a moment ago: it is not asked now."""
        return self._clock.monotonic_s() < self._down_until_s.get(database, 0.0)

    def is_away(self, database: int) -> bool:
        """Whether it has not answered since it was down: one batch at a time tries it."""
        return database in self._away_since_s

    def put_off_ms(self, database: int) -> int:
        """For how long to put off ids of a database that takes no jobs."""
        now_s = self._clock.monotonic_s()
        away_s = now_s - self._away_since_s.setdefault(database, now_s)
        return round(1000 * min(PUT_OFF_S_MAX, max(PUT_OFF_S_MIN, away_s)))
