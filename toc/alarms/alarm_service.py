"""Looks for dead, failing and late jobs, on one node of all, and sends alarms.

A look reads the events that the databases had at the look before: an event whose transaction commits later
than one with a higher id is not passed over. What was read is recorded
at the end of the look. So a node that dies may cost the alarms that waited in it, and the next node may
repeat one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from toc.alarms.alarm import Alarm
from toc.alarms.chat_sender import ChatFailedError, ChatSender
from toc.alarms.pending_alarms import PendingAlarms
from toc.domain.secret_masking import mask_secrets
from toc.domain.text_escaping import escape_to_one_line
from toc.errors import NotFound, StatementFailed, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.store.alarm_reads import (
    FailureEvent,
    hold_alarms,
    next_event_id,
    read_failures,
    read_late_rows,
    read_mark,
    write_mark,
)
from toc.store.biz_types import BizTypeCache
from toc.store.databases import Database, Databases
from toc.store.event_reader import EventReader

log = logging.getLogger(__name__)

LEASE_TICKS = 3
LEASE_MS_MIN = 30_000
PausedTypes = Callable[[], Collection[str]]


class AlarmService(Service):
    """The alarms of one node. `holder`: the unique name of this process.

    paused_types: types of which there are no alarms now.
    """

    def __init__(
        self,
        settings: Settings,
        databases: Databases,
        types: BizTypeCache,
        clock: Clock,
        holder: str,
        chat: ChatSender,
        paused_types: PausedTypes = tuple,
    ) -> None:
        super().__init__("toc-alarms")
        self._alarms, self._namespace = settings.alarms, settings.namespace
        self._routing, self._databases, self._types = settings.routing, databases, types
        self._clock, self._holder, self._chat = clock, holder, chat
        self._paused_types = paused_types
        self._pending = PendingAlarms(settings.alarms)
        # By database: up to which event the next look reads. Empty: this node did not look before.
        self._ends: dict[int, int] = {}

    def run_once(self) -> float:
        """One look, and one message at most. Raises StoreUnavailable if database 0 does not answer."""
        tick_s = self._alarms.tick_s
        lease_ms = max(LEASE_MS_MIN, round(tick_s * 1000) * LEASE_TICKS)
        if not hold_alarms(self._databases[0], self._holder, lease_ms):
            self._ends.clear()
            self._pending = PendingAlarms(self._alarms)
            return tick_s
        paused = set(self._paused_types())
        late: dict[str, str] = {}
        read: list[tuple[Database, int]] = []
        for database in self._databases:
            try:
                read += self._read_events(database, paused)
                self._find_late(database, paused, late)
            except (StoreUnavailable, StatementFailed) as error:
                text = "alarms: database %d is left out: %s"
                self._log_throttle.warning(database.index, text, database.index, error)
        self._pending.set_late(late)
        self._pending.drop_types(paused)
        sent = self._send_next()
        for database, event_id in read:
            write_mark(database, event_id)
        metrics.ALARMS_WAITING.set(self._pending.waiting_count)
        return 0 if sent and not self.stopping else tick_s

    # ---- looking

    def _read_events(
        self, database: Database, paused: Collection[str]
    ) -> Iterator[tuple[Database, int]]:
        """Notes the failures since the last look. Yields the mark to be recorded."""
        end = self._ends.get(database.index)
        self._ends[database.index] = newest = next_event_id(database)
        first = read_mark(database)
        if first is None:  # what was before the first look is no news
            yield database, newest
        elif end is not None and end > first:
            self._note_failures(database, read_failures(database, first, end), paused)
            yield database, end

    def _note_failures(
        self, database: Database, events: list[FailureEvent], paused: Collection[str]
    ) -> None:
        numbers = EventReader(database).read_type_numbers(
            self._routing, {event.job_id for event in events}
        )
        counts: Counter[tuple[str, bool]] = Counter()
        details: dict[tuple[str, bool], str] = {}
        for event in events:
            number = numbers.get(event.job_id)
            name = None if number is None else self._name_of(number, database)
            if name is None or name in paused:
                continue
            kinds = (False, True) if event.is_dead else (False,)  # a death is a failure too
            for is_dead in kinds:
                counts[name, is_dead] += 1
                details[name, is_dead] = _describe(event)
        now_ms = self._clock.wall_ms()
        for (name, is_dead), count in counts.items():
            detail = details[name, is_dead]
            if not is_dead:
                self._pending.note_failures(name, count, detail, now_ms)
            elif self._alarms.dead:
                self._pending.note_dead(name, count, detail)

    def _find_late(self, database: Database, paused: Collection[str], late: dict[str, str]) -> None:
        if not isinstance(self._alarms.late_s, (int, float)):
            return
        known: Mapping[int, str] = self._types.known.names
        numbers = [number for number, name in known.items() if name in paused]
        now_ms = database.now_ms()
        late_ms = round(self._alarms.late_s * 1000)
        for row in read_late_rows(self._databases, database, late_ms, numbers):
            name = self._name_of(row.type_no, database)
            if name is not None and name not in late and name not in paused:
                seconds = (now_ms - row.due_ms) // 1000
                late[name] = f"job {row.job_id} is due for {seconds} s"

    def _name_of(self, number: int, database: Database) -> str | None:
        try:
            return self._types.find_name(number, database)
        except NotFound:
            return None

    # ---- sending

    def _send_next(self) -> bool:
        now_ms = self._clock.wall_ms()
        alarm: Alarm | None = self._pending.take_next(now_ms)
        if alarm is None:
            return False
        try:
            self._chat.send(alarm.as_text(self._namespace), now_ms)
        except ChatFailedError as error:
            metrics.ALARMS.labels(alarm.key.kind.value, "failed").inc()
            self._log_throttle.warning("chat", "the chat took no alarm, which waits: %s", error)
            return False
        self._pending.note_sent(alarm, now_ms)
        metrics.ALARMS.labels(alarm.key.kind.value, "sent").inc()
        return True


def _describe(event: FailureEvent) -> str:
    error = escape_to_one_line(mask_secrets(event.error))
    return f"job {event.job_id}: {error}" if error else f"job {event.job_id}"
