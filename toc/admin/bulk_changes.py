"""Cancels, postpones and redrives many jobs: a dry run counts them, a real run changes them.

A run first reads the ids of all jobs that match and can be changed, so it knows their number
before the first change. Jobs that match only later are not changed. Then it changes them shard by shard and
page by page, each page in one transaction with its events. After each commit it updates Redis; if that fails,
the claim finds the change in the row.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from toc.admin.bulk_order import BulkOrder, Verb
from toc.admin.bulk_run import BulkRun, Interrupted, Page, RunAccount
from toc.center.reminder_queue import ReminderQueue
from toc.domain.job import Job, Status
from toc.errors import InvalidInput, NotFound, TimerUnavailable
from toc.runtime.clock import Clock, ServerTime, SystemClock
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
from toc.store.row_conditions import AllOf, Condition, ConditionBounds, bounds_of_condition
from toc.store.schema_check import check_databases
from toc.timer.reminder import Reminder

log = logging.getLogger(__name__)

EXAMPLES = 5
PARALLEL_MAX = 8
AHEAD = 2  # pages in progress: the client works on one while a server changes the other
# Two pages may end together: their rows are at most this share of a second's changes.
AHEAD_SHARE_MAX = 0.1
REDIS_RETRY_S = 5.0  # after no answer, Redis is not tried again sooner
STOP_S = 5.0  # for the reminders that are still to be sent when a run ends


@dataclass(slots=True)
class Count:
    """Numbers of jobs. `matched`: by the WHERE; `reached`: those of them that can be changed."""

    matched: int = 0
    reached: int = 0

    def add(self, matched: int, reached: int) -> None:
        self.matched += matched
        self.reached += reached


@dataclass(slots=True)
class DryRunResult:
    """The counts of a dry run. `examples`: jobs that would be changed."""

    databases: dict[int, Count]
    shards: dict[int, Count] = field(default_factory=lambda: defaultdict(Count))
    kinds: dict[tuple[str, str], Count] = field(default_factory=lambda: defaultdict(Count))
    """By biz_type and status."""
    total: Count = field(default_factory=Count)
    examples: list[Job] = field(default_factory=list)


class ReminderUpdates:
    """Updates reminders after a commit. Never raises: the claim reads the row, which is right."""

    def __init__(self, settings: Settings, clock: Clock, time: ServerTime) -> None:
        self._settings, self._clock = settings, clock
        self._reminder_queue = ReminderQueue(settings, time, clock)
        self._retry_at_s = float("-inf")  # no try before this time, by the monotonic clock

    def send(self, moved: Sequence[ChangedJob], names: Mapping[int, str]) -> None:
        """Acks the reminders of ended jobs and arms jobs that are due soon. `names`: the biz_types by
        number.
        """
        ended: dict[str, list[int]] = defaultdict(list)
        live: list[tuple[str, Reminder]] = []
        for job_id, type_no, due_ms in moved:
            if type_no not in names:  # no worker takes a job of such a type
                continue
            topic = self._settings.topic_of(names[type_no])
            if due_ms is None:
                ended[topic].append(job_id)
            else:
                live.append((topic, Reminder(due_ms, job_id)))
        self._reminder_queue.place(live)
        for topic, ids in ended.items():
            if self._clock.monotonic_s() >= self._retry_at_s:
                self._ack_ended(topic, ids)

    def _ack_ended(self, topic: str, ids: Sequence[int]) -> None:
        try:
            self._reminder_queue.reminders.ack(topic, ids)
            return
        except TimerUnavailable as error:
            log.warning("reminders of ended jobs stay until they are popped: %s", error)
        except Exception:
            log.exception("reminders of ended jobs stay until they are popped")
        self._retry_at_s = self._clock.monotonic_s() + REDIS_RETRY_S

    def close(self) -> None:
        self._reminder_queue.close(STOP_S)


class BulkChanges:
    """Counts and changes sets of jobs. `stop()`: whether to stop as soon as possible; called often.

    Raises StoreUnavailable, SchemaMismatch, Interrupted and InvalidInput.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        databases: Databases,
        database_metadata: DatabaseMetadata,
        reminders: ReminderUpdates | None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._clock, self._databases = settings, clock, databases
        self._database_metadata, self._reminders = database_metadata, reminders
        self._stop = stop
        self.names = dict(database_metadata.types.known.names)
        """The biz_types by number."""
        self.now_ms = databases.now_ms()
        """NOW() in a WHERE: one moment for the whole run, by the databases' clock."""

    def databases(self, index: int | None) -> list[Database]:
        """The database of this index, or all for None."""
        if index is None:
            return list(self._databases)
        if not 0 <= index < len(self._databases.all):
            rule = f"must be from 0 to {len(self._databases.all) - 1}"
            raise InvalidInput("database", index, rule)
        return [self._databases[index]]

    # ---- reading

    def count(
        self, order: BulkOrder, databases: Sequence[Database], on_progress: Callable[[], None]
    ) -> DryRunResult:
        """Counts the jobs that match, and those that can be changed. `on_progress()` is called after each
        shard.
        """
        where, sets = self._prepare_update(order)
        found = DryRunResult({database.index: Count() for database in databases})
        examples, lock = list[int](), threading.Lock()

        def count_window(database: Database, window: RowWindow) -> None:
            tallies = sets.count_matching_jobs(window)
            with lock:
                for tally in tallies:
                    kind = self.names.get(tally.type_no, "?"), _status_name(tally.status)
                    for count in (found.total, found.databases[database.index],
                                  found.shards[window.shard], found.kinds[kind]):  # fmt: skip
                        count.add(tally.matched, tally.changeable)
                    if tally.example is not None and len(examples) < EXAMPLES:
                        examples.append(tally.example)

        self._read_windows(databases, sets, bounds_of_condition(where), on_progress, count_window)
        jobs = Jobs(
            self._databases, self._database_metadata, lambda routing_bits: routing_bits, "nobody"
        )
        for job_id in examples:
            with suppress(NotFound):  # its type has no name
                job = jobs.get(job_id)
                found.examples += [] if job is None else [job]
        return found

    def choose(
        self,
        order: BulkOrder,
        databases: Sequence[Database],
        limit: int,
        on_progress: Callable[[], None],
    ) -> dict[int, dict[int, int]]:
        """The jobs that can be changed, by shard, with their type numbers; at most `limit`.

        Raises InvalidInput when there are more.
        """
        where, sets = self._prepare_update(order)
        bounds = bounds_of_condition(AllOf((where, order.changeable)))
        chosen: dict[int, dict[int, int]] = defaultdict(dict)  # a row that moves may be found twice
        counts = Counter({database.index: 0 for database in databases})

        def choose_from_window(database: Database, window: RowWindow) -> None:
            jobs = chosen[window.shard]
            before = len(jobs)
            jobs.update(sets.find_changeable_jobs(window))
            counts[database.index] += len(jobs) - before
            if sum(counts.values()) > limit:
                rule = f"more than {limit} jobs are in reach, so nothing was changed"
                raise InvalidInput("limit", limit, f"{rule}: narrow --where, or raise --limit")

        self._read_windows(databases, sets, bounds, on_progress, choose_from_window)
        return {shard: jobs for shard, jobs in sorted(chosen.items()) if jobs}

    def _prepare_update(self, order: BulkOrder) -> tuple[Condition, BulkUpdate]:
        order.where.check_types(self.names)
        where = order.where.condition(self.now_ms)
        return where, BulkUpdate(self._databases, self.names, where, order.changeable)

    def _read_windows(
        self,
        databases: Sequence[Database],
        sets: BulkUpdate,
        bounds: ConditionBounds,
        on_progress: Callable[[], None],
        read: Callable[[Database, RowWindow], None],
    ) -> None:
        """Calls `read` for each window, with a thread for each database; the first error ends all."""
        failed = threading.Event()

        def read_database(database: Database) -> None:
            for window in sets.split_into_windows(database, bounds, on_progress):
                if failed.is_set() or self._stop():
                    raise Interrupted("interrupted: nothing was changed")
                read(database, window)

        def note_failure(future: Future[None]) -> None:
            if future.exception() is not None:
                failed.set()

        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            futures = [pool.submit(read_database, database) for database in databases]
            try:
                for future in futures:
                    future.add_done_callback(note_failure)
                errors = [error for error in (f.exception() for f in futures) if error is not None]
            except BaseException:
                failed.set()
                raise
        # The error that stopped the others comes first.
        for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
            raise error

    # ---- changing

    def apply(
        self,
        order: BulkOrder,
        chosen: Mapping[int, Mapping[int, int]],
        per_second: int,
        account: RunAccount,
        on_progress: Callable[[int], None],
    ) -> None:
        """Changes the chosen jobs, at most `per_second`; keeps `account` up to date, also if it raises.

        `on_progress(jobs)` is called after each page.
        """
        order.check_signed()
        _, sets = self._prepare_update(order)

        def change(page: Page) -> PageResult:
            act = order.change_of_rows(page.database.now_ms() if order.counts_from_now else 0)
            return sets.change_page(
                page.shard, page.jobs, act, page.attempt, may_be_repeat=order.again
            )

        def tell_redis(page: Page, changed: PageResult) -> None:
            if self._reminders is not None:
                self._reminders.send(changed.done, self.names)
            on_progress(len(page.jobs))

        for shard, jobs in chosen.items():
            index = self._databases.routing.database_index(shard)
            account.databases[index].chosen += len(jobs)
        # If several dead jobs have one key, the newest is redriven.
        newest_first = order.verb is Verb.REDRIVE
        ahead = min(AHEAD, self._settings.pool_size)
        if newest_first or ahead * IDS_MAX > AHEAD_SHARE_MAX * per_second:
            ahead = 1
        pages = (
            Page(
                self._databases.database_of_shard(shard),
                shard,
                {job_id: jobs[job_id] for job_id in part},
            )
            for shard, jobs in chosen.items()
            for part in split_into_chunks(
                sorted(jobs, reverse=newest_first), min(IDS_MAX, per_second)
            )
        )
        run = BulkRun(account, self._clock, per_second, ahead, change, tell_redis, self._stop)
        run.run(pages)
        account.complete = True


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
        time = ServerTime(clock)
        if settings.has_timer:
            reminders = ReminderUpdates(settings, clock, time)
        changes = BulkChanges(settings, clock, databases, database_metadata, reminders, stop)
        time.record_answer(changes.now_ms)
        yield changes
    finally:
        if reminders is not None:
            reminders.close()
        databases.close()
