"""Permits: the one owner of the worker's capacity (I8, ADR 5, ADR 30).

Each job needs a permit on its whole way: a fetcher takes the permit, and a batch carries it. The claim makes
it the permit of a job in flight, or gives it back; the settle stage gives it back after the job. Each
database has an equal share of the limit (biz_ids spread evenly by their hash), so that a database that hangs
leaves the others their shares.

All counts change under one lock. So a thread that reads the counts and finds the process quiet has overlooked
no job that moved from one stage to the next meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from toc.runtime import metrics
from toc.runtime.clock import Clock

KEEP_LIMIT_S = 5.0  # a limit that was not reached for so long is halved
DOWN_S = 3.0  # a database that did not answer is skipped for so long
# Ids of a database that does not answer are put off for as long as it has not answered, within these bounds.
PUT_OFF_S_MIN, PUT_OFF_S_MAX = 1.0, 5.0
STALLED_S = 1.0  # a database whose share is full, and of which no job ends for so long, is stalled
HOLD_REST = 2.0  # no hold may begin after one for this many times its length
HOLD_REST_S_MAX = 60.0
HOLD_BUSY_S = 0.1  # when to ask again while another lane holds the process


class AdaptiveLimiter:
    """The limit of the jobs in flight (ADR 5): a worker claims no more than it can start soon.

    It doubles while all claimed jobs start at once, and halves when jobs wait for a thread or when it was not
    reached for a while. Not thread-safe: `Permits` calls it under a lock. `limit_min`: the first limit, and
    the smallest.
    """

    def __init__(self, clock: Clock, *, limit_min: int, limit_max: int) -> None:
        self._clock = clock
        self._limit_min, self._limit_max = min(limit_min, limit_max), limit_max
        self.limit = self._limit_min
        self.was_reached = False
        self._reached_s = clock.monotonic_s()

    def adapt_limit(self, waiting: int) -> None:
        """Doubles or halves the limit. `waiting`: claimed jobs without a thread."""
        now_s = self._clock.monotonic_s()
        if self.was_reached and waiting == 0:
            self.was_reached = False
            self._reached_s = now_s
            self.limit = min(self._limit_max, self.limit * 2)
        elif now_s - self._reached_s > KEEP_LIMIT_S:
            self._reached_s = now_s
            self.halve_limit()

    def halve_limit(self) -> None:
        self.limit = max(self._limit_min, self.limit // 2)


class DatabaseOutages:
    """Databases that do not answer: no permits for a while, and their ids are postponed. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down_until_s: dict[int, float] = {}
        # By database: since when it does not answer, or takes no jobs; removed when it answers a claim.
        self._away_since_s: dict[int, float] = {}

    def record_no_answer(self, database: int) -> None:
        now_s = self._clock.monotonic_s()
        self._away_since_s.setdefault(database, now_s)
        self._down_until_s[database] = now_s + DOWN_S

    def record_answer(self, database: int) -> None:
        if self._away_since_s:
            self._away_since_s.pop(database, None)

    def is_database_down(self, database: int) -> bool:
        """Whether the database did not answer in the last DOWN_S seconds, so that no claim is sent to it."""
        return self._clock.monotonic_s() < self._down_until_s.get(database, 0.0)

    def has_not_recovered(self, database: int) -> bool:
        """Whether this database has not answered since it was down. Meanwhile one batch at a time asks it."""
        return database in self._away_since_s

    def outage_delay_ms(self, database: int) -> int:
        """By how many ms to postpone the reminders of a database that takes no jobs."""
        now_s = self._clock.monotonic_s()
        away_s = now_s - self._away_since_s.setdefault(database, now_s)
        return round(1000 * min(PUT_OFF_S_MAX, max(PUT_OFF_S_MIN, away_s)))


class ProcessHold:
    """Keeps the whole process from claiming new jobs while a last attempt runs alone. Thread-safe.

    Each database has a LeaseRecovery; one of them holds the process at a time. After a hold no other may
    begin for HOLD_REST times its length. So all holds together take at most a third of the process' time, and
    unrelated jobs are late by one hold, not by all of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s, self._free_s = 0.0, float("-inf")
        self.is_active = False
        """While this is True the process claims no new jobs."""

    @property
    def hold_wait_s(self) -> float:
        """Seconds after which to try to begin a hold again; 0.0: a hold may begin now."""
        if self.is_active:
            return HOLD_BUSY_S
        return max(0.0, self._free_s - self._clock.monotonic_s())

    def try_begin_hold(self) -> bool:
        """Begins a hold if it may begin now. True: the caller holds the process, and must call `end_hold`."""
        with self._lock:
            if self.hold_wait_s:
                return False
            self.is_active, self._began_s = True, self._clock.monotonic_s()
            return True

    def end_hold(self) -> None:
        """Ends the hold. Only the caller whose `try_begin_hold` returned True may call it."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_s = now_s + min(HOLD_REST_S_MAX, HOLD_REST * (now_s - self._began_s))
            self.is_active = False


