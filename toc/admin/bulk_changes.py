"""Cancels, postpones, redrives and discards many jobs: a dry run counts them, a real run changes them.

A run first reads the ids of all jobs that match and can be changed, so it knows their number
before the first change. Jobs that begin to match after this reading are not changed. Then the run changes the
jobs shard by shard and page by page, each page in one transaction with its events. After each commit the run
updates Redis; if the update fails, the next claim finds the change in the row.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from toc.admin.bulk_request import BulkRequest, BulkVerb
from toc.admin.bulk_run import BulkRun, BulkRunProgress, JobPage, RunInterrupted
from toc.center.reminder_queue import ReminderQueue
from toc.domain.job import Job, Status
from toc.errors import InvalidInput, NotFound, StoreUnavailable, TimerUnavailable
from toc.runtime.clock import Clock, ServerTimeEstimate, SystemClock
from toc.runtime.settings import Settings
from toc.store.bulk_update import (
    IDS_MAX,
    BulkUpdate,
    ChangedJob,
    PageResult,
    RowWindow,
    split_into_chunks,
)
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.jobs import Jobs
from toc.store.pull_type_follower import follow_pull_types
from toc.store.row_conditions import AllOf, Condition, ConditionBounds, bounds_of_condition
from toc.store.schema_check import check_databases
from toc.timer.reminder import Reminder

log = logging.getLogger(__name__)

EXAMPLES = 5
PARALLEL_MAX = 8
AHEAD = 2  # pages in progress: the client works on one while a server changes the other
# Two pages may end together: their rows are at most this share of a second's changes.
AHEAD_SHARE_MAX = 0.1
REDIS_RETRY_S = 5.0  # pause before Redis is tried again after it has not answered
STOP_S = 5.0  # time to send the last reminders when a run ends


@dataclass(slots=True)
class MatchCount:
    """`matched`: the number of jobs that match the WHERE. `reached`: how many of these can be changed."""

    matched: int = 0
    reached: int = 0

    def add_counts(self, matched: int, reached: int) -> None:
        self.matched += matched
        self.reached += reached


@dataclass(slots=True)
class DryRunResult:
    """The counts of a dry run. `examples`: jobs that would be changed."""

    databases: dict[int, MatchCount]
    shards: dict[int, MatchCount] = field(default_factory=lambda: defaultdict(MatchCount))
    kinds: dict[tuple[str, str], MatchCount] = field(
        default_factory=lambda: defaultdict(MatchCount)
    )
    """Counts by biz_type and status."""
    total: MatchCount = field(default_factory=MatchCount)
    examples: list[Job] = field(default_factory=list)


class ReminderUpdater:
    """Updates reminders of jobs whose change is committed. Never raises: the claim reads the row, which is
    right."""

    def __init__(self, settings: Settings, clock: Clock, time: ServerTimeEstimate) -> None:
        self._settings, self._clock = settings, clock
        self._reminder_queue = ReminderQueue(settings, time, clock)
        self._retry_at_s = float("-inf")  # Redis is not tried before this monotonic time

    def update_reminders(self, moved: Sequence[ChangedJob], names: Mapping[int, str]) -> None:
        """Acks the reminders of ended jobs and arms jobs that are due soon. `names`: the biz_types by
        number.
        """
        ended: dict[str, list[int]] = defaultdict(list)
        live: list[tuple[str, Reminder]] = []
        for job_id, type_no, due_ms in moved:
            if type_no not in names:  # no worker takes a job of a type without a name
                continue
            topic = self._settings.topic_of_biz_type(names[type_no])
            if due_ms is None:
                ended[topic].append(job_id)
            else:
                live.append((topic, Reminder(due_ms, job_id)))
        self._reminder_queue.arm_near_reminders(live)
        for topic, ids in ended.items():
            if self._clock.monotonic_s() >= self._retry_at_s:
                self._ack_ended_jobs(topic, ids)

    def _ack_ended_jobs(self, topic: str, ids: Sequence[int]) -> None:
        try:
            self._reminder_queue.reminders_in_redis.ack(topic, ids)
            return
        except TimerUnavailable as error:
            log.warning("reminders of ended jobs stay until they are popped: %s", error)
        except Exception:
            log.exception("reminders of ended jobs stay until they are popped")
        self._retry_at_s = self._clock.monotonic_s() + REDIS_RETRY_S

    def close(self) -> None:
        self._reminder_queue.close(STOP_S)


class BulkChanges:
    """Counts or changes the jobs that match a request. `stop()` says whether to stop as soon as possible.

    Raises StoreUnavailable, SchemaMismatch, Interrupted and InvalidInput.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        databases: Databases,
        database_metadata: DatabaseMetadata,
        reminders: ReminderUpdater | None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._clock, self.databases = settings, clock, databases
        self._database_metadata, self._reminders = database_metadata, reminders
        self._stop = stop
        self.names = dict(database_metadata.types.known.names)
        """The biz_types by number."""
        self.now_ms = databases.now_ms()
        """NOW() in a WHERE: one moment for the whole run, by the databases' clock."""

    def select_databases(self, index: int | None) -> list[Database]:
        """The database with this index; all databases for None."""
        if index is None:
            return list(self.databases)
        if not 0 <= index < len(self.databases.all):
            rule = f"must be from 0 to {len(self.databases.all) - 1}"
            raise InvalidInput("database", index, rule)
        return [self.databases[index]]

    # ---- reading

    def count_jobs(
        self, request: BulkRequest, databases: Sequence[Database], on_progress: Callable[[], None]
    ) -> DryRunResult:
        """Counts the jobs that match, and those that can be changed. `on_progress()` is called after each
        shard.
        """
        where, sets = self._prepare_bulk_update(request)
        found = DryRunResult({database.index: MatchCount() for database in databases})
        examples, lock = list[int](), threading.Lock()

        def count_window_jobs(database: Database, window: RowWindow) -> None:
            tallies = sets.count_matching_jobs(window)
            with lock:
                for tally in tallies:
                    kind = self.names.get(tally.type_no, "?"), _status_name(tally.status)
                    for count in (found.total, found.databases[database.index],
                                  found.shards[window.shard], found.kinds[kind]):  # fmt: skip
                        count.add_counts(tally.matched, tally.changeable)
                    if tally.example is not None and len(examples) < EXAMPLES:
                        examples.append(tally.example)

        self._read_row_windows(
            databases, sets, bounds_of_condition(where), on_progress, count_window_jobs
        )
        jobs = Jobs(
            self.databases, self._database_metadata, lambda routing_bits: routing_bits, "nobody"
        )
        for job_id in examples:
            with suppress(NotFound):  # the job's type has no name
                job = jobs.get(job_id)
                found.examples += [] if job is None else [job]
        return found

    def choose_jobs(
        self,
        request: BulkRequest,
        databases: Sequence[Database],
        limit: int,
        on_progress: Callable[[], None],
    ) -> dict[int, dict[int, int]]:
        """The jobs that can be changed: shard -> job_id -> type number.

        Raises InvalidInput when there are more than `limit` jobs.
        """
        where, sets = self._prepare_bulk_update(request)
        bounds = bounds_of_condition(AllOf((where, request.changeable_condition)))
        # By shard a dictionary and no list: a row that is rescheduled meanwhile may be found twice.
        chosen: dict[int, dict[int, int]] = defaultdict(dict)
        counts = Counter({database.index: 0 for database in databases})

        def choose_from_window(database: Database, window: RowWindow) -> None:
            jobs = chosen[window.shard]
            before = len(jobs)
            jobs.update(sets.find_changeable_jobs(window))
            counts[database.index] += len(jobs) - before
            if sum(counts.values()) > limit:
                rule = f"more than {limit} jobs are in reach, so nothing was changed"
                raise InvalidInput("limit", limit, f"{rule}: narrow --where, or raise --limit")

        self._read_row_windows(databases, sets, bounds, on_progress, choose_from_window)
        return {shard: jobs for shard, jobs in sorted(chosen.items()) if jobs}

    def _prepare_bulk_update(self, request: BulkRequest) -> tuple[Condition, BulkUpdate]:
        request.where.check_biz_types(self.names)
        where = request.where.make_condition(self.now_ms)
        return where, BulkUpdate(self.databases, self.names, where, request.changeable_condition)

    def _read_row_windows(
        self,
        databases: Sequence[Database],
        sets: BulkUpdate,
        bounds: ConditionBounds,
        on_progress: Callable[[], None],
        read: Callable[[Database, RowWindow], None],
    ) -> None:
        """Calls `read` for each window of rows, in a thread for each database; the first error ends all
        threads."""
        failed = threading.Event()

        def read_database_windows(database: Database) -> None:
            for window in sets.split_into_windows(database, bounds, on_progress):
                if failed.is_set() or self._stop():
                    raise RunInterrupted("interrupted: nothing was changed")
                read(database, window)

        def note_failure(future: Future[None]) -> None:
            if future.exception() is not None:
                failed.set()

        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            futures = [pool.submit(read_database_windows, database) for database in databases]
            try:
                for future in futures:
                    future.add_done_callback(note_failure)
                errors = [error for error in (f.exception() for f in futures) if error is not None]
            except BaseException:
                failed.set()
                raise
        # The error that ended all threads is raised, not the RunInterrupted of the other threads.
        for error in sorted(errors, key=lambda error: isinstance(error, RunInterrupted)):
            raise error

    # ---- changing

    def change_jobs(
        self,
        request: BulkRequest,
        chosen: Mapping[int, Mapping[int, int]],
        per_second: int,
        progress: BulkRunProgress,
        on_progress: Callable[[int], None],
    ) -> None:
        """Changes the chosen jobs, at most `per_second`.

        The counts in `progress` are right at any moment, also after an error. `on_progress(jobs)` is called
        after each page, with the number of its jobs.
        """
        request.check_actor_and_reason()
        _, sets = self._prepare_bulk_update(request)

        def change_page(page: JobPage) -> PageResult:
            act = request.make_row_change(
                page.database.now_ms() if request.needs_current_time else 0
            )
            return sets.change_page(
                page.shard, page.jobs, act, page.attempt, may_be_repeat=request.again
            )

        def on_page_done(page: JobPage, changed: PageResult) -> None:
            if self._reminders is not None:
                self._reminders.update_reminders(changed.done, self.names)
            on_progress(len(page.jobs))

        for shard, jobs in chosen.items():
            index = self.databases.routing.database_index(shard)
            progress.databases[index].chosen += len(jobs)
        # If several dead jobs have one key, the newest is redriven.
        newest_first = request.verb is BulkVerb.REDRIVE
        ahead = min(AHEAD, self._settings.pool_size)
        if newest_first or ahead * IDS_MAX > AHEAD_SHARE_MAX * per_second:
            ahead = 1
        pages = (
            JobPage(
                self.databases.database_of_shard(shard),
                shard,
                {job_id: jobs[job_id] for job_id in part},
            )
            for shard, jobs in chosen.items()
            for part in split_into_chunks(
                sorted(jobs, reverse=newest_first), min(IDS_MAX, per_second)
            )
        )
        run = BulkRun(
            progress, self._clock, per_second, ahead, change_page, on_page_done, self._stop
        )
        run.change_pages(pages)
        progress.complete = True


def _status_name(number: int) -> str:
    try:
        return Status(number).name.lower()
    except ValueError:
        return str(number)


@contextmanager
def open_bulk_changes(
    settings: Settings, clock: Clock | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[BulkChanges]:
    """Connects as a client does. Raises StoreUnavailable and SchemaMismatch; Redis may be down."""
    clock = clock or SystemClock()
    databases = Databases.from_settings(settings, clock)
    reminders = None
    try:
        database_metadata = DatabaseMetadata(databases)
        check_databases(databases, database_metadata, settings.facts)
        with suppress(StoreUnavailable):
            database_metadata.declared.read_all_copies()
        follow_pull_types(database_metadata.declared, settings.pull_types)
        time = ServerTimeEstimate(clock)
        if settings.has_timer:
            reminders = ReminderUpdater(settings, clock, time)
        changes = BulkChanges(settings, clock, databases, database_metadata, reminders, stop)
        time.record_server_time(changes.now_ms)
        yield changes
    finally:
        if reminders is not None:
            reminders.close()
        databases.close()
