"""Pops what is due and hands it to the sink. Sleeps until the next due time, or until it is told of one.

One poller serves the slots of one topic whose shards lie in one database, so that a database that
does not answer holds up no other. Back-pressure: it pops only what the sink has room for.

Which slots, is told by `own`, at any time: two pollers at one slot are harmless. Of other nodes'
slots it may be the deputy: it pops those whose head has been seen (`see`) to be overdue for so long
that their owner is evidently dead, frozen, cut off from Redis or overloaded. So none of that waits for
ZooKeeper to notice.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence

from toc.domain.ids import gene_of
from toc.domain.routing import Routing
from toc.errors import StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink
from toc.timer.slots import Slots

NO_ROOM_S = 0.02  # a full sink is looked at again after this, or when it calls `wake`
GUESS_MIN = 4  # a slot's first pop asks for so many; a full answer doubles it
DEPUTY_LATE_S = 0.5  # a head that is overdue by more than this is popped by the slot's deputy too
PAUSED_S = 1.0  # a paused one looks so often whether it may go on
WAIT_S_MAX = 60.0  # nothing needs it: who knows of a new head says so
_NEVER = float("inf")


class Poller(Service):
    """Pops slots of shards in `database`; none until `own` says which. `paused()` True: the scanner fires."""

    def __init__(
        self,
        name: str,
        slots: Slots,
        topic: str,
        database: int,
        sink: Sink,
        routing: Routing,
        clock: Clock,
        *,
        pop_max: int,
        stay_ms: int,
        paused: Callable[[], bool],
    ) -> None:
        super().__init__(name)
        self._slots, self._topic, self._database, self._sink = slots, topic, database, sink
        self._routing, self._clock, self._paused = routing, clock, paused
        self._pop_max, self._stay_ms = pop_max, stay_ms
        # When the head of each slot is due, by this process' monotonic clock; at first: look now.
        # A deputy's slots are never due, until they have been seen to be late.
        self._due_s: dict[int, float] = {}
        self._guess: dict[int, int] = {}
        self._deputised: frozenset[int] = frozenset()
        self._told: deque[tuple[frozenset[int], frozenset[int]]] = deque(maxlen=1)
        self._heard: deque[tuple[int, float]] = deque(maxlen=100_000)

    def own(self, owned: Collection[int], deputised: Collection[int] = ()) -> None:
        """From the next step on these are its slots, and those that it is the deputy of. Any thread."""
        self._told.append((frozenset(owned), frozenset(deputised)))
        self.wake()

    def hear(self, slot: int, in_s: float) -> None:
        """A wake-up: the slot has a new head, due in so many seconds. Any thread."""
        if slot not in self._deputised:
            self._learn(slot, in_s)

    def see(self, slot: int, in_s: float) -> None:
        """A look: the slot's head is due in so many seconds. Any thread."""
        if slot not in self._deputised or in_s <= -DEPUTY_LATE_S:
            self._learn(slot, in_s)

    def _learn(self, slot: int, in_s: float) -> None:
        if slot in self._due_s:
            # Taken in by the next step and not here: a pop under way would overwrite it with what
            # it saw before the arm.
            self._heard.append((slot, self._clock.monotonic_s() + in_s))
            self.wake()

    def run_once(self) -> float:
        """Pops due slots once, as far as there is room. Returns the seconds until there is more."""
        self._take_in()
        now_s = self._clock.monotonic_s()
        if self._paused():
            return PAUSED_S
        due = [slot for slot, due_s in self._due_s.items() if due_s <= now_s]
        if not due:
            next_s = min(self._due_s.values(), default=_NEVER)
            return max(0.0, min(next_s - now_s, WAIT_S_MAX))
        # Oldest head first: a busy slot cannot starve the others.
        due.sort(key=self._due_s.__getitem__)
        room = self._sink.take_room(self._database, sum(self._guess[slot] for slot in due))
        if not room:
            return NO_ROOM_S
        try:
            popped = self._pop(self._shares(due, room))
            # What was reserved in vain is free while the claim goes on: others may use it.
            self._sink.give_room(self._database, room - len(popped))
            room = len(popped)
            self._offer(popped, now_s)
        finally:
            self._sink.give_room(self._database, room)
        return 0

    def _take_in(self) -> None:
        """What other threads have told since the last step."""
        if self._told:
            owned, deputised = self._told.popleft()
            kept = {s: due_s for s, due_s in self._due_s.items() if s not in self._deputised}
            self._due_s = {slot: kept.get(slot, 0.0) for slot in sorted(owned)}
            self._due_s |= dict.fromkeys(sorted(deputised - owned), _NEVER)
            self._guess = {slot: self._guess.get(slot, GUESS_MIN) for slot in self._due_s}
            self._deputised = deputised - owned
        while self._heard:
            slot, due_s = self._heard.popleft()
            if slot in self._due_s:  # it may have gone to another node meanwhile
                self._due_s[slot] = min(self._due_s[slot], due_s)

    def _shares(self, due: Sequence[int], room: int) -> list[tuple[int, int]]:
        """How much to pop of each slot, such that all together fits.

        Evenly, but in parts of at least a half: a few large batches are cheaper than many small.
        """
        share = max(1, room // 2, room // max(1, len(due)))
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
            self._due_s[slot] = _NEVER  # refused: it is seen when its node answers again
        for answer in popped:
            slot, n = answer.slot, asked[answer.slot]
            full = len(answer.ids) >= n
            guess = max(self._guess[slot], n * 2) if full else max(GUESS_MIN, len(answer.ids))
            self._guess[slot] = min(guess, self._pop_max)
            self._due_s[slot] = self._due_again_s(slot, answer.next_s, answered_s)
            found += [(job_id, answer.time_ms) for job_id in answer.ids]
        return found

    def _due_again_s(self, slot: int, next_s: float | None, answered_s: float) -> float:
        if next_s is None or (slot in self._deputised and next_s > -DEPUTY_LATE_S):
            return _NEVER
        return answered_s + next_s

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
