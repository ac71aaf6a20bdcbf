"""How many jobs wait overdue, whether they become fewer, and when they will be done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from toc.store.overdue_count import OverdueCount

COMPARED_S = 120.0  # the change is measured over so long, at most
COMPARED_S_MIN = 15.0
COUNTS_MAX = 60


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs whose time has passed. change_per_s: None: not measured yet, or the number is a lower bound."""

    rows: int
    is_at_least: bool
    change_per_s: float | None

    @property
    def gone_in_s(self) -> float | None:
        """When none is left, if it goes on as in the last two minutes; None: it does not become smaller."""
        if self.change_per_s is None or self.change_per_s >= 0:
            return None
        return self.rows / -self.change_per_s


class BacklogMeter:
    """Compares counts with earlier ones. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque(maxlen=COUNTS_MAX)

    def add_count(self, now_s: float, count: OverdueCount) -> Backlog:
        """The backlog now. now_s: of a clock that never goes back."""
        if count.is_at_least:
            self._counts.clear()
            return Backlog(count.rows, is_at_least=True, change_per_s=None)
        while self._counts and now_s - self._counts[0][0] > COMPARED_S:
            self._counts.popleft()
        change_per_s = None
        if self._counts and now_s - self._counts[0][0] >= COMPARED_S_MIN:
            then_s, rows = self._counts[0]
            change_per_s = (count.rows - rows) / (now_s - then_s)
        self._counts.append((now_s, count.rows))
        return Backlog(count.rows, is_at_least=False, change_per_s=change_per_s)
