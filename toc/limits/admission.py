"""What a fetcher of a limited type asks before it pops; the claim stage takes the starts (ADR 45)."""

from __future__ import annotations

from dataclasses import dataclass

from toc.limits.limits import Limits

RETRY_S_MIN = 0.005


@dataclass(frozen=True, slots=True)
class LimitAdmission:
    """How many jobs of a type it makes sense to fetch now. Implements `runtime.admission.Admission`.

    It reserves nothing, so there is nothing to return: a job counts from `Limits.take` on, by its id.
    """

    limits: Limits
    biz_type: str

    def admit(self, wanted: int) -> int:
        return self.limits.count_fetchable(self.biz_type, wanted)

    def return_unused(self, count: int) -> None:
        """Nothing was reserved."""

    def job_ended(self, job_id: int) -> None:
        """`Limits.job_ended` is told, with the token."""

    def retry_after_s(self) -> float:
        return max(RETRY_S_MIN, self.limits.next_fetch_s(self.biz_type))
