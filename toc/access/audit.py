"""The audit of calls: a bounded queue, written in batches by a thread of its own.

A call that changes something takes a place in the queue *before* it does anything (`reserve`), and fills
the place with its entry when it has ended. So no call takes effect whose entry has no room. While no
database accepts entries, the queue fills, and then such calls are refused. A process that is killed
loses the entries of the last moment (at most `BATCH_WAIT_S` while a database answers); the events of
changed jobs (`toc_event`) are written in the transaction of the change, and have the token as their
actor.

Refused calls do not take places: anybody can send them. Each token or address has its own number of
entries in a minute; the calls beyond that are counted, and become one entry with their number.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toc.access.caller import Caller
from toc.access.refusals import RefusalBudget
from toc.domain.secret_masking import mask_tokens
from toc.domain.text_escaping import escape_to_one_line
from toc.errors import AccessUnavailable, TocError
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.web_settings import WebLimitSettings
from toc.store.audit_rows import TARGET_CHARS_MAX, AuditRow, insert_into_any_database
from toc.store.databases import Databases

log = logging.getLogger(__name__)

BATCH_MAX = 500
BATCH_WAIT_S = 0.2
REQUEST_ID_CHARS_MAX = 64
WORD_CHARS_MAX = 32
TEXT_CHARS_MAX = 4096  # of a text are looked at
ADDRESS_CHARS_MAX = 45
STOP_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What one call did. Texts are cut and escaped here; give what the caller sent, and no secret.

    caller: who called, as toc found out; None: nobody that toc knows. address: the address that the call
    came from. action: the verb, as "jobs.cancel". target: the id, or the condition of a bulk change.
    rows_changed: how many jobs the call changed; None: it cannot change any. outcome: the verb's word,
    or the code of an error.
    """

    caller: Caller | None
    address: str | None
    action: str
    target: str | None
    rows_changed: int | None
    outcome: str
    request_id: str | None
    calls: int = 1


class AuditPlace:
    """A place in the queue that a call has taken: `record` fills it."""

    __slots__ = ("_audit", "filled")

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.filled = False

    def record(self, entry: AuditEntry) -> None:
        """Queues the entry. Never blocks, never fails."""
        if not self.filled:
            self.filled = True
            self._audit._fill_place(entry)  # noqa: SLF001 - the place is a part of the audit

    def release(self) -> None:
        """Gives the place back without an entry: the call was never tried."""
        if not self.filled:
            self.filled = True
            self._audit._give_place_back()  # noqa: SLF001


