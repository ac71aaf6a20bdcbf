"""A run: many jobs are changed page by page, at a bounded rate, and an exact account is kept.

What is reported is committed, and what is committed is reported. Only a page whose COMMIT was not answered
for, or not waited for, is reported as one that may have been changed.

The pages are changed in threads; all else, the account first of all, is done in the caller's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from toc.errors import TocError
from toc.runtime.clock import Clock
from toc.store.databases import Database
from toc.store.schema import job_table_name
from toc.store.sets import Attempt, Changed

PAUSE_S_MIN = 0.001  # less is kept, and waited for with the next page
NAP_S = 0.2  # how soon a wait is ended by whoever interrupts


@dataclass(frozen=True, slots=True)
class Unsure:
    """A page that is not known to have ended: at most `jobs` of these ids may have been changed."""

    table: str
    first_id: int
    last_id: int
    jobs: int


@dataclass(slots=True)
class Part:
    """What was done in one database. `chosen` = all others together, once the run is complete.

    changed: committed, by this process. before: by an earlier process of the same run. superseded: dead
    jobs whose key a newer one holds. meanwhile: jobs that had changed, and do not match any more.
    """

    chosen: int = 0
    changed: int = 0
    before: int = 0
    superseded: int = 0
    meanwhile: int = 0
    unsure: list[Unsure] = field(default_factory=list)


@dataclass(slots=True)
class Account:
    """The exact account of a run; whole at any moment, also after an error.

    `at`: the table of the page that has ended last, or has failed.
    """

    databases: dict[int, Part] = field(default_factory=lambda: defaultdict(Part))
    complete: bool = False
    at: str = ""

    @property
    def changed(self) -> int:
        return sum(part.changed for part in self.databases.values())


class Interrupted(TocError):
    """A person has stopped it."""

    code = "interrupted"


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs of one shard, with the numbers of their types, that are changed in one transaction."""

    database: Database
    shard: int
    jobs: Mapping[int, int]
    attempt: Attempt = field(default_factory=Attempt)

    @property
    def unsure(self) -> Unsure:
        return Unsure(job_table_name(self.shard), min(self.jobs), max(self.jobs), len(self.jobs))


class Run:
    """Changes pages, up to `ahead` of them at a time, each in a thread of its own.

    `change(page)` is called there; `told(page, changed)` in the caller's thread after each page, and
    `stop()` often: whether to stop.

    From its begin to its end a page stands in the account as unsure. A run that fails or is stopped waits
    for the pages under way; at a KeyboardInterrupt it does not, and they stay unsure.
    """

    def __init__(
        self,
        account: Account,
        clock: Clock,
        per_second: int,
        ahead: int,
        change: Callable[[Page], Changed],
        told: Callable[[Page, Changed], None],
        stop: Callable[[], bool],
    ) -> None:
        self._account, self._clock, self._ahead = account, clock, ahead
        self._change, self._told, self._stop = change, told, stop
        self._pace = _Pace(clock, per_second)
        self._under_way: dict[Future[Changed], Page] = {}  # in the order in which they began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, Exception):
            for future, page in self._under_way.items():
                with suppress(Exception):  # the first error is the one to be told
                    self._end(future, page)

    def begin(self, page: Page) -> None:
        """Waits until it may. Raises Interrupted, and what a page has raised that ended meanwhile."""
        while not self._stop():
            left_s = self._pace.left_s
            if not left_s and len(self._under_way) < self._ahead:
                break
            nap_s = min(left_s or NAP_S, NAP_S)
            if self._under_way:
                self._collect(nap_s)
            else:
                self._clock.sleep_s(nap_s)
        else:
            self.end_all()  # one that fails is the better reason
            raise Interrupted("interrupted")
        self._pace.begun(len(page.jobs))
        self._account.databases[page.database.index].unsure.append(page.unsure)
        future = Future[Changed]()
        self._under_way[future] = page
        # No pool: the interpreter would wait for its threads at its exit.
        threading.Thread(
            target=self._work, args=(page, future), name="toc-run", daemon=True
        ).start()

    def end_all(self) -> None:
        """Waits for all pages under way. Raises what one has raised."""
        while self._under_way:
            self._collect(NAP_S)

    def _work(self, page: Page, future: Future[Changed]) -> None:
        try:
            future.set_result(self._change(page))
        except BaseException as error:  # noqa: BLE001 - it is raised where the page is ended
            future.set_exception(error)

    def _collect(self, within_s: float) -> None:
        done = wait(self._under_way, within_s, FIRST_COMPLETED).done
        for future in [future for future in self._under_way if future in done]:
            page = self._under_way.pop(future)
            self._account.at = f"database {page.database.index}, table {job_table_name(page.shard)}"
            self._end(future, page)

    def _end(self, future: Future[Changed], page: Page) -> None:
        part = self._account.databases[page.database.index]
        try:
            changed = future.result()
        except Exception:  # and not the KeyboardInterrupt of who waits here
            if not page.attempt.committing:
                part.unsure.remove(page.unsure)
            raise
        part.changed += len(changed.done)
        part.before += changed.before
        part.superseded += changed.superseded
        known = len(changed.done) + changed.before + changed.superseded
        part.meanwhile += len(page.jobs) - known
        part.unsure.remove(
            page.unsure
        )  # last: who interrupts here finds it rather twice than never
        self._pace.ended(len(page.jobs), len(changed.done), alone=not self._under_way)
        self._told(page, changed)


class _Pace:
    """At most so many jobs per second: a page waits for those that have begun before, and for one that
    was alone until it ended. So what such a one has missed by taking long is not made up for."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock, self._per_second = clock, per_second
        self._free_s = clock.monotonic_s()

    def begun(self, jobs: int) -> None:
        now_s = max(self._free_s, self._clock.monotonic_s())
        self._free_s = now_s + jobs / self._per_second

    def ended(self, jobs: int, done: int, *, alone: bool) -> None:
        """`done` of its `jobs` were changed; the others count for nothing."""
        self._free_s -= (jobs - done) / self._per_second
        if alone:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s + done / self._per_second)

    @property
    def left_s(self) -> float:
        """Seconds until the next may begin; 0: now."""
        left_s = self._free_s - self._clock.monotonic_s()
        return left_s if left_s >= PAUSE_S_MIN else 0.0
