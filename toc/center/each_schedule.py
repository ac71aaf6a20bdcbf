"""Writes jobs of one database together, so that a job that cannot be written costs no other job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from toc.center.bulk_schedule import BulkSchedule
from toc.center.job_spec import CheckedJob
from toc.errors import (
    DuplicateJob,
    InvalidInput,
    SchemaMismatch,
    StatementFailed,
    StoreUnavailable,
)
from toc.store.jobs import InsertResult

EachResult = InsertResult | Exception
"""The result of one job, or why it was not written."""


class EachSchedule:
    """Writes jobs in one transaction; if some of them make it fail, in smaller groups.

    prepare_bulk(jobs): makes the BulkSchedule of jobs. shard_of(job): the shard of a job.
    """

    def __init__(
        self,
        prepare_bulk: Callable[[Sequence[CheckedJob]], BulkSchedule],
        shard_of: Callable[[CheckedJob], int],
    ) -> None:
        self._prepare_bulk, self._shard_of = prepare_bulk, shard_of

    def write_jobs(self, jobs: Sequence[CheckedJob]) -> list[EachResult]:
        """Writes jobs of one database; returns their results in the order of `jobs`."""
        bulk = self._prepare_bulk(jobs)
        failure: Exception | None = None
        try:
            bulk.write_and_arm()
        except Exception as error:  # noqa: BLE001 - some of the jobs may be written
            failure = error
        failure = failure or next(iter(bulk.failed.values()), None)
        results: list[EachResult] = [
            failure or AssertionError("a job was not written, and no error was found")
            if inserted is None
            else inserted
            for inserted in bulk.inserted
        ]
        left = [position for position, it in enumerate(bulk.inserted) if it is None]
        if failure is None or not left:
            return results
        if len(left) < len(jobs) and not isinstance(failure, DuplicateJob):
            return results
        groups = self._smaller_groups([jobs[position] for position in left], failure)
        if len(groups) > 1 or len(left) < len(jobs):
            for group in groups:
                positions = [left[each] for each in group]
                written = self.write_jobs([jobs[position] for position in positions])
                for position, result in zip(positions, written, strict=True):
                    results[position] = result
        return results

    def _smaller_groups(
        self, jobs: Sequence[CheckedJob], failure: Exception
    ) -> list[Sequence[int]]:
        """Groups of positions in `jobs`, so that a job that cannot be written fails alone.

        Only for failures after which nothing is written: the server has answered, and rolled back.
        """
        group_of: Callable[[int], Hashable]
        is_about_types = isinstance(failure, InvalidInput) and failure.field == "biz_type"
        if is_about_types or isinstance(failure, SchemaMismatch):
            group_of = lambda position: jobs[position].biz_type  # noqa: E731
        elif isinstance(failure, StatementFailed) or (
            isinstance(failure, StoreUnavailable) and failure.one_table
        ):
            shards = [self._shard_of(job) for job in jobs]
            group_of = shards.__getitem__ if len(set(shards)) > 1 else int
        elif isinstance(failure, DuplicateJob):
            # Halves: one held key among 500 costs ten transactions, not 500.
            group_of = lambda position: position * 2 // len(jobs)  # noqa: E731
        elif isinstance(failure, InvalidInput):
            group_of = int  # each alone
        else:
            group_of = lambda position: None  # noqa: E731
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for position in range(len(jobs)):
            groups[group_of(position)].append(position)
        return list(groups.values())
