"""The objects that the parts of a process share, and those that the stages of its worker share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from toc.domain.pauses import HOLD_TOPIC_PREFIX
from toc.limits.limits import Limits
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.claims import Claims
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.timer.reminders import Reminder, Reminders
from toc.worker.acks import Ack
from toc.worker.gate import Gate
from toc.worker.handler_table import HandlerTable
from toc.worker.job_run import ClockReading
from toc.worker.permits import Permits
from toc.worker.progress_signal import ProgressSignal


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The parts of a node. `name`: "host:pid". `reminders` is None if the node has no timer. `gate`: says
    which types may be claimed now; the default one is open. `limits`: of the types; None: there are none."""

    name: str
    settings: Settings
    clock: Clock
    rng: random.Random
    databases: Databases
    database_metadata: DatabaseMetadata
    reminders: Reminders | None
    gate: Gate = field(default_factory=Gate)
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The objects that the stages of one worker share.

    `identity`: the unique name of this process; its tokens and its cluster member begin with it.
    """

    process: ProcessContext
    identity: str
    claims: Claims
    handlers: HandlerTable
    permits: Permits
    progress_signal: ProgressSignal = field(default_factory=ProgressSignal)
    _sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_claim_token(self) -> str:
        """A new token for a claim: no other claim of any process has the same token."""
        return f"{self.identity}:{next(self._sequence)}"

    def read_clocks(self) -> ClockReading:
        clock = self.process.clock
        return ClockReading(clock.monotonic_s(), clock.wall_ms())

    def send_home(self, ack: Ack, biz_type: str) -> tuple[Ack, ...]:
        """The acks in place of one that puts a reminder back: into the topic of its type, if it was popped
        from a hold topic that is not in use any more. `biz_type`: "": not known here.
        """
        if ack.back is None or not ack.topic.startswith(HOLD_TOPIC_PREFIX) or not biz_type:
            return (ack,)
        if self.process.gate.is_moved(biz_type):
            return (ack,)
        home = self.process.settings.topic_of_biz_type(biz_type)
        return Ack(home, ack.job_id, ack.back), Ack(ack.topic, ack.job_id, None)

    def reminder_to_put_back(self, now_ms: int, due_ms: int, job_id: int) -> Reminder:
        """The reminder to put back: with the due time; with None if the job is due beyond horizon + slack.

        A reminder with None is not armed, because the loader will load the row (I6).
        """
        far = due_ms > now_ms + self.process.settings.timer.arm_within_ms
        return Reminder(None if far else due_ms, job_id)
