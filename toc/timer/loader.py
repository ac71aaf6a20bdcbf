"""Loads rows into the slots when they are due within the horizon; loads all of them again after a loss.

For each (topic, shard), Redis holds a mark next to the reminders: "load_id run_id due_ms job_id", the last
row that was loaded. A mark is lost when it is missing, or belongs to another server process (a fail-over to
older data), or is later than everything that may be loaded. Then the loader writes a fresh mark *before* its
first snapshot. If Redis is wiped after that, the mark is missing, and the script that writes a page refuses.

The cost of a step depends on the work to do, not on the number of shards. A step reads the marks of the
shards whose turn it is, and the marks of two slots of each server: a server that loses data loses it for
all its slots, and then all marks are read. Two slots, the first and the last, because another loader may
have begun to load everything again, from the first slot on, and died. Most shards whose turn it is have no
new rows; one statement finds these shards among many.

No row is skipped (design §6): a snapshot sees each row that was committed before it. When a row is
committed later, its client decides after the commit, and arms the row unless it is due after the client's
clock + horizon + slack. Such a row is beyond the snapshot's bound (Redis' TIME, read before the snapshot,
+ horizon) as long as the client's clock and Redis' clock differ by less than the slack.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from toc.domain.routing import Routing
from toc.errors import SchemaMismatch, StoreUnavailable, TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.store.due_pages import PAUSE_FACTOR, SHARDS_PER_QUERY_MAX, DuePages
from toc.timer.redis_answers import SlotMarks
from toc.timer.reminders import Reminder, Reminders

log = logging.getLogger(__name__)

PAGES_MAX = 20  # pages per shard and step, so that a step is bounded; the next step continues
READ_EVERY_MAX = 60  # steps between two reads of a shard whose mark is valid


class LoadMark(NamedTuple):
    """How far a shard is loaded: the last loaded row, and the load and the run of Redis that it belongs to.

    `run_id`: Redis has a new one after each start of its process.
    """

    load_id: str
    run_id: str
    due_ms: int
    job_id: int

    def __str__(self) -> str:
        return f"{self.load_id} {self.run_id} {self.due_ms} {self.job_id}"

    @classmethod
    def parse_mark(cls, text: str) -> LoadMark | None:
        parts = text.split(" ")
        if len(parts) != 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
            return None
        try:
            return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))
        except ValueError:  # more digits than int() takes
            return None

    @classmethod
    def parse_mark_of_redis_run(cls, text: str | None, run_id: str) -> LoadMark | None:
        """The mark. None: it is missing, malformed, or was written to another run of Redis than `run_id`."""
        mark = None if text is None else cls.parse_mark(text)
        return mark if mark is not None and mark.run_id == run_id else None


def shard_read_period_s(horizon_s: float, tick_s: float) -> float:
    """Seconds between two reads of a shard whose mark in Redis (how far it is loaded) is valid.

    Rows that come within the horizon in this time have no reminder until the next read.
    """
    return _steps_between_shard_reads(horizon_s, tick_s) * tick_s


def _steps_between_shard_reads(horizon_s: float, tick_s: float) -> int:
    # At least three reads of a shard within each horizon: a row must be read before it becomes due.
    return max(1, min(READ_EVERY_MAX, int(horizon_s / 3 / tick_s)))


class _ShardToLoad(NamedTuple):
    """A shard that may have to be read.

    `text`: the shard's mark as text; None: the shard has no mark. `marks`: all marks of the shard's slot.
    """

    slot: int
    shard: int
    text: str | None
    marks: SlotMarks


_RowsToLoad = dict[int, tuple[tuple[int, int], int]]
"""The argument of `DuePages.find_shards_with_due`.

