"""Routing: a hash of the biz_id gives the shard, the database and the slot.

All counts are powers of two and `slot_amount <= shards`, so a slot's jobs come from few shards
(exactly one by default). So the jobs that a poller pops together are in few tables, and the nightly
comparison of MySQL with Redis needs no shuffle in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from toc.errors import InvalidInput

# A job_id contains 10 bits of the routing hash: the id alone determines the shard and the slot.
SHARDS_MAX = 1024
BIZ_ID_MAX = 2**64 - 1


def routing_hash_of(biz_id: int) -> int:
    """The routing hash of a business id: CRC-32 of its decimal digits (32 bits)."""
    return crc32(str(biz_id).encode())


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@dataclass(frozen=True, slots=True)
class Routing:
    """Maps hashes to shards and databases.

    `shards`: the number of job tables in all databases together. `databases`: the number of databases; each
    has the same number of shards.
    """

    shards: int
    databases: int

    def __post_init__(self) -> None:
        if not is_power_of_two(self.shards) or self.shards > SHARDS_MAX:
            raise InvalidInput("shards", self.shards, f"must be a power of two up to {SHARDS_MAX}")
        if not is_power_of_two(self.databases) or self.databases > self.shards:
            raise InvalidInput(
                "databases",
                self.databases,
                f"their count must be a power of two up to {self.shards}",
            )

    @property
    def tables_per_database(self) -> int:
        return self.shards // self.databases

    def shard_of_hash(self, h: int) -> int:
        """The shard of a routing hash, or of the routing bits of a job_id (the low 10 bits of the hash)."""
        return h & (self.shards - 1)

    def database_index(self, shard: int) -> int:
        return shard // self.tables_per_database

    def shards_of_database(self, database: int) -> range:
        first = database * self.tables_per_database
        return range(first, first + self.tables_per_database)

    def shards_of_slot(self, slot: int, slot_amount: int) -> Iterator[int]:
        """The shards whose jobs a slot holds, ascending."""
        yield from range(slot, self.shards, slot_amount)

    def meta_values(self) -> dict[str, str]:
        """The routing values that `toc_meta` stores. A node with other values refuses to start."""
        return {"hash": "crc32", "shards": str(self.shards), "databases": str(self.databases)}


def slot_of_hash(h: int, slot_amount: int) -> int:
    """The slot of a routing hash, or of routing bits, within a topic of `slot_amount` slots."""
    return h & (slot_amount - 1)
