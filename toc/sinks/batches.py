"""Collects the messages that handlers want to send at the same time, and sends them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from toc.sinks.sink import SinkMessage

Send = Callable[[Sequence[SinkMessage]], Awaitable[Sequence[Exception | None]]]


class SendFailedError(Exception):
    """A batch without an answer, or with one that breaks the rules of `Sink.send`."""


class MessageBatches:
    """The batches of one destination. To be used on one event loop.

    A message waits `wait_s` for others, or until there are `batch_max`. The number of messages is bounded by
    the turns of the destination. `total_s`: time limit of a batch.
    """

    def __init__(self, send: Send, *, batch_max: int, wait_s: float, total_s: float) -> None:
        self._send, self._batch_max = send, batch_max
        self._wait_s, self._total_s = wait_s, total_s
        self._waiting: list[tuple[SinkMessage, asyncio.Future[Exception | None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, message: SinkMessage) -> Exception | None:
        """Sends a message with others; returns its answer. It may be sent though the caller is cancelled."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Exception | None] = loop.create_future()
        self._waiting.append((message, answer))
        if len(self._waiting) >= self._batch_max:
            self._start_batch()
        elif self._timer is None:
            self._timer = loop.call_later(self._wait_s, self._start_batch)
        return await answer

    def _start_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = [pair for pair in self._waiting if not pair[1].done()]  # done: cancelled
        self._waiting = []
        if batch:
            task = asyncio.get_running_loop().create_task(self._send_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_batch(
        self, batch: Sequence[tuple[SinkMessage, asyncio.Future[Exception | None]]]
    ) -> None:
        try:
            answers = await self._send_in_time([message for message, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever a plug-in raises
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _send_in_time(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        try:
            async with asyncio.timeout(self._total_s) as limit:
                answers = list(await self._send(messages))
        except TimeoutError:
            if not limit.expired():
                raise
            raise SendFailedError(f"no confirmation within {self._total_s:g} s") from None
        if len(answers) != len(messages):
            text = f"the sink gave {len(answers)} answers for {len(messages)} messages"
            raise SendFailedError(text)
        return [_checked_answer(answer) for answer in answers]

    def close(self) -> None:
        """Cancels what is being sent: its jobs are not done."""
        if self._timer is not None:
            self._timer.cancel()
        for _, answer in self._waiting:
            answer.cancel()
        for task in self._tasks:
            task.cancel()


def _checked_answer(answer: object) -> Exception | None:
    """Only None means confirmed: a plug-in that returns True by mistake must not end jobs."""
    if answer is None or isinstance(answer, Exception):
        return answer
    if isinstance(answer, asyncio.CancelledError):  # of `gather(return_exceptions=True)`
        return SendFailedError("the send was cancelled")
    return SendFailedError(f"the sink answered {type(answer).__name__}, not None or an exception")
