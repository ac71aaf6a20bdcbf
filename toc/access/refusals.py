"""How many refused calls of one token or address the audit lists one by one, and counts of the others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from toc.runtime.clock import Clock
from toc.store.audit_rows import AuditRow

PERIOD_S = 60.0
KEYS_MAX = 1000
OTHERS = "others"
SUMMARY = "refused"


@dataclass(slots=True)
class _Count:
    began_s: float
    listed: int
    counted: int
    last: AuditRow


class RefusalBudget:
    """Counts refused calls by key, a token or an address. Thread-safe.

    Of more than `KEYS_MAX` keys in a minute, the further ones share one count, so memory is bounded and
    the audit gets at most (KEYS_MAX + 1) x (`per_minute` + 1) entries of refused calls in a minute.
    """

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._clock, self._per_minute = clock, per_minute
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def admits(self, key: str, row: AuditRow) -> bool:
        """Whether the call is listed. False: it was counted."""
        with self._lock:
            count = self._count_of(key, row)
            if count.listed < self._per_minute:
                count.listed += 1
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

    def take_summaries(self, *, all_of_them: bool = False) -> list[AuditRow]:
        """The summaries of the minutes that are over, and forgets them."""
        now_s = self._clock.monotonic_s()
        found = []
        with self._lock:
            for key, count in list(self._counts.items()):
                if now_s - count.began_s < PERIOD_S and not all_of_them:
                    break  # in the order of their beginnings
                del self._counts[key]
                if count.counted:
                    found.append(_summary_of(key, count))
        return found

    def _count_of(self, key: str, row: AuditRow) -> _Count:
        if key not in self._counts and len(self._counts) >= KEYS_MAX:
            key = OTHERS
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count(self._clock.monotonic_s(), 0, 0, row)
        return count


def _summary_of(key: str, count: _Count) -> AuditRow:
    text = f"{count.counted} refused calls of {key} that are not listed"
    found = count.last._replace(
        action=SUMMARY, target=text, calls=count.counted, rows_changed=None, request_id=None
    )
    if key == OTHERS:  # the last of them stands for nobody else
        found = found._replace(token_id=None, owner=None, address=None)
    return found
