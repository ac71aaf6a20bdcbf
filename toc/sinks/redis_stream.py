"""The sink "redis-stream:NAME/ROUTE": an XADD to a stream of a Redis of its own.

ROUTE is the key of the stream, by default NAME. The stream keeps about `length_max` entries: older ones go,
read or not, because a stream without a bound would fill the memory of Redis.

Redis confirms what it has in memory: what a crash takes from it then depends on its own settings
(appendfsync).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry as RedisRetry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from toc.errors import InvalidInput
from toc.handlers.verdicts import Retry
from toc.runtime.urls import check_redis_url
from toc.sinks.sink import Sink, SinkDestination, SinkMessage

LENGTH_MAX = 1_000_000
LENGTH_MAX_MAX = 1_000_000_000
_SCHEMES = ("redis://", "rediss://", "unix://")


class RedisStreamSink(Sink):
    """Streams of one Redis. An entry has the fields job_id, type and body."""

    extra: ClassVar[str] = "toc"

    def __init__(self, destination: SinkDestination) -> None:
        super().__init__(destination)
        self._length_max = int(destination.options.get("length_max", LENGTH_MAX))
        self._client: Redis | None = None
        self._is_closed = False

    @classmethod
    def check_destination(cls, destination: SinkDestination) -> None:
        """Raises InvalidInput for a URL that is not of one Redis, and for an unknown option."""
        if not destination.url.startswith(_SCHEMES):
            raise InvalidInput("url", "…", f"must begin with one of: {' '.join(_SCHEMES)}")
        try:
            check_redis_url(destination.url)
        except ValueError as error:
            raise InvalidInput("url", "…", str(error)) from None
        destination.check_options("length_max")
        given = destination.options.get("length_max", str(LENGTH_MAX))
        is_number = given.isascii() and given.isdecimal() and len(given) <= len(str(LENGTH_MAX_MAX))
        if not (is_number and 1 <= int(given) <= LENGTH_MAX_MAX):
            rule = f"must be a whole number from 1 to {LENGTH_MAX_MAX}"
            raise InvalidInput("options.length_max", given, rule)

    async def send(self, messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        """Adds all messages in one round trip; each has an answer of its own."""
        if self._is_closed:
            raise ConnectionError("the sink is closed")
        pipeline = self._find_client().pipeline(transaction=False)
        for message in messages:
            pipeline.xadd(
                message.route or self.destination.name,
                {
                    "job_id": message.message_id,
                    "type": message.job.biz_type,
                    "body": message.body,
                },
                maxlen=self._length_max,
                approximate=True,
            )
        answers = await pipeline.execute(raise_on_error=False)
        return [self._as_answer(answer) for answer in answers]

    def _find_client(self) -> Redis:
        if self._client is None:
            self._client = Redis.from_url(
                self.destination.url,
                socket_timeout=self.destination.timeout_s,
                socket_connect_timeout=self.destination.timeout_s,
                # A retry of the client's own would add all entries of a batch again.
                retry=RedisRetry(NoBackoff(), 0),
            )
        return self._client

    def _as_answer(self, answer: object) -> Exception | None:
        if isinstance(answer, ResponseError) and not isinstance(
            answer, (OutOfMemoryError, ReadOnlyError)
        ):
            # Mostly WRONGTYPE: the key is no stream. Other streams work.
            return Retry(None, f"sink {self.destination.label}: {answer}")
        return answer if isinstance(answer, Exception) else None

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        if self._client is not None:
            await self._client.aclose()
