"""Which alarms are sent now: each at most once in `quiet_s`, and `per_hour` in all. Pure: time is passed in.

Nothing is dropped for these limits: what is not sent now is counted, and sent with its count later. A late
type that is in time again needs no message any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from toc.alarms.alarm import Alarm, AlarmKey, AlarmKind

HOUR_MS = 3_600_000
KEYS_MAX = 10_000  # more alarms than this wait for nobody to read them


class AlarmLimits(Protocol):
    """The settings that bound the messages."""

    @property
    def failures(self) -> object: ...
    @property
    def window_s(self) -> float: ...
    @property
    def quiet_s(self) -> float: ...
    @property
    def per_hour(self) -> int: ...


class PendingAlarms:
    """The alarms of one process. Times in ms since 1970, by one clock."""

    def __init__(self, limits: AlarmLimits) -> None:
        self._limits = limits
        self._pending: dict[AlarmKey, Alarm] = {}
        self._sent_ms: dict[AlarmKey, int] = {}
        self._hour: deque[int] = deque()  # when the messages of the last hour were sent
        self._failures: dict[str, deque[tuple[int, int]]] = {}  # by type: time and number

    def note_dead(self, biz_type: str, count: int, detail: str) -> None:
        """Adds jobs that died."""
        self._add(AlarmKey(AlarmKind.DEAD, biz_type), count, detail)

    def note_failures(self, biz_type: str, count: int, detail: str, now_ms: int) -> None:
        """Adds failed attempts; they become an alarm when there are `failures` of them in `window_s`."""
        limit = self._limits.failures
        if not isinstance(limit, int):
            return
        window = self._failures.setdefault(biz_type, deque())
        window.append((now_ms, count))
        while window[0][0] <= now_ms - self._limits.window_s * 1000:
            window.popleft()
        total = sum(number for _, number in window)
        if total >= limit:
            key = AlarmKey(AlarmKind.FAILURES, biz_type)
            self._pending[key] = Alarm(key, total, detail)

    def set_late(self, late: Mapping[str, str]) -> None:
        """Sets which types are late now, each with a detail. Others are late no more."""
        for key in [key for key in self._pending if key.kind is AlarmKind.LATE]:
            if key.biz_type not in late:
                del self._pending[key]
        for biz_type, detail in late.items():
            key = AlarmKey(AlarmKind.LATE, biz_type)
            self._pending[key] = Alarm(key, 1, detail)

    def drop_types(self, biz_types: Iterable[str]) -> None:
        """Forgets what waits of types that are paused."""
        for biz_type in biz_types:
            for kind in AlarmKind:
                self._pending.pop(AlarmKey(kind, biz_type), None)

    def take_next(self, now_ms: int) -> Alarm | None:
        """The alarm that may be sent now; None: none may. The caller says by `note_sent` that it was sent."""
        while self._hour and self._hour[0] <= now_ms - HOUR_MS:
            self._hour.popleft()
        if len(self._hour) >= self._limits.per_hour:
            return None
        for key, alarm in self._pending.items():
            sent_ms = self._sent_ms.get(key)
            if sent_ms is None or now_ms - sent_ms >= self._limits.quiet_s * 1000:
                return alarm
        return None

    def note_sent(self, alarm: Alarm, now_ms: int) -> None:
        """Notes that an alarm was sent: the same one is quiet now."""
        self._pending.pop(alarm.key, None)
        if alarm.key.kind is AlarmKind.FAILURES:
            self._failures.pop(alarm.key.biz_type, None)  # each failure is told once
        self._sent_ms = {
            key: ms
            for key, ms in self._sent_ms.items()
            if now_ms - ms < self._limits.quiet_s * 1000
        }
        self._sent_ms[alarm.key] = now_ms
        self._hour.append(now_ms)

    @property
    def waiting_count(self) -> int:
        return len(self._pending)

    def _add(self, key: AlarmKey, count: int, detail: str) -> None:
        known = self._pending.get(key)
        if known is None and len(self._pending) >= KEYS_MAX:
            return
        self._pending[key] = Alarm(key, count + (known.number if known else 0), detail)
