"""Pops due reminders and puts them into the claim stages. Sleeps until the next due time.

One poller serves the slots of one topic whose first shards are in one database, so that a database that does
not answer delays no other. If a slot holds jobs of several databases, the ids of a database that takes no
jobs are put off for some seconds. Back-pressure: a poller pops only as many reminders as it has permits for,
and none while its last batch waits for the claim: reminders due meanwhile make the next batch larger.

`set_slots` names the poller's slots, at any time; two pollers of one slot do no harm. A poller may be the
deputy of other nodes' slots: it pops such a slot when the slot's head was seen (`on_head_seen`) to be overdue
for so long that the owner must be dead, frozen, cut off from Redis or overloaded. So these faults are handled
before ZooKeeper notices them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from toc.domain.ids import SEQUENCE_BITS, routing_bits_of
from toc.domain.routing import Routing, slot_of_hash
from toc.errors import TimerUnavailable
from toc.runtime.admission import Admission
from toc.runtime.clock import Clock
from toc.runtime.job_batch import BatchClaimAnswer, JobBatch, PermitSource
from toc.runtime.service import Inbox, Service
from toc.timer.reminders import Reminder, Reminders

NO_PERMITS_S = 0.02  # the poller asks for permits again after this time, or when it is woken
GUESS_MIN = 4  # the size of a slot's first pop; a full answer doubles the size
BACKLOG_POP_MIN = 32  # the smallest pop if there are fewer permits than due reminders
DEPUTY_LATE_S = 0.5  # a head that is overdue by more than this is popped by the slot's deputy too
PAUSED_S = 1.0  # a paused poller checks so often whether it may continue
WAIT_S_MAX = 60.0  # may be any time, because a new head wakes the poller
HEADS_WITHIN_S = 86_400.0  # a head that is due later is reported when it becomes due
_NEVER = float("inf")
_POP_NOW = 0.0  # nothing is known of the slot


@dataclass(slots=True)
class PopForClaim:
    """A pop whose ids wait for their claim. sent: how many ids."""

    slots: Collection[int] = ()
    answers: list[BatchClaimAnswer] = field(default_factory=list)
    sent: int = 0


class Poller(Service):
    """Pops the slots that `set_slots` names; none before the first call.

    `inboxes`: the claim stage of each database that has jobs in these slots. `paused()`: True makes it pop
    nothing; the scanner finds the jobs meanwhile. `admission()`: what to ask before a pop, if the topic is
    restricted now: jobs that may not run now are not popped.
    """

    def __init__(
        self,
        name: str,
        reminders: Reminders,
        topic: str,
        slot_amount: int,
        permits: PermitSource,
        inboxes: Mapping[int, Inbox[JobBatch]],
        routing: Routing,
        clock: Clock,
        *,
        pop_max: int,
        stay_ms: int,
        paused: Callable[[], bool],
        admission: Callable[[], Admission | None] = lambda: None,
    ) -> None:
        super().__init__(name)
        self._admission = admission
        self.on_wake: Callable[[], None] | None = None
        """Called when the poller is woken, if other code runs its steps."""
        self.topic = topic
        self._reminders, self._topic, self._slot_amount = reminders, topic, slot_amount
        self._permits, self._inboxes = permits, inboxes
        self._routing, self._clock, self._paused = routing, clock, paused
        self._pop_max, self._stay_ms = pop_max, stay_ms
        # When the head of each slot is due, by this process' monotonic clock; _POP_NOW at first.
        # A slot of which this poller is the deputy is never due, until its head was seen to be late.
        self._due_s: dict[int, float] = {}
        # Batches that wait for their claim, each with its database.
        self._claiming: list[tuple[int, BatchClaimAnswer]] = []
        self.reads_heads = False
        """Whether `update_heads` must know each head exactly, because it decides which poller pops next."""
        self._last_pop = PopForClaim()
        # Slots whose head may be the end of the stay of an id that was acked since.
        self._unsure_slots: set[int] = set()
        self._pop_sizes: dict[int, int] = {}
        self._deputy_slots: frozenset[int] = frozenset()
        self._new_slots: deque[tuple[frozenset[int], frozenset[int]]] = deque(maxlen=1)
        self._reported_heads: deque[tuple[int, float]] = deque(maxlen=100_000)

    def wake(self) -> None:
        super().wake()
        if self.on_wake is not None:
            self.on_wake()

    def take_wake(self) -> bool:
        """Whether the poller was woken since the last call; for code that runs its steps."""
        was_woken = self._wake.is_set()
        self._wake.clear()
        return was_woken

    @property
    def head_due_s(self) -> float:
        """When the oldest reminder is due, by this process' monotonic clock; infinity: none is known."""
        return min(self._due_s.values(), default=_NEVER)

    @property
    def waits_for_claim(self) -> bool:
        """Whether a batch waits for its claim; its answer wakes the poller."""
        return any(not answer.is_answered for _, answer in self._claiming)

    def take_reports(self) -> None:
        """Takes over what other threads have reported. For the thread that runs the steps."""
        self._apply_reports()

    def update_heads(self) -> None:
        """Takes over what other threads have reported, and reads the heads that are not known.

        For the thread that runs the steps. Raises TimerUnavailable.
        """
        self._apply_reports()
        last = self._last_pop
        if last.sent and all(answer.is_answered for answer in last.answers):
            self._last_pop = PopForClaim()
            if sum(answer.claimed for answer in last.answers) < last.sent:
                # Some ids may be back in their slots, and the messages that say so still on their way.
                self._due_s |= {slot: _POP_NOW for slot in last.slots if slot in self._due_s}
        now_s = self._clock.monotonic_s()
        unknown = [
            slot
            for slot, due_s in self._due_s.items()
            if due_s == _POP_NOW or (due_s <= now_s and slot in self._unsure_slots)
        ]
        if unknown:
            self._unsure_slots.difference_update(unknown)
            heads = self._reminders.read_heads(self._topic, unknown, HEADS_WITHIN_S)
            now_s = self._clock.monotonic_s()
            # The watcher reports a slot whose node does not answer, when its node answers again.
            found = {slot: now_s + in_s for slot, in_s in heads.items()}
            self._due_s |= dict.fromkeys(unknown, _NEVER) | found

    def set_slots(self, owned: Collection[int], deputised: Collection[int] = ()) -> None:
        """Replaces the slots to pop, own and deputised ones, from the next step on. Any thread."""
        self._new_slots.append((frozenset(owned), frozenset(deputised)))
        self.wake()

    def on_wakeup(self, slot: int, in_s: float) -> None:
        """Handles a wake-up: the slot has a new head, which is due in `in_s` seconds. Any thread."""
        if slot not in self._deputy_slots:
            self._queue_head_report(slot, in_s)

    def on_head_seen(self, slot: int, in_s: float) -> None:
        """Handles a read of the slot's head, which is due in `in_s` seconds. Any thread."""
        if slot not in self._deputy_slots or in_s <= -DEPUTY_LATE_S:
            self._queue_head_report(slot, in_s)

    def _queue_head_report(self, slot: int, in_s: float) -> None:
        if slot in self._due_s:
            # The next step applies the report, not this call: a pop that runs at this moment would
            # overwrite the new head with the head that the slot had before.
            self._reported_heads.append((slot, self._clock.monotonic_s() + in_s))
            self.wake()

    def run_once(self) -> float:
        """Pops due slots once, as far as there are permits. Returns the seconds until the next step."""
        self._apply_reports()
        now_s = self._clock.monotonic_s()
        if self._paused():
            return PAUSED_S
        due = [slot for slot, due_s in self._due_s.items() if due_s <= now_s]
        if not due:
            next_s = min(self._due_s.values(), default=_NEVER)
            return max(0.0, min(next_s - now_s, WAIT_S_MAX))
        if self._every_database_has_unanswered_claim():
            return WAIT_S_MAX  # the answer wakes it
        # Oldest head first: a busy slot cannot starve the others.
        due.sort(key=self._due_s.__getitem__)
        wanted = sum(self._pop_sizes[slot] for slot in due)
        admission = self._admission()  # guard: poller-asks-the-gate
        if admission is not None:
            return self._pop_admitted(admission, due, wanted, now_s)
        permits, open_ = self._permits.take_permits_in_each_database(self._inboxes.keys(), wanted)
        if not permits:
            return NO_PERMITS_S
        self._pop_due_slots(due, permits, open_, now_s, None)
        return 0

    def _pop_admitted(
        self, admission: Admission, due: Sequence[int], wanted: int, now_s: float
    ) -> float:
        """Pops due slots of a restricted topic, as far as jobs are admitted and there are permits."""
        admitted = admission.admit(wanted)
        if not admitted:
            return admission.retry_after_s()
        unused = admitted
        try:
            permits, open_ = self._permits.take_permits_in_each_database(
                self._inboxes.keys(), admitted
            )
            if not permits:
                return NO_PERMITS_S
            unused -= self._pop_due_slots(due, permits, open_, now_s, admission)
        finally:
            if unused:
                admission.return_unused(unused)
        return 0

    def _pop_due_slots(
        self,
        due: Sequence[int],
        permits: int,
        open_: Collection[int],
        now_s: float,
        admission: Admission | None,
    ) -> int:
        """Pops due slots and sends the ids to the claim stages; returns how many ids."""
        unused = dict.fromkeys(open_, permits)
        sent = 0
        if self.reads_heads:
            self._last_pop = PopForClaim(due)
        try:
            popped, time_ms = self._pop_slots(self._pop_counts_by_slot(due, permits))
            for database, ids in self._group_ids_by_database(popped).items():
                carried = sum(map(len, ids.values())) if database in unused else 0
                if carried:
                    unused[database] -= carried
                sent += carried
                self._send_to_claim_stage(
                    database, ids, time_ms, now_s, carried, admission if carried else None
                )
        finally:
            # Permits come back before the claims, so that other fetchers can use these permits meanwhile.
            for database, left in unused.items():
                self._permits.return_permits(database, left)
        return sent

    def _every_database_has_unanswered_claim(self) -> bool:
        """Whether each database of this poller has a batch whose claim is not answered yet."""
        self._claiming = [each for each in self._claiming if not each[1].is_answered]
        return self._inboxes.keys() <= {database for database, _ in self._claiming}

    def _send_to_claim_stage(
        self,
        database: int,
        ids: Mapping[int, Sequence[int]],
        time_ms: int,
        found_s: float,
        permits: int,
        admission: Admission | None,
    ) -> None:
        """Puts ids into the claim stage of their database; `time_ms`: the latest of the servers' times."""
        answer = BatchClaimAnswer(self.wake)
        if self.reads_heads:
            self._last_pop.answers.append(answer)
            self._last_pop.sent += sum(map(len, ids.values()))
        shared = len(self._inboxes) > 1
        self._claiming.append((database, answer))
        self._inboxes[database].enqueue(
            JobBatch(
                self._topic, ids, time_ms, found_s,
                popped=True, shared=shared, permits=permits, answer=answer,
                admissions=_admissions_of_ids(ids, admission),
            )
        )  # fmt: skip

    def _apply_reports(self) -> None:
        """Applies the slots and heads that other threads have reported since the last step."""
        if self._new_slots:
            owned, deputised = self._new_slots.popleft()
            kept = {s: due_s for s, due_s in self._due_s.items() if s not in self._deputy_slots}
            self._due_s = {slot: kept.get(slot, _POP_NOW) for slot in sorted(owned)}
            self._due_s |= dict.fromkeys(sorted(deputised - owned), _NEVER)
            self._pop_sizes = {slot: self._pop_sizes.get(slot, GUESS_MIN) for slot in self._due_s}
            self._deputy_slots = deputised - owned
        while self._reported_heads:
            slot, due_s = self._reported_heads.popleft()
            if slot in self._due_s:  # another node may own the slot by now
                self._due_s[slot] = min(self._due_s[slot], due_s)

    def _pop_counts_by_slot(self, due: Sequence[int], room: int) -> list[tuple[int, int]]:
        """How many reminders to pop from each slot, `room` in all.

        The permits are divided evenly, but each slot gets at least half of them if the slot wants so many: a
        few large batches are cheaper than many small ones. For the same reason few slots are popped deeply
        if there are not permits for all: the statements of a claim are one for each shard.
        """
        share = max(1, room // 2, room // max(1, len(due)))
        least = BACKLOG_POP_MIN if sum(self._pop_sizes[slot] for slot in due) > room else 1
        shares = []
        for slot in due:
            n = min(max(self._pop_sizes[slot], least), share, room)
            if n <= 0:
                break
            shares.append((slot, n))
            room -= n
        return shares

    def _pop_slots(self, wanted: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
        """Pops slots, and updates when each slot is due next.

        Returns the ids, and the latest time in ms of the servers that returned them.
        """
        found, time_ms = list[int](), 0
        popped = self._reminders.pop(self._topic, wanted, self._stay_ms)
        answered_s = self._clock.monotonic_s()
        asked = dict(wanted)
        for slot in asked.keys() - {answer.slot for answer in popped}:
            # Refused: the watcher reports the slot when its node answers again.
            self._due_s[slot] = _NEVER
        for answer in popped:
            slot, n = answer.slot, asked[answer.slot]
            full = len(answer.ids) + answer.foreign >= n
            guess = max(self._pop_sizes[slot], n * 2) if full else max(GUESS_MIN, len(answer.ids))
            self._pop_sizes[slot] = min(guess, self._pop_max)
            self._due_s[slot] = self._next_pop_at_s(slot, answer.next_s, answered_s)
            if self.reads_heads and answer.next_s is not None and answer.next_s > 0:
                self._unsure_slots.add(slot)
            ids, mask = answer.ids, self._slot_amount - 1
            if ids and {(job_id >> SEQUENCE_BITS) & mask for job_id in ids} != {slot}:
                ids = self._move_misplaced_reminders(slot, ids, answer.time_ms)  # guard: send-home
            found += ids
            if ids:
                time_ms = max(time_ms, answer.time_ms)
        return found, time_ms

    def _move_misplaced_reminders(self, slot: int, ids: Sequence[int], time_ms: int) -> list[int]:
        """Moves popped reminders that were in a wrong slot to their own slot. Returns the other ids.

        If they were offered as they are, a job with two reminders could be claimed twice in one batch, and
        an ack, which goes to the job's own slot, would not remove this reminder, which would return for ever.
        """
        slot_by_id = {
            job_id: slot_of_hash(routing_bits_of(job_id), self._slot_amount) for job_id in ids
        }
        misplaced = [job_id for job_id in ids if slot_by_id[job_id] != slot]
        text = "slot %d of topic %s held reminders of other slots (of job %d, for example): they are moved"
        self._log_throttle.warning("misplaced", text, slot, self._topic, misplaced[0])
        try:
            # First put back, then removed: so a reminder is never lost.
            own_slots = [Reminder(time_ms, job_id) for job_id in misplaced]
            self._reminders.put_back(self._topic, own_slots)
            self._reminders.remove_reminders(self._topic, {slot: misplaced})
        except (TimerUnavailable, ResponseError) as error:
            # ResponseError: a key of one of the slots may be broken.
            text = "reminders of other slots in slot %d are moved when their stay is over: %s"
            self._log_throttle.warning("misplaced later", text, slot, error)
        return [job_id for job_id in ids if slot_by_id[job_id] == slot]

    def _next_pop_at_s(self, slot: int, next_s: float | None, answered_s: float) -> float:
        if next_s is None or (slot in self._deputy_slots and next_s > -DEPUTY_LATE_S):
            return _NEVER
        return answered_s + next_s

    def _group_ids_by_database(self, popped: Sequence[int]) -> dict[int, dict[int, list[int]]]:
        """The popped ids by database and shard, each once."""
        by_database: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        # An id may have been popped from two slots, one of them wrong: it is offered once.
        for job_id in dict.fromkeys(popped):  # guard: offer-once
            shard = self._routing.shard_of_hash(routing_bits_of(job_id))
            by_database[self._routing.database_index(shard)][shard].append(job_id)
        return by_database


def _admissions_of_ids(
    ids: Mapping[int, Sequence[int]], admission: Admission | None
) -> dict[int, Admission]:
    """The admission of each id; none for an unrestricted topic."""
    if admission is None:
        return {}
    return {job_id: admission for some in ids.values() for job_id in some}
