"""Cancelling, postponing and redriving many jobs: what a dry run counts, and how the real one goes.

A run first finds the ids of all jobs that match and are in reach, reading only, so it knows before the
first change how many there are; what comes to match later is left alone. Then it takes them shard by
shard and page by page, each page one transaction with its events. After each commit Redis is told; what it
does not hear, the claim finds in the row.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from toc.admin.orders import Order, Verb
from toc.admin.reminders import Reminders
from toc.admin.run import Account, Interrupted, Page, Run
from toc.domain.job import Job, Status
from toc.errors import InvalidInput, NotFound
from toc.runtime.clock import Clock, ServerTime, SystemClock
from toc.runtime.settings import Settings
from toc.store.admission import admit
from toc.store.catalogue import Catalogue
from toc.store.conditions import Condition, Every, bounds_of
from toc.store.databases import Database, Databases
from toc.store.jobs import Jobs
from toc.store.sets import IDS_MAX, Changed, Sets, names_of, parts_of

EXAMPLES = 5
PARALLEL_MAX = 8
AHEAD = 2  # pages under way: while a server changes one, the client has to do with the other
# Two may end together: so much of what may be changed in a second.
AHEAD_SHARE_MAX = 0.1


@dataclass(slots=True)
class Count:
    matched: int = 0
    reached: int = 0

    def add(self, matched: int, reached: int) -> None:
        self.matched += matched
        self.reached += reached


@dataclass(slots=True)
class Found:
    """What a dry run has counted. `examples` are jobs in reach."""

    databases: dict[int, Count]
    shards: dict[int, Count] = field(default_factory=lambda: defaultdict(Count))
    kinds: dict[tuple[str, str], Count] = field(default_factory=lambda: defaultdict(Count))
    """By biz_type and status."""
    total: Count = field(default_factory=Count)
    examples: list[Job] = field(default_factory=list)


class Changes:
    """Changes of sets of jobs. `stop()`: whether to stop as soon as possible; asked often.

    Raises StoreUnavailable, SchemaMismatch, Interrupted and InvalidInput.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        databases: Databases,
        catalogue: Catalogue,
        reminders: Reminders | None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._clock, self._databases = settings, clock, databases
        self._catalogue, self._reminders = catalogue, reminders
        self._stop = stop
        self.names = names_of(databases)
        """The biz_types by number."""
        self.now_ms = databases.now_ms()
        """NOW() in a WHERE: one moment for the whole run, by the databases' clock."""

    def databases(self, index: int | None) -> list[Database]:
        """One of them, or all."""
        if index is None:
            return list(self._databases)
        if not 0 <= index < len(self._databases.all):
            rule = f"must be from 0 to {len(self._databases.all) - 1}"
            raise InvalidInput("database", index, rule)
        return [self._databases[index]]

    # ---- looking

    def count(
        self, order: Order, databases: Sequence[Database], passed: Callable[[], None]
    ) -> Found:
        """What matches and what is in reach. Changes nothing. `passed()` is called after each shard."""
        where, sets = self._sets(order)
        bounds = bounds_of(where)
        found, lock = Found({database.index: Count() for database in databases}), threading.Lock()
        examples: list[int] = []

        def look(database: Database, stop: Callable[[], None]) -> None:
            for window in sets.walk(database, bounds, passed):
                stop()
                tallies = sets.tally(window)
                with lock:
                    for tally in tallies:
                        kind = self.names.get(tally.type_no, "?"), _status_name(tally.status)
                        for count in (found.total, found.databases[database.index],
                                      found.shards[window.shard], found.kinds[kind]):  # fmt: skip
                            count.add(tally.matched, tally.reached)
                        if tally.example is not None and len(examples) < EXAMPLES:
                            examples.append(tally.example)

        self._beside_each_other(databases, look)
        jobs = Jobs(self._databases, self._catalogue, lambda gene: gene, "nobody")
        for job_id in examples:
            with suppress(NotFound):  # a type that nobody knows
                job = jobs.get(job_id)
                found.examples += [] if job is None else [job]
        return found

    def choose(
        self,
        order: Order,
        databases: Sequence[Database],
        limit: int,
        passed: Callable[[], None],
    ) -> dict[int, dict[int, int]]:
        """The jobs in reach by shard, with their type numbers; at most `limit`.

        Raises InvalidInput when there are more.
        """
        where, sets = self._sets(order)
        bounds = bounds_of(Every((where, order.reach)))
        chosen: dict[int, dict[int, int]] = defaultdict(dict)  # a row that moves may be met twice
        counts = Counter({database.index: 0 for database in databases})

        def look(database: Database, stop: Callable[[], None]) -> None:
            for window in sets.walk(database, bounds, passed):
                stop()
                jobs = chosen[window.shard]
                before = len(jobs)
                jobs.update(sets.found(window))
                counts[database.index] += len(jobs) - before
                if sum(counts.values()) > limit:
                    rule = f"more than {limit} jobs are in reach, so nothing was changed"
                    raise InvalidInput("limit", limit, f"{rule}: narrow --where, or raise --limit")

        self._beside_each_other(databases, look)
        return {shard: jobs for shard, jobs in sorted(chosen.items()) if jobs}

    def _sets(self, order: Order) -> tuple[Condition, Sets]:
        order.where.check_types(self.names)
        where = order.where.condition(self.now_ms)
        return where, Sets(self._databases, self.names, where, order.reach)

    def _beside_each_other(
        self,
        databases: Sequence[Database],
        look: Callable[[Database, Callable[[], None]], None],
    ) -> None:
        """Each database in a thread of its own; the first error ends them all."""
        failed = threading.Event()

        def stop() -> None:
            if failed.is_set() or self._stop():
                raise Interrupted("interrupted: nothing was changed")

        def guarded(database: Database) -> None:
            try:
                look(database, stop)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            futures = [pool.submit(guarded, database) for database in databases]
            try:
                errors = [error for error in (f.exception() for f in futures) if error is not None]
            except BaseException:
                failed.set()
                raise
        # The others were only stopped by the one that has a reason.
        for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
            raise error

    # ---- changing

    def apply(
        self,
        order: Order,
        chosen: Mapping[int, Mapping[int, int]],
        per_second: int,
        account: Account,
        passed: Callable[[int], None],
    ) -> None:
        """Changes the chosen jobs, at most `per_second`; keeps `account`, which outlives errors.

        `passed(jobs)` is called after each page.
        """
        order.check_signed()
        _, sets = self._sets(order)

        def change(page: Page) -> Changed:
            act = order.act(page.database.now_ms() if order.counts_from_now else 0)
            return sets.change(page.shard, page.jobs, act, page.attempt, again=order.again)

        def told(page: Page, changed: Changed) -> None:
            if self._reminders is not None:
                self._reminders.tell(changed.done, self.names)
            passed(len(page.jobs))

        for shard, jobs in chosen.items():
            index = self._databases.routing.database(shard)
            account.databases[index].chosen += len(jobs)
        # Of several dead jobs with one key the newest comes to life.
        newest_first = order.verb is Verb.REDRIVE
        ahead = min(AHEAD, self._settings.pool_size)
        if newest_first or ahead * IDS_MAX > AHEAD_SHARE_MAX * per_second:
            ahead = 1
        with Run(account, self._clock, per_second, ahead, change, told, self._stop) as run:
            for shard, jobs in chosen.items():
                database = self._databases.of_shard(shard)
                ids = sorted(jobs, reverse=newest_first)
                for part in parts_of(ids, min(IDS_MAX, per_second)):
                    run.begin(Page(database, shard, {job_id: jobs[job_id] for job_id in part}))
            run.end_all()
        account.complete = True


def _status_name(number: int) -> str:
    try:
        return Status(number).name.lower()
    except ValueError:
        return str(number)


@contextmanager
def opened(
    settings: Settings, clock: Clock | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[Changes]:
    """Connected as a client is. Raises StoreUnavailable and SchemaMismatch; Redis may be absent."""
    clock = clock or SystemClock()
    databases = Databases.of(settings, clock)
    reminders = None
    try:
        catalogue = Catalogue(databases)
        admit(databases, catalogue, settings.facts)
        time = ServerTime(clock)
        if settings.has_timer:
            reminders = Reminders(settings, clock, time)
        changes = Changes(settings, clock, databases, catalogue, reminders, stop)
        time.heard(changes.now_ms)
        yield changes
    finally:
        if reminders is not None:
            reminders.close()
        databases.close()
