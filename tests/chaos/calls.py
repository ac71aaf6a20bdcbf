"""A client's calls, with what was asked and what was answered in writing."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.plan import Lines, Now
from toc.center.center import TimeoutCenter
from toc.center.job_spec import JobSpec
from toc.client.remote_center import RemoteCenter
from toc.domain.times import datetime_of
from toc.errors import (
    AccessUnavailable,
    DuplicateJob,
    Overloaded,
    PartlyScheduled,
    StoreUnavailable,
    TooManyCalls,
)
from toc.testing import (
    CancelAnswered,
    DiscardAnswered,
    Entry,
    Journal,
    Redriven,
    RescheduleAnswered,
    Scheduled,
    ScheduleUnanswered,
)
from toc.timer.reminders import Reminder

TRIES_MAX = 8
# Several `Calls` of a process write into one file: their numbers differ.
_SERIES = (itertools.count(first * 10**9) for first in itertools.count())


class Calls:
    """Asks, and writes down what was answered. `unanswered`: errors after which nobody knows the outcome."""

    unanswered: tuple[type[Exception], ...] = (StoreUnavailable,)

    def __init__(
        self, center: TimeoutCenter | RemoteCenter, journal: Journal, asked: Lines, now: Now
    ) -> None:
        self.center, self.journal, self.now = center, journal, now
        self._asked, self._numbers = asked, next(_SERIES)
        self.dying = threading.Event()
        self._local = threading.local()

    # ---- schedule

    def schedule_many(
        self, jobs: Sequence[tuple[int, int]], biz_type: str, priorities: Sequence[int] = ()
    ) -> list[int]:
        """Pairs (biz_id, action_ms); a priority for each, or none. The ids of those that are surely there."""
        specs: list[JobSpec | tuple[int | str, datetime | timedelta]] = [
            (biz_id, datetime_of(ms)) for biz_id, ms in jobs
        ]
        if priorities:
            specs = [
                JobSpec(biz_id=biz_id, action_time=datetime_of(ms), priority=priority)
                for (biz_id, ms), priority in zip(jobs, priorities, strict=True)
            ]
        asked_ms = self.now()
        unanswered = ScheduleUnanswered(biz_type, len(jobs), asked_ms, asked_ms)
        with self._open(unanswered), self._deadly(biz_type, asked_ms):
            try:
                ids: Sequence[int | None] = self.center.schedule_many(specs, biz_type=biz_type)
            except PartlyScheduled as error:
                ids = error.job_ids
            except self.unanswered:
                ids = []
            found = [(j, ms) for j, (_, ms) in zip(ids, jobs, strict=False) if j is not None]
            at_ms = self.now()
            if len(found) < len(jobs):
                self.journal.write(
                    ScheduleUnanswered(biz_type, len(jobs) - len(found), asked_ms, at_ms)
                )
            for job_id, ms in found:
                self.journal.write(Scheduled(job_id, biz_type, ms, asked_ms, at_ms))
        return [job_id for job_id, _ in found]

    def schedule(
        self, biz_id: int, biz_type: str, action_ms: int, wants: dict[str, Any]
    ) -> int | None:
        """None: it has raised, nobody knows whether it is there."""
        asked_ms = self.now()
        unanswered = ScheduleUnanswered(biz_type, 1, asked_ms, asked_ms)
        with self._open(unanswered), self._deadly(biz_type, asked_ms):
            try:
                job_id = self.center.schedule(
                    biz_id, datetime_of(action_ms), biz_type=biz_type, attribute=wants
                )
            except self.unanswered:
                self.journal.write(ScheduleUnanswered(biz_type, 1, asked_ms, self.now()))
                return None
            self.journal.write(Scheduled(job_id, biz_type, action_ms, asked_ms, self.now()))
        return job_id

    def schedule_once(self, biz_id: int, biz_type: str, action_ms: int, key: str) -> int | None:
        """Under a key, and again until it is answered: the same job, however often it was asked."""
        asked_ms = self.now()
        with self._open(ScheduleUnanswered(biz_type, 1, asked_ms, asked_ms)):
            for _ in range(TRIES_MAX):
                try:
                    job_id = self.center.schedule(
                        biz_id, datetime_of(action_ms), biz_type=biz_type, dedup_key=key
                    )
                except self.unanswered:
                    # One that was written may have ended before the next try: a second is legal.
                    self.journal.write(ScheduleUnanswered(biz_type, 1, asked_ms, self.now()))
                    continue
                self.journal.write(Scheduled(job_id, biz_type, action_ms, asked_ms, self.now()))
                return job_id
        return None

    def schedule_again(
        self, job_id: int, biz_id: int, biz_type: str, action_ms: int, key: str
    ) -> None:
        """keep: while the first lives, it stays as it is."""
        asked_ms = self.now()
        with self._open(ScheduleUnanswered(biz_type, 1, asked_ms, asked_ms)):
            try:
                found = self.center.schedule(
                    biz_id, datetime_of(action_ms), biz_type=biz_type, dedup_key=key
                )
            except self.unanswered:
                self.journal.write(ScheduleUnanswered(biz_type, 1, asked_ms, self.now()))
                return
            if found != job_id:  # that one had ended
                self.journal.write(Scheduled(found, biz_type, action_ms, asked_ms, self.now()))

    def replace(self, job_id: int, biz_id: int, biz_type: str, action_ms: int, key: str) -> None:
        """replace: while the first is pending, it gets the new time."""
        asked_ms = self.now()
        unknown = RescheduleAnswered(job_id, "", action_ms, asked_ms, asked_ms)
        with self._open(unknown), self._open(ScheduleUnanswered(biz_type, 1, asked_ms, asked_ms)):
            try:
                found = self.center.schedule(
                    biz_id, datetime_of(action_ms), biz_type=biz_type, dedup_key=key, on_duplicate="replace"
                )  # fmt: skip
            except self.unanswered:
                at_ms = self.now()
                self.journal.write(RescheduleAnswered(job_id, "", action_ms, asked_ms, at_ms))
                self.journal.write(ScheduleUnanswered(biz_type, 1, asked_ms, at_ms))
                return
            except DuplicateJob:  # it runs
                self.journal.write(
                    RescheduleAnswered(job_id, "running", action_ms, asked_ms, self.now())
                )
                return
            if found == job_id:
                self.journal.write(
                    RescheduleAnswered(job_id, "rescheduled", action_ms, asked_ms, self.now())
                )
            else:
                self.journal.write(Scheduled(found, biz_type, action_ms, asked_ms, self.now()))

    # ---- change

    def cancel(self, job_id: int) -> str:
        return self._change(CancelAnswered, self.center.cancel, job_id)

    def reschedule(self, job_id: int, action_ms: int) -> str:
        asked_ms = self.now()
        with self._open(RescheduleAnswered(job_id, "", action_ms, asked_ms, asked_ms)):
            answer = self._answered(lambda: self.center.reschedule(job_id, datetime_of(action_ms)))
            self.journal.write(RescheduleAnswered(job_id, answer, action_ms, asked_ms, self.now()))
        return answer

    def redrive(self, job_id: int) -> str:
        return self._change(Redriven, self.center.redrive, job_id)

    def discard(self, job_id: int) -> str:
        return self._change(DiscardAnswered, self.center.discard, job_id)

    def _change(
        self,
        entry: Callable[[int, str, float, float], Entry],
        verb: Callable[[int], str],
        job_id: int,
    ) -> str:
        """Calls a verb that needs only the id of a job; `entry` makes its entry in the journal."""
        asked_ms = self.now()
        with self._open(entry(job_id, "", asked_ms, asked_ms)):
            answer = self._answered(lambda: verb(job_id))
            self.journal.write(entry(job_id, answer, asked_ms, self.now()))
        return answer

    # ---- death

    @contextmanager
    def _open(self, unanswered: Entry) -> Iterator[None]:
        number = next(self._numbers)
        self._asked.write(
            {"n": number, "kind": type(unanswered).__name__, "values": asdict(unanswered)}
        )
        yield
        self._asked.write({"n": number})

    @contextmanager
    def _deadly(self, biz_type: str, asked_ms: float) -> Iterator[None]:
        """Within, `place` dies if it is told to: its jobs are committed, and not armed yet."""
        self._local.terms = (biz_type, asked_ms)
        try:
            yield
        finally:
            self._local.terms = None

    def before_place(self, jobs: Sequence[tuple[str, Reminder]]) -> None:
        terms = getattr(self._local, "terms", None)
        if terms is None or not self.dying.is_set():
            return
        biz_type, asked_ms = terms
        for _, reminder in jobs:
            if reminder.due_ms is not None:
                self.journal.write(
                    Scheduled(reminder.job_id, biz_type, reminder.due_ms, asked_ms, self.now())
                )
        os.kill(os.getpid(), signal.SIGKILL)

    def _answered(self, call: Callable[[], object]) -> str:
        """The answer's word; "": it raised, and nobody knows."""
        try:
            return str(call())
        except self.unanswered:
            return ""


class RemoteCalls(Calls):
    """Calls over HTTP, which may also be refused for a while."""

    unanswered = (StoreUnavailable, AccessUnavailable, TooManyCalls, Overloaded)
