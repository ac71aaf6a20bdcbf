"""Pops due reminders and hands them to the sink. Sleeps until the next due time, or until it learns of one.

One poller serves the slots of one topic whose shards are in one database, so that a database that does not
answer delays no other. Where a slot holds jobs of several databases, each database has a thread of its own
that claims (claimer.py), and the ids of a database that does not answer are put off for some seconds.
Back-pressure: it pops only as much as the sink has room for.

`set_slots` names its slots, at any time; two pollers at one slot do no harm. A poller may be the deputy of
other nodes' slots: it pops such a slot when its head was seen (`on_head_seen`) to be overdue for so long
that the owner must be dead, frozen, cut off from Redis or overloaded. So these faults are handled before
ZooKeeper notices them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence

from redis.exceptions import ResponseError

from toc.domain.ids import SEQUENCE_BITS, gene_of
from toc.domain.routing import Routing, slot_of
from toc.errors import StoreUnavailable, TimerUnavailable
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink
from toc.timer.claimer import Claimer
from toc.timer.reminders import Reminder, Reminders

NO_ROOM_S = 0.02  # a full sink is tried again after this, or when it calls `wake`
GUESS_MIN = 4  # a slot's first pop asks for so many; a full answer doubles the number
DEPUTY_LATE_S = 0.5  # a head that is overdue by more than this is popped by the slot's deputy too
PAUSED_S = 1.0  # a paused poller checks so often whether it may continue
WAIT_S_MAX = 60.0  # any time will do: a new head wakes the poller
_NEVER = float("inf")


class Poller(Service):
    """Pops the slots that `set_slots` names, of shards in `database`; none before the first call.

    `paused()`: True makes it pop nothing; the scanner finds the jobs meanwhile.
    """

    def __init__(
        self,
        name: str,
        reminders: Reminders,
        topic: str,
        slot_amount: int,
        database: int,
        sink: Sink,
        routing: Routing,
        clock: Clock,
        *,
        pop_max: int,
        stay_ms: int,
        paused: Callable[[], bool],
        claimers: Mapping[int, Claimer] | None = None,
    ) -> None:
        super().__init__(name)
        self._reminders, self._topic, self._database, self._sink = reminders, topic, database, sink
        self._slot_amount = slot_amount
        self._claimers = claimers or {}
        self._routing, self._clock, self._paused = routing, clock, paused
        self._pop_max, self._stay_ms = pop_max, stay_ms
        # When the head of each slot is due, by this process' monotonic clock; 0 at first: pop now.
        # Slots that it is the deputy of are never due, until they were seen to be late.
        self._due_s: dict[int, float] = {}
        self._pop_sizes: dict[int, int] = {}
        self._deputy_slots: frozenset[int] = frozenset()
        self._new_slots: deque[tuple[frozenset[int], frozenset[int]]] = deque(maxlen=1)
        self._reported_heads: deque[tuple[int, float]] = deque(maxlen=100_000)

    def set_slots(self, owned: Collection[int], deputised: Collection[int] = ()) -> None:
        """Replaces its own slots and those that it is the deputy of, from the next step on. Any thread."""
        self._new_slots.append((frozenset(owned), frozenset(deputised)))
        self.wake()

    def on_wakeup(self, slot: int, in_s: float) -> None:
        """A wake-up: the slot has a new head, due in so many seconds. Any thread."""
        if slot not in self._deputy_slots:
            self._report_head(slot, in_s)

    def on_head_seen(self, slot: int, in_s: float) -> None:
        """The slot's head was read: it is due in so many seconds. Any thread."""
        if slot not in self._deputy_slots or in_s <= -DEPUTY_LATE_S:
            self._report_head(slot, in_s)

    def _report_head(self, slot: int, in_s: float) -> None:
        if slot in self._due_s:
            # The next step applies it, not this call: a pop that is running now would overwrite it with
            # the head from before the arm.
            self._reported_heads.append((slot, self._clock.monotonic_s() + in_s))
            self.wake()

    def run_once(self) -> float:
        """Pops due slots once, as far as there is room. Returns the seconds until the next slot is due."""
        self._take_reports()
        now_s = self._clock.monotonic_s()
        if self._paused():
            return PAUSED_S
        due = [slot for slot, due_s in self._due_s.items() if due_s <= now_s]
        if not due:
            next_s = min(self._due_s.values(), default=_NEVER)
            return max(0.0, min(next_s - now_s, WAIT_S_MAX))
        # Oldest head first: a busy slot cannot starve the others.
        due.sort(key=self._due_s.__getitem__)
        wanted = sum(self._pop_sizes[slot] for slot in due)
        if self._claimers:
            return self._pop_for_claimers(due, wanted, now_s)
        room = self._sink.reserve_room(self._database, wanted)
        if not room:
            return NO_ROOM_S
        try:
            popped = self._pop(self._pop_counts(due, room))
            # Surplus room is released before the claim, so that others can use it meanwhile.
            self._sink.release_room(self._database, room - len(popped))
            room = len(popped)
            self._offer_popped(popped, now_s)
        finally:
            self._sink.release_room(self._database, room)
        return 0

    def _pop_for_claimers(self, due: Sequence[int], wanted: int, found_s: float) -> float:
        """The part of `run_once` for slots that hold ids of several databases: pops for the claimers."""
        room, open_ = self._sink.reserve_room_in(list(self._claimers), wanted)
        if not room:
            return NO_ROOM_S
        left = dict.fromkeys(open_, room)
        try:
            popped = self._pop(self._pop_counts(due, room))
            for database, batch in self._batches_by_database(popped, found_s, shared=True).items():
                if database in open_:
                    taken = sum(map(len, batch.ids.values()))
                    left[database] -= taken
                    self._claimers[database].submit(batch, taken)
                else:
                    self._sink.put_off(database, batch)
        finally:
            for database, unused in left.items():
                self._sink.release_room(database, unused)
        return 0

    def _take_reports(self) -> None:
        """Applies the slots and heads that other threads have reported since the last step."""
        if self._new_slots:
            owned, deputised = self._new_slots.popleft()
            kept = {s: due_s for s, due_s in self._due_s.items() if s not in self._deputy_slots}
            self._due_s = {slot: kept.get(slot, 0.0) for slot in sorted(owned)}
            self._due_s |= dict.fromkeys(sorted(deputised - owned), _NEVER)
            self._pop_sizes = {slot: self._pop_sizes.get(slot, GUESS_MIN) for slot in self._due_s}
            self._deputy_slots = deputised - owned
        while self._reported_heads:
            slot, due_s = self._reported_heads.popleft()
            if slot in self._due_s:  # another node may own it by now
                self._due_s[slot] = min(self._due_s[slot], due_s)

    def _pop_counts(self, due: Sequence[int], room: int) -> list[tuple[int, int]]:
        """How many reminders to pop from each slot, so that all fit into `room`.

        The room is divided evenly, but each slot gets at least half of it if it wants that much: a few large
        batches are cheaper than many small ones.
        """
        share = max(1, room // 2, room // max(1, len(due)))
        shares = []
        for slot in due:
            n = min(self._pop_sizes[slot], share, room)
            if n <= 0:
                break
            shares.append((slot, n))
            room -= n
        return shares

    def _pop(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pops, and updates when each slot is due next. Returns (job_id, Redis' TIME in ms) pairs."""
        found: list[tuple[int, int]] = []
        popped = self._reminders.pop(self._topic, wanted, self._stay_ms)
        answered_s = self._clock.monotonic_s()
        asked = dict(wanted)
        for slot in asked.keys() - {answer.slot for answer in popped}:
            self._due_s[slot] = (
                _NEVER  # refused: the watcher reports it when its node answers again
            )
        for answer in popped:
            slot, n = answer.slot, asked[answer.slot]
            full = len(answer.ids) + answer.foreign >= n
            guess = max(self._pop_sizes[slot], n * 2) if full else max(GUESS_MIN, len(answer.ids))
            self._pop_sizes[slot] = min(guess, self._pop_max)
            self._due_s[slot] = self._next_due_s(slot, answer.next_s, answered_s)
            ids, mask = answer.ids, self._slot_amount - 1
            if ids and {(job_id >> SEQUENCE_BITS) & mask for job_id in ids} != {slot}:
                ids = self._move_misplaced(slot, ids, answer.time_ms)  # guard: send-home
            found += [(job_id, answer.time_ms) for job_id in ids]
        return found

    def _move_misplaced(self, slot: int, ids: Sequence[int], time_ms: int) -> list[int]:
        """Moves popped reminders that were in a wrong slot to their own slot. Returns the other ids.

        If they were offered as they are, a job with two reminders could be claimed twice in one batch, and
        an ack, which goes to the job's own slot, would not remove this reminder: it would return for ever.
        """
        well: list[int] = []
        strange: list[int] = []
        for job_id in ids:
            in_place = slot_of(gene_of(job_id), self._slot_amount) == slot
            (well if in_place else strange).append(job_id)
        text = "slot %d of topic %s held reminders of other slots, of job %d for one: moved there"
        self._log_throttle.warning("strange", text, slot, self._topic, strange[0])
        try:
            # In this order: a reminder is never lost.
            self._reminders.put_back(self._topic, [Reminder(time_ms, job_id) for job_id in strange])
            self._reminders.remove(self._topic, {slot: strange})
        except (TimerUnavailable, ResponseError) as error:  # the key of one of them may be broken
            text = "reminders of other slots in slot %d are moved when their stay is over: %s"
            self._log_throttle.warning("strange later", text, slot, error)
        return well

    def _next_due_s(self, slot: int, next_s: float | None, answered_s: float) -> float:
        if next_s is None or (slot in self._deputy_slots and next_s > -DEPUTY_LATE_S):
            return _NEVER
        return answered_s + next_s

    def _batches_by_database(
        self, popped: Sequence[tuple[int, int]], found_s: float, *, shared: bool
    ) -> dict[int, Batch]:
        by_database: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        # Each job is due by the time of the server that it was popped from, so also by the latest time.
        time_ms = max((time_ms for _, time_ms in popped), default=0)
        # An id may have been popped from two slots, one of them wrong: it is offered once.
        for job_id in dict.fromkeys(job_id for job_id, _ in popped):  # guard: offer-once
            shard = self._routing.shard(gene_of(job_id))
            by_database[self._routing.database(shard)][shard].append(job_id)
        return {
            database: Batch(self._topic, ids, time_ms, found_s, popped=True, shared=shared)
            for database, ids in by_database.items()
        }

    def _offer_popped(self, popped: Sequence[tuple[int, int]], found_s: float) -> None:
        failed: StoreUnavailable | None = None
        for database, batch in self._batches_by_database(popped, found_s, shared=False).items():
            try:
                self._sink.offer(database, batch)
            except (
                StoreUnavailable
            ) as error:  # the ids of the other databases must still be offered
                failed = error
        if failed is not None:
            raise failed
