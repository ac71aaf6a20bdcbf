"""The names of the keys in Redis; no other module composes a key.

`ns:topic_7`, `prepare_{ns:topic_7}` and `mark_{ns:topic_7}`: a name without braces hashes as a whole,
so all three keys of a slot lie on one node of a Redis Cluster.
"""

from __future__ import annotations

from functools import cache


@cache  # one item per slot; reading the heads needs all of them, once a second
def store_queue_key(namespace: str, topic: str, slot: int) -> str:
    return f"{namespace}:{topic}_{slot}"


@cache
def prepare_queue_key(namespace: str, topic: str, slot: int) -> str:
    return f"prepare_{{{store_queue_key(namespace, topic, slot)}}}"


@cache
def marks_key(namespace: str, topic: str, slot: int) -> str:
    return f"mark_{{{store_queue_key(namespace, topic, slot)}}}"


def wakeup_channel(namespace: str, topic: str) -> str:
    """The channel on which new heads of a topic's slots are published as "slot due_ms time_ms"."""
    return f"wake_{namespace}:{topic}"
