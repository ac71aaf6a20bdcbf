"""Writes and arms the jobs of one call of `schedule_many`.

The jobs are written in parts of at most BULK_ROWS jobs, one transaction each. A part belongs to one database.
In a large call without dedup_keys, each database has two kinds of parts, for its even and its odd shards,
and two parts are written at the same time: while the server works on one, Python prepares the other.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from toc.center.connections import Connections
from toc.center.job_spec import CheckedJob
from toc.errors import SchemaMismatch, StatementFailed, StoreUnavailable, TocError
from toc.runtime import metrics
from toc.store.jobs import InsertResult, OnDuplicate
from toc.timer.reminder import Reminder

BULK_ROWS = 5000  # rows per transaction
# Fewer rows, of a call or of a database, are not worth a thread and a second COMMIT.
PARALLEL_ROWS_MIN = 400
WRITERS = 2  # parts that are written at the same time
_FAILURES = (StoreUnavailable, StatementFailed, SchemaMismatch)


class BulkSchedule:
    """The jobs of one call of `schedule_many`; all of them are checked.

    second_writer: held by the call that writes two parts at the same time. Other calls of the process write
    one: together they keep the processor busy anyway, and the connections are few.

    inserted: by position in `wanted`; None: the job was not written. failed: the errors of databases, by
    index; a database that has failed gets no further jobs of this call.
    """

    def __init__(
        self,
        state: Connections,
        wanted: Sequence[CheckedJob],
        on_duplicate: OnDuplicate,
        second_writer: threading.Lock,
    ) -> None:
        self._state, self._wanted, self._on_duplicate = state, wanted, on_duplicate
        self._second_writer = second_writer
        self.inserted: list[InsertResult | None] = [None] * len(wanted)
        self.failed: dict[int, TocError] = {}

    def write_and_arm(self) -> None:
        """Writes all parts, and arms their jobs. Raises DuplicateJob and InvalidInput at once."""
        is_parallel = len(self._wanted) >= PARALLEL_ROWS_MIN and all(
            job.dedup_key is None for job in self._wanted
        )
        parts = list(self._make_parts(halved=is_parallel))
        if len(parts) > 1 and is_parallel and self._second_writer.acquire(blocking=False):
            try:
                with ThreadPoolExecutor(WRITERS, "toc-bulk") as writers:
                    for _ in writers.map(lambda part: self._write_part(*part), parts):
                        pass
            finally:
                self._second_writer.release()
        else:
            for part in parts:
                self._write_part(*part)

    def error_of(self, job: CheckedJob) -> TocError | None:
        """The error of the job's database; None: it has not failed."""
        return self.failed.get(self._state.database_of_business(job.business).index)

    def _make_parts(self, *, halved: bool) -> Iterator[tuple[int, Sequence[int]]]:
        """Yields (database, positions) of each part; large calls go to all databases in turns."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        routing = self._state.routing
        for position, job in enumerate(self._wanted):
            shard = self._state.shard_of_business(job.business)
            groups[routing.database_index(shard), shard & 1].append(position)
        for database in {database for database, _ in groups}:
            even, odd = groups[database, 0], groups[database, 1]
            # SQLite has one writer.
            may_halve = halved and not self._state.databases[database].sqlite
            if not may_halve or len(even) + len(odd) < PARALLEL_ROWS_MIN:
                groups[database, 0], groups[database, 1] = sorted(even + odd), []
        longest = max(map(len, groups.values()), default=0)
        for start in range(0, longest, BULK_ROWS):
            for (database, _), positions in sorted(groups.items()):
                if start < len(positions):
                    yield database, positions[start : start + BULK_ROWS]

    def _write_part(self, index: int, positions: Sequence[int]) -> None:
        """Inserts and arms the jobs at these positions, of one database, in one transaction."""
        if index in self.failed:
            return
        state, wanted = self._state, self._wanted
        jobs = [wanted[position] for position in positions]
        try:
            new_jobs = state.make_new_jobs(state.databases[index], jobs)
            results = state.jobs.insert(new_jobs, self._on_duplicate)
        except _FAILURES as error:
            self.failed[index] = error
            return
        for position, result in zip(positions, results, strict=True):
            self.inserted[position] = result
        metrics.SCHEDULED.inc(sum([result.written for result in results]))
        state.arm_near_jobs(
            (job.biz_type, Reminder(result.due_ms, result.job_id))
            for job, result in zip(jobs, results, strict=True)
            if result.written
        )
