"""Job ids: 63-bit numbers, made without a coordinator; the shard and slot can be computed from an id.

    41 bits milliseconds since 2024-01-01 UTC (until 2093) | 10 routing bits | 12 bits sequence

The routing bits are the low 10 bits of the routing hash. The sequence starts at random, so two processes
rarely make the same id in the same millisecond for the same routing bits. If two processes make the same
id, the primary key refuses the second insert, and the process of that insert makes another id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from toc.errors import InvalidInput
from toc.sentences import sentence

ID_EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
TIME_BITS, ROUTING_BITS, SEQUENCE_BITS = 41, 10, 12
ROUTING_MASK = (1 << ROUTING_BITS) - 1
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
JOB_ID_MAX = (1 << (TIME_BITS + ROUTING_BITS + SEQUENCE_BITS)) - 1


def routing_bits_of(job_id: int) -> int:
    """The 10 routing bits of an id: the low 10 bits of the routing hash from which the id was made.

    They are not the low bits of the id: below them stand the 12 bits of the sequence.
    """
    return (job_id >> SEQUENCE_BITS) & ROUTING_MASK


def created_ms_of(job_id: int) -> int:
    """The time at which the id was made, by the clock of its process, in milliseconds since 1970."""
    return (job_id >> (ROUTING_BITS + SEQUENCE_BITS)) + ID_EPOCH_MS


def lowest_id_at(ms: int) -> int:
    """The lowest id that can be made at `ms`: all ids made earlier are lower."""
    return max(0, ms - ID_EPOCH_MS) << (ROUTING_BITS + SEQUENCE_BITS)


def check_job_id(value: object) -> int:
    """Returns `value` if it is a valid job_id; raises InvalidInput otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= JOB_ID_MAX:
        raise InvalidInput(
            "job_id",
            value,
            sentence("must be an integer from {low} to {high}", low=0, high=JOB_ID_MAX),
        )
    return int(value)  # a plain int: drivers refuse subclasses


class JobIdFactory:
    """Makes job ids; thread-safe.

    `wall_ms()`: the time in ms since 1970. `start`: the first sequence number.
    """

    def __init__(self, wall_ms: Callable[[], int], start: int) -> None:
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._ms = 0
        self._sequence = start & SEQUENCE_MASK
        self._left = 0  # how many sequence numbers are left in this millisecond

    def make_ids(self, hashes: list[int]) -> list[int]:
        """Makes one new id for each routing hash. A factory never makes the same id twice."""
        ids = []
        with self._lock:
            now = self._wall_ms() - ID_EPOCH_MS
            if now > self._ms:
                self._ms, self._left = now, SEQUENCE_MASK + 1
            ms, sequence, left = self._ms, self._sequence, self._left
            for h in hashes:
                if left == 0:  # more than 4,096 ids in a millisecond: use the next millisecond
                    ms, left = ms + 1, SEQUENCE_MASK + 1
                sequence = (sequence + 1) & SEQUENCE_MASK
                left -= 1
                ids.append(
                    ms << (ROUTING_BITS + SEQUENCE_BITS)
                    | (h & ROUTING_MASK) << SEQUENCE_BITS
                    | sequence
                )
            self._ms, self._sequence, self._left = ms, sequence, left
        return ids
