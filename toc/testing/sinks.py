"""Checks a sink against the rules of `toc.sinks.Sink`, on a real destination: for the tests of plug-ins."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from toc.domain.job import Job, Status
from toc.sinks.sink import Sink, SinkMessage

MESSAGES = 20
REPAIR_TRIES_MAX = 100
_FIRST_ID = 1_000_001


def check_sink(
    make_sink: Callable[[], Sink],
    read: Callable[[], Iterable[tuple[str, bytes]]],
    *,
    route: str = "",
    stop: Callable[[], object] | None = None,
    start: Callable[[], object] | None = None,
) -> None:
    """Checks a sink against the rules of `toc.sinks.Sink`. Raises AssertionError with a broken rule.

    make_sink: makes a sink of a destination that works. read: all messages that the destination has got
    since the first call, as pairs of message id (or key, if that is all it has) and body. route: the route
    of the messages. stop, start: end the destination, and start it again with what it has stored; without
    them the rules about failures are not checked. read, stop and start are called in a thread. Takes about
    as long as the sink's time limit when the destination does not answer.
    """
    asyncio.run(_SinkCheck(make_sink, read, route).run_all(stop, start))


class _SinkCheck:
    def __init__(
        self,
        make_sink: Callable[[], Sink],
        read: Callable[[], Iterable[tuple[str, bytes]]],
        route: str,
    ) -> None:
        self._make_sink, self._read, self._route = make_sink, read, route
        self._next_id = _FIRST_ID
        self._confirmed: dict[str, bytes] = {}

    async def run_all(
        self, stop: Callable[[], object] | None, start: Callable[[], object] | None
    ) -> None:
        sink = self._make_sink()
        url = sink.destination.url
        _require(url not in repr(sink), "repr must not show the URL: it may hold a password")
        try:
            await self._check_confirmations(sink)
            await self._check_cancelled_send(sink)
            if stop is not None and start is not None:
                await self._check_outage(sink, stop, start)
        finally:
            await sink.close()
        answers = await _try_to_send(sink, self._make_messages(1))
        _require(answers != [None], "a send after `close` must not be confirmed")
        await self._check_received()

    async def _check_confirmations(self, sink: Sink) -> None:
        for count in (1, MESSAGES):
            await self._send_confirmed(sink, count)
        await asyncio.gather(*(self._send_confirmed(sink, 3) for _ in range(4)))
        received = await self._check_received()
        repeated = [key for key, n in Counter(received).items() if n > 1]
        _require(not repeated, f"a message that was sent once must be there once: {repeated[:3]}")

    async def _check_cancelled_send(self, sink: Sink) -> None:
        task = asyncio.ensure_future(sink.send(self._make_messages(MESSAGES)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await self._send_confirmed(sink, MESSAGES)

    async def _check_outage(
        self, sink: Sink, stop: Callable[[], object], start: Callable[[], object]
    ) -> None:
        await asyncio.to_thread(stop)
        messages = self._make_messages(MESSAGES)
        answers = await _try_to_send(sink, messages)
        _require(None not in answers, "nothing may be confirmed while the destination is stopped")
        await asyncio.to_thread(start)
        for _ in range(REPAIR_TRIES_MAX):
            answers = await _try_to_send(sink, messages)
            self._note_confirmed(messages, answers)
            if answers == [None] * len(messages):
                break
            await asyncio.sleep(0.1)
        else:
            text = f"must send again after the destination has come back; the last answer: {answers[0]!r}"
            raise AssertionError(text)
        await self._send_confirmed(sink, MESSAGES)

    async def _send_confirmed(self, sink: Sink, count: int) -> None:
        messages = self._make_messages(count)
        answers = list(await sink.send(messages))
        _require(len(answers) == count, f"must give {count} answers, gave {len(answers)}")
        bad = [answer for answer in answers if answer is not None]
        _require(not bad, f"must confirm messages to a destination that works: {bad[:1]!r}")
        self._note_confirmed(messages, answers)

    def _note_confirmed(
        self, messages: Sequence[SinkMessage], answers: Sequence[Exception | None]
    ) -> None:
        for message, answer in zip(messages, answers, strict=True):
            if answer is None:
                self._confirmed[message.message_id] = message.body

    def _make_messages(self, count: int) -> list[SinkMessage]:
        made = []
        for _ in range(count):
            job_id, self._next_id = self._next_id, self._next_id + 1
            job = Job(job_id, job_id, "toc.test", Status.RUNNING, 0, {"tag": "test"}, 0, 1, "token")
            body = json.dumps({"type": job.biz_type, "data": {"job_id": str(job_id)}}).encode()
            made.append(SinkMessage(job, body, self._route))
        return made

    async def _check_received(self) -> list[str]:
        """Compares what was confirmed with what is there; returns the keys of all messages."""
        found = list(await asyncio.to_thread(self._read))
        received: dict[str, bytes] = {}
        for key, body in found:
            received.setdefault(key, body)
        lost = [key for key in self._confirmed if key not in received]
        _require(not lost, f"{len(lost)} messages were confirmed and are not there, as {lost[:3]}")
        changed = [key for key, body in self._confirmed.items() if received[key] != body]
        _require(not changed, f"the body must arrive as it is: {changed[:3]}")
        return [key for key, _ in found]


async def _try_to_send(sink: Sink, messages: Sequence[SinkMessage]) -> list[Exception | None]:
    """The answers of one send; an exception for each message, if it raises or takes too long."""
    limit_s = sink.destination.timeout_s
    try:
        async with asyncio.timeout(limit_s):
            answers = list(await sink.send(messages))
    except Exception as error:  # noqa: BLE001 - whatever a plug-in raises is an answer
        return [error] * len(messages)
    _require(
        len(answers) == len(messages), f"must give {len(messages)} answers, gave {len(answers)}"
    )
    return answers


def _require(is_kept: bool, rule: str) -> None:
    if not is_kept:
        raise AssertionError(f"the sink breaks a rule of toc.sinks.Sink: {rule}")
