"""One claimed job on its way through the worker, and how a claimed row becomes a run."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from toc.domain.argument_checks import parse_attribute_json
from toc.domain.job import Job
from toc.domain.occurrence_keys import catch_up_s_of_key
from toc.domain.payload_envelope import PayloadIdentity, is_encrypted
from toc.domain.run_control import RunControl
from toc.handlers.registry import HandlerSpec
from toc.handlers.verdicts import Drop, Snooze
from toc.runtime.admission import Admission
from toc.runtime.payload_codecs import PayloadUnreadableError
from toc.store.claims import ClaimedRow, Outcome
from toc.store.countdowns import CountdownReader
from toc.store.databases import Database

if TYPE_CHECKING:
    from toc.worker.context import WorkerContext
    from toc.worker.handler_batch import HandlerBatch


UNREADABLE_WAIT_S = 300.0
"""How long a job waits whose payload this process cannot decrypt."""


class CancelledByShutdown:
    """The result of a handler that was cancelled because the process ended. It is not a failure."""


@dataclass(slots=True)
class JobRun:
    """A claimed job. `claimed_ms`: the database's time at the claim. `lease_end_s`: until then the lease is
    certainly valid, by this process' monotonic clock; renewals move it.

    By the monotonic clock too: `asked_s`, when the claim began; `queued_s`, when it had ended; `started_s`,
    when the handler was called. `found_ms`: the server's time by which it was found due (None: not known).
    `asked_wall_ms`: this machine's clock at `asked_s` (None: not known).
    `previous_token`: the token that it was taken over from; "": it was pending.
    `settled`: a LeaseRecovery waits for it; set when the run is settled. `admission`: where a job of a
    restricted type was admitted. `has_pass`: it runs through a pause. `batch`: the call of a batch handler
    that the run is in; None: it is in none, or not yet.
    """

    job: Job
    spec: HandlerSpec
    topic: str
    database: int
    token: str
    claimed_ms: int
    lease_end_s: float
    asked_s: float
    queued_s: float
    control: RunControl
    found_ms: int | None = None
    asked_wall_ms: int | None = None
    started_s: float = 0.0
    previous_token: str = ""
    settled: threading.Event | None = None
    admission: Admission | None = None
    has_pass: bool = False
    batch: HandlerBatch | None = field(default=None, repr=False, compare=False)

    @property
    def runs(self) -> tuple[JobRun, ...]:
        """The runs of this call of the handler: this one."""
        return (self,)

    def call_handler(self) -> Any:
        """Calls the handler; returns what it returns: a coroutine, if it is an `async` one."""
        function: Any = self.spec.function
        return function(self.job)

    def database_now_ms(self, now_s: float) -> int:
        """An upper estimate of the database's time: its time at the claim + the time passed since `asked_s`.

        `now_s`: the monotonic clock's time. It is never too low, so a delay counted from it does not end
        early. It is too high by at most the duration of the claim: the database read its clock at some time
        between the question and the answer, and may have waited for locks afterwards.

        It is not Redis' time, though pops report that more often: if Redis' clock is wrong by an hour,
        retries must not be late by an hour.
        """
        return self.claimed_ms + 1 + math.ceil((now_s - self.asked_s) * 1000)

    @property
    def timeout_s(self) -> float:
        """How long the handler may run: its type's timeout and what the handler has added to it."""
        if self.batch is not None:
            return self.batch.timeout_s
        return self.spec.timeout_s + self.control.extended_s

    def lease_left_s(self, now_s: float, wall_ms: int) -> float:
        """A lower bound of the seconds until the lease ends. `wall_ms`: this machine's wall clock now.

        While a machine is paused as a whole (a VM), its monotonic clock may stand still; its wall clock is
        corrected when it resumes. So the clock that has advanced further counts. A wrong wall clock that
        steps ahead costs no more than a job that is given back.
        """
        if self.asked_wall_ms is None:
            return self.lease_end_s - now_s
        wall_s = (wall_ms - self.asked_wall_ms) / 1000
        asleep_s = wall_s - (now_s - self.asked_s)  # guard: pause-of-the-machine
        return self.lease_end_s - now_s - max(0.0, asleep_s)

    def lateness_s(self, now_s: float) -> float:
        """An upper bound of the seconds since the job's action time (see `database_now_ms`)."""
        return max(0.0, (self.claimed_ms - self.job.action_ms) / 1000 + now_s - self.asked_s)


class ClockReading(NamedTuple):
    """One moment, by this process' monotonic clock and by this machine's wall clock."""

    monotonic_s: float
    wall_ms: int


class FinishedRun(NamedTuple):
    """A run and its outcome."""

    run: JobRun
    outcome: Outcome


