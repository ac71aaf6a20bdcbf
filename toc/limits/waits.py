"""When a job that a limit has refused is offered again, so that nothing asks in a loop.

A type without partitions is closed as a whole: its jobs stay in their queue, with their own due times, and
nobody pops them until the limit may allow another start. A job of a full partition is put off instead,
because jobs of other partitions wait behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from toc.domain.limit_terms import LimitTerms
from toc.runtime.clock import Clock
from toc.timer.limit_store import PartitionAnswer

FULL_AGAIN_MS = 100  # another node may have ended a job that held the concurrency
GATHER_MS = 50  # starts that a rate allows in so long are taken together
WAIT_MS_MAX = 60_000  # a job is put off by no more than this
STEP_MS_MIN, STEP_MS_MAX = 1.0, 1000.0
PARTITIONS_KEPT_MAX = 10_000
GUESS_MIN, GUESS_MAX = 4, 1000


@dataclass(slots=True)
class TypeDoor:
    """Whether jobs of a type without partitions may be fetched now, and how many at a guess."""

    closed_until_s: float = 0.0
    guess: int = GUESS_MIN

    def record_take(
        self, wanted: int, answer: PartitionAnswer, now_s: float, gather_ms_max: float
    ) -> None:
        """Learns from an answer. A guess that is too large costs a pop and a put back for each job.

        `gather_ms_max`: how long starts may gather in the bucket, so that none is lost.
        """
        if answer.admitted >= wanted:
            if wanted >= self.guess:
                self.guess = min(GUESS_MAX, self.guess * 2)
            return
        self.guess = max(1, answer.admitted)
        wait_ms: float = wait_ms_after(answer)
        if not answer.is_full:  # a few starts together are cheaper than one by one
            wait_ms = max(wait_ms, min(GATHER_MS, gather_ms_max))
        self.closed_until_s = now_s + wait_ms / 1000


def wait_ms_after(answer: PartitionAnswer) -> int:
    """How long nothing more can start, as far as is known."""
    return max(answer.wait_ms, FULL_AGAIN_MS if answer.is_full else 1)


@dataclass(slots=True)
class _PartitionWait:
    until_ms: float = 0.0  # when the last job that was put off comes back, by the monotonic clock
    last: tuple[int, int] = (0, 0)  # that job, by its due time and id
    step_ms: float = (
        10.0  # between two jobs that wait for the concurrency; follows how fast jobs end
    )


class PartitionWaits:
    """How long each refused job of a partition is put off. Not thread-safe: `Limits` has a lock.

    The jobs of a partition come back one after the other, in their order: at the rate of the partition, or,
    if it waits for the concurrency, in steps that follow how often a job is admitted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: OrderedDict[tuple[str, str], _PartitionWait] = OrderedDict()

    def record_admission(self, biz_type: str, partition: str) -> None:
        """All jobs that were offered were admitted: the next ones may come faster."""
        wait = self._waits.get((biz_type, partition))
        if wait is not None:
            wait.step_ms = max(STEP_MS_MIN, wait.step_ms / 2)

    def waits_ms(
        self,
        biz_type: str,
        partition: str,
        terms: LimitTerms,
        refused: Sequence[tuple[int, int]],
        answer: PartitionAnswer,
    ) -> list[int]:
        """The waits of refused jobs in ms. `refused`: their due times and ids, in order."""
        wait = self._wait_of(biz_type, partition)
        if answer.is_full:
            wait.step_ms = min(STEP_MS_MAX, wait.step_ms * 2)
        step_ms = max(wait.step_ms if answer.is_full else 0.0, terms.interval_ms or 0.0)
        now_ms = self._clock.monotonic_s() * 1000
        next_ms = now_ms + wait_ms_after(answer)
        waits = []
        for key in refused:
            # A job that comes back from its wait goes before those that wait behind it.
            if key > wait.last or wait.until_ms <= now_ms:
                next_ms = max(next_ms, wait.until_ms)
            at_ms = min(next_ms, now_ms + WAIT_MS_MAX)
            waits.append(round(at_ms - now_ms))
            next_ms = at_ms + step_ms
            wait.last = max(wait.last, key)
            wait.until_ms = max(wait.until_ms, next_ms)
        return waits

    def _wait_of(self, biz_type: str, partition: str) -> _PartitionWait:
        wait = self._waits.setdefault((biz_type, partition), _PartitionWait())
        self._waits.move_to_end((biz_type, partition))
        while len(self._waits) > PARTITIONS_KEPT_MAX:
            self._waits.popitem(last=False)
        return wait
