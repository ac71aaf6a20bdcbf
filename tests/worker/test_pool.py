"""The handler pool by itself: bounded threads and tasks, stuck handlers and their substitutes."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.worker.rig import metric
from tests.worker.waiting import remains, wait_until
from toc.domain.job import Job, Status
from toc.domain.run_control import RunControl
from toc.handlers.registry import HandlerSpec, Registry
from toc.handlers.verdicts import Drop, Retry
from toc.runtime.clock import SystemClock
from toc.worker.handler_pool import HandlerPool
from toc.worker.job_run import JobRun

THREADS, TASKS, STUCK_MAX = 3, 4, 2
AGE = 3600.0


def spec_of(function: Callable[[Job], Any], timeout_s: float = AGE) -> HandlerSpec:
    registry = Registry()
    registry.handler("t", timeout=timeout_s)(function)
    (spec,) = registry
    return spec


class Harness:
    """A pool, and what it told."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.finished: list[tuple[int, object]] = []
        self.asked: list[int] = []
        self.refused: set[int] = set()
        self.alarms = 0
        self.pool = HandlerPool(
            self.clock,
            self._may_start,
            lambda run, result: self.finished.append((run.job.job_id, result)),
            self._alarm,
            threads=THREADS,
            async_tasks=TASKS,
            stuck_max=STUCK_MAX,
            solitary_max=10,
        )
        self._others = set(threading.enumerate())  # other tests of this process may have left some
        self.pool.start()

    @property
    def threads(self) -> int:
        """How many threads of this pool there are."""
        mine = set(threading.enumerate()) - self._others
        return sum(thread.name == "toc-handler" for thread in mine)

    def _may_start(self, run: JobRun) -> bool:
        self.asked.append(run.job.job_id)
        return run.job.job_id not in self.refused

    def _alarm(self) -> None:
        self.alarms += 1

    def submit(self, spec: HandlerSpec, *job_ids: int) -> None:
        for job_id in job_ids:
            job = Job(job_id, 1, "t", Status.RUNNING, 0, {}, 0, 1, "token")
            now_s = self.clock.monotonic_s()
            self.pool.enqueue(
                JobRun(
                    job, spec, "default", 0, "token", 0, now_s + AGE, now_s, now_s, RunControl(60)
                )
            )

    def result(self, job_id: int) -> object:
        (result,) = wait_until(
            lambda: [found for ended, found in self.finished if ended == job_id], f"{job_id} to end"
        )
        return result

    @property
    def ended(self) -> list[int]:
        return sorted(job_id for job_id, _ in self.finished)


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.pool.close()


class Blocker:
    """Counts how many run at once; blocks until it is let go."""

    def __init__(self) -> None:
        self.lock, self.go = threading.Lock(), threading.Event()
        self.now = self.most = self.begun = 0

    def enter(self) -> None:
        with self.lock:
            self.now, self.begun = self.now + 1, self.begun + 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
        with self.lock:
            self.now -= 1

    def __call__(self, job: Job) -> None:
        del job
        self.enter()
        assert self.go.wait(30)
        self.leave()

    async def later(self, job: Job) -> None:
        del job
        self.enter()
        while not self.go.is_set():
            await asyncio.sleep(0.01)
        self.leave()


def test_no_more_threads_run_than_allowed(harness: Harness) -> None:
    blocker = Blocker()
    harness.submit(spec_of(blocker), *range(10))
    wait_until(lambda: blocker.now == THREADS)
    assert harness.pool.waiting_count == 10 - THREADS
    blocker.go.set()
    wait_until(lambda: len(harness.finished) == 10)
    assert blocker.most == THREADS
    assert harness.ended == list(range(10))


def test_async_handlers_share_one_loop_and_are_bounded(harness: Harness) -> None:
    blocker = Blocker()
    threads: set[str] = set()

    async def handle(job: Job) -> str:
        threads.add(threading.current_thread().name)
        await blocker.later(job)
        return "done"

    harness.submit(spec_of(handle), *range(10))
    wait_until(lambda: blocker.now == TASKS)
    assert len(harness.asked) == TASKS  # a lease is looked at when the handler starts, not before
    blocker.go.set()
    wait_until(lambda: len(harness.finished) == 10)
    assert blocker.most == TASKS
    assert threads == {"toc-handler-loop"}
    assert {result for _, result in harness.finished} == {"done"}


def test_plain_handlers_go_on_beside_async_ones(harness: Harness) -> None:
    blocker = Blocker()
    harness.submit(spec_of(blocker.later), *range(TASKS))
    wait_until(lambda: blocker.now == TASKS)
    harness.submit(spec_of(lambda job: job.job_id * 2), 21)
    assert harness.result(21) == 42
    blocker.go.set()


def test_an_async_handler_is_ended_at_its_timeout(harness: Harness) -> None:
    async def handle(job: Job) -> None:
        del job
        await asyncio.sleep(AGE)

    harness.submit(spec_of(handle, 0.05), 1)
    result = harness.result(1)
    assert isinstance(result, TimeoutError)
    assert "0.05 s" in str(result)
    assert harness.pool.running.stuck_count == 0


