"""The admissions of pauses and ramps, and the place of further ones (limits); see `toc.runtime.admission`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from toc.runtime.admission import Admission, AdmissionChain, chain_admissions
from toc.runtime.clock import Clock

__all__ = ["Admission", "AdmissionChain", "ClosedAdmission", "RampAdmission", "chain_admissions"]

CLOSED_S = 1.0  # when to ask a closed admission again; its end wakes the fetchers earlier
BURST_S = 0.2  # a ramp admits in one moment at most what its rate allows in so long
RETRY_S_MIN, RETRY_S_MAX = 0.02, 1.0


class ClosedAdmission:
    """Admits nothing: the type, its topic or everything is paused."""

    def admit(self, wanted: int) -> int:
        del wanted
        return 0

    def return_unused(self, count: int) -> None:
        """Nothing was admitted."""

    def job_ended(self, job_id: int) -> None:
        """What runs during a pause may end."""

    def retry_after_s(self) -> float:
        return CLOSED_S


class RampAdmission:
    """A token bucket whose rate grows. `rate_per_s()`: this process' part of the ramp's present rate."""

    def __init__(self, rate_per_s: Callable[[], float], clock: Clock) -> None:
        self._rate_per_s, self._clock = rate_per_s, clock
        self._lock = threading.Lock()
        self._tokens, self._filled_s = 0.0, clock.monotonic_s()

    def admit(self, wanted: int) -> int:
        with self._lock:
            self._fill_bucket()
            given = max(0, min(wanted, int(self._tokens)))
            self._tokens -= given
            return given

    def return_unused(self, count: int) -> None:
        with self._lock:
            self._tokens += count

    def job_ended(self, job_id: int) -> None:
        """A ramp limits how many jobs begin, not how many run."""

    def retry_after_s(self) -> float:
        with self._lock:
            self._fill_bucket()
            missing = max(0.0, 1 - self._tokens)
        return min(RETRY_S_MAX, max(RETRY_S_MIN, missing / max(self._rate_per_s(), 1e-9)))

    def _fill_bucket(self) -> None:
        """Adds the tokens of the time since the last call. The caller holds the lock."""
        now_s, rate = self._clock.monotonic_s(), self._rate_per_s()
        most = max(1.0, rate * BURST_S)
        self._tokens = min(most, self._tokens + rate * (now_s - self._filled_s))
        self._filled_s = now_s
