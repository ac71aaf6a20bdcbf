"""Reads pages of overdue rows and sends the rows to a claim stage, as far as there are permits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from toc.runtime.admission import Admission
from toc.runtime.job_batch import BatchClaimAnswer, JobBatch, PermitSource
from toc.runtime.service import Inbox
from toc.store.due_pages import DuePages, DueRow, TypesExcept

ROWS_READ_MAX = 10_000  # that a statement reads for a page, of which most may be of paused types
REFUSED_S_MIN = (
    0.1  # rows of a type that were not admitted are read again after this time, or later
)


class OverduePage(NamedTuple):
    """Overdue rows of one shard, each with a permit. `after`: (due_ms, job_id) of the last row read.

    admissions: of the rows of restricted types.
    """

    shard: int
    job_ids: Sequence[int]
    found_s: float
    after: tuple[int, int]
    has_more: bool
    admissions: Mapping[int, Admission]


class TypeRestrictions(Protocol):
    """What a scanner asks before it reads and claims rows of restricted types."""

    @property
    def are_all_open(self) -> bool:
        """Whether no type is restricted."""

    def without_closed(
        self, types: Collection[int] | TypesExcept | None, /
    ) -> Collection[int] | TypesExcept | None:
        """The types without those of which no job may start now; empty: there is nothing to read."""

    def closed_numbers(self) -> frozenset[int]:
        """The known types of which no job may start now."""

    def restricted_numbers(self) -> frozenset[int]:
        """The known types that are restricted in any way."""

    @property
    def has_priorities(self) -> bool:
        """Whether some types have priorities."""

    def lead_ms(self, type_no: int, priority: int, /) -> int:
        """By how much earlier than at its due time a row is ordered among the due rows of its type."""

    def admission_of(self, type_no: int, /) -> Admission | None:
        """What to ask before rows of this type are claimed; None: nothing."""


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
        restrictions: TypeRestrictions | None = None,
    ) -> None:
        self._restrictions = restrictions
        # By type of which not all rows were admitted: until when its rows are left out.
        self._refused_until_s: dict[int, float] = {}
        self._database, self._pages, self._permits = database, pages, permits
        self._inbox, self._types, self._page_rows = inbox, types, page_rows

    def take_page_permits(self) -> int:
        """Takes permits for a page, and returns how many; 0: no permit is free now."""
        return self._permits.take_permits(self._database, self._page_rows)

    def closed_numbers(self) -> frozenset[int]:
        """The types of which no row may be claimed now; a check need not find them."""
        restrictions = self._restrictions
        if restrictions is None or restrictions.are_all_open:
            return frozenset()
        return restrictions.closed_numbers()

    def restricted_numbers(self) -> frozenset[int]:
        """The types whose jobs may be late for a reason that a person gave."""
        restrictions = self._restrictions
        if restrictions is None or restrictions.are_all_open:
            return frozenset()
        return restrictions.restricted_numbers()

    def refused_for_s(self, now_s: float) -> float | None:
        """Seconds until rows that were refused may be read again; None: no rows were refused."""
        return min((until_s - now_s for until_s in self._refused_until_s.values()), default=None)

    def read_overdue_page(
        self, shard: int, after: tuple[int, int], grace_ms: int, permits: int, found_s: float
    ) -> OverduePage:
        """Reads rows that are overdue by more than `grace_ms`, and takes up to `permits` of them.

        If types have priorities, it reads a whole page, to take those rows of it that go first. Leaves out
        the rows of paused types, and those rows of restricted types that are not admitted now.
        Returns, before the claim, the permits for which no row was found; all permits if the read raises.
        """
        unused, job_ids, admissions = permits, list[int](), dict[int, Admission]()
        limit = max(permits, self._page_rows) if self._has_priorities() else permits
        try:
            rows, end = self._read_rows(shard, after, grace_ms, limit, found_s)
            job_ids, admissions = self._admit_rows(rows, permits, found_s)
            unused -= len(job_ids)
        finally:
            self._permits.return_permits(self._database, unused)
        is_full = len(rows) == limit
        if is_full:
            after = rows[-1].key
        elif end is not None:
            after = end
        return OverduePage(shard, job_ids, found_s, after, is_full or end is not None, admissions)

    def _has_priorities(self) -> bool:
        restrictions = self._restrictions
        return (
            restrictions is not None
            and not restrictions.are_all_open
            and restrictions.has_priorities
        )

    def _read_rows(
        self, shard: int, after: tuple[int, int], grace_ms: int, limit: int, now_s: float
    ) -> tuple[Sequence[DueRow], tuple[int, int] | None]:
        """The rows; and the key up to which it has read, if it has left out later rows to read less."""
        types, restrictions = self._types(), self._restrictions
        if restrictions is None or restrictions.are_all_open:
            return self._pages.read_overdue_rows(shard, after, grace_ms, types, limit), None
        refused = self._refused_until_s
        for number in [no for no, until_s in refused.items() if until_s <= now_s]:
            del refused[number]
        types = _without(restrictions.without_closed(types), refused)
        if isinstance(types, Collection) and not isinstance(types, TypesExcept) and not types:
            return [], None
        end = None
        if refused or restrictions.closed_numbers():
            end = self._pages.read_due_key(shard, after, grace_ms, ROWS_READ_MAX)
        return self._pages.read_overdue_rows(shard, after, grace_ms, types, limit, end), end

    def _admit_rows(
        self, rows: Sequence[DueRow], most: int, now_s: float
    ) -> tuple[list[int], dict[int, Admission]]:
        """The ids of the rows that may be claimed now, `most` of them, and their admissions.

        The oldest due first; of a type with priorities, each step of priority counts as time of waiting.
        """
        restrictions = self._restrictions
        if restrictions is None or restrictions.are_all_open:
            return [row.job_id for row in rows[:most]], {}
        admission_of = {no: restrictions.admission_of(no) for no in {row.type_no for row in rows}}
        wanted = Counter(
            admission for row in rows if (admission := admission_of[row.type_no]) is not None
        )
        left = {admission: admission.admit(count) for admission, count in wanted.items()}
        job_ids, admissions = list[int](), dict[int, Admission]()
        if restrictions.has_priorities:
            rows = sorted(
                rows, key=lambda row: row.due_ms - restrictions.lead_ms(row.type_no, row.priority)
            )
        for row in rows:
            if len(job_ids) == most:
                break
            admission = admission_of[row.type_no]
            if admission is not None:
                if not left[admission]:
                    self._refused_until_s[row.type_no] = now_s + max(
                        REFUSED_S_MIN, admission.retry_after_s()
                    )
                    continue
                left[admission] -= 1
                admissions[row.job_id] = admission
            job_ids.append(row.job_id)
        for admission, count in left.items():
            if count:
                admission.return_unused(count)
        return job_ids, admissions

    def claim_overdue_page(self, page: OverduePage) -> int:
        """Sends the rows to the claim stage; returns how many jobs will run. Raises the claim's error."""
        if not page.job_ids:
            return 0
        answer = BatchClaimAnswer()
        self._inbox.enqueue(
            JobBatch(
                "", {page.shard: page.job_ids}, None, page.found_s,
                popped=False, permits=len(page.job_ids), answer=answer, admissions=page.admissions,
            )
        )  # fmt: skip
        return answer.wait_for_claim()


def _without(
    types: Collection[int] | TypesExcept | None, refused: Collection[int]
) -> Collection[int] | TypesExcept | None:
    """The types without those that were refused a moment ago."""
    if not refused:
        return types
    if types is None:
        return TypesExcept(frozenset(refused))
    if isinstance(types, TypesExcept):
        return TypesExcept(types.numbers | frozenset(refused))
    return [number for number in types if number not in refused]
