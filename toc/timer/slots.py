"""The timer's verbs: arm, pop, ack, put_back, load_page, in our words and units."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError
from redis.retry import Retry

from toc.errors import SchemaMismatch, TimerUnavailable
from toc.runtime.clock import Clock
from toc.timer import keys
from toc.timer.scripts import UNAVAILABLE, Call, Client, Scripts, is_refusal

log = logging.getLogger(__name__)

PAIRS_MAX = 1000  # entries per call of a script, well below Lua's limit of about 8,000 values
VERSION_MIN = (6, 2)
T = TypeVar("T")


class Entry(NamedTuple):
    """A reminder: look at `job_id` at `due_ms`. In put_back, None: the loader will remind in time."""

    due_ms: int | None
    job_id: int


@dataclass(frozen=True, slots=True)
class Popped:
    """What a pop of one slot gave. `next_s`: seconds until the slot's next entry is due; None: empty."""

    slot: int
    ids: list[int]
    time_ms: int
    next_s: float | None


def connect(url: str, timeout_s: float) -> Client:
    """A client for redis://, rediss://, unix:// or redis+cluster:// (one node of the cluster)."""
    retry = Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.2), 2)
    options: dict[str, Any] = {
        "socket_timeout": max(timeout_s, 5.0),
        "socket_connect_timeout": timeout_s,
        "retry": retry,
    }
    if url.startswith(("redis+cluster://", "rediss+cluster://")):
        try:
            return RedisCluster.from_url(url.replace("+cluster", "", 1), **options)
        except UNAVAILABLE as error:
            raise TimerUnavailable(error) from error
    path = url.removeprefix("unix://")
    if path != url and not path.startswith("/") and "@" not in path:
        # Relative to the working directory: redis-py would take the first folder for a host's name.
        url = "unix://?path=" + path.replace("?", "&", 1)
    return Redis.from_url(url, **options)


