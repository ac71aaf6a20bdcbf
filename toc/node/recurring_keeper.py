"""The keeper of recurring schedules: goes on with chains that stand still, and declares the schedules of
code.

Most occurrences are made by the settle of the one before (ADR 46). The keeper finds the chains that need
more: a person cancelled the occurrence, its lease was lost for good, no node could begin it within the
catch-up, or it lives when "cancel-other" wants the next one. Each node has a keeper for each database. All
of them may work at once: the lock of the schedule's row decides; but nodes that do not lead check less
often.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from toc.domain.recurring import RecurringSchedule
from toc.errors import InvalidInput, SettingsError, StoreUnavailable, TocError, is_away
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.store import recurring_rows
from toc.store.databases import Database
from toc.store.recurring_chains import MadeOccurrence
from toc.store.recurring_changes import RecurringChanges
from toc.store.recurring_rows import RecurringRow

log = logging.getLogger(__name__)

OTHERS_FACTOR = 6  # nodes that do not lead check so many times less often
# An occurrence that is not due yet ends only if a person ends it: such chains are checked less often.
WAITING_CHECK_S = 60.0
FORGET_CHECK_S, FORGET_PAGE = (
    600.0,
    1000,
)  # old records of made times: how often, and how many at once
DECLARE_AGAIN_S = 5.0
DECLARE_S_MAX = 60.0  # of one step: each schedule may wait half a minute for a locked table
DAY_MS = 86_400_000


class RecurringKeeper(Service):
    """Keeps the chains of one database. `schedules`: of this process' code and toc.toml, declared once.

    check_s: time between two checks. arm: gets each occurrence that was made, and the time now in ms.
    is_leader: whether this node checks as often as `check_s`.
    """

    def __init__(
        self,
        database: Database,
        changes: RecurringChanges,
        schedules: Iterable[RecurringSchedule],
        clock: Clock,
        actor: str,
        *,
        check_s: float,
        schedules_max: int,
        occurrence_days: float,
        arm: Callable[[MadeOccurrence, int], None],
        is_leader: Callable[[], bool],
    ) -> None:
        super().__init__(f"toc-recurring-{database.index}")
        self._database, self._changes, self._clock, self._actor = database, changes, clock, actor
        self._check_s, self._schedules_max = check_s, schedules_max
        self._occurrence_ms = round(occurrence_days * DAY_MS)
        self._arm, self._is_leader = arm, is_leader
        self._undeclared = [each for each in schedules if changes.home_of(each) is database]
        self._declare_s = self._forget_s = float("-inf")
        self._check_waiting_s: dict[tuple[str | None, str], float] = {}

    def run_once(self) -> float:
        """Checks all chains of the database once. Raises StoreUnavailable."""
        now_s, now_ms = self._clock.monotonic_s(), self._now_ms()
        self._declare_schedules(now_s, now_ms)
        rows = recurring_rows.select_rows(self._database, limit=self._schedules_max)
        keys = {(row.tenant, row.name) for row in rows}
        for gone in self._check_waiting_s.keys() - keys:
            del self._check_waiting_s[gone]
        next_s = [self._check_s * (1 if self._is_leader() else OTHERS_FACTOR)]
        for row in rows:
            if self.stopping:
                break
            if row.paused_ms is None and self._is_due(row, now_s, now_ms):
                self._keep(row, now_ms)
            next_s.append(self._seconds_to_replacement(row, now_ms))
        self._forget_old_occurrences(now_s, now_ms)
        return max(0.05, min(next_s))

    def _is_due(self, row: RecurringRow, now_s: float, now_ms: int) -> bool:
        if row.nominal_ms is None or row.nominal_ms <= now_ms:
            return True
        key = row.tenant, row.name
        if now_s < self._check_waiting_s.get(key, float("-inf")):
            return False
        self._check_waiting_s[key] = now_s + WAITING_CHECK_S
        return True

    def _keep(self, row: RecurringRow, now_ms: int) -> None:
        try:
            made = self._changes.chains.keep_chain(self._database, row, now_ms)
        except InvalidInput as error:
            text = "recurring schedule %r: this release cannot make its next occurrence: %s"
            self._log_throttle.warning(("read", row.name), text, row.name, error)
            return
        except TocError as error:
            if is_away(error):
                raise
            text = "recurring schedule %r: its next occurrence could not be made: %s"
            self._log_throttle.warning(("keep", row.name), text, row.name, error)
            return
        if made is not None:
            self._arm(made, now_ms)

    def _seconds_to_replacement(self, row: RecurringRow, now_ms: int) -> float:
        """The seconds until "cancel-other" may have to end the occurrence of a schedule; else infinite."""
        if row.paused_ms is not None or '"cancel-other"' not in row.definition:
            return float("inf")
        try:
            next_ms = row.schedule.recurrence.next_ms(row.cursor_ms)
        except InvalidInput:
            return float("inf")
        return float("inf") if next_ms is None else max(0.0, (next_ms - now_ms) / 1000)

    def _declare_schedules(self, now_s: float, now_ms: int) -> None:
        """Declares the schedules of this process' code and settings, until each was declared once.

        Only once: while a release is deployed, nodes with other definitions must not overwrite each other
        all the time. The node that started last wins. After DECLARE_S_MAX the others wait for the next step,
        which begins with them.
        """
        if not self._undeclared or now_s < self._declare_s:
            return
        self._declare_s = now_s + DECLARE_AGAIN_S
        left: list[RecurringSchedule] = []
        for number, schedule in enumerate(self._undeclared):
            if number and self._clock.monotonic_s() - now_s > DECLARE_S_MAX:
                left = [*self._undeclared[number:], *left]
                break
            try:
                done = self._changes.declare(
                    schedule, self._actor, "declared by a node that started"
                )
            except (SettingsError, StoreUnavailable) as error:  # the keys of its codec may come
                left.append(schedule)
                text = "recurring schedule %r cannot be declared, and is tried again: %s"
                self._log_throttle.warning(("declare", schedule.name), text, schedule.name, error)
            except TocError as error:
                log.error("recurring schedule %r is refused: %s", schedule.name, error)  # noqa: TRY400
            else:
                if done.written:
                    log.info("recurring schedule %r is declared", schedule.name)
                if done.made is not None:
                    self._arm(done.made, now_ms)
        self._undeclared = left

    def _forget_old_occurrences(self, now_s: float, now_ms: int) -> None:
        if now_s < self._forget_s or not self._is_leader():
            return
        before_ms = now_ms - self._occurrence_ms
        found = recurring_rows.delete_old_occurrences(self._database, before_ms, FORGET_PAGE)
        self._forget_s = now_s + (self._check_s if found == FORGET_PAGE else FORGET_CHECK_S)

    def _now_ms(self) -> int:
        known = self._database.server_clock.believed_now_ms()
        return self._database.now_ms() if known is None else known
