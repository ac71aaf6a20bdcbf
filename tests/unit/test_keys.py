"""Keys of Redis: spelled once, a slot's all on one node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from toc.timer import redis_keys

WORDS = st.from_regex(r"[A-Za-z0-9_.-]{1,32}", fullmatch=True)


def test_spelling() -> None:
    assert redis_keys.store_queue_key("toc", "default", 7) == "toc:default_7"
    assert redis_keys.prepare_queue_key("toc", "default", 7) == "prepare_{toc:default_7}"
    assert redis_keys.marks_key("toc", "default", 7) == "mark_{toc:default_7}"
    assert redis_keys.wakeup_channel("toc", "default") == "wake_toc:default"
    assert redis_keys.activity_key("toc", 29_000_000) == "activity_toc:29000000"


@given(WORDS, WORDS, st.integers(0, 1023))
def test_all_keys_of_a_slot_hash_to_one_node(namespace: str, topic: str, slot: int) -> None:
    spelled = [
        spell(namespace, topic, slot)
        for spell in (
            redis_keys.store_queue_key,
            redis_keys.prepare_queue_key,
            redis_keys.marks_key,
        )
    ]
    assert len(set(spelled)) == 3
    assert len({key_slot(key.encode()) for key in spelled}) == 1


def test_slots_spread_over_a_cluster() -> None:
    nodes = {
        key_slot(redis_keys.store_queue_key("toc", "default", slot).encode())
        for slot in range(1024)
    }
    assert len(nodes) > 900
