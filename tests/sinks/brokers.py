"""The other end of the sinks: queues, streams and topics of real servers, read as a consumer reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aio_pika
import confluent_kafka
import redis

Received = list[tuple[str, bytes]]


class RabbitmqQueue:
    """A durable queue, bound to a durable exchange; `read` takes what is there."""

    def __init__(self, url: str, exchange: str, binding: str = "#") -> None:
        self.url, self.exchange = url, exchange
        self._received: Received = []
        self.messages: list[Any] = []
        asyncio.run(self._declare(binding))

    async def _declare(self, binding: str) -> None:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(self.exchange, "topic", durable=True)
            queue = await channel.declare_queue(self.exchange, durable=True)
            await queue.bind(exchange, binding)

    def read(self) -> Received:
        """All messages since the queue was made. Not to be called on an event loop."""
        with asyncio.Runner() as runner:
            runner.run(self._take_all())
        return self._received

    async def _take_all(self) -> None:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.exchange, durable=True)
            while (message := await queue.get(fail=False, no_ack=True, timeout=60)) is not None:
                self.messages.append(message)
                self._received.append((str(message.message_id), message.body))


def read_stream(url: str, key: str) -> Received:
    """All entries of a Redis stream."""
    with redis.Redis.from_url(url) as client:
        entries: Sequence[Any] = client.xrange(key)  # type: ignore[assignment]
        return [(fields[b"job_id"].decode(), fields[b"body"]) for _, fields in entries]


class KafkaTopic:
    """Reads a topic from its beginning, whenever `read` is called."""

    def __init__(self, bootstraps: str, topic: str) -> None:
        self._bootstraps, self._topic = bootstraps, topic

    def read_records(self) -> list[Any]:
        """All records of all partitions, up to their ends now."""
        config = {
            "bootstrap.servers": self._bootstraps,
            "group.id": "tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        consumer = confluent_kafka.Consumer(config)
        try:
            known = consumer.list_topics(self._topic, timeout=60).topics[self._topic].partitions
            places = [confluent_kafka.TopicPartition(self._topic, each, 0) for each in known]
            ends = {
                place.partition: consumer.get_watermark_offsets(place, timeout=60)[1]
                for place in places
            }
            consumer.assign(places)
            found: list[Any] = []
            while len(found) < sum(ends.values()):
                record = consumer.poll(60)
                assert record is not None, "the topic does not end where it says"
                assert record.error() is None, record.error()
                found.append(record)
            return found
        finally:
            consumer.close()

    def read(self) -> Received:
        return [
            (dict(record.headers())["job_id"].decode(), record.value())
            for record in self.read_records()
        ]
