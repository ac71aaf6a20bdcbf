"""Sends commands to the nodes that hold their keys; when a node fails, only its own commands fail.

`SingleRedisNode` is one Redis, also behind sentinels, with one pipeline. `RedisClusterNodes` sends one batch
to each node. The error of a command is returned in place of its answer, so that the answers of other nodes
count.

redis-py knows which node holds which key. A MOVED or ASK answer redirects the command; a MOVED answer also
corrects redis-py's map of hash slots. After a failure the whole map is read again from a node that answers,
so that a promoted replica replaces its master.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from redis import Redis
from redis.client import PubSub
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    MovedError,
    ResponseError,
    SlotNotCoveredError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from toc.timer.circuit_breaker import CircuitBreaker
from toc.timer.redis_errors import UNAVAILABLE, is_read_only_refusal

log = logging.getLogger(__name__)

Client = Redis | RedisCluster
HOPS_MAX = 4  # redirections that a command follows in one call


class RedisCommand(NamedTuple):
    key: str  # decides the node
    args: Sequence[Any]


class RedisNodes(Protocol):
    """The interface to one Redis or a cluster. Answers have redis-py's types.

    `is_one`: a single server holds all keys, so that a script call may have keys of several slots.
    """

    is_one: bool

    def send_commands(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """The answers, in order; a failed command has its error (UNAVAILABLE, ResponseError) there."""

    def send_to_all_nodes(self, *args: Any) -> dict[str, Any]:
        """The answer or error of each node that holds keys, by the node's name."""

    def send_to_any_node(self, *args: Any) -> Any:
        """The answer of the first node that gives one. Raises the last node's error when none does."""

    def node_name_of_key(self, key: str) -> str:
        """The name of the node that holds the key. Raises SlotNotCoveredError."""

    def subscribe_to_channels(self, channels: Iterable[str]) -> PubSub:
        """Subscribes to messages published on any node. Raises UNAVAILABLE."""


def make_redis_nodes(client: Client) -> RedisNodes:
    return (
        RedisClusterNodes(client) if isinstance(client, RedisCluster) else SingleRedisNode(client)
    )


