"""Changes many jobs page by page, at a bounded rate, and keeps exact counts (`BulkRunProgress`).

A job counts as changed if and only if its change is committed. A page whose COMMIT was not answered, or not
waited for, is listed in `DatabaseProgress.unsure`: its jobs may or may not be changed.

Threads change the pages. The caller's thread does everything else; no other thread writes the counts.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field

from toc.errors import TocError
from toc.runtime.clock import Clock
from toc.store.bulk_update import CommitProgress, PageResult
from toc.store.databases import Database
from toc.store.schema import job_table_name

PAUSE_S_MIN = 0.001  # a shorter pause is added to the pause before the next page
POLL_S = 0.2  # how soon a wait notices an interrupt


@dataclass(frozen=True, slots=True)
class UnsurePage:
    """A page with an unknown outcome: at most `jobs` of the ids from first to last may be changed."""

    table: str
    first_id: int
    last_id: int
    jobs: int


@dataclass(slots=True)
class DatabaseProgress:
    """The counts of one database. When the run is complete, `chosen` is the sum of the other counts.

    changed: jobs that this process changed. before: jobs that an earlier process of the same run changed.
    superseded: dead jobs whose key a newer job has. meanwhile: chosen jobs that do not match any more.
    """

    chosen: int = 0
    changed: int = 0
    before: int = 0
    superseded: int = 0
    meanwhile: int = 0
    unsure: list[UnsurePage] = field(default_factory=list)


@dataclass(slots=True)
class BulkRunProgress:
    """The exact counts of a run; right at any moment, also after an error.

    `at`: the table of the last page that ended or failed.
    """

    databases: dict[int, DatabaseProgress] = field(
        default_factory=lambda: defaultdict(DatabaseProgress)
    )
    complete: bool = False
    at: str = ""

    @property
    def changed_jobs(self) -> int:
        return sum(part.changed for part in self.databases.values())


class RunInterrupted(TocError):
    """A user has stopped the run."""

    code = "interrupted"


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs of one shard, with the numbers of their types, that are changed in one transaction."""

    database: Database
    shard: int
    jobs: Mapping[int, int]
    attempt: CommitProgress = field(default_factory=CommitProgress)

    @property
    def as_unsure(self) -> UnsurePage:
        return UnsurePage(
            job_table_name(self.shard), min(self.jobs), max(self.jobs), len(self.jobs)
        )


class BulkRun:
    """Changes pages, up to `ahead` of them at the same time, each in a thread of its own.

    `change(page)` runs in the page's thread; `on_page_done(page, changed)` runs in the caller's thread after
    each page; `stop()`, which says whether to stop, is called often.

    While a page is in progress, `progress` lists this page as unsure: its jobs may or may not be changed. A
    run that fails or is stopped waits for the pages in progress; after a KeyboardInterrupt it does not wait,
    and these pages stay unsure.
    """

    def __init__(
        self,
        progress: BulkRunProgress,
        clock: Clock,
        per_second: int,
        ahead: int,
        change: Callable[[JobPage], PageResult],
        on_page_done: Callable[[JobPage, PageResult], None],
        stop: Callable[[], bool],
    ) -> None:
        self._progress, self._clock, self._ahead = progress, clock, ahead
        self._change, self._on_page_done, self._stop = change, on_page_done, stop
        self._rate_limit = _RateLimit(clock, per_second)
        # Pages in the order in which they were started.
        self._in_progress: dict[Future[PageResult], JobPage] = {}

    def change_pages(self, pages: Iterable[JobPage]) -> None:
        """Changes all pages. Raises RunInterrupted, and the error of a page that failed."""
        try:
            for page in pages:
                self._wait_for_page_start()
                self._start_page(page)
            self._finish_all_pages()
        except Exception:  # not a KeyboardInterrupt
            for future, page in self._in_progress.items():
                with suppress(Exception):  # only the first error is reported
                    self._record_page_result(future, page)
            raise

    def _wait_for_page_start(self) -> None:
        while not self._stop():
            left_s = self._rate_limit.next_page_in_s
            if not left_s and len(self._in_progress) < self._ahead:
                return
            wait_s = min(left_s or POLL_S, POLL_S)
            if self._in_progress:
                self._collect_finished_pages(wait_s)
            else:
                self._clock.sleep_s(wait_s)
        self._finish_all_pages()  # the error of a failed page explains more than RunInterrupted
        raise RunInterrupted("interrupted")

    def _start_page(self, page: JobPage) -> None:
        self._rate_limit.delay_next_page(len(page.jobs))
        self._progress.databases[page.database.index].unsure.append(page.as_unsure)
        future = Future[PageResult]()
        self._in_progress[future] = page
        # No thread pool: at exit the interpreter would wait for the threads of a pool.
        threading.Thread(
            target=self._change_page_in_thread, args=(page, future), name="toc-run", daemon=True
        ).start()

    def _finish_all_pages(self) -> None:
        while self._in_progress:
            self._collect_finished_pages(POLL_S)

    def _change_page_in_thread(self, page: JobPage, future: Future[PageResult]) -> None:
        try:
            future.set_result(self._change(page))
        except BaseException as error:  # noqa: BLE001 - raised again by `future.result()`
            future.set_exception(error)

    def _collect_finished_pages(self, within_s: float) -> None:
        done = wait(self._in_progress, within_s, FIRST_COMPLETED).done
        for future in [future for future in self._in_progress if future in done]:
            page = self._in_progress.pop(future)
            self._progress.at = (
                f"database {page.database.index}, table {job_table_name(page.shard)}"
            )
            self._record_page_result(future, page)

    def _record_page_result(self, future: Future[PageResult], page: JobPage) -> None:
        part = self._progress.databases[page.database.index]
        try:
            changed = future.result()
        except Exception:  # not a KeyboardInterrupt of the waiting thread
            if not page.attempt.committing:
                part.unsure.remove(page.as_unsure)
            raise
        part.changed += len(changed.done)
        part.before += changed.before
        part.superseded += changed.superseded
        known = len(changed.done) + changed.before + changed.superseded
        part.meanwhile += len(page.jobs) - known
        # Last: if this thread is interrupted here, the page is counted twice rather than not at all.
        part.unsure.remove(page.as_unsure)
        self._rate_limit.correct_delay_after_page(
            len(page.jobs), len(changed.done), alone=not self._in_progress
        )
        self._on_page_done(page, changed)


class _RateLimit:
    """Limits the jobs per second: after a page starts, the next page waits for jobs / `per_second` seconds.
    After a page that ran alone this time counts from its end: a slow page does not let later pages run
    faster.
    """

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock, self._per_second = clock, per_second
        self._free_s = clock.monotonic_s()

    def delay_next_page(self, jobs: int) -> None:
        now_s = max(self._free_s, self._clock.monotonic_s())
        self._free_s = now_s + jobs / self._per_second

    def correct_delay_after_page(self, jobs: int, done: int, *, alone: bool) -> None:
        """`done` of the page's jobs were changed; the other jobs do not count for the rate."""
        self._free_s -= (jobs - done) / self._per_second
        if alone:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s + done / self._per_second)

    @property
    def next_page_in_s(self) -> float:
        """Seconds until the next page may begin; 0: now."""
        left_s = self._free_s - self._clock.monotonic_s()
        return left_s if left_s >= PAUSE_S_MIN else 0.0
