"""The handlers of types whose sink is a broker: each job becomes a message of its destination.

A job is done when the destination has confirmed its message. A refused message, or a destination that does
not work, is a failed attempt by the type's retry policy. A job waits, without an attempt, while its
destination is busy, or its circuit breaker is open.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

from toc.domain.job import Job
from toc.domain.secret_masking import mask_secrets
from toc.domain.sink_targets import RouteValueError, SinkTarget, parse_sink
from toc.domain.text_escaping import escape_to_one_line
from toc.handlers.verdicts import Dead, Retry, Snooze, Verdict
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.sinks.batches import MessageBatches, SendFailedError
from toc.sinks.kinds import destinations_of, find_sink_class
from toc.sinks.sink import Sink, SinkDestination, SinkMessage
from toc.webhooks.gate import DestinationGate, HandlerShares, MustWaitError, Turn
from toc.webhooks.message_body import make_body

log = logging.getLogger(__name__)

FAILURE_CHARS_MAX = 300
SinkHandler = Callable[[Job], Awaitable[Verdict | None]]


class SinkSender:
    """Sends the jobs of a worker to brokers. Its handlers run on one event loop. Raises SettingsError."""

    def __init__(
        self, settings: Settings, shares: HandlerShares, clock: Clock, rng: random.Random
    ) -> None:
        self._settings, self._shares, self._clock, self._rng = settings, shares, clock, rng
        self._destinations = destinations_of(settings)
        self._channels: dict[tuple[str, str], DestinationChannel | None] = {}
        self._lock = threading.Lock()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of which the settings have a destination."""
        return frozenset(kind for kind, _ in self._destinations)

    def make_handler(self, kind: str, target: str) -> SinkHandler | None:
        """The handler of the sink `kind:target`. None: this process cannot send there. Any thread."""
        found = parse_sink(f"{kind}:{target}")
        with self._lock:
            key = kind, found.name
            if key not in self._channels:
                self._channels[key] = self._open_channel(kind, found.name)
            channel = self._channels[key]
        if channel is None:
            return None

        async def send_to_sink(job: Job) -> Verdict | None:
            return await channel.send_job(job, found)

        return send_to_sink

    def _open_channel(self, kind: str, name: str) -> DestinationChannel | None:
        destination, sink_class = self._destinations.get((kind, name)), find_sink_class(kind)
        if destination is None or sink_class is None:
            text = "jobs for the sink %s:%s wait for another process: the settings have no [sinks.%s.%s]"
            log.error(text, kind, name, kind, name)
            return None
        try:
            sink = sink_class(destination)
        except ImportError as error:
            how = f": pip install '{sink_class.extra}'" if sink_class.extra else ""
            text = "jobs for the sink %s wait for another process: %s is not installed%s"
            log.error(text, destination.label, error.name, how)  # noqa: TRY400 - the text says all
            return None
        group = self._settings.sinks[kind][name]
        gate = DestinationGate(group, self._shares, self._clock, self._rng)
        batches = MessageBatches(
            sink.send,
            batch_max=group.batch_max,
            wait_s=group.batch_wait_ms / 1000,
            total_s=destination.timeout_s,
        )
        return DestinationChannel(destination, sink, gate, batches)

    async def close_connections(self) -> None:
        """Closes all connections. To be called on the event loop, before it ends."""
        channels = [each for each in self._channels.values() if each is not None]
        await asyncio.gather(*(each.close() for each in channels))


class DestinationChannel:
    """The way to one destination: a turn of its gate, a batch, and what the answer means for the job."""

    def __init__(
        self,
        destination: SinkDestination,
        sink: Sink,
        gate: DestinationGate,
        batches: MessageBatches,
    ) -> None:
        self._label = destination.label
        self._sink, self._gate, self._batches = sink, gate, batches

    async def send_job(self, job: Job, target: SinkTarget) -> Verdict | None:
        """Sends one job. None: its message is confirmed."""
        try:
            route = target.route_of(job)
        except RouteValueError as error:
            self._count("refused")
            return Dead(f"sink {self._label}: {error}")
        try:
            turn = await self._gate.begin()
        except MustWaitError as wait:
            self._count("wait")
            return Snooze(timedelta(seconds=wait.wait_s))
        # Of a cancelled run, mostly by the type's timeout, nobody knows whether the message arrived.
        answer: Exception | None = SendFailedError("no confirmation within the timeout of the type")
        try:
            answer = await self._batches.send(SinkMessage(job, make_body(job), route))
        finally:
            self._end_turn(turn, answer)
        return self._verdict_of(answer)

    def _end_turn(self, turn: Turn, answer: Exception | None) -> None:
        gate, was_open = self._gate, self._gate.is_open
        gate.end(turn, is_healthy=answer is None or isinstance(answer, Verdict))
        if gate.is_open and not was_open:
            text = "sink %s fails, and its jobs wait until it works again; the last failure: %s"
            log.warning(text, self._label, describe_failure(answer))
        elif was_open and not gate.is_open:
            log.info("sink %s works again", self._label)
        metrics.SINK_BREAKER_OPEN.labels(self._label).set(gate.is_open)

    def _verdict_of(self, answer: Exception | None) -> Verdict | None:
        if answer is None:
            self._count("done")
            return None
        if isinstance(answer, Verdict):
            self._count("refused")
            return answer
        self._count("failed")
        return Retry(None, f"sink {self._label}: {describe_failure(answer)}")

    def _count(self, outcome: str) -> None:
        metrics.SINK_MESSAGES.labels(self._label, outcome).inc()

    async def close(self) -> None:
        self._batches.close()
        try:
            await self._sink.close()
        except Exception as error:  # noqa: BLE001 - the process ends, and other sinks are to be closed too
            log.warning("sink %s was not closed: %s", self._label, describe_failure(error))


def describe_failure(error: Exception | None) -> str:
    """A failure as one line, without the passwords that a driver's error may hold."""
    text = escape_to_one_line(mask_secrets(str(error)))[:FAILURE_CHARS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
