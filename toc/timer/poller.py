"""Pops what is due and hands it to the sink. Sleeps until the next due time or a wake-up.

One poller serves the slots of one topic whose shards lie in one database, so that a database that
does not answer holds up no other. Back-pressure: it pops only what the sink has room for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from toc.domain.ids import gene_of
from toc.domain.routing import Routing
from toc.errors import StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink
from toc.timer.slots import Slots

NO_ROOM_S = 0.02  # a full sink is looked at again after this, or when it calls `wake`
GUESS_MIN = 4  # a slot's first pop asks for so many; a full answer doubles it
_NEVER = float("inf")


class Poller(Service):
    """`owned` are the slots it pops, of shards in `database`. `paused()` True: the scanner fires."""

    def __init__(
        self,
        name: str,
        slots: Slots,
        topic: str,
        owned: Sequence[int],
        database: int,
        sink: Sink,
        routing: Routing,
        clock: Clock,
        *,
        pop_max: int,
        stay_ms: int,
        slow_poll_s: float,
        paused: Callable[[], bool],
    ) -> None:
        super().__init__(name)
        self._slots, self._topic, self._database, self._sink = slots, topic, database, sink
        self._routing, self._clock, self._paused = routing, clock, paused
        self._pop_max, self._stay_ms, self._slow_poll_s = pop_max, stay_ms, slow_poll_s
        # When the head of each slot is due, by this process' monotonic clock; at first: look now.
        self._due_s: dict[int, float] = dict.fromkeys(owned, 0.0)
        self._guess: dict[int, int] = dict.fromkeys(owned, GUESS_MIN)
        self._heard: deque[tuple[int, float]] = deque(maxlen=100_000)
        self._slow_s = 0.0

    def hear(self, slot: int, in_s: float) -> None:
        """A wake-up: the slot has a new head, due in so many seconds. Any thread."""
        if slot in self._due_s:
            # Taken in by the next step and not here: a pop under way would overwrite it with what
            # it saw before the arm.
            self._heard.append((slot, self._clock.monotonic_s() + in_s))
            self.wake()

    def run_once(self) -> float:
        """Pops due slots once, as far as there is room. Returns the seconds until there is more."""
        while self._heard:
            slot, due_s = self._heard.popleft()
            self._due_s[slot] = min(self._due_s[slot], due_s)
        now_s = self._clock.monotonic_s()
        if self._paused():
            return self._slow_poll_s
        due = [slot for slot, due_s in self._due_s.items() if due_s <= now_s]
        slow = now_s >= self._slow_s
        if not (due or slow):
            return max(0.0, min(min(self._due_s.values(), default=_NEVER), self._slow_s) - now_s)
        # Oldest head first: a busy slot cannot starve the others.
        due.sort(key=self._due_s.__getitem__)
        room = (
            self._sink.take_room(self._database, sum(self._guess[slot] for slot in due))
            if due
            else 0
        )
        wait_s = 0 if room or not due else NO_ROOM_S
        try:
            wanted = self._shares(due, room)
            if slow:
                # A look (0 ids) needs no room: it only learns when the slot's head is due.
                self._slow_s = now_s + self._slow_poll_s
                asked = {slot for slot, _ in wanted}
                wanted += [(slot, 0) for slot in self._due_s if slot not in asked]
            popped = self._pop(wanted)
            # What was reserved in vain is free while the claim goes on: others may use it.
            self._sink.give_room(self._database, room - len(popped))
            room = len(popped)
            self._offer(popped, now_s)
        finally:
            self._sink.give_room(self._database, room)
        return wait_s

    def _shares(self, due: Sequence[int], room: int) -> list[tuple[int, int]]:
        """How much to pop of each slot, such that all together fits.

        Evenly, but in parts of at least an eighth: a few large batches are cheaper than many small.
        """
        share = max(1, room // 8, room // max(1, len(due)))
        shares = []
        for slot in due:
            n = min(self._guess[slot], share, room)
            if n <= 0:
                break
            shares.append((slot, n))
            room -= n
        return shares

    def _pop(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pops; learns when each slot's next entry is due. Returns (job_id, Redis' TIME in ms) pairs."""
        found: list[tuple[int, int]] = []
        popped = self._slots.pop(self._topic, wanted, self._stay_ms)
        answered_s = self._clock.monotonic_s()
        asked = dict(wanted)
        for slot in asked.keys() - {answer.slot for answer in popped}:
            self._due_s[slot] = _NEVER  # refused: the slow poll looks again
        for answer in popped:
            slot, n = answer.slot, asked[answer.slot]
            if n:
                full = len(answer.ids) >= n
                guess = max(self._guess[slot], n * 2) if full else max(GUESS_MIN, len(answer.ids))
                self._guess[slot] = min(guess, self._pop_max)
            self._due_s[slot] = _NEVER if answer.next_s is None else answered_s + answer.next_s
            found += [(job_id, answer.time_ms) for job_id in answer.ids]
        return found

    def _offer(self, popped: Sequence[tuple[int, int]], found_s: float) -> None:
        by_database: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        # Each job is due by its own server's time, so by the latest of them.
        time_ms = max((time_ms for _, time_ms in popped), default=0)
        for job_id, _ in popped:
            shard = self._routing.shard(gene_of(job_id))
            by_database[self._routing.database(shard)][shard].append(job_id)
        failed: StoreUnavailable | None = None
        for database, ids in by_database.items():
            try:
                self._sink.offer(database, Batch(self._topic, ids, time_ms, found_s, popped=True))
            except StoreUnavailable as error:  # the other databases' ids are offered all the same
                failed = error
        if failed is not None:
            raise failed
