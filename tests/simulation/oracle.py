"""What must never happen, judged at the moment it happens; and what must be the case at the end.

It sees what clients were answered and what handlers did, in the order in which it happened: finer than
times can say. The invariants are those of the design: I1 … I7.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.kernel import Kernel, Process
from toc.domain.claim_tokens import remove_alone_mark
from toc.domain.job import Job, Status
from toc.worker.lease_recovery import EXTRA_MAX

SETTLE_S = 0.5
"""After a handler has returned, its outcome is in the database within this time: the settler waits up to
20 ms for more outcomes, and each answer takes up to 2 ms where nothing is slow.
"""


class Violation(AssertionError):
    """`invariant`: "I1" to "I8", "late", "type"; a verb: "pause", "limit", "priority", "recurring",
    "countdown"; or "bug": an error that nobody foresaw.
    """

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")


@dataclass(slots=True)
class Run:
    """A handler's run. `result`: "" while it runs or where it was cut off."""

    process: Process
    token: str
    started_s: float
    lease_end_s: Callable[[], float]
    ended_s: float = 0.0
    result: str = ""


@dataclass(slots=True)
class Known:
    """All that is known of one job.

    times: the action_times that may be in force, each with the step at which its call had ended:
    calls that overlap may have come in any order. any_time: a handler or a replace has moved it.
    """

    biz_type: str
    times: dict[int, float] = field(default_factory=dict)
    any_time: bool = False
    scheduled: bool = False  # it was answered
    scheduled_ms: int = 0  # when it was last given a time
    cancelled: bool = False  # it was answered
    maybe_cancelled: bool = False
    maybe_dropped: bool = False  # a running occurrence is cancelled for the next one
    redriven: bool = False
    runs: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Terms:
    """Of a type: see `Registry.handler`. kills: its handler takes its process along, every time.

    fails: now and then; it may end dead. fails_first: the first attempt of each life, and only that.
    """

    timeout_s: float
    max_attempts: int
    fails: bool = False
    fails_first: bool = False
    kills: bool = False