class SingleRedisNode:
    """One Redis, or the master that sentinels name.

    A refused connection costs nothing, so the next call tries again. A server that hangs is skipped for a
    while (see CircuitBreaker).
    """

    NAME = "server"
    is_one = True

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._circuit_breaker = CircuitBreaker(self._probe_servers)

    def send_commands(self, commands: Sequence[RedisCommand]) -> list[Any]:
        failure = self._circuit_breaker.error_of_failed_server(self.NAME)
        if failure is not None:
            self._circuit_breaker.start_probe_if_due()
            return [failure] * len(commands)
        try:
            if len(commands) == 1:
                answers = [self._client.execute_command(*commands[0].args)]
            else:
                pipe = self._client.pipeline(transaction=False)
                for command in commands:
                    pipe.execute_command(*command.args)
                answers = pipe.execute(raise_on_error=False)
        except (*UNAVAILABLE, ResponseError) as error:
            if isinstance(error, RedisTimeoutError):
                self._circuit_breaker.record_failure(self.NAME, error)
            answers = [error] * len(commands)
        if any(map(is_read_only_refusal, answers)):
            # The name may resolve to a new master by now; open connections would stay with the old one.
            self._client.connection_pool.disconnect(inuse_connections=False)
        return answers

    def send_to_all_nodes(self, *args: Any) -> dict[str, Any]:
        return {self.NAME: self.send_commands([RedisCommand("", args)])[0]}

    def send_to_any_node(self, *args: Any) -> Any:
        (answer,) = self.send_commands([RedisCommand("", args)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def node_name_of_key(self, key: str) -> str:
        return self.NAME

    def subscribe_to_channels(self, channels: Iterable[str]) -> PubSub:
        return _open_subscription(self._client, channels)

    def _probe_servers(self, names: list[str]) -> Iterator[tuple[str, Exception | None]]:
        for name in names:
            yield name, _ping_and_return_error(self._client)


class RedisClusterNodes:
    """The nodes of a Redis Cluster."""

    is_one = False

    def __init__(self, client: RedisCluster) -> None:
        self._client = client
        self._circuit_breaker = CircuitBreaker(self._probe_servers)

    def send_commands(self, commands: Sequence[RedisCommand]) -> list[Any]:
        answers: list[Any] = [None] * len(commands)
        batches = self._new_batches(answers)
        for position, command in enumerate(commands):
            try:
                batches.add_command(self._node_of_key(command.key), position, command.args)
            except SlotNotCoveredError as error:
                answers[position] = error
                self._circuit_breaker.request_probe()
        for _ in range(HOPS_MAX):
            batches.send_and_read_answers()
            batches = self._follow_redirections(batches, commands, answers)
            if not batches.by_node:
                break
        self._circuit_breaker.start_probe_if_due()
        return answers

    def send_to_all_nodes(self, *args: Any) -> dict[str, Any]:
        nodes = self._client.get_primaries()
        answers: list[Any] = [None] * len(nodes)
        batches = self._new_batches(answers)
        for position, node in enumerate(nodes):
            batches.add_command(node, position, args)
        batches.send_and_read_answers()
        self._circuit_breaker.start_probe_if_due()
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}

    def send_to_any_node(self, *args: Any) -> Any:
        failure: Exception = RedisConnectionError("no node of the cluster is known")
        for node in self._healthy_nodes_first():
            answers: list[Any] = [None]
            batches = self._new_batches(answers)
            batches.add_command(node, 0, args)
            batches.send_and_read_answers()
            if not isinstance(answers[0], Exception):
                return answers[0]
            failure = answers[0]
        self._circuit_breaker.start_probe_if_due()
        raise failure

    def node_name_of_key(self, key: str) -> str:
        return str(self._node_of_key(key).name)

    def subscribe_to_channels(self, channels: Iterable[str]) -> PubSub:
        # A cluster passes every message on to all its nodes: any node that answers will do.
        node = next(iter(self._healthy_nodes_first()), None)
        if node is None:
            raise RedisConnectionError("no node of the cluster is known")
        try:
            return _open_subscription(self._client.get_redis_connection(node), channels)
        except UNAVAILABLE as error:
            self._circuit_breaker.record_failure(node.name, error)
            raise

    # ---- inside

    def _new_batches(self, answers: list[Any]) -> _NodeBatches:
        return _NodeBatches(self._client, self._circuit_breaker, answers)

    def _node_of_key(self, key: str) -> ClusterNode:
        node: ClusterNode = self._client.get_node_from_key(key)
        return node

    def _healthy_nodes_first(self) -> list[ClusterNode]:
        failed = self._circuit_breaker.error_of_failed_server
        return sorted(self._client.get_primaries(), key=lambda node: failed(node.name) is not None)

    def _follow_redirections(
        self, batches: _NodeBatches, commands: Sequence[RedisCommand], answers: list[Any]
    ) -> _NodeBatches:
        """Batches of the commands that were answered MOVED or ASK, for the nodes that the answers name."""
        again = self._new_batches(answers)
        for position in batches.answer_positions():
            error = answers[position]
            if not isinstance(error, AskError):
                continue
            self._circuit_breaker.request_probe()
            has_moved = isinstance(error, MovedError)
            if has_moved:
                self._client.nodes_manager.move_slot(error)
            node = self._client.get_node(error.host, error.port)
            if node is not None:  # None: the node is new, and the next probe will find it
                again.add_command(node, position, commands[position].args, asking=not has_moved)
        return again

    def _probe_servers(self, names: list[str]) -> Iterator[tuple[str, Exception | None]]:
        """Reads the map of hash slots again, then pings the nodes."""
        try:
            self._client.nodes_manager.initialize(last_failed_node_name=next(iter(names), None))
        except UNAVAILABLE as error:
            log.warning("the slots of the Redis Cluster cannot be read: %s", error)
        for name in names:
            node = self._client.get_node(node_name=name)
            if node is None:  # the node has left the cluster
                yield name, None
            else:
                yield name, _ping_and_return_error(self._client.get_redis_connection(node))


def _ping_and_return_error(client: Redis) -> Exception | None:
    try:
        client.ping()
    except (*UNAVAILABLE, ResponseError) as error:
        return error
    return None


def _open_subscription(client: Redis, channels: Iterable[str]) -> PubSub:
    subscription: PubSub = client.pubsub(ignore_subscribe_messages=True)
    try:
        subscription.subscribe(*channels)
    except BaseException:
        subscription.close()
        raise
    return subscription


class _NodeBatches:
    """One batch for each node, each on a connection of its own: all are written before any answer is read.

    Answers, and the errors of failing nodes, are written into `answers`, by the commands' positions.
    """

    def __init__(
        self, client: RedisCluster, circuit_breaker: CircuitBreaker, answers: list[Any]
    ) -> None:
        self._client, self._circuit_breaker, self._answers = client, circuit_breaker, answers
        self.by_node: dict[str, _NodeBatch] = {}

    def add_command(
        self, node: ClusterNode, position: int, args: Sequence[Any], *, asking: bool = False
    ) -> None:
        error = self._circuit_breaker.error_of_failed_server(node.name)
        if error is not None:
            self._answers[position] = error
            return
        batch = self.by_node.get(node.name)
        if batch is None:
            batch = self.by_node[node.name] = _NodeBatch(self._client.get_redis_connection(node))
        if asking:
            batch.commands.append((None, ("ASKING",)))
        batch.commands.append((position, args))

    def answer_positions(self) -> Iterator[int]:
        for batch in self.by_node.values():
            yield from (position for position, _ in batch.commands if position is not None)

    def send_and_read_answers(self) -> None:
        """Sends all batches, reads the answers, and records the nodes that failed."""
        try:
            for batch in self.by_node.values():
                batch.write_commands()
            for batch in self.by_node.values():
                batch.read_answers(self._answers)
        finally:
            for batch in self.by_node.values():
                batch.release_connection()
        for name, batch in self.by_node.items():
            if batch.error is not None:
                self._circuit_breaker.record_failure(name, batch.error)


class _NodeBatch:
    """Commands for one node, each with the position of its answer; None: nobody needs the answer."""

    def __init__(self, redis: Redis) -> None:
        self.commands: list[tuple[int | None, Sequence[Any]]] = []
        self.error: Exception | None = None
        self._redis = redis
        self._connection: Any = None
        self._all_answers_read = False

    def write_commands(self) -> None:
        try:
            self._connection = self._redis.connection_pool.get_connection()
            packed = self._connection.pack_commands([args for _, args in self.commands])
            self._connection.send_packed_command(packed)
        except (*UNAVAILABLE, ResponseError) as error:  # ResponseError: the login was refused
            self.error = error

    def read_answers(self, answers: list[Any]) -> None:
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

    def release_connection(self) -> None:
        if self._connection is None:
            return
        if not self._all_answers_read:  # the connection's next user must not read these answers
            self._connection.disconnect()
        self._redis.connection_pool.release(self._connection)
