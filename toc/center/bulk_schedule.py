"""Writes and arms the jobs of one call of `schedule_many`.

The jobs are written in parts, one transaction each. A part has jobs of one database, in the order of their
shards, so that it needs few statements. In a large call without dedup_keys each database has at least two
parts, and a second thread writes parts too: while the server works on one part, Python prepares another.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from toc.center.connections import Connections
from toc.center.job_spec import CheckedJob
from toc.errors import SchemaMismatch, StatementFailed, StoreUnavailable, TocError
from toc.store.jobs import InsertResult, OnDuplicate
from toc.timer.reminder import Reminder

BULK_ROWS = 2000  # rows per transaction: with more, the server waits longer for the first part
# Fewer rows, of a call or of a database, are not worth a thread and a second COMMIT.
PARALLEL_ROWS_MIN = 400
_FAILURES = (StoreUnavailable, StatementFailed, SchemaMismatch)


class _Part(NamedTuple):
    """Jobs of one database that are written in one transaction. positions: in the call's list of jobs."""

    database: int
    positions: Sequence[int]


class BulkSchedule:
    """The jobs of one call of `schedule_many`; all of them are checked.

    second_writer: held by the call that has a second thread. Other calls of the process do without one:
    together they keep the processor busy anyway, and the connections are few.

    actor: in whose name replaced jobs are changed; None: in the client's.

    inserted: by position in `wanted`; None: the job was not written. failed: the errors of databases, by
    index; a database that has failed gets no further jobs of this call.
    """

    def __init__(
        self,
        state: Connections,
        wanted: Sequence[CheckedJob],
        on_duplicate: OnDuplicate,
        second_writer: threading.Lock,
        actor: str | None = None,
    ) -> None:
        self._state, self._wanted, self._on_duplicate = state, wanted, on_duplicate
        self._second_writer, self._actor = second_writer, actor
        self._parts: deque[_Part] = deque()
        self._helper_failure: BaseException | None = None
        self.inserted: list[InsertResult | None] = [None] * len(wanted)
        self.failed: dict[int, TocError] = {}

    def write_and_arm(self) -> None:
        """Writes all parts, and arms their jobs.

        Raises InvalidInput, and DuplicateJob at once. Before any job is written, it raises InvalidInput for
        too many types.
        """
        is_parallel = self._may_write_in_parallel()
        by_database = self._positions_by_database()
        for index, positions in by_database.items():
            self._create_missing_types(index, positions)
        self._parts.extend(_make_parts(by_database, halved=is_parallel))
        if len(self._parts) > 1 and is_parallel and self._second_writer.acquire(blocking=False):
            try:
                self._write_parts_with_helper()
            finally:
                self._second_writer.release()
        else:
            self._write_parts()

    def raise_first_failure(self) -> None:
        """Raises the error of the first database that has failed."""
        if self.failed:
            raise next(iter(self.failed.values()))

    def _may_write_in_parallel(self) -> bool:
        state = self._state
        return (
            len(self._wanted) >= PARALLEL_ROWS_MIN
            and state.settings.pool_size > 1
            and all(job.dedup_key is None for job in self._wanted)
            # SQLite has one writer, and refuses a self-deadlock by the thread.
            and not any(database.sqlite for database in state.databases)
        )

    def _positions_by_database(self) -> dict[int, list[int]]:
        """The positions of each database's jobs, in the order of their shards."""
        by_shard: dict[int, list[int]] = defaultdict(list)
        shard_of_business = self._state.shard_of_business
        for position, job in enumerate(self._wanted):
            by_shard[shard_of_business(job.business)].append(position)
        by_database: dict[int, list[int]] = defaultdict(list)
        for shard in sorted(by_shard):
            by_database[self._state.routing.database_index(shard)] += by_shard[shard]
        return by_database

    def _create_missing_types(self, index: int, positions: Sequence[int]) -> None:
        types = {self._wanted[position].biz_type for position in positions}
        try:
            self._state.get_or_create_types(self._state.databases[index], types)
        except _FAILURES as error:
            self.failed[index] = error

    def _write_parts_with_helper(self) -> None:
        """Writes parts in this thread and in a second one. Returns or raises when both have ended."""
        helper = threading.Thread(target=self._help_to_write, name="toc-bulk", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no further thread can be started: this one writes all parts
            self._write_parts()
            return
        try:
            self._write_parts()
        finally:
            self._parts.clear()  # after an error here, nothing more is begun
            helper.join()
        if self._helper_failure is not None:
            raise self._helper_failure

    def _help_to_write(self) -> None:
        try:
            self._write_parts()
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._parts.clear()
            self._helper_failure = error

    def _write_parts(self) -> None:
        while True:
            try:
                part = self._parts.popleft()
            except IndexError:
                return
            self._write_part(part)

    def _write_part(self, part: _Part) -> None:
        """Inserts and arms the jobs of a part."""
        if part.database in self.failed:
            return
        state, wanted = self._state, [self._wanted[position] for position in part.positions]
        try:
            jobs = state.make_new_jobs(state.databases[part.database], wanted)
            results = state.jobs.insert(jobs, self._on_duplicate, actor=self._actor)
        except _FAILURES as error:
            self.failed[part.database] = error
            return
        for position, result in zip(part.positions, results, strict=True):
            self.inserted[position] = result
        written = Counter(
            job.biz_type for job, result in zip(wanted, results, strict=True) if result.written
        )
        for biz_type, count in written.items():
            state.count_scheduled(biz_type, count)
        if state.reminder_queue is not None:
            until_ms = state.reminder_queue.near_until_ms  # asked here: most jobs may be far
            state.arm_near_jobs(
                (job.biz_type, Reminder(result.due_ms, result.job_id))
                for job, result in zip(wanted, results, strict=True)
                if result.written and result.due_ms <= until_ms
            )


def _make_parts(by_database: dict[int, list[int]], *, halved: bool) -> Iterator[_Part]:
    """Yields the parts of all databases in turns. halved: large databases have at least two."""
    parts_of = []
    for index, positions in by_database.items():
        is_large = halved and len(positions) >= PARALLEL_ROWS_MIN
        rows = min(BULK_ROWS, math.ceil(len(positions) / 2)) if is_large else BULK_ROWS
        starts = range(0, len(positions), rows)
        parts_of.append([_Part(index, positions[start : start + rows]) for start in starts])
    for turn in itertools.zip_longest(*parts_of):
        yield from filter(None, turn)
