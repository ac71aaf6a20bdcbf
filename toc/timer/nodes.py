"""Commands go to the nodes that hold their keys, and one node's failure is its own.

`One` is a single Redis, also behind sentinels: one pipeline. `Cluster` sends one batch to each node.
What a command met stands in place of its answer, so that those of other nodes count.

Which node holds what is redis-py's to know. MOVED and ASK are followed, and correct it as they come;
after a failure the whole map of hash slots is read anew, from a node that answers: that is how a
promoted replica takes its master's place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

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

from toc.timer.batches import Batches, Command
from toc.timer.lookout import Lookout
from toc.timer.refusals import UNAVAILABLE, is_demoted

log = logging.getLogger(__name__)

Client = Redis | RedisCluster
HOPS_MAX = 4  # redirections that a command follows in one call


class Nodes(Protocol):
    """What can be asked of Redis, whatever it consists of. Answers are redis-py's.

    `is_one`: a single server holds all keys, so that a script may have those of several slots.
    """

    is_one: bool

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """The answers, in order; what a command met (UNAVAILABLE, ResponseError) is in its place."""

    def ask_all(self, *args: Any) -> dict[str, Any]:
        """The answer of each node that holds keys, or what it met, by the node's name."""

    def ask_any(self, *args: Any) -> Any:
        """The answer of the first node that gives one. Raises what the last one met."""

    def holder(self, key: str) -> str:
        """The name of the node that holds the key. Raises SlotNotCoveredError."""

    def subscribe(self, channels: Iterable[str]) -> PubSub:
        """Hears what is published on any node. Raises UNAVAILABLE."""


def nodes_of(client: Client) -> Nodes:
    return Cluster(client) if isinstance(client, RedisCluster) else One(client)


class One:
    """One Redis, or the master that sentinels name.

    A refused connection costs nothing, and the next call tries again. One that hangs is left alone.
    """

    NAME = "server"
    is_one = True

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._lookout = Lookout(self._look)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        met = self._lookout.met(self.NAME)
        if met is not None:
            self._lookout.look_if_due()
            return [met] * len(commands)
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
                self._lookout.failed(self.NAME, error)
            answers = [error] * len(commands)
        if any(map(is_demoted, answers)):
            # The name may lead to its successor by now, which open connections never see.
            self._client.connection_pool.disconnect(inuse_connections=False)
        return answers

    def ask_all(self, *args: Any) -> dict[str, Any]:
        return {self.NAME: self.send([Command("", args)])[0]}

    def ask_any(self, *args: Any) -> Any:
        (answer,) = self.send([Command("", args)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def holder(self, key: str) -> str:
        return self.NAME

    def subscribe(self, channels: Iterable[str]) -> PubSub:
        return _subscribed(self._client, channels)

    def _look(self, names: list[str]) -> Iterator[tuple[str, Exception | None]]:
        for name in names:
            yield name, _met_by_ping(self._client)


class Cluster:
    """A Redis Cluster."""

    is_one = False

    def __init__(self, client: RedisCluster) -> None:
        self._client = client
        self._lookout = Lookout(self._look)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = [None] * len(commands)
        batches = Batches(self._client)
        for position, command in enumerate(commands):
            try:
                self._route(batches, self._node_of(command.key), position, command, answers)
            except SlotNotCoveredError as error:
                answers[position] = error
                self._lookout.want()
        for _ in range(HOPS_MAX):
            if not batches.by_node:
                break
            self._exchange(batches, answers)
            batches = self._redirected(batches, commands, answers)
        self._lookout.look_if_due()
        return answers

    def ask_all(self, *args: Any) -> dict[str, Any]:
        nodes = self._client.get_primaries()
        answers: list[Any] = [None] * len(nodes)
        batches = Batches(self._client)
        for position, node in enumerate(nodes):
            self._route(batches, node, position, Command("", args), answers)
        self._exchange(batches, answers)
        self._lookout.look_if_due()
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}

    def ask_any(self, *args: Any) -> Any:
        met: Exception = RedisConnectionError("no node of the cluster is known")
        for node in self._up_first():
            answers: list[Any] = [None]
            batches = Batches(self._client)
            self._route(batches, node, 0, Command("", args), answers)
            self._exchange(batches, answers)
            if not isinstance(answers[0], Exception):
                return answers[0]
            met = answers[0]
        self._lookout.look_if_due()
        raise met

    def holder(self, key: str) -> str:
        return str(self._node_of(key).name)

    def subscribe(self, channels: Iterable[str]) -> PubSub:
        # A cluster passes every message on to all its nodes: any one that answers will do.
        node = next(self._up_first(), None)
        if node is None:
            raise RedisConnectionError("no node of the cluster is known")
        try:
            return _subscribed(self._client.get_redis_connection(node), channels)
        except UNAVAILABLE as error:
            self._lookout.failed(node.name, error)
            raise

    # ---- inside

    def _node_of(self, key: str) -> ClusterNode:
        node: ClusterNode = self._client.get_node_from_key(key)
        return node

    def _up_first(self) -> Iterator[ClusterNode]:
        nodes = self._client.get_primaries()
        yield from (node for node in nodes if self._lookout.met(node.name) is None)
        yield from (node for node in nodes if self._lookout.met(node.name) is not None)

    def _route(
        self,
        batches: Batches,
        node: ClusterNode,
        position: int,
        command: Command,
        answers: list[Any],
        *,
        asking: bool = False,
    ) -> None:
        met = self._lookout.met(node.name)
        if met is None:
            batches.add(node, position, command, asking=asking)
        else:
            answers[position] = met

    def _exchange(self, batches: Batches, answers: list[Any]) -> None:
        for name, error in batches.exchange(answers):
            self._lookout.failed(name, error)

    def _redirected(
        self, batches: Batches, commands: Sequence[Command], answers: list[Any]
    ) -> Batches:
        """Those that were answered MOVED or ASK, for the nodes that these name."""
        again = Batches(self._client)
        for position in batches.positions():
            error = answers[position]
            if not isinstance(error, AskError):
                continue
            self._lookout.want()
            if isinstance(error, MovedError):
                self._client.nodes_manager.move_slot(error)
            node = self._client.get_node(error.host, error.port)
            if node is not None:  # else a new one, which the look will find
                asking = not isinstance(error, MovedError)
                self._route(again, node, position, commands[position], answers, asking=asking)
        return again

    def _look(self, names: list[str]) -> Iterator[tuple[str, Exception | None]]:
        """Reads the map of hash slots anew; then asks the nodes."""
        try:
            self._client.nodes_manager.initialize(last_failed_node_name=next(iter(names), None))
        except UNAVAILABLE as error:
            log.warning("the Redis Cluster cannot be looked at: %s", error)
        for name in names:
            node = self._client.get_node(node_name=name)
            if node is None:  # it is no part of the cluster any more
                yield name, None
            else:
                yield name, _met_by_ping(self._client.get_redis_connection(node))


def _met_by_ping(client: Redis) -> Exception | None:
    try:
        client.ping()
    except (*UNAVAILABLE, ResponseError) as error:
        return error
    return None


def _subscribed(client: Redis, channels: Iterable[str]) -> PubSub:
    subscription: PubSub = client.pubsub(ignore_subscribe_messages=True)
    try:
        subscription.subscribe(*channels)
    except BaseException:
        subscription.close()
        raise
    return subscription
