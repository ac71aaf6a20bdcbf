"""A sink of a plug-in, whose destination is a list of this process: tests write its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from toc.domain.sink_targets import SinkTarget
from toc.errors import InvalidInput
from toc.sinks import Sink, SinkDestination, SinkMessage

Answer = Callable[[Sequence[SinkMessage]], Awaitable[Sequence[Exception | None]]]


async def confirm(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
    return [None] * len(messages)


class RecordingSink(Sink):
    """Keeps the batches that it got, and answers what the test says."""

    made: ClassVar[list[RecordingSink]] = []
    answer: ClassVar[Answer] = staticmethod(confirm)

    def __init__(self, destination: SinkDestination) -> None:
        super().__init__(destination)
        self.batches: list[list[SinkMessage]] = []
        self.running = self.running_max = 0
        self.is_closed = False
        RecordingSink.made.append(self)

    @classmethod
    def check(cls, target: SinkTarget) -> None:
        if target.route == "refused":
            raise InvalidInput("sink", target.route, "must not be refused")

    @classmethod
    def check_destination(cls, destination: SinkDestination) -> None:
        if not destination.url.startswith("recording://"):
            raise InvalidInput("url", "…", "must begin with recording://")
        destination.check_options("colour")

    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        self.batches.append(list(messages))
        self.running += len(messages)
        self.running_max = max(self.running_max, self.running)
        try:
            return await RecordingSink.answer(messages)
        finally:
            self.running -= len(messages)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True

    @property
    def messages(self) -> list[SinkMessage]:
        return [message for batch in self.batches for message in batch]


class MissingDriverSink(Sink):
    """A sink whose package is not installed."""

    extra: ClassVar[str] = "toc-plug-in[driver]"

    def __init__(self, destination: SinkDestination) -> None:
        import toc_no_such_driver  # noqa: F401, PLC0415

        super().__init__(destination)

    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        raise AssertionError("never made")


NOT_A_SINK = 5