class RunMaker:
    """Makes the runs of the rows that one call has claimed under `token`.

    `found_s`: the monotonic time before the jobs were found; their leases count from there. `asked`: the
    clocks before the claim. `found_ms`: see `JobRun`. `topic`: the hold topic that the jobs were popped from;
    "": their reminders belong to the topic of their type.
    """

    def __init__(
        self, context: WorkerContext, database: Database, token: str, found_s: float,
        asked: ClockReading, found_ms: int | None = None,
        topic: str = "",
    ) -> None:  # fmt: skip
        settings = context.process.settings
        self._database, self._token, self._asked, self._found_ms = database, token, asked, found_ms
        self._lease_end_s = found_s + settings.worker.lease_s  # guard: lease-from-the-question
        self._extend_s_max = settings.worker.extend_s_max
        self._on_progress = context.progress_signal.set
        self._topic_of_biz_type = cache(settings.topic_of_biz_type)
        self._topic = topic
        self._queued_s = context.process.clock.monotonic_s()
        self._read_countdown = CountdownReader(context.process.databases)
        self._clamped_ms: dict[int, int] = {}  # the rows of a call have few different claim times

    def make_run(self, row: ClaimedRow, spec: HandlerSpec) -> JobRun:
        attribute: dict[str, Any] = {}
        biz_id = row.biz_id if row.biz_text is None else row.biz_text
        try:
            attribute = parse_attribute_json(row.attribute)
            if spec.codec is not None or is_encrypted(attribute):
                spec, attribute = self._open_payload(row, spec, biz_id)
        except (ValueError, RecursionError) as error:
            # Another program wrote the attribute. Only this job fails, with a reason; the batch is run.
            spec = replace(spec, function=_make_failing_handler(error), is_async=False, batch=0)
        if row.dedup_key is not None and self._is_past_catch_up(row):
            spec = replace(spec, function=_drop_late_occurrence, is_async=False, batch=0)
        control = RunControl(self._extend_s_max, self._on_progress)
        job = Job(
            row.job_id, biz_id, spec.biz_type, row.status,
            row.action_ms, attribute, row.due_ms, row.attempts, row.token, row.dedup_key,
            tenant=row.tenant, trace=row.trace, priority=row.priority, _control=control,
            _countdown=self._read_countdown,
        )  # fmt: skip
        topic = self._topic or self._topic_of_biz_type(spec.biz_type)
        return JobRun(
            job, spec, topic, self._database.index, self._token,
            self._claimed_ms(row), self._lease_end_s,
            asked_s=self._asked.monotonic_s, queued_s=self._queued_s, control=control,
            found_ms=self._found_ms, asked_wall_ms=self._asked.wall_ms,
        )  # fmt: skip

    def _open_payload(
        self, row: ClaimedRow, spec: HandlerSpec, biz_id: int | str
    ) -> tuple[HandlerSpec, dict[str, Any]]:
        """The decrypted payload; or a handler that lets the job wait or fail, and no payload."""
        codecs = self._database.payload_codecs
        identity = PayloadIdentity(row.job_id, spec.biz_type, biz_id, row.tenant)
        try:
            return spec, codecs.open_payload(row.attribute, spec.codec, identity)
        except PayloadUnreadableError as error:
            function = _make_refusing_handler(error)
            if error.waits:
                codecs.warn_job_waits(identity, error)
                function = _let_job_wait
            return replace(spec, function=function, is_async=False, batch=0), {}

    def _is_past_catch_up(self, row: ClaimedRow) -> bool:
        """Whether the row is an occurrence of a recurring schedule that begins too late (ADR 46)."""
        catch_up_s = catch_up_s_of_key(row.dedup_key)
        if catch_up_s is None or row.attempts > 1:
            return False
        return self._claimed_ms(row) > row.action_ms + catch_up_s * 1000

    def _claimed_ms(self, row: ClaimedRow) -> int:
        """The database's time at the claim, within the bounds that this process believes."""
        server_ms = row.claimed_ms
        assert server_ms is not None  # noqa: S101 - its claim has set it
        clamped_ms = self._clamped_ms.get(server_ms)
        if clamped_ms is None:
            clamped_ms = self._database.server_clock.clamp_server_time_ms(server_ms)
            self._clamped_ms[server_ms] = clamped_ms
        return clamped_ms


def _let_job_wait(job: Job) -> Snooze:
    """The handler of a job whose payload this process cannot decrypt, but others may."""
    del job
    return Snooze(timedelta(seconds=UNREADABLE_WAIT_S))


def _make_refusing_handler(error: PayloadUnreadableError) -> Callable[[Job], object]:
    """A handler that fails, for a job whose encrypted payload was changed."""

    def raise_payload_error(job: Job) -> object:
        del job
        raise error

    return raise_payload_error


def _drop_late_occurrence(job: Job) -> None:
    """A handler that cancels an occurrence whose schedule does not want it any more."""
    catch_up_s = catch_up_s_of_key(job.dedup_key)
    raise Drop(f"not begun within the catch-up of {catch_up_s} s of its recurring schedule")


def _make_failing_handler(error: Exception) -> Callable[[Job], None]:
    """A handler that fails, for a job whose attribute is not JSON."""

    def raise_attribute_error(job: Job) -> None:
        del job
        raise ValueError(f"the attribute is not JSON: {error}")

    return raise_attribute_error


def result_or_type_error(result: object) -> object:
    """The result; or a TypeError if the result shows that the handler's body has not run completely."""
    if result is None:
        return None
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result):
        text = "returned an awaitable, which nothing awaits: declare it with `async def`, or await there"
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        text = "returned a generator, whose body has not run: a handler must not `yield`"
    elif isinstance(result, type) and issubclass(result, BaseException):
        name = result.__name__
        text = f"returned the class {name}, which says nothing: return an instance, {name}(...)"
    else:
        return result
    return TypeError(f"the handler {text}")
