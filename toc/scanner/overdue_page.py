"""Reads pages of overdue rows and sends the rows to a claim stage, as far as there are permits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from toc.runtime.job_batch import BatchClaimAnswer, JobBatch, PermitSource
from toc.runtime.service import Inbox
from toc.store.due_pages import DuePages, TypesExcept

BEGINNING = (0, 0)


class OverduePage(NamedTuple):
    """Overdue rows of one shard, each with a permit. `after`: (due_ms, job_id) of the last row read."""

    shard: int
    job_ids: Sequence[int]
    found_s: float
    after: tuple[int, int]
    has_more: bool


class OverduePages:
    """Overdue pages of one database. `types()`: type numbers that this process runs; None: all."""

    def __init__(
        self,
        database: int,
        pages: DuePages,
        permits: PermitSource,
        inbox: Inbox[JobBatch],
        types: Callable[[], Collection[int] | TypesExcept | None],
        page_rows: int,
    ) -> None:
        self._database, self._pages, self._permits = database, pages, permits
        self._inbox, self._types, self._page_rows = inbox, types, page_rows

    def take_page_permits(self) -> int:
        """Takes permits for a page, and returns how many; 0: no permit is free now."""
        return self._permits.take_permits(self._database, self._page_rows)

    def read_overdue_page(
        self, shard: int, after: tuple[int, int], grace_ms: int, permits: int, found_s: float
    ) -> OverduePage:
        """Reads up to `permits` rows that are overdue by more than `grace_ms`.

        Returns, before the claim, the permits for which no row was found; all permits if the read raises.
        """
        unused = permits
        try:
            rows = self._pages.read_overdue_rows(shard, after, grace_ms, self._types(), permits)
            unused -= len(rows)
        finally:
            self._permits.return_permits(self._database, unused)
        after = rows[-1].key if rows else after
        job_ids = [row.job_id for row in rows]
        return OverduePage(shard, job_ids, found_s, after, len(rows) == permits)

    def claim_overdue_page(self, page: OverduePage) -> int:
        """Sends the rows to the claim stage; returns how many jobs will run. Raises the claim's error."""
        if not page.job_ids:
            return 0
        answer = BatchClaimAnswer()
        self._inbox.enqueue(
            JobBatch(
                "", {page.shard: page.job_ids}, None, page.found_s,
                popped=False, permits=len(page.job_ids), answer=answer,
            )
        )  # fmt: skip
        return answer.wait_for_claim()
