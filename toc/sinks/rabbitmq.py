"""The sink "rabbitmq:NAME/ROUTE": persistent messages to an exchange, each confirmed by the broker.

ROUTE is the routing key, by default "{biz_type}"; the exchange is the option "exchange", by default NAME. A
message that the broker routes to no queue comes back (mandatory), and its job is not done. toc declares no
exchange and no queue: whoever runs the consumers does.

Uses aio-pika: it runs on the event loop of the handlers, and waits for the confirmations of many messages at
the same time. pika's blocking connection waits for one message after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from toc.domain.times import datetime_of
from toc.errors import InvalidInput
from toc.handlers.verdicts import Retry
from toc.sinks.sink import Sink, SinkDestination, SinkMessage

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

CLOSE_S_MAX = 0.5  # of the second that a worker has for it
APP_ID = "toc"


class RabbitmqSink(Sink):
    """One exchange of a RabbitMQ broker, over one connection and one channel with publisher confirms."""

    extra: ClassVar[str] = "toc[rabbitmq]"

    def __init__(self, destination: SinkDestination) -> None:
        import aio_pika  # noqa: F401, PLC0415 - an extra; ImportError says that it is missing

        super().__init__(destination)
        self._exchange_name = destination.options.get("exchange", destination.name)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None
        self._closings: set[asyncio.Task[None]] = set()
        self._connecting = asyncio.Lock()
        self._is_closed = False

    @classmethod
    def check_destination(cls, destination: SinkDestination) -> None:
        """Raises InvalidInput for a URL that is not AMQP, and for an unknown option."""
        if not destination.url.startswith(("amqp://", "amqps://")):
            raise InvalidInput("url", "…", "must begin with amqp:// or amqps://")
        destination.check_options("exchange")

    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        """Publishes all messages at once; each has an answer of its own."""
        exchange = await self._find_exchange()
        try:
            sends = (self._publish(exchange, message) for message in messages)
            answers = await asyncio.gather(*sends, return_exceptions=True)
        except asyncio.CancelledError:
            # The broker stands still: the next send uses a new connection.
            self._give_up_connection()
            raise
        return [_as_answer(answer) for answer in answers]

    async def _publish(self, exchange: AbstractExchange, message: SinkMessage) -> Exception | None:
        from aio_pika import DeliveryMode, Message  # noqa: PLC0415 - an extra
        from aio_pika.exceptions import PublishError  # noqa: PLC0415

        job, key = message.job, message.route or message.job.biz_type
        sent = Message(
            message.body,
            message_id=message.message_id,
            type=job.biz_type,
            app_id=APP_ID,
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT,
            timestamp=datetime_of(job.action_ms),
        )
        try:
            await exchange.publish(sent, key, mandatory=True)
        except PublishError:
            text = f"no queue of the exchange {self._exchange_name} gets the routing key {key}"
            return Retry(None, f"sink {self.destination.label}: {text}")
        return None

    async def _find_exchange(self) -> AbstractExchange:
        """The exchange over an open channel. Raises what aio-pika raises."""
        import aio_pika  # noqa: PLC0415 - an extra

        async with self._connecting:
            if self._is_closed:
                raise ConnectionError("the sink is closed")
            if self._exchange is not None and self._channel is not None:
                if not self._channel.is_closed:
                    return self._exchange
                self._give_up_connection()  # an exchange that is missing closes the channel
            limit_s = self.destination.timeout_s
            self._connection = await aio_pika.connect(self.destination.url, timeout=limit_s)
            self._channel = self._connection.channel(publisher_confirms=True, on_return_raises=True)
            await self._channel.initialize(timeout=limit_s)
            self._exchange = await self._channel.get_exchange(self._exchange_name, ensure=False)
            return self._exchange

    def _give_up_connection(self) -> None:
        """Closes the connection in the background: a broker that stands still holds up nothing."""
        connection = self._connection
        self._connection = self._channel = self._exchange = None
        if connection is not None:
            task = asyncio.get_running_loop().create_task(_close_connection(connection))
            self._closings.add(task)
            task.add_done_callback(self._closings.discard)

    async def close(self) -> None:
        """Closes the connection; a broker that does not answer is left."""
        async with self._connecting:
            self._is_closed = True
            self._give_up_connection()
        if self._closings:
            await asyncio.wait(self._closings)


async def _close_connection(connection: AbstractConnection) -> None:
    with suppress(Exception):  # it was broken already
        await asyncio.wait_for(connection.close(), CLOSE_S_MAX)


def _as_answer(answer: BaseException | None) -> Exception | None:
    if answer is None or isinstance(answer, Exception):
        return answer
    return ConnectionError("the connection was given up")
