"""The admissions of pauses and ramps, and the place of further ones (limits); see `toc.runtime.admission`."""

from __future__ import annotations

from collections.abc import Callable

from toc.limits.ramp_starts import RampStarts
from toc.runtime.admission import Admission, AdmissionChain, chain_admissions
from toc.runtime.clock import Clock

__all__ = ["Admission", "AdmissionChain", "ClosedAdmission", "RampAdmission", "chain_admissions"]

CLOSED_S = 1.0  # when to ask a closed admission again; its end wakes the fetchers earlier
GATHER_S = 0.025  # starts that a ramp allows in so long are taken together
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
    """Admits as many jobs as a ramp's rate allows, over all processes. It remembers a refusal for a moment.

    `rate_per_s()`: the present rate of all processes together; 0: nothing is admitted.
    """

    def __init__(
        self, target: str, rate_per_s: Callable[[], float], starts: RampStarts, clock: Clock
    ) -> None:
        self._target, self._rate_per_s = target, rate_per_s
        self._starts, self._clock = starts, clock
        self._closed_until_s = (
            0.0  # two threads may write it: then the one or the other asks earlier
        )

    def admit(self, wanted: int) -> int:
        if wanted <= 0 or self._clock.monotonic_s() < self._closed_until_s:
            return 0
        rate = self._rate_per_s()
        if rate <= 0:
            self._closed_until_s = self._clock.monotonic_s() + RETRY_S_MAX
            return 0
        answer = self._starts.take_starts(self._target, rate, wanted)
        if answer.wait_ms > 0 and answer.admitted < wanted:
            # A few starts together are cheaper than one by one.
            wait_s = max(GATHER_S, answer.wait_ms / 1000)
            self._closed_until_s = self._clock.monotonic_s() + min(RETRY_S_MAX, wait_s)
        return answer.admitted

    def return_unused(self, count: int) -> None:
        rate = self._rate_per_s()
        if count > 0 and rate > 0:
            self._starts.return_starts(self._target, rate, count)

    def job_ended(self, job_id: int) -> None:
        """A ramp limits how many jobs begin, not how many run."""

    def retry_after_s(self) -> float:
        left_s = self._closed_until_s - self._clock.monotonic_s()
        return min(RETRY_S_MAX, max(RETRY_S_MIN, left_s))
