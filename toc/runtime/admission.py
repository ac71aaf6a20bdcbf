"""Admission: how many jobs of a restricted type may be taken now (ADR 44).

A fetcher (a poller or a scanner) of a restricted type asks before it pops or claims. So a job that may not
run now is not popped, keeps its order, uses up no attempt, and holds up no other type. A type without
restrictions has no admission, and its fetchers ask nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Admission(Protocol):
    """What a fetcher of a restricted type asks. Thread-safe; no method may block for long."""

    def admit(self, wanted: int) -> int:
        """How many of `wanted` jobs may be taken now (0 to `wanted`). They count as taken."""

    def return_unused(self, count: int) -> None:
        """Returns `count` admitted jobs that were not claimed."""

    def job_ended(self, job_id: int) -> None:
        """A claimed job has ended in this process, or was given back."""

    def retry_after_s(self) -> float:
        """Seconds after which to ask again, when fewer were admitted than wanted."""


class AdmissionChain:
    """Several admissions of one type: the smallest answer counts, and the others get the rest back."""

    def __init__(self, links: Sequence[Admission]) -> None:
        self._links = tuple(links)

    def admit(self, wanted: int) -> int:
        taken: list[tuple[Admission, int]] = []
        left = wanted
        for link in self._links:
            given = link.admit(left) if left else 0
            for earlier, _ in taken:
                if given < left:
                    earlier.return_unused(left - given)
            taken.append((link, given))
            left = given
            if not left:
                break
        return left

    def return_unused(self, count: int) -> None:
        for link in self._links:
            link.return_unused(count)

    def job_ended(self, job_id: int) -> None:
        for link in self._links:
            link.job_ended(job_id)

    def retry_after_s(self) -> float:
        return max(link.retry_after_s() for link in self._links)


def chain_admissions(links: Sequence[Admission | None]) -> Admission | None:
    """One admission for several; None if there is none."""
    there = [link for link in links if link is not None]
    if len(there) < 2:
        return there[0] if there else None
    return AdmissionChain(there)
