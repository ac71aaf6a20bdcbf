"""Sends batches of commands to the nodes of a cluster: all are written before any answer is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ResponseError

from toc.timer.redis_errors import UNAVAILABLE


class Command(NamedTuple):
    key: str  # decides the node
    args: Sequence[Any]


class NodePipelines:
    """One batch for each node, each on a connection of its own."""

    def __init__(self, client: RedisCluster) -> None:
        self._client = client
        self.by_node: dict[str, _Batch] = {}

    def add(self, node: ClusterNode, position: int, command: Command, *, asking: bool) -> None:
        batch = self.by_node.get(node.name)
        if batch is None:
            batch = self.by_node[node.name] = _Batch(self._client.get_redis_connection(node))
        if asking:
            batch.commands.append((None, ("ASKING",)))
        batch.commands.append((position, command.args))

    def positions(self) -> Iterator[int]:
        for batch in self.by_node.values():
            yield from (position for position, _ in batch.commands if position is not None)

    def exchange(self, answers: list[Any]) -> list[tuple[str, Exception]]:
        """Sends all batches and writes the answers into `answers`. Returns (name, error) of failed nodes."""
        try:
            for batch in self.by_node.values():
                batch.write()
            for batch in self.by_node.values():
                batch.read(answers)
        finally:
            for batch in self.by_node.values():
                batch.release()
        return [
            (name, batch.error) for name, batch in self.by_node.items() if batch.error is not None
        ]


class _Batch:
    """Commands for one node; each with the position of its answer, or None."""

    def __init__(self, redis: Redis) -> None:
        self.commands: list[tuple[int | None, Sequence[Any]]] = []
        self.error: Exception | None = None
        self._redis = redis
        self._connection: Any = None
        self._all_answers_read = False

    def write(self) -> None:
        try:
            self._connection = self._redis.connection_pool.get_connection()
            packed = self._connection.pack_commands([args for _, args in self.commands])
            self._connection.send_packed_command(packed)
        except (*UNAVAILABLE, ResponseError) as error:  # ResponseError: the login was refused
            self.error = error

    def read(self, answers: list[Any]) -> None:
        for position, args in self.commands:
            answer: Any = self.error
            if self.error is None:
                try:
                    answer = self._redis.parse_response(self._connection, args[0])
                except ResponseError as error:
                    answer = error
                except UNAVAILABLE as error:
                    answer = self.error = error
            if position is not None:
                answers[position] = answer
        self._all_answers_read = self.error is None

    def release(self) -> None:
        if self._connection is None:
            return
        if not self._all_answers_read:  # the connection's next user must not read these answers
            self._connection.disconnect()
        self._redis.connection_pool.release(self._connection)