class Slots:
    """The slots of all topics on one Redis or Redis Cluster. Connects at the first call."""

    def __init__(self, url: str, namespace: str, clock: Clock, *, timeout_s: float = 3.0) -> None:
        self._url, self._namespace, self._clock, self._timeout_s = url, namespace, clock, timeout_s
        self._client: Client | None = None
        self._scripts: Scripts | None = None
        self.available = True
        """Whether the last call was answered."""

    # ---- verbs

    def arm(self, topic: str, entries: Mapping[int, Sequence[Entry]]) -> int:
        """Puts entries (by slot) into their StoreQueues; the earliest reminder of a job wins.

        Returns the server's time in ms. One round trip per node. Raises TimerUnavailable.
        """
        answers = self._call(
            Call(
                "arm",
                (keys.store_key(self._namespace, topic, slot),),
                (self._now(), keys.wake_channel(self._namespace, topic), slot, *_flat(part)),
            )
            for slot, part in _parts(entries)
        )
        return int(answers[-1][0]) if answers else 0

    def pop(self, topic: str, wanted: Sequence[tuple[int, int]], stay_ms: int) -> list[Popped]:
        """Takes due entries out: up to n of each (slot, n). One round trip per node.

        A slot that is refused is left out of the answer; raises TimerUnavailable when all are.
        """
        calls = [
            Call("pop", self._queues(topic, slot), (self._now(), n, stay_ms)) for slot, n in wanted
        ]
        if not calls:
            return []
        answers = self._guard(lambda client: _unless_all_failed(self._scripts_on(client), calls))
        popped = []
        for (slot, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Exception):  # a broken key, a node that is down: the others count
                log.warning("slot %d of %s cannot be popped: %s", slot, topic, answer)
                continue
            time_ms = int(answer[0])
            next_s = (float(answer[1]) - time_ms) / 1000 if answer[1] else None
            popped.append(Popped(slot, [int(job_id) for job_id in answer[2:]], time_ms, next_s))
        return popped

    def ack(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        """Forgets ids (by slot) that the database has settled or does not have."""
        self._call(Call("ack", self._queues(topic, slot), part) for slot, part in _parts(ids))

    def put_back(self, topic: str, entries: Mapping[int, Sequence[Entry]]) -> None:
        """Returns entries (by slot) to their StoreQueues at their due time, or only forgets the pop."""
        channel = keys.wake_channel(self._namespace, topic)
        self._call(
            Call("put_back", self._queues(topic, slot), (self._now(), channel, slot, *_flat(part)))
            for slot, part in _parts(entries)
        )

    def load_page(
        self, topic: str, slot: int, shard: int, seen: str, mark: str, page: Sequence[Entry]
    ) -> bool:
        """Arms a page and moves the shard's mark from `seen` to `mark`, or does nothing (False)."""
        names = (
            keys.store_key(self._namespace, topic, slot),
            keys.mark_key(self._namespace, topic, slot),
        )
        channel = keys.wake_channel(self._namespace, topic)
        args = (self._now(), channel, slot, shard, seen, mark, *_flat(page))
        return bool(self._call([Call("load_page", names, args)])[0][1])

    # ---- marks and looks

    def marks(self, topic: str, slots: Iterable[int]) -> dict[int, dict[int, str]]:
        """The marks of slots: slot -> shard -> text."""
        wanted = list(slots)

        def read(client: Client) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for slot in wanted:
                pipe.hgetall(keys.mark_key(self._namespace, topic, slot))
            return list(pipe.execute())

        answers = self._guard(read)
        return {
            slot: {int(shard): text.decode() for shard, text in answer.items()}
            for slot, answer in zip(wanted, answers, strict=True)
        }

    def begin_mark(self, topic: str, slot: int, shard: int, mark: str) -> None:
        """Writes a mark that starts a load from the beginning. Before the snapshot, never after."""
        key = keys.mark_key(self._namespace, topic, slot)
        self._guard(lambda client: client.hset(key, str(shard), mark))

    def drop_marks(self, topic: str, slots: Iterable[int]) -> None:
        """Makes the loader start from the beginning."""
        for slot in slots:
            key = keys.mark_key(self._namespace, topic, slot)
            self._guard(lambda client, key=key: client.delete(key))  # type: ignore[misc]

    def depths(self, topic: str, slots: Iterable[int]) -> list[tuple[int, int, int, int | None]]:
        """For each slot: (slot, armed, in flight, due ms of the next entry or None)."""
        wanted = list(slots)

        def read(client: Client) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for slot in wanted:
                store, prepare = self._queues(topic, slot)
                pipe.zcard(store)
                pipe.zcard(prepare)
                pipe.zrange(store, 0, 0, withscores=True)
            return list(pipe.execute())

        answers = self._guard(read)
        return [
            (
                slot,
                answers[3 * i],
                answers[3 * i + 1],
                int(head[0][1]) if (head := answers[3 * i + 2]) else None,
            )
            for i, slot in enumerate(wanted)
        ]

    def place_of(self, topic: str, slot: int, job_id: int) -> tuple[int | None, int | None]:
        """Where a job stands: its StoreQueue score and its PrepareQueue score, in ms."""
        store, prepare = self._queues(topic, slot)
        scores = self._guard(
            lambda c: (c.zscore(store, str(job_id)), c.zscore(prepare, str(job_id)))
        )
        return tuple(None if score is None else int(score) for score in scores)  # type: ignore[return-value]

    def time_ms(self) -> int:
        """The server's time (of a cluster: one node's)."""
        frozen = self._clock.frozen_ms()
        if frozen is not None:
            return frozen

        def read(client: Client) -> int:
            answer = (
                client.time(target_nodes=RedisCluster.RANDOM)
                if isinstance(client, RedisCluster)
                else client.time()
            )
            seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
            return int(seconds) * 1000 + int(micros) // 1000

        return self._guard(read)

    def run_ids(self, topic: str, slots: Iterable[int]) -> dict[int, str]:
        """The identity of the server process that holds each slot: another one may hold older data."""

        def read(client: Client) -> dict[int, str]:
            if not isinstance(client, RedisCluster):
                return dict.fromkeys(slots, str(client.info("server")["run_id"]))
            by_node: dict[str, str] = {}
            found = {}
            for slot in slots:
                node = client.get_node_from_key(keys.store_key(self._namespace, topic, slot))
                if node.name not in by_node:
                    by_node[node.name] = str(client.info("server", target_nodes=node)["run_id"])
                found[slot] = by_node[node.name]
            return found

        return self._guard(read)

    def facts(self) -> dict[str, str]:
        """Version, eviction policy and kind of the server, for `toc doctor` and the check at start."""

        def read(client: Client) -> dict[str, str]:
            cluster = isinstance(client, RedisCluster)
            node = (
                {"target_nodes": client.get_default_node()}
                if isinstance(client, RedisCluster)
                else {}
            )
            server, memory = client.info("server", **node), client.info("memory", **node)
            return {
                "version": str(server["redis_version"]),
                "maxmemory_policy": str(memory["maxmemory_policy"]),
                "mode": "cluster" if cluster else "single",
            }

        return self._guard(read)

    def check(self) -> None:
        """Raises SchemaMismatch unless the server can hold reminders safely."""
        facts = self.facts()
        if _version(facts["version"]) < VERSION_MIN:
            raise SchemaMismatch(f"Redis is {facts['version']}, toc needs 6.2 or later")
        if facts["maxmemory_policy"] != "noeviction":
            raise SchemaMismatch(
                f"Redis' maxmemory-policy is {facts['maxmemory_policy']}: it must be noeviction, "
                "else Redis throws reminders away and keeps the marks that say they are there"
            )

    def client(self) -> Client:
        """The connected client. Raises TimerUnavailable."""
        if self._client is None:
            self._client = connect(self._url, self._timeout_s)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # ---- inside

    def _call(self, calls: Iterable[Call]) -> list[Any]:
        batch = list(calls)
        if not batch:
            return []
        return self._guard(lambda client: self._scripts_on(client).call(batch))

    def _scripts_on(self, client: Client) -> Scripts:
        if self._scripts is None:
            self._scripts = Scripts(client, flags=_version(self.facts()["version"]) >= (7, 0))
        return self._scripts

    def _guard(self, use: Callable[[Client], T]) -> T:
        """Every use of the client goes through here: translates its errors, keeps `available`."""
        try:
            answer = use(self.client())
        except UNAVAILABLE as error:
            self.available = False
            raise TimerUnavailable(error) from error
        except ResponseError as error:
            if not is_refusal(error):
                raise
            self.available = False
            raise TimerUnavailable(error) from error
        self.available = True
        return answer

    def _now(self) -> str:
        frozen = self._clock.frozen_ms()
        return "" if frozen is None else str(frozen)

    def _queues(self, topic: str, slot: int) -> tuple[str, str]:
        return (
            keys.store_key(self._namespace, topic, slot),
            keys.prepare_key(self._namespace, topic, slot),
        )


def _parts(by_slot: Mapping[int, Sequence[Any]]) -> Iterable[tuple[int, Sequence[Any]]]:
    for slot in sorted(by_slot):
        items = by_slot[slot]
        for start in range(0, len(items), PAIRS_MAX):
            yield slot, items[start : start + PAIRS_MAX]


def _flat(entries: Sequence[Entry]) -> list[int | str]:
    return ["" if value is None else value for entry in entries for value in entry]


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _unless_all_failed(scripts: Scripts, calls: Sequence[Call]) -> list[Any]:
    answers = scripts.call_each(calls)
    failed = [answer for answer in answers if isinstance(answer, Exception)]
    if len(failed) == len(answers):
        raise failed[0]
    return answers