def test_what_is_not_to_start_is_not_started(harness: Harness) -> None:
    started: list[int] = []

    async def later(job: Job) -> None:
        started.append(job.job_id)

    harness.refused = {1, 2}
    harness.submit(spec_of(lambda job: started.append(job.job_id)), 1)
    harness.submit(spec_of(later), 2)
    harness.submit(spec_of(later), 3)
    harness.result(3)
    wait_until(lambda: sorted(harness.asked) == [1, 2, 3])
    assert started == [3]
    assert harness.ended == [3]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no")])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_raises_is_its_result(
    harness: Harness, error: BaseException, is_async: bool
) -> None:
    def handle(job: Job) -> None:
        raise error

    async def later(job: Job) -> None:
        raise error

    spec = spec_of(later if is_async else handle)
    count = THREADS + TASKS + 1  # more than would go on if each cost a thread
    harness.submit(spec, *range(count))
    wait_until(lambda: len(harness.finished) == count)
    assert {type(result) for _, result in harness.finished} == {type(error)}


def test_a_plain_handler_that_gives_an_awaitable_is_told_so(harness: Harness) -> None:
    loop = asyncio.new_event_loop()
    harness.submit(spec_of(lambda _: asyncio.Future(loop=loop)), 1)
    result = harness.result(1)
    loop.close()
    assert isinstance(result, TypeError)
    assert "async def" in str(result)


async def _act() -> None:
    raise AssertionError("never awaited")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda: Retry, r"the class Retry.*return an instance, Retry\(\.\.\.\)"),
        (lambda: Drop, "the class Drop"),
        (lambda: ValueError, "the class ValueError"),
        (lambda: (n for n in range(3)), "generator, whose body has not run"),
        (_act, "awaitable, which nothing awaits"),
    ],
)
def test_a_result_that_shows_that_nothing_ran_is_a_failure(
    harness: Harness, given: Callable[[], object], text: str, is_async: bool
) -> None:
    async def later(_: Job) -> object:
        return given()

    harness.submit(spec_of(later if is_async else lambda _: given()), 1)
    result = harness.result(1)
    assert isinstance(result, TypeError)
    assert re.search(text, str(result))


def test_a_timeout_error_of_the_handlers_own_is_told_as_it_is(harness: Harness) -> None:
    own = TimeoutError("the bank is slow")

    async def handle(_: Job) -> None:
        raise own

    async def inner(_: Job) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    harness.submit(spec_of(handle), 1)
    assert harness.result(1) is own
    harness.submit(spec_of(inner), 2)
    result = harness.result(2)
    assert isinstance(result, TimeoutError)
    assert "did not end within" not in str(result)
    assert result.__traceback__ is not None


def test_a_stuck_thread_is_counted_and_substituted(harness: Harness) -> None:
    stuck = Blocker()
    harness.submit(spec_of(stuck, 0.05), 1)
    wait_until(lambda: harness.pool.running.stuck_count == 1)
    assert metric("toc_handlers_stuck") == 1
    assert harness.ended == []  # its outcome is not known before it ends

    neighbours = Blocker()
    harness.submit(spec_of(neighbours), *range(10, 10 + THREADS))
    wait_until(lambda: neighbours.now == THREADS)  # as many as before go on beside it
    neighbours.go.set()

    stuck.go.set()
    assert harness.result(1) is None  # the late outcome is told
    wait_until(lambda: harness.pool.running.stuck_count == 0)
    wait_until(lambda: metric("toc_handlers_stuck") == 0)
    wait_until(lambda: harness.threads == THREADS)


def test_a_restart_is_wanted_once_when_too_many_are_stuck(harness: Harness) -> None:
    stuck = Blocker()
    spec = spec_of(stuck, 0.05)
    harness.submit(spec, 1)
    wait_until(lambda: harness.pool.running.stuck_count == 1)
    assert harness.alarms == 0
    harness.submit(spec, 2)
    wait_until(lambda: harness.alarms == 1)
    harness.submit(spec, 3)
    wait_until(lambda: harness.pool.running.stuck_count == 3)
    assert harness.alarms == 1
    stuck.go.set()


def test_an_async_handler_that_will_not_be_cancelled_is_stuck(harness: Harness) -> None:
    go = threading.Event()

    async def handle(job: Job) -> None:
        del job
        while not go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    harness.submit(spec_of(handle, 0.05), 1)
    wait_until(lambda: harness.pool.running.stuck_count == 1)
    go.set()
    harness.result(1)
    wait_until(lambda: harness.pool.running.stuck_count == 0)
    wait_until(lambda: metric("toc_handlers_stuck") == 0)


def test_a_handler_within_its_timeout_is_not_stuck(harness: Harness) -> None:
    blocker = Blocker()
    harness.submit(spec_of(blocker, 30.0), 1)
    wait_until(lambda: blocker.now == 1)
    assert remains(
        lambda: harness.pool.running.stuck_count == 0, 0.6
    )  # the watch looks every half second
    blocker.go.set()


def test_close_ends_idle_threads_and_leaves_running_ones(harness: Harness) -> None:
    blocker = Blocker()
    harness.submit(spec_of(blocker), 1)
    wait_until(lambda: blocker.now == 1)
    began = time.monotonic()
    harness.pool.close()
    assert time.monotonic() - began < 10  # it waits for nobody who does not end
    wait_until(lambda: harness.threads == 1)
    blocker.go.set()
    wait_until(lambda: harness.threads == 0)
    assert harness.ended == [1]
