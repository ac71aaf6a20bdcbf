"""The sink "kafka:NAME/ROUTE": records in a topic, each acknowledged by all replicas that are in sync.

ROUTE is the topic, by default NAME. The key of a record is the business id: the records of one order are in
one partition, in the order in which they were sent. The producer is idempotent: its own repetitions after a
lost answer write a record once. A job that toc sends again is a new record, with the same job_id.

Uses confluent-kafka (librdkafka), which the broker's makers test against every release of Kafka, and whose
producer repeats, orders and bounds records itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from toc.errors import InvalidInput
from toc.handlers.verdicts import Retry
from toc.sinks.sink import Sink, SinkDestination, SinkMessage

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = logging.getLogger(__name__)

SCHEME = "kafka://"
OPTIONS = (
    "client.id", "compression.type", "sasl.mechanism", "sasl.password", "sasl.username",
    "security.protocol", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
"""The settings of librdkafka that a destination may have. Others would change what a confirmation means."""
POLL_S = 0.1
FLUSH_S = 0.3  # of the second that a worker has to close its sinks
_PART_OF_TIME = 0.9  # so that the producer gives a record up before toc gives up the send


class KafkaSink(Sink):
    """Topics of one Kafka cluster, by one producer, whose thread calls back when a record is acknowledged."""

    extra: ClassVar[str] = "toc[kafka]"

    def __init__(self, destination: SinkDestination) -> None:
        import confluent_kafka  # noqa: F401, PLC0415 - an extra; ImportError says that it is missing

        super().__init__(destination)
        self._producer: Producer | None = None
        self._poller: threading.Thread | None = None
        self._stopping = threading.Event()

    @classmethod
    def check_destination(cls, destination: SinkDestination) -> None:
        """Raises InvalidInput for a URL that is not kafka://host:port,host:port, or an unknown option."""
        hosts = destination.url.removeprefix(SCHEME)
        if not destination.url.startswith(SCHEME) or not hosts or "/" in hosts or "@" in hosts:
            rule = "must be kafka://host:port,host:port; user and password are options (sasl.…)"
            raise InvalidInput("url", "…", rule)
        destination.check_options(*OPTIONS)

    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        """Produces all records; each has an answer of its own."""
        if self._stopping.is_set():
            raise ConnectionError("the sink is closed")
        producer, loop = self._find_producer(), asyncio.get_running_loop()
        sends = [self._produce(producer, loop, message) for message in messages]
        return await asyncio.gather(*sends)

    def _produce(
        self, producer: Producer, loop: asyncio.AbstractEventLoop, message: SinkMessage
    ) -> asyncio.Future[Exception | None]:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        answer: asyncio.Future[Exception | None] = loop.create_future()

        def set_answer(result: Exception | None) -> None:
            if not answer.done():
                answer.set_result(result)

        def on_delivery(error: KafkaError | None, record: Message) -> None:
            del record
            result = None if error is None else self._as_answer(error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(set_answer, result)

        try:
            producer.produce(
                message.route or self.destination.name,
                message.body,
                key=str(message.job.biz_id).encode(),
                headers={"job_id": message.message_id, "type": message.job.biz_type},
                on_delivery=on_delivery,
            )
        except BufferError as error:  # the producer's queue is full
            set_answer(error)
        except KafkaException as error:
            set_answer(self._as_answer(error.args[0]))
        return answer

    def _find_producer(self) -> Producer:
        if self._producer is None:
            from confluent_kafka import Producer  # noqa: PLC0415 - an extra

            self._producer = Producer(self._make_config())
            if self._poller is None:
                self._poller = threading.Thread(
                    target=self._poll_until_closed,
                    name=f"toc-kafka-{self.destination.name}",
                    daemon=True,
                )
                self._poller.start()
        return self._producer

    def _make_config(self) -> dict[str, Any]:
        limit_ms = max(1, int(self.destination.timeout_s * 1000 * _PART_OF_TIME))
        return {
            "client.id": "toc",
            **self.destination.options,
            "bootstrap.servers": self.destination.url.removeprefix(SCHEME),
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": limit_ms,
            "socket.timeout.ms": max(10, min(limit_ms, 60_000)),
            "linger.ms": 0,  # toc has collected the messages already
            "logger": log,
        }

    def _poll_until_closed(self) -> None:
        """Calls the callbacks of the producer, and gives up a producer that is broken for good."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        while not self._stopping.is_set():
            producer = self._producer
            if producer is None:
                self._stopping.wait(POLL_S)
                continue
            try:
                producer.poll(POLL_S)
            except KafkaException as error:
                # A fatal error: an idempotent producer that has lost track of its records refuses all others.
                log.warning("sink %s takes a new producer: %s", self.destination.label, error)
                producer.purge()
                with suppress(KafkaException):
                    producer.flush(FLUSH_S)  # calls back for all that it had
                self._producer = None

    def _as_answer(self, error: KafkaError) -> Exception:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - an extra

        refusals = {
            KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
            KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its public name
        }  # fmt: skip
        if error.code() in refusals:
            return Retry(None, f"sink {self.destination.label}: {error.str()}")
        return KafkaException(error)

    async def close(self) -> None:
        """Waits a moment for records that are on their way, and ends the thread."""
        producer = self._producer
        try:
            if producer is not None:
                await asyncio.to_thread(producer.flush, FLUSH_S)
        finally:
            self._stopping.set()
            self._producer = None
        if self._poller is not None:
            await asyncio.to_thread(self._poller.join, 2 * POLL_S)