By shard: ((due_ms, job_id) of the row to start after, due_ms to end at).
"""


class Loader(Service):
    """Loads the slots of one topic that `set_slots` names; none before the first call.

    `of_topic(type_no)`: whether rows of this type belong to the topic.
    """

    def __init__(
        self,
        name: str,
        reminders: Reminders,
        pages: DuePages,
        topic: str,
        slot_amount: int,
        routing: Routing,
        of_topic: Callable[[int], bool],
        clock: Clock,
        *,
        horizon_ms: int,
        slack_ms: int,
        tick_s: float,
        page_rows: int,
    ) -> None:
        super().__init__(name)
        self._reminders, self._pages, self._topic = reminders, pages, topic
        self._owned: Sequence[int] = ()
        self._slot_of: dict[int, int] = {}  # by shard
        self._shards_by_step: Sequence[Sequence[int]] = ()  # the shards whose turn it is, by step
        self._new_slots: deque[Sequence[int]] = deque(maxlen=1)
        self._slot_amount, self._routing = slot_amount, routing
        self._of_topic, self._clock = of_topic, clock
        self._horizon_ms, self._slack_ms = horizon_ms, slack_ms
        self._tick_s, self._page_rows = tick_s, page_rows
        self._step = 0
        self._steps_between_reads = _steps_between_shard_reads(horizon_ms / 1000, tick_s)
        # Databases, and Redis servers by their run_id, that failed in this step: its rest skips them.
        self._failed_databases: set[int] = set()
        self._failed_servers: dict[str, TimerUnavailable] = {}
        # Shards whose last read was interrupted: the next step continues that read.
        self._unread: set[int] = set()
        # By shard that could not be read: until when this shard is skipped.
        self._rests_until_s: dict[int, float] = {}
        # When each shard was last read to the end of the horizon.
        self._last_read_s: dict[int, float] = {}

    def set_slots(self, slots: Sequence[int]) -> None:
        """Replaces the slots to load, from the next step on. Any thread."""
        self._new_slots.append(sorted(slots))
        self.wake()

    @property
    def oldest_read_age_s(self) -> float:
        """Seconds since the last complete read of the shard that waits longest for one (0: no shards).

        A read is complete when it came to the end of the horizon.
        """
        return max(
            (self._clock.monotonic_s() - at_s for at_s in list(self._last_read_s.values())),
            default=0.0,
        )

    def run_once(self) -> float:
        """Reads the shards whose turn it is, and those whose mark is lost. Returns the tick in seconds."""
        self.load_due_shards()
        return self._tick_s

    def load_due_shards(self) -> int:
        """Loads due shards of all owned slots in one round; returns how many reminders were loaded.

        Shards of a database or Redis node that fails are left to the next step. Raises TimerUnavailable
        when Redis failed and nothing was loaded.
        """
        self._apply_new_slots()
        if not self._owned:
            return 0
        due = (
            self._unread.union(self._shards_by_step[self._step % self._steps_between_reads])
            - self._temporarily_skipped_shards()
        )
        done = list[int]()
        self._failed_databases, self._failed_servers = set(), {}
        marks = self._read_marks(due)
        due.update(*(self._shards_with_lost_mark(slot, found) for slot, found in marks.items()))
        work = [
            _ShardToLoad(slot, shard, found.by_shard.get(shard), found)
            for slot, found in sorted(marks.items())
            for shard in self._shards_of_slot(slot)
            if shard in due
        ]
        quiet = self._shards_without_new_rows(work)
        for to_load in work:
            if self.stopping:
                break
            if to_load.shard in quiet:
                self._record_shard_read(to_load.shard)
            else:
                done += self._try_load_shard(to_load)
        self._step += 1  # guard: loader-step
        for error in self._failed_servers.values():
            if not done:
                raise error
            self._log_throttle.warning(
                "slots", "loader: slots are left out of this step: %s", error
            )
        return sum(done)

    def _read_marks(self, due: Collection[int]) -> dict[int, SlotMarks]:
        """Reads the marks of these shards' slots, and of two slots per Redis node to test for lost data.

        If a mark is missing, reads the marks of all owned slots.
        """
        asked = {self._slot_of[shard] for shard in due}
        asked.update(self._reminders.first_and_last_slot_per_node(self._topic, self._owned))
        marks = self._reminders.read_marks(self._topic, sorted(asked))
        others = [slot for slot in self._owned if slot not in asked]
        if others and any(
            self._shards_with_lost_mark(slot, found) for slot, found in marks.items()
        ):
            asked.update(others)
            # The nodes of these slots failed; others have answered.
            with suppress(TimerUnavailable):
                marks |= self._reminders.read_marks(self._topic, others)
        for slot in asked - marks.keys():  # the node of this slot did not answer
            self._unread.update(self._shards_of_slot(slot))
        return marks

    def _shards_with_lost_mark(self, slot: int, marks: SlotMarks) -> list[int]:
        """The shards of a slot whose marks are lost."""
        return [
            shard
            for shard in self._shards_of_slot(slot)
            if LoadMark.parse_mark_of_redis_run(marks.by_shard.get(shard), marks.run_id) is None
        ]

    def _shards_without_new_rows(self, work: Sequence[_ShardToLoad]) -> set[int]:
        """The shards that need no read, because no row follows their mark within the horizon."""
        wanted: dict[int, _RowsToLoad] = defaultdict(dict)
        for to_load in work:
            mark = LoadMark.parse_mark_of_redis_run(to_load.text, to_load.marks.run_id)
            # Redis' time before the snapshot, as for a page.
            bound_ms = to_load.marks.time_ms + self._horizon_ms
            is_valid = mark is not None and mark.due_ms <= bound_ms + self._slack_ms
            if mark is not None and is_valid and to_load.shard not in self._unread:
                after = mark.due_ms, mark.job_id
                wanted[self._routing.database_index(to_load.shard)][to_load.shard] = after, bound_ms
        quiet: set[int] = set()
        for database, shards in wanted.items():
            for some in _split_shards_into_blocks(shards, SHARDS_PER_QUERY_MAX):
                if len(some) > 1 and database not in self._failed_databases:
                    quiet.update(self._query_shards_without_new_rows(database, some))
        return quiet

    def _query_shards_without_new_rows(self, database: int, wanted: _RowsToLoad) -> set[int]:
        try:
            return wanted.keys() - self._pages.find_shards_with_due(wanted)
        except Exception as error:  # noqa: BLE001 - any fault is that of the database, or of one table
            self._log_throttle.warning(database, "loader: shards %s: %s", [*wanted], error)
            if not self._pages.database_answers(next(iter(wanted))):
                self._failed_databases.add(database)
        return set()  # each shard is then read separately, which shows the broken shard

    def _try_load_shard(self, to_load: _ShardToLoad) -> list[int]:
        """Loads a shard. Returns the number of loaded reminders in a list.

        The list is empty if the load failed, or if the shard's database or Redis server failed before.
        """
        shard, run_id, began_s = to_load.shard, to_load.marks.run_id, self._clock.monotonic_s()
        self._unread.add(shard)
        database = self._routing.database_index(shard)
        if database in self._failed_databases or run_id in self._failed_servers:
            return []
        try:
            return [self._load_shard_pages(to_load.slot, shard, to_load.text, run_id)]
        except (StoreUnavailable, SchemaMismatch) as error:
            self._log_throttle.warning(database, "loader: shard %d: %s", shard, error)
            if self._pages.database_answers(shard):
                # The table is locked. The shard rests, else the loader would only wait for the lock.
                now_s = self._clock.monotonic_s()
                self._rests_until_s[shard] = now_s + PAUSE_FACTOR * (now_s - began_s)
            else:  # the other databases' shards are still loaded
                self._failed_databases.add(database)
        except TimerUnavailable as error:
            # This Redis node is full or down: the slots of the other nodes are still loaded.
            self._failed_servers[run_id] = error
        except Exception:  # one broken table must not keep all others from being loaded
            log.exception("loader: shard %d is left out of this step", shard)
            metrics.SERVICE_ERRORS.labels(self.name).inc()
        return []

    def _apply_new_slots(self) -> None:
        if not self._new_slots:
            return
        self._owned = self._new_slots.popleft()
        now_s = self._clock.monotonic_s()
        self._slot_of = {
            shard: slot for slot in self._owned for shard in self._shards_of_slot(slot)
        }
        shards = self._slot_of.keys()
        every = self._steps_between_reads
        self._shards_by_step = [
            [s for s in shards if (step + s) % every == 0] for step in range(every)
        ]
        # The shards that this node gains may not have been read for long: their last owner may be dead.
        self._unread.intersection_update(shards)
        self._unread.update(shards - self._last_read_s.keys())
        self._last_read_s = {shard: self._last_read_s.get(shard, now_s) for shard in shards}

    def _temporarily_skipped_shards(self) -> set[int]:
        if self._rests_until_s:
            now_s = self._clock.monotonic_s()
            for shard, until_s in [*self._rests_until_s.items()]:
                if until_s <= now_s:
                    del self._rests_until_s[shard]
        return set(self._rests_until_s)

    def _shards_of_slot(self, slot: int) -> Iterator[int]:
        return self._routing.shards_of_slot(slot, self._slot_amount)

    def _record_shard_read(self, shard: int) -> None:
        self._unread.discard(shard)
        self._last_read_s[shard] = self._clock.monotonic_s()

    def _load_shard_pages(self, slot: int, shard: int, text: str | None, run_id: str) -> int:
        count = 0
        for _ in range(PAGES_MAX):
            bound_ms = self._reminders.read_time_ms() + self._horizon_ms  # before the snapshot
            mark = LoadMark.parse_mark_of_redis_run(text, run_id)
            if mark is None or mark.due_ms > bound_ms + self._slack_ms:
                mark = LoadMark(uuid.uuid4().hex[:12], run_id, 0, 0)
                text = str(mark)
                self._reminders.write_start_mark(self._topic, slot, shard, text)
            rows = self._pages.read_due_rows(
                shard, (mark.due_ms, mark.job_id), bound_ms, self._page_rows
            )
            if not rows:
                self._record_shard_read(shard)
                break
            page = [Reminder(row.due_ms, row.job_id) for row in rows if self._of_topic(row.type_no)]
            last_ms, last_id = rows[-1].key
            after = str(mark._replace(due_ms=last_ms, job_id=last_id))
            loaded = self._reminders.load_page(  # guard: arms-before-mark
                self._topic, slot, shard, text or "", after, page
            )
            if not loaded:
                break  # wiped, failed over, or another loader: the next step reads the mark anew
            text, count = after, count + len(page)
            if len(rows) < self._page_rows:
                self._record_shard_read(shard)
                break
        return count


def _split_shards_into_blocks(wanted: _RowsToLoad, size: int) -> Iterator[_RowsToLoad]:
    shards = iter(wanted.items())
    while part := dict(islice(shards, size)):
        yield part
