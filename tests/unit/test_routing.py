"""One hash: biz_id -> shard, database, slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.routing import Routing, is_power_of_two, routing_hash_of, slot_of_hash
from toc.errors import InvalidInput

bits = st.integers(0, 10)


@pytest.mark.parametrize(
    ("biz_id", "h"), [(0, 0xF4DBDF21), (42, 0x3224B088), (2**64 - 1, 0xBFFE511A)]
)
def test_the_hash_never_changes(biz_id: int, h: int) -> None:
    # Rows lie where this number says: another one loses them.
    assert routing_hash_of(biz_id) == h


@given(st.integers(0, 2**32 - 1), bits, bits, bits)
def test_every_hash_has_one_home(
    h: int, shard_bits: int, database_bits: int, slot_bits: int
) -> None:
    shards, slots = 2**shard_bits, 2 ** min(slot_bits, shard_bits)
    routing = Routing(shards, 2 ** min(database_bits, shard_bits))
    shard = routing.shard_of_hash(h)
    assert 0 <= shard < shards
    assert shard in routing.shards_of_database(routing.database_index(shard))
    assert shard in set(routing.shards_of_slot(slot_of_hash(h, slots), slots))


@given(bits, bits, bits)
def test_databases_and_slots_share_the_shards_without_rest(
    shard_bits: int, database_bits: int, slot_bits: int
) -> None:
    shards = 2**shard_bits
    databases, slots = 2 ** min(database_bits, shard_bits), 2 ** min(slot_bits, shard_bits)
    routing = Routing(shards, databases)
    of_databases = [shard for n in range(databases) for shard in routing.shards_of_database(n)]
    assert of_databases == list(range(shards))
    of_slots = [shard for slot in range(slots) for shard in routing.shards_of_slot(slot, slots)]
    assert sorted(of_slots) == list(range(shards))
    assert routing.tables_per_database * databases == shards


def test_doubled_shards_split_each_shard_in_two() -> None:
    small, large = Routing(8, 1), Routing(16, 1)
    for h in range(1024):
        assert large.shard_of_hash(h) in (small.shard_of_hash(h), small.shard_of_hash(h) + 8)


def test_jobs_spread_evenly() -> None:
    counts = [0] * 64
    for biz_id in range(64_000):
        counts[Routing(64, 1).shard_of_hash(routing_hash_of(biz_id))] += 1
    assert min(counts) > 900
    assert max(counts) < 1100


@pytest.mark.parametrize(
    ("shards", "databases", "field"),
    [
        (0, 1, "shards"), (3, 1, "shards"), (2048, 1, "shards"), (-4, 1, "shards"),
        (4, 0, "databases"), (4, 3, "databases"), (4, 8, "databases"),
    ],
)  # fmt: skip
def test_what_is_no_power_of_two_is_refused(shards: int, databases: int, field: str) -> None:
    with pytest.raises(InvalidInput, match="power of two up to") as caught:
        Routing(shards, databases)
    assert caught.value.field == field


def test_powers_of_two() -> None:
    assert [n for n in range(-4, 20) if is_power_of_two(n)] == [1, 2, 4, 8, 16]


def test_the_fingerprint_names_everything_that_moves_rows() -> None:
    assert Routing(8, 2).meta_values() == {"hash": "crc32", "shards": "8", "databases": "2"}
