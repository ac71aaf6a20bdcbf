"""Commands on their way to the nodes of a cluster: all are written before any answer is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ResponseError

from toc.timer.refusals import UNAVAILABLE


class Command(NamedTuple):
    key: str  # says which node
    args: Sequence[Any]


class Batches:
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
        """Fills in the answers; the nodes that failed, each with what it met."""
        try:
            for batch in self.by_node.values():
                batch.write()
            for batch in self.by_node.values():
                batch.read(answers)
        finally:
            for batch in self.by_node.values():
                batch.release()
        return [(name, batch.met) for name, batch in self.by_node.items() if batch.met is not None]


class _Batch:
    """Commands for one node; each with the position of its answer, or None."""

    def __init__(self, redis: Redis) -> None:
        self.commands: list[tuple[int | None, Sequence[Any]]] = []
        self.met: Exception | None = None
        self._redis = redis
        self._connection: Any = None
        self._clean = False

    def write(self) -> None:
        try:
            self._connection = self._redis.connection_pool.get_connection()
            packed = self._connection.pack_commands([args for _, args in self.commands])
            self._connection.send_packed_command(packed)
        except (*UNAVAILABLE, ResponseError) as error:  # a refused greeting counts as well
            self.met = error

    def read(self, answers: list[Any]) -> None:
        for position, args in self.commands:
            answer: Any = self.met
            if self.met is None:
                try:
                    answer = self._redis.parse_response(self._connection, args[0])
                except ResponseError as error:
                    answer = error
                except UNAVAILABLE as error:
                    answer = self.met = error
            if position is not None:
                answers[position] = answer
        self._clean = self.met is None

    def release(self) -> None:
        if self._connection is None:
            return
        if not self._clean:  # the next user must not read the answers to these
            self._connection.disconnect()
        self._redis.connection_pool.release(self._connection)
