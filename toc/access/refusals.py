"""How many refused calls the audit lists one by one in a minute, and counts of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from toc.runtime.clock import Clock
from toc.store.audit_rows import AuditRow

PERIOD_S = 60.0
KEYS_MAX = 1000
STRANGERS_FACTOR = 10
SUMMARIES_MAX = 50
OTHERS = "others"
SUMMARY = "refused"


@dataclass(slots=True)
class _RefusalCount:
    listed: int
    counted: int
    last: AuditRow


class RefusalBudget:
    """Counts refused calls by key, a token or an address, and begins anew each minute. Thread-safe.

    In a minute the audit lists at most `per_minute` calls of a key, and `STRANGERS_FACTOR` times as many
    of all addresses together: who has many addresses must not be able to fill the table. The others are
    counted, and become at most `SUMMARIES_MAX` entries and one more. Beyond `KEYS_MAX` keys the further
    ones share one count.
    """

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._clock, self._per_minute = clock, per_minute
        self._lock = threading.Lock()
        self._counts: dict[str, _RefusalCount] = {}
        self._strangers_listed = 0
        self._began_s = clock.monotonic_s()

    def admits(self, key: str, row: AuditRow) -> bool:
        """Whether the call is listed. False: it was counted."""
        is_stranger = row.token_id is None
        with self._lock:
            count = self._count_of(key, row)
            has_room = count.listed < self._per_minute
            if is_stranger:
                has_room &= self._strangers_listed < self._per_minute * STRANGERS_FACTOR
            if has_room:
                count.listed += 1
                self._strangers_listed += is_stranger
                return True
            count.counted += 1
            count.last = row
            return False

    def count_only(self, key: str, row: AuditRow) -> None:
        """Counts a call that was to be listed, and has no room."""
        with self._lock:
            count = self._count_of(key, row)
            count.counted += 1
            count.last = row

    def take_summaries(self, *, now: bool = False) -> list[AuditRow]:
        """The summaries of the minute, if it is over, or `now`; a new one begins."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if now_s - self._began_s < PERIOD_S and not now:
                return []
            counts, self._counts = self._counts, {}
            self._strangers_listed, self._began_s = 0, now_s
        return list(_summaries_of(counts))

    def _count_of(self, key: str, row: AuditRow) -> _RefusalCount:
        if key not in self._counts and len(self._counts) >= KEYS_MAX:
            key = OTHERS
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _RefusalCount(0, 0, row)
        return count


def _summaries_of(counts: dict[str, _RefusalCount]) -> Iterator[AuditRow]:
    """An entry for each of the keys with the most calls, and one for all others."""
    others = counts.pop(OTHERS, None)
    most = sorted(counts.items(), key=lambda item: item[1].counted, reverse=True)
    for key, count in most[:SUMMARIES_MAX]:
        if count.counted:
            yield _summary_row(count.last, count.counted, key)
    rest = [count for _, count in most[SUMMARIES_MAX:] if count.counted]
    if others is not None:
        rest.append(others)
    calls = sum(count.counted for count in rest)
    if calls:  # the row stands for nobody
        row = rest[-1].last._replace(token_id=None, owner=None, address=None)
        yield _summary_row(row, calls, OTHERS)


def _summary_row(row: AuditRow, calls: int, key: str) -> AuditRow:
    text = f"{calls} refused calls of {key} that are not listed"
    return row._replace(
        action=SUMMARY, target=text, calls=calls, rows_changed=None, request_id=None
    )