class Permits:
    """Thread-safe. Implements `runtime.job_batch.PermitSource`.

    `waiting()`: how many claimed jobs have no thread yet. `stuck()`: how many handlers have overrun their
    timeout.
    """

    def __init__(
        self,
        clock: Clock,
        databases: int,
        limiter: AdaptiveLimiter,
        waiting: Callable[[], int],
        stuck: Callable[[], int],
    ) -> None:
        self._clock, self._databases, self.limiter = clock, databases, limiter
        self._waiting, self._stuck = waiting, stuck
        self.hold, self.outages = ProcessHold(clock), DatabaseOutages(clock)
        self.closed = False
        """Set when the worker stops: no permit is given any more, and no handler starts."""
        self._lock = threading.Lock()
        self._fetched: Counter[int] = Counter()  # carried by fetchers and batches, by database
        self._in_flight: Counter[int] = Counter()  # carried by jobs, by database
        self._ended = 0  # jobs in flight whose handlers have ended
        self._somebody_was_refused = False  # listeners must be called
        # By database: since when its share is full and none of its permits has come back.
        self._stalled_since_s: dict[int, float] = {}
        self._listeners: list[Callable[[], None]] = []

    def add_permit_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there are permits again after a caller was refused."""
        self._listeners.append(listener)

    # ---- fetch

    def take_permits(self, database: int, wanted: int) -> int:
        """See `PermitSource`."""
        return self.take_permits_in_each_database([database], wanted)[0]

    def take_permits_in_each_database(
        self, databases: Collection[int], wanted: int
    ) -> tuple[int, frozenset[int]]:
        """See `PermitSource`. `limiter` keeps so few jobs in flight that none waits long for a thread (I8).

        A database that has not answered yet is tried by one batch at a time.
        """
        if self.closed:
            return 0, frozenset()
        with self._lock:
            self.limiter.adapt_limit(self._waiting())
            now_s, least, open_ = self._clock.monotonic_s(), wanted, set[int]()
            for database in databases:
                if self._gets_no_permits(database):
                    continue
                free = self._count_free_permits(database)
                if free > 0:
                    open_.add(database)
                    least = min(least, free)
                    continue
                since_s = self._stalled_since_s.setdefault(database, now_s)
                self.limiter.was_reached = self._somebody_was_refused = True
                if now_s - since_s < STALLED_S:
                    return 0, frozenset()
            given = self._grant_permits(open_, least) if open_ else 0
            return given, frozenset(open_ if given else ())

    def take_permits_beyond_limit(self, database: int, permits: int) -> bool:
        """Takes permits even if none are left; False while the process is held."""
        with self._lock:
            return self._grant_permits([database], permits) > 0

    def return_permits(self, database: int, permits: int) -> None:
        """See `PermitSource`."""
        # A caller that was refused gives back 0: it must not be told at once to ask again.
        if permits:
            self._change_counts(database, fetched=-permits)

    # ---- claim to settle

    def add_jobs_in_flight(self, database: int, jobs: int, permits: int) -> None:
        """Counts claimed jobs as in flight, until `remove_jobs_in_flight`.

        `permits`: how many permits of a batch become permits of these jobs: one per job. 0 for a job that was
        taken over: `LeaseRecovery` returns the permit of its take-over itself.
        """
        self._change_counts(database, fetched=-permits, in_flight=jobs)

    def note_handler_ended(self) -> None:
        """Notes that the handler of a job in flight has ended, or will not start.

        Its permit comes back later, when its outcome is settled (`remove_jobs_in_flight`).
        """
        with self._lock:
            self._ended += 1

    def remove_jobs_in_flight(self, database: int, jobs: int) -> None:
        """Returns the permits of settled or given-up jobs. Each of the jobs was counted as ended."""
        self._change_counts(database, in_flight=-jobs, ended=-jobs)

    def halve_limit(self) -> None:
        """Halves the limit, because jobs wait too long for a thread."""
        with self._lock:
            self.limiter.halve_limit()

    # ---- questions

    @property
    def jobs_in_flight(self) -> int:
        """How many jobs are claimed and not settled."""
        return sum(self._in_flight.values())

    @property
    def reserved_permits(self) -> int:
        """How many permits fetchers and batches carry."""
        return sum(self._fetched.values())

    @property
    def unsettled_count(self) -> int:
        """How many jobs have an outcome that waits to be settled."""
        return self._ended

    @property
    def no_handler_runs(self) -> bool:
        """Whether no handler runs except stuck ones, and no job is about to be claimed.

        Jobs that only wait to be settled do not count: if the process dies now, it interrupts no handler.
        """
        with self._lock:
            busy = self.reserved_permits + self.jobs_in_flight - self._ended
        # Asked afterwards: a stuck handler that ends meanwhile is counted as running, never overlooked.
        return busy <= self._stuck()

    # ---- inside

    def _grant_permits(self, databases: Collection[int], permits: int) -> int:
        """Gives `permits` in each database, or none while the process is held. The caller holds the lock.

        A hold begins, and then waits until `no_handler_runs`: it meets the permits that were given before.
        """
        if self.hold.is_active:
            return 0
        for database in databases:
            self._fetched[database] += permits
        return permits

    def _change_counts(
        self, database: int, *, fetched: int = 0, in_flight: int = 0, ended: int = 0
    ) -> None:
        """Changes the counts of permits and jobs in one step, under the lock."""
        with self._lock:
            self._fetched[database] += fetched
            self._in_flight[database] += in_flight
            self._ended += ended
            if in_flight > 0 and self._in_flight[database] >= self._permits_per_database:
                self.limiter.was_reached = True
            self._stalled_since_s.pop(database, None)
            metrics.JOBS_IN_FLIGHT.set(self.jobs_in_flight)
        if self._somebody_was_refused:
            self._somebody_was_refused = False
            for listener in self._listeners:
                listener()

    def _gets_no_permits(self, database: int) -> bool:
        return self.outages.is_database_down(database) or (
            self.outages.has_not_recovered(database) and self._fetched[database] > 0
        )

    def _count_free_permits(self, database: int) -> int:
        return self._permits_per_database - self._in_flight[database] - self._fetched[database]

    @property
    def _permits_per_database(self) -> int:
        return -(-self.limiter.limit // self._databases)