class Audit(Service):
    """The audit of this process. Thread-safe; `stop` writes what is queued."""

    def __init__(self, databases: Databases, clock: Clock, limits: WebLimitSettings) -> None:
        super().__init__("toc-audit")
        self._databases, self._clock = databases, clock
        self._places_max, self._wait_s = limits.audit_queue, limits.audit_wait_s
        self._room = threading.Condition()
        self._one_writer = threading.Lock()
        self._queue: deque[AuditRow] = deque()
        self._reserved = 0
        self._last_database = 0
        self._refusals = RefusalBudget(clock, limits.refusals_per_min)

    # ---- calls that change something

    def try_reserve(self) -> AuditPlace | None:
        """Takes a place in the queue; None: it is full. Never blocks."""
        return self._take_place(self._places_max)

    def reserve(self, wait_s: float | None = None) -> AuditPlace:
        """Takes a place, and waits up to `wait_s` (default: web.limits.audit_wait_s) for one.

        Raises AccessUnavailable: the call must be refused.
        """
        timeout_s = self._wait_s if wait_s is None else wait_s
        with self._room:
            if not self._room.wait_for(lambda: self._has_room(self._places_max), timeout_s):
                raise AccessUnavailable(
                    f"{self._places_max} calls wait to be audited (web.limits.audit_queue), and no database "
                    "writes them: no further call is accepted"
                )
            self._reserved += 1
        return AuditPlace(self)

    def _take_place(self, places_max: int) -> AuditPlace | None:
        with self._room:
            if not self._has_room(places_max):
                return None
            self._reserved += 1
        return AuditPlace(self)

    def _has_room(self, places_max: int) -> bool:
        return len(self._queue) + self._reserved < places_max

    @contextmanager
    def place(self, wait_s: float | None = None) -> Iterator[AuditPlace]:
        """A place for the calls within the block; given back if the block records nothing."""
        place = self.reserve(wait_s)
        try:
            yield place
        finally:
            place.release()

    def record(self, entry: AuditEntry) -> None:
        """Takes a place and fills it. Raises AccessUnavailable."""
        self.reserve().record(entry)

    def _fill_place(self, entry: AuditEntry) -> None:
        row = self._row_of(entry)
        with self._room:
            self._reserved -= 1
            self._queue.append(row)
            has_batch = len(self._queue) >= BATCH_MAX
        if has_batch:
            self.wake()

    def _give_place_back(self) -> None:
        with self._room:
            self._reserved -= 1
            self._room.notify()

    # ---- refused calls

    def record_refused(self, entry: AuditEntry) -> None:
        """Records a refused call, or only counts it. Never blocks, never fails."""
        caller = entry.caller
        key = f"token {caller.limit_key}" if caller is not None else f"address {entry.address}"
        if self._refusals.admits(key, self._row_of(entry)):
            # Half of the queue is for calls that change something: no stranger can fill it with refused ones.
            place = self._take_place(self._places_max // 2)
            if place is None:
                self._refusals.count_only(key, self._row_of(entry))
            else:
                place.record(entry)

    # ---- writing

    def run_once(self) -> float:
        """Writes the next batch. Raises StoreUnavailable when no database accepts it."""
        with self._one_writer:
            return self._write_batch()

    def _write_batch(self) -> float:
        self._queue_summaries()
        metrics.AUDIT_WAITING.set(len(self._queue))
        batch = self._next_batch()
        if not batch:
            return BATCH_WAIT_S
        self._last_database = insert_into_any_database(self._databases, batch, self._last_database)
        with self._room:
            for _ in batch:
                self._queue.popleft()  # only the one writer removes
            self._room.notify_all()
            more = len(self._queue)
        metrics.AUDIT_WRITTEN.inc(len(batch))
        return 0.0 if more >= BATCH_MAX else BATCH_WAIT_S

    def stop(self, timeout_s: float = STOP_S_MAX) -> bool:
        """Ends the thread, then writes what is queued, within the time; says what was lost."""
        ended = super().stop(timeout_s)
        why = "its thread still waits for a database"
        try:
            self._queue_summaries(now=True)
            while ended and self._queue:
                self.run_once()
        except TocError as error:
            why = str(error)
        if self._queue:
            log.error("%d entries of the audit are lost: %s", len(self._queue), why)
        return ended

    @property
    def waiting(self) -> int:
        """How many entries wait to be written."""
        return len(self._queue)

    def _next_batch(self) -> list[AuditRow]:
        with self._room:
            return [row for row, _ in zip(self._queue, range(BATCH_MAX), strict=False)]

    def _queue_summaries(self, *, now: bool = False) -> None:
        if len(self._queue) >= self._places_max // 2 and not now:
            return  # they go on counting
        for row in self._refusals.take_summaries(now=now):
            with self._room:
                self._queue.append(row)

    def _row_of(self, entry: AuditEntry) -> AuditRow:
        caller = entry.caller
        return AuditRow(
            self._clock.wall_ms(),
            None if caller is None else caller.token_id,
            None if caller is None else caller.owner,
            _ascii(entry.address, ADDRESS_CHARS_MAX),
            _ascii(entry.action, WORD_CHARS_MAX) or "-",
            _cut(entry.target, TARGET_CHARS_MAX),
            entry.calls,
            entry.rows_changed,
            _ascii(entry.outcome, WORD_CHARS_MAX) or "-",
            _ascii(entry.request_id, REQUEST_ID_CHARS_MAX),
        )


def _cut(text: str | None, chars_max: int) -> str | None:
    """A text as one line of valid characters, cut."""
    if text is None:
        return None
    # Before the cut, which could leave a part of a secret.
    plain = mask_tokens(text[:TEXT_CHARS_MAX])
    return escape_to_one_line(plain[:chars_max].encode(errors="replace").decode())[:chars_max]


def _ascii(text: str | None, chars_max: int) -> str | None:
    """As `_cut`, in ASCII."""
    if text is None:
        return None
    return _cut(text[:TEXT_CHARS_MAX].encode("ascii", "backslashreplace").decode(), chars_max)
