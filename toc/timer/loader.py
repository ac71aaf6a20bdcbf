"""Brings rows into the slots as their time comes near; brings everything again after a loss.

Per (topic, shard) a mark lies in Redis beside the data: "load_id run_id due_ms job_id", the last row
that was loaded. A mark that is missing, or of another server process (a fail-over to older data), or
ahead of everything that may be loaded counts as lost: then a fresh one is written *before* the first
snapshot, so that a wipe in between makes the page script refuse.

What a step costs follows what there is to do, not how many shards there are. It reads the marks of the
shards whose turn it is, and those of two slots of each server: what a server loses it loses for all its
slots, and then all are read. Two, the first and the last, since somebody else may have begun to bring
everything again, from the first on, and died. Of the shards whose turn it is most have nothing new: one
statement tells for many at once.

Why nothing is skipped (design §6): a row committed before a snapshot is seen by it. One committed
later is decided on by its client later still, who arms it unless it is due beyond its clock + horizon
+ slack; that is beyond this snapshot's bound (Redis' TIME, read before it, + horizon) as long as the
two clocks differ by less than the slack.
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
from toc.store.pages import AT_ONCE, REST, Pages
from toc.timer.slots import Entry, Marks, Slots

log = logging.getLogger(__name__)

PAGES_MAX = 20  # per shard and step: a step stays bounded, the next one goes on
READ_EVERY_MAX = 60  # steps between two reads of a shard whose mark stands


class Mark(NamedTuple):
    load_id: str
    run_id: str
    due_ms: int
    job_id: int

    def __str__(self) -> str:
        return f"{self.load_id} {self.run_id} {self.due_ms} {self.job_id}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        parts = text.split(" ")
        if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    @classmethod
    def of(cls, text: str | None, run_id: str) -> Mark | None:
        """The mark, unless it is missing, or no mark, or of another process."""
        mark = None if text is None else cls.parse(text)
        return mark if mark is not None and mark.run_id == run_id else None


def read_period_s(horizon_s: float, tick_s: float) -> float:
    """How long a shard whose mark stands is not read: what comes near meanwhile has no reminder yet."""
    return _read_every(horizon_s, tick_s) * tick_s


def _read_every(horizon_s: float, tick_s: float) -> int:
    # Three reads within each horizon at least: nothing may come due unseen.
    return max(1, min(READ_EVERY_MAX, int(horizon_s / 3 / tick_s)))


class _Work(NamedTuple):
    """A shard that may have to be read: `text` is its mark, among those of its slot."""

    slot: int
    shard: int
    text: str | None
    marks: Marks


_Wanted = dict[int, tuple[tuple[int, int], int]]
"""By shard: after which row, until when (see `Pages.any_after`)."""


class _Away(NamedTuple):
    """What did not answer in a step: it is not asked again before the next one."""

    databases: set[int]
    servers: dict[str, TimerUnavailable]  # of Redis, by run_id


class Loader(Service):
    """Loads slots of one topic; none until `own` says which.

    `of_topic(type_no)` says whether a row is the topic's.
    """

    def __init__(
        self,
        name: str,
        slots: Slots,
        pages: Pages,
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
        self._slots, self._pages, self._topic = slots, pages, topic
        self._owned: Sequence[int] = ()
        self._slot_of: dict[int, int] = {}  # by shard
        self._turns: Sequence[Sequence[int]] = ()  # the shards whose turn it is, by step
        self._told: deque[Sequence[int]] = deque(maxlen=1)
        self._slot_amount, self._routing = slot_amount, routing
        self._of_topic, self._clock = of_topic, clock
        self._horizon_ms, self._slack_ms = horizon_ms, slack_ms
        self._tick_s, self._page_rows = tick_s, page_rows
        self._step = 0
        self._read_every = _read_every(horizon_ms / 1000, tick_s)
        self._unread: set[int] = set()  # shards whose last read broke off: they go on at once
        self._rests_until_s: dict[int, float] = {}  # those that could not be read
        self._read_s: dict[
            int, float
        ] = {}  # when each shard was last read to the end of the horizon

    def own(self, slots: Sequence[int]) -> None:
        """From the next step on these are its slots. Any thread."""
        self._told.append(sorted(slots))
        self.wake()

    @property
    def age_s(self) -> float:
        """Seconds since every shard had been read to the end of the horizon (0 without any)."""
        return max(
            (self._clock.monotonic_s() - at_s for at_s in list(self._read_s.values())), default=0.0
        )

    def run_once(self) -> float:
        """Reads the shards whose turn it is, and those whose mark is lost. Returns the tick in seconds."""
        self.step()
        return self._tick_s

    def step(self) -> int:
        """One round over all owned slots; returns how many reminders it brought.

        What a database or a node of Redis cannot do now is left to the next step. Raises
        TimerUnavailable when Redis took nothing at all.
        """
        self._take_in()
        if not self._owned:
            return 0
        due = self._unread.union(self._turns[self._step % self._read_every]) - self._resting()
        done, away = [], _Away(set(), {})
        marks = self._marks(due)
        due.update(*(self._lost(slot, found) for slot, found in marks.items()))
        work = [
            _Work(slot, shard, found.by_shard.get(shard), found)
            for slot, found in sorted(marks.items())
            for shard in self._shards(slot)
            if shard in due
        ]
        quiet = self._quiet(work, away)
        for one in work:
            if self.stopping:
                break
            if one.shard in quiet:
                self._done_with(one.shard)
            else:
                done += self._try_load(one, away)
        self._step += 1
        for error in away.servers.values():
            if not done:
                raise error
            self._seldom.warning("slots", "loader: slots are left out of this step: %s", error)
        return sum(done)

    def _marks(self, due: Collection[int]) -> dict[int, Marks]:
        """The marks of some shards' slots and of two slots of each server; of all, if any is lost."""
        asked = {self._slot_of[shard] for shard in due}
        asked.update(self._slots.ends_on_each_node(self._topic, self._owned))
        marks = self._slots.marks(self._topic, sorted(asked))
        others = [slot for slot in self._owned if slot not in asked]
        if others and any(self._lost(slot, found) for slot, found in marks.items()):
            asked.update(others)
            with suppress(TimerUnavailable):  # the nodes of these; others have answered
                marks |= self._slots.marks(self._topic, others)
        for slot in asked - marks.keys():  # its node is away
            self._unread.update(self._shards(slot))
        return marks

    def _lost(self, slot: int, marks: Marks) -> list[int]:
        """The shards of a slot whose marks do not count."""
        return [
            shard
            for shard in self._shards(slot)
            if Mark.of(marks.by_shard.get(shard), marks.run_id) is None
        ]

    def _quiet(self, work: Sequence[_Work], away: _Away) -> set[int]:
        """The shards that need no page: nothing is there that one would load."""
        wanted: dict[int, _Wanted] = defaultdict(dict)
        for one in work:
            mark = Mark.of(one.text, one.marks.run_id)
            bound_ms = one.marks.time_ms + self._horizon_ms  # before the snapshot, as for a page
            stands = mark is not None and mark.due_ms <= bound_ms + self._slack_ms
            if mark is not None and stands and one.shard not in self._unread:
                after = mark.due_ms, mark.job_id
                wanted[self._routing.database(one.shard)][one.shard] = after, bound_ms
        quiet: set[int] = set()
        for database, shards in wanted.items():
            for some in _parts(shards, AT_ONCE):
                if len(some) > 1 and database not in away.databases:
                    quiet.update(self._nothing_in(database, some, away))
        return quiet

    def _nothing_in(self, database: int, wanted: _Wanted, away: _Away) -> set[int]:
        try:
            return wanted.keys() - self._pages.any_after(wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the database's, or one table's
            self._seldom.warning(database, "loader: shards %s: %s", [*wanted], error)
            if not self._pages.answers(next(iter(wanted))):
                away.databases.add(database)
        return set()  # one by one they will show which it is

    def _try_load(self, one: _Work, away: _Away) -> list[int]:
        """How many reminders it brought; [] where something failed: then `away` may know more."""
        shard, run_id, began_s = one.shard, one.marks.run_id, self._clock.monotonic_s()
        self._unread.add(shard)
        if self._routing.database(shard) in away.databases or run_id in away.servers:
            return []
        try:
            return [self._load(one.slot, shard, one.text, run_id)]
        except (StoreUnavailable, SchemaMismatch) as error:
            database = self._routing.database(shard)
            self._seldom.warning(database, "loader: shard %d: %s", shard, error)
            if self._pages.answers(shard):  # a table that is locked: it must not take all the time
                now_s = self._clock.monotonic_s()
                self._rests_until_s[shard] = now_s + REST * (now_s - began_s)
            else:  # the other databases' shards go on
                away.databases.add(database)
        except TimerUnavailable as error:  # full, or gone: the other nodes' slots go on
            away.servers[run_id] = error
        except Exception:  # one broken table must not keep all others from being loaded
            log.exception("loader: shard %d is left out of this step", shard)
            metrics.SERVICE_ERRORS.labels(self.name).inc()
        return []

    def _take_in(self) -> None:
        if not self._told:
            return
        self._owned = self._told.popleft()
        now_s = self._clock.monotonic_s()
        self._slot_of = {shard: slot for slot in self._owned for shard in self._shards(slot)}
        shards = self._slot_of.keys()
        every = self._read_every
        self._turns = [[s for s in shards if (step + s) % every == 0] for step in range(every)]
        # What it gains may not have been read for long: whoever had it is gone.
        self._unread.intersection_update(shards)
        self._unread.update(shards - self._read_s.keys())
        self._read_s = {shard: self._read_s.get(shard, now_s) for shard in shards}

    def _resting(self) -> set[int]:
        if self._rests_until_s:
            now_s = self._clock.monotonic_s()
            for shard, until_s in [*self._rests_until_s.items()]:
                if until_s <= now_s:
                    del self._rests_until_s[shard]
        return set(self._rests_until_s)

    def _shards(self, slot: int) -> Iterator[int]:
        return self._routing.shards_of_slot(slot, self._slot_amount)

    def _done_with(self, shard: int) -> None:
        self._unread.discard(shard)
        self._read_s[shard] = self._clock.monotonic_s()

    def _load(self, slot: int, shard: int, text: str | None, run_id: str) -> int:
        brought = 0
        for _ in range(PAGES_MAX):
            bound_ms = self._slots.time_ms() + self._horizon_ms  # before the snapshot
            mark = Mark.of(text, run_id)
            if mark is None or mark.due_ms > bound_ms + self._slack_ms:
                mark = Mark(uuid.uuid4().hex[:12], run_id, 0, 0)
                text = str(mark)
                self._slots.begin_mark(self._topic, slot, shard, text)
            rows = self._pages.due_after(
                shard, (mark.due_ms, mark.job_id), bound_ms, self._page_rows
            )
            if not rows:
                self._done_with(shard)
                break
            page = [Entry(row.due_ms, row.job_id) for row in rows if self._of_topic(row.type_no)]
            after = str(mark._replace(due_ms=rows[-1].due_ms, job_id=rows[-1].job_id))
            if not self._slots.load_page(self._topic, slot, shard, text or "", after, page):
                break  # wiped, failed over, or another loader: the next step reads the mark anew
            text, brought = after, brought + len(page)
            if len(rows) < self._page_rows:
                self._done_with(shard)
                break
        return brought


def _parts(wanted: _Wanted, size: int) -> Iterator[_Wanted]:
    shards = iter(wanted.items())
    while part := dict(islice(shards, size)):
        yield part