class Oracle:
    """`sway_s`: by so much the databases' clocks may differ. `renew_after_s`: the age at which a lease is
    renewed.

    `row_of(job_id)`: status, token, and due time (running: end of the lease) in ms, in the database at this moment.
    """

    def __init__(
        self,
        kernel: Kernel,
        terms: dict[str, Terms],
        sway_s: float,
        renew_after_s: float,
        row_of: Callable[[int], tuple[int, str, int]],
    ) -> None:
        self._kernel, self._terms, self._sway_s = kernel, terms, sway_s
        self._renew_after_s = renew_after_s
        self._row_of = row_of
        self.jobs: dict[int, Known] = {}
        self.starts = 0
        self.late_s_max = 0.0  # 0: it may be as late as it likes
        self.excused: set[str] = set()  # processes that may have stood still or died before a start
        self.hurt = False  # processes were killed, frozen or cut off: who runs beside them may pay

    # ---- clients

    def known(self, job_id: int, biz_type: str) -> Known:
        return self.jobs.setdefault(job_id, Known(biz_type))

    def scheduled(self, job_id: int, biz_type: str, ms: int, now_ms: int) -> None:
        """schedule() has answered."""
        known = self.known(job_id, biz_type)
        self._check_type(job_id, known, biz_type)
        known.any_time |= known.scheduled  # it has replaced
        known.scheduled = True
        known.scheduled_ms = now_ms
        known.times[ms] = self._kernel.steps

    def rescheduled(self, known: Known, ms: int, asked: int, now_ms: int, *, is_sure: bool) -> None:
        """A call that began at step `asked` has ended. is_sure: it answered "rescheduled"."""
        known.scheduled_ms = now_ms
        if is_sure:
            known.times = {at: end for at, end in known.times.items() if end >= asked}
        known.times[ms] = self._kernel.steps

    # ---- handlers

    def starts_now(
        self,
        job: Job,
        now_ms: int,
        database_ms: int,
        lease_end_s: Callable[[], float],
        *,
        keeper_cancels: bool = False,
    ) -> Run:
        """`now_ms`: what any server may have taken for the time; leases are the database's.

        lease_end_s(): until when the worker of this run is certain that its lease holds. keeper_cancels: the
        keeper may cancel the job between its claim and its start, for a newer one of its schedule.
        """
        known = self.jobs.get(job.job_id)
        run = Run(self._kernel.process, job.token or "", self._kernel.now_s, lease_end_s)
        self.starts += 1
        if known is None:  # its schedule() has not answered yet
            known = self.jobs[job.job_id] = Known(job.biz_type)
        said = f"job {job.job_id} ({job.biz_type}, attempt {job.attempts})"
        self._check_type(job.job_id, known, job.biz_type)
        if known.cancelled:
            raise Violation("I3", f'{said} was started after "cancelled"')
        status, token, lease_ms = self._row_of(job.job_id)
        is_cut = keeper_cancels and (status, token) == (Status.CANCELLED, job.token)
        if not is_cut and (status, token) != (Status.RUNNING, job.token):
            raise Violation("I2", f"{said} was started under a claim that holds no more")
        left_s = (lease_ms - database_ms) / 1000
        if not is_cut and left_s < min(self._terms[job.biz_type].timeout_s, self._renew_after_s):
            raise Violation("I2", f"{said} was started {left_s:.1f} s before the end of its lease")
        if now_ms < job.action_ms:
            raise Violation("I4", f"{said} was started {job.action_ms - now_ms} ms early")
        if known.scheduled and not known.any_time and job.action_ms not in known.times:
            raise Violation("I4", f"{said} was started for {job.action_ms}, not {[*known.times]}")
        due_ms = max(job.action_ms, known.scheduled_ms)
        if self.late_s_max and now_ms - due_ms > self.late_s_max * 1000:
            raise Violation("late", f"{said} was started {(now_ms - due_ms) / 1000:.1f} s late")
        if known.runs:
            self._again(said, known.runs[-1])
        known.runs.append(run)
        return run

    def _check_type(self, job_id: int, known: Known, biz_type: str) -> None:
        if known.biz_type != biz_type:
            both = f"{known.biz_type} and {biz_type}"
            raise Violation("type", f"job {job_id} was scheduled or started as {both}")

    def _again(self, said: str, last: Run) -> None:
        if last.result in ("failed", "snoozed"):
            return
        if self._kernel.now_s < self._until_s(last):
            what = "that one had succeeded" if last.result else "that one was running"
            raise Violation("I2", f"{said} was started beside another run, and {what}")
        if last.result and self._must_be_settled(last):
            raise Violation("I2", f"{said} was started again, and nobody was hurt")

    def _until_s(self, run: Run) -> float:
        """Until then its lease has held, at least."""
        return run.lease_end_s() - self._sway_s

    def _must_be_settled(self, run: Run) -> bool:
        """Nothing has kept a run from being recorded that ended in time, before its lease did.

        A handler that overruns its timeout may return in the last moment of its lease. Then the lease is over
        before the outcome is written, and another node may rightly take the job over.
        """
        in_time = run.ended_s + SETTLE_S < self._until_s(run)
        return in_time and not (self.hurt or run.process.dead)

    def told_lost(self, job: Job, database_ms: int) -> None:
        """Its handler finds `job.lost` set: then its claim is gone, or its lease is over for good."""
        status, token, lease_ms = self._row_of(job.job_id)
        same = remove_alone_mark(token) == remove_alone_mark(job.token or "")
        if status == Status.RUNNING and same and lease_ms > database_ms:
            raise Violation("I5", f"job {job.job_id}: its handler was told of a loss that was none")

    def succeeds(self, job: Job, run: Run) -> None:
        """Its handler returns."""
        run.result, run.ended_s = "succeeded", self._kernel.now_s
        status, token, _ = self._row_of(job.job_id)
        in_time = run.ended_s < self._until_s(run)
        same = remove_alone_mark(token) == remove_alone_mark(run.token)
        dropped = status == Status.CANCELLED and self.jobs[job.job_id].maybe_dropped
        if in_time and same and status != Status.RUNNING and not dropped:
            raise Violation("I5", f"job {job.job_id} was settled by somebody else while it ran")

    def cancelled(self, job_id: int, known: Known) -> None:
        """cancel() has answered "cancelled"."""
        known.cancelled = True
        done = (run for run in known.runs if run.result == "succeeded")
        if any(self._must_be_settled(run) for run in done):
            raise Violation("I3", f'job {job_id}: "cancelled", and it had been done')

    # ---- the end

    def check_end(self, paths: Iterable[str]) -> None:
        rows: dict[int, tuple[int, str | None, int, str | None]] = {}
        letters: set[int] = set()
        for path in paths:
            with sqlite3.connect(path) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for (table,) in tables.fetchall():
                    if table.startswith("toc_job_"):
                        query = (
                            f"SELECT job_id, status, claim_token, attempts, due_time FROM {table}"
                        )
                        rows |= {row[0]: row[1:] for row in connection.execute(query)}
                letters |= {row[0] for row in connection.execute("SELECT job_id FROM toc_dead_job")}
            connection.close()
        for job_id, known in self.jobs.items():
            self._check_job(job_id, known, rows.get(job_id), letters)

    def _check_job(
        self,
        job_id: int,
        known: Known,
        row: tuple[int, str | None, int, str | None] | None,
        letters: set[int],
    ) -> None:
        said = f"job {job_id} ({known.biz_type})"
        if row is None:
            if known.scheduled or known.runs:
                raise Violation("I1", f"{said} has no row")
            return
        status, token, attempts, due_time = Status(row[0]), row[1], row[2], row[3]
        token = remove_alone_mark(token or "")  # it may have lost it while it ran
        wins = {remove_alone_mark(run.token) for run in known.runs if run.result == "succeeded"}
        if status.live:
            raise Violation("I1", f"{said} has not ended: it is {status.name}, {attempts} attempts")
        if known.cancelled and status is not Status.CANCELLED:
            raise Violation("I3", f'{said}: "cancelled", and it is {status.name}')
        if status is Status.DONE and not wins:
            raise Violation("I1", f"{said} is done, and no handler did it")
        if status is Status.DONE and token not in wins:
            raise Violation("I5", f"{said} is done under a token whose run did not do it")
        if status is Status.CANCELLED and not (known.cancelled or known.maybe_cancelled):
            raise Violation("I1", f"{said} is cancelled, and nobody asked for it")
        self._check_ended(said, known, status, token, letter=job_id in letters)
        if due_time is not None:
            raise Violation("I5", f"{said} is {status.name}, and due at {due_time}")

    def _check_ended(
        self, said: str, known: Known, status: Status, token: str, *, letter: bool
    ) -> None:
        if status is Status.DEAD:
            self._check_dead(said, known, letter)
            self._check_last_attempt(said, known, token)
        terms = self._terms[known.biz_type]
        if terms.kills and status is Status.DONE:
            raise Violation("I7", f"{said} kills its process, and is done")

    def _check_last_attempt(self, said: str, known: Known, token: str) -> None:
        """It has been started, unless its process has died, or has stood still, before it could."""
        started = any(remove_alone_mark(run.token) == token for run in known.runs)
        if not started and token.partition(":")[0] not in self.excused:
            raise Violation(
                "I7", f"{said} is dead, and its last attempt ({token}) was never started"
            )

    def _check_dead(self, said: str, known: Known, letter: bool) -> None:
        terms = self._terms[known.biz_type]
        if not letter:
            raise Violation("I7", f"{said} is dead without a dead letter")
        if not (terms.fails or terms.kills) and not self.hurt:
            raise Violation("I7", f"{said} is dead, and nothing was wrong with it")
        again = known.redriven or known.any_time or len(known.times) > 1  # attempts began anew
        if not again and len(known.runs) > terms.max_attempts + EXTRA_MAX:
            raise Violation("I7", f"{said} was tried {len(known.runs)} times")
