"""Writes jobs of one database that many tasks schedule at the same time: in batches, each one transaction."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from toc.center.bulk_schedule import BulkSchedule
from toc.center.each_schedule import EachSchedule
from toc.center.job_spec import CheckedJob
from toc.errors import TocError

BATCH_MAX = 500  # jobs that are written together
WRITERS_MAX = 2  # batches of a database that are written at the same time

Result = int | Exception
"""The job_id of a job, or why it was not written."""


class WaitingJob(NamedTuple):
    """A job that a task of `loop` waits for."""

    job: CheckedJob
    answer: asyncio.Future[int]
    loop: asyncio.AbstractEventLoop


class ScheduleBatches:
    """The waiting jobs of one database, and the threads that write them. Thread-safe.

    prepare_bulk(jobs): makes the BulkSchedule of jobs. shard_of(job): the shard of a job.
    """

    def __init__(
        self,
        prepare_bulk: Callable[[Sequence[CheckedJob]], BulkSchedule],
        shard_of: Callable[[CheckedJob], int],
    ) -> None:
        self._writer = EachSchedule(prepare_bulk, shard_of)
        self._lock = threading.Lock()
        self._waiting: deque[WaitingJob] = deque()
        self._writers = 0
        self._threads = ThreadPoolExecutor(WRITERS_MAX, "toc-async-writer")

    def enqueue(self, waiting: WaitingJob) -> None:
        """Queues a job. Its answer is set by its loop, after the COMMIT."""
        with self._lock:
            self._waiting.append(waiting)
            if self._writers == WRITERS_MAX:
                return
            self._writers += 1
        try:
            self._threads.submit(self._write_until_none_waits)
        except RuntimeError:  # the process ends, or no thread can be started
            with self._lock:
                self._writers -= 1
                with suppress(ValueError):  # another writer has taken it
                    self._waiting.remove(waiting)
            raise

    def close(self) -> None:
        """Waits until all queued jobs are written. Blocks."""
        self._threads.shutdown()

    def _write_until_none_waits(self) -> None:
        while batch := self._take_batch():
            results: list[Result]
            try:
                written = self._writer.write_jobs([waiting.job for waiting in batch])
                results = [it if isinstance(it, Exception) else it.job_id for it in written]
            except Exception as error:  # noqa: BLE001 - each of the waiting calls raises it
                results = [error] * len(batch)
            _send_answers(batch, results)

    def _take_batch(self) -> list[WaitingJob]:
        """The next jobs to write, without those whose calls were cancelled. Empty: this writer ends."""
        batch: list[WaitingJob] = []
        with self._lock:
            while self._waiting and len(batch) < BATCH_MAX:
                waiting = self._waiting.popleft()
                if not waiting.answer.cancelled():
                    batch.append(waiting)
            if not batch:
                # In the same step as the look at the queue: a job that comes next starts a new writer.
                self._writers -= 1
        return batch


def _send_answers(batch: Sequence[WaitingJob], results: Sequence[Result]) -> None:
    """Tells each loop to set the answers of its calls."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], Result]]]
    by_loop = defaultdict(list)
    for waiting, result in zip(batch, results, strict=True):
        by_loop[waiting.loop].append((waiting.answer, result))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and its tasks with it
            loop.call_soon_threadsafe(_set_answers, answers)


def _set_answers(answers: Iterable[tuple[asyncio.Future[int], Result]]) -> None:
    for answer, result in answers:
        if answer.cancelled():
            continue
        if isinstance(result, Exception):
            answer.set_exception(_copy_error(result))
        else:
            answer.set_result(result)


def _copy_error(error: Exception) -> Exception:
    """An error of its own for each call: raising one object in many tasks would mix up their tracebacks."""
    if not isinstance(error, TocError):
        return error
    copy = error.__class__.__new__(error.__class__, *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__ or error
    return copy
