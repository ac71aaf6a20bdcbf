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


def limit_keys(namespace: str, biz_type: str) -> tuple[str, str]:
    """The state of a type's limits, and its partitions in use; all keys of a type are on one node."""
    tag = f"{{{namespace}:{biz_type}}}"
    return f"limit_{tag}", f"limit_in_use_{tag}"


def limit_partition_keys(namespace: str, biz_type: str, partition: str) -> tuple[str, str]:
    """The bucket and the holders of a partition of a type."""
    tag = f"{{{namespace}:{biz_type}}}"
    return f"limit_bucket_{tag}:{partition}", f"limit_holders_{tag}:{partition}"


def activity_key(namespace: str, minute: int) -> str:
    """What all processes have counted in a minute, which is counted since 1970."""
    return f"activity_{namespace}:{minute}"
