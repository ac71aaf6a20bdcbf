"""One slot on one Redis: all its keys before and after a call, the answer, the wake-up."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toc.domain.ids import SEQUENCE_BITS
from toc.timer import redis_keys
from toc.timer.lua_scripts import LuaScripts, ScriptCall
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_nodes import make_redis_nodes
from toc.timer.reminders import Reminders

TOPIC, SLOT = "default", 7
NOW = 1_795_000_000_000  # 13 digits, as today's times have
CHANNEL_END = b"end"


def slot_amount_of(_: str) -> int:
    """The slot_amount of each topic."""
    return 1024


def id_in_slot(slot: int, n: int = 0) -> int:
    """The nth job_id (of 4,096) whose reminder belongs into a slot."""
    return slot << SEQUENCE_BITS | n


@dataclass(frozen=True)
class State:
    """Everything that lies under the test's namespace: job ids by score, marks by shard."""

    store: Mapping[int, int] = field(default_factory=dict)
    prepare: Mapping[int, int] = field(default_factory=dict)
    marks: Mapping[int, str] = field(default_factory=dict)


class Rig:
    def __init__(self, url: str, version: str, *, is_cluster: bool) -> None:
        self.namespace = f"toc-test-{secrets.token_hex(6)}"
        self.url = url.replace("redis://", "redis+cluster://") if is_cluster else url
        self.version = version
        self.knows_flags = not version.startswith("6.")
        self.client: Any = make_redis_client(self.url, 3)
        self.scripts = LuaScripts(make_redis_nodes(self.client), flags=self.knows_flags)
        self.store = redis_keys.store_queue_key(self.namespace, TOPIC, SLOT)
        self.prepare = redis_keys.prepare_queue_key(self.namespace, TOPIC, SLOT)
        self.mark = redis_keys.marks_key(self.namespace, TOPIC, SLOT)
        self.channel = redis_keys.wakeup_channel(self.namespace, TOPIC)
        self._listener: Any = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for key in self.keys():
            self.client.delete(key)
        self.client.close()

    def slots(self, clock: Any) -> Reminders:
        return Reminders(self.url, self.namespace, clock, slot_amount_of)

    # ---- state

    def keys(self) -> set[str]:
        """All keys that hold the namespace, on all nodes."""
        return {key.decode() for key in self.client.scan_iter(match=f"*{self.namespace}*")}

    def set(self, state: State) -> None:
        for key, entries in ((self.store, state.store), (self.prepare, state.prepare)):
            if entries:
                self.client.zadd(key, {str(job_id): due for job_id, due in entries.items()})
        if state.marks:
            self.client.hset(self.mark, mapping={str(k): v for k, v in state.marks.items()})

    def state(self) -> State:
        found = self.keys()
        assert found <= {self.store, self.prepare, self.mark}
        queues = []
        for key in (self.store, self.prepare):
            # Scores as text: a number that is not exact must show.
            raw = self.client.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
            queues.append({int(job_id): _whole(score) for job_id, score in _pairs(raw)})
        marks = self.client.hgetall(self.mark)
        store, prepare = queues
        return State(store, prepare, {int(shard): text.decode() for shard, text in marks.items()})

    # ---- calls

    def call(self, script: str, *args: Any) -> Any:
        (answer,) = self.scripts.call_scripts([self.of(script, *args)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def of(self, script: str, *args: Any) -> ScriptCall:
        names: dict[str, Sequence[str]] = {
            "arm": (self.store,),
            "load_page": (self.store, self.mark),
        }
        return ScriptCall(script, names.get(script, (self.store, self.prepare)), args)

    # ---- wake-ups

    def listen(self) -> None:
        self._listener = self.client.pubsub(ignore_subscribe_messages=True)
        self._listener.subscribe(self.channel)
        self._listener.get_message(timeout=5)  # the server's word that it listens

    def heard(self) -> list[str]:
        """What was published since `listen`; ends by a message of its own, sent by the same node."""
        script = "return redis.call('PUBLISH', ARGV[1], 'end')"
        self.client.execute_command("EVAL", script, 1, self.store, self.channel)
        messages: list[str] = []
        while True:
            message = self._listener.get_message(timeout=5)
            assert message is not None or self._listener.connection is not None
            if message is None:
                continue
            if message["data"] == CHANNEL_END:
                return messages
            messages.append(message["data"].decode())


def _pairs(raw: Any) -> list[tuple[Any, Any]]:
    if raw and isinstance(raw[0], (list, tuple)):
        return [(job_id, score) for job_id, score in raw]
    return list(zip(raw[::2], raw[1::2], strict=True))


def _whole(score: Any) -> int:
    number = float(score)
    assert number.is_integer()
    return int(number)
