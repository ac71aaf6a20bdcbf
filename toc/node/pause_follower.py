"""Follows the pauses in one process: reads the copies, completes them, and updates the gate (ADR 44).

There is a service per database, so that a database that hangs delays only its own copy. A process that reads
no copy for a while keeps the pauses that it knows: paused types stay paused, and pauses end at their time. It
then misses new pauses only if no database answers, and without databases it claims nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from toc.domain.pauses import Phase
from toc.errors import StatementFailed, StoreUnavailable
from toc.node.peak_meter import PeakMeter
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases
from toc.store.pauses import PauseCache, add_peak
from toc.worker.gate import Gate

log = logging.getLogger(__name__)

LEAVING_S = 60.0  # how long a hold topic is popped beyond the time when it should be empty
CHECK_S = 1.0  # time between two looks for pauses that began; they are in memory


class PauseReader(Service):
    """Reads one database's copy every `refresh_s` seconds, and writes the rows that it lacks."""

    def __init__(self, database: Database, cache: PauseCache, gate: Gate, refresh_s: float) -> None:
        super().__init__(f"toc-pauses-{database.index}")
        self._database, self._cache, self._gate = database, cache, gate
        self._refresh_s = refresh_s
        self._denial_was_logged = False

    def run_once(self) -> float:
        """Reads the copy and updates the gate; also if the database does not answer: pauses end by time.

        Raises StoreUnavailable and StatementFailed.
        """
        try:
            self._cache.read_copy(self._database)
        finally:
            self._gate.update_pauses(self._cache.all())
        self._complete_copy()
        return self._refresh_s

    def _complete_copy(self) -> None:
        try:
            self._cache.complete_copy(self._database)
        except StoreUnavailable as error:
            if not error.denied:
                raise
            if not self._denial_was_logged:
                self._denial_was_logged = True
                log.warning(
                    "database %d lacks pauses, and this account may not write them: %s",
                    self._database.index, error,
                )  # fmt: skip


class PeakReporter(Service):
    """Measures how many jobs of each type this process starts, and adds the peak to a pause that begins."""

    def __init__(
        self, databases: Databases, cache: PauseCache, gate: Gate, meter: PeakMeter
    ) -> None:
        super().__init__("toc-peaks")
        self._databases, self._cache, self._gate, self._meter = databases, cache, gate, meter
        self._reported: set[tuple[str, int]] = set()
        self._is_first_step = True

    def run_once(self) -> float:
        """Measures once; reports the peaks of pauses that began since the last step."""
        began = {
            (target, known.row.version)
            for target, known in self._cache.all().items()
            if known.pause.phase_at(self._gate.now_ms()) is Phase.PAUSED
            and known.row.changed_ms == known.pause.from_ms
        }
        # What was paused before this process started, it did not claim.
        new = () if self._is_first_step else began - self._reported
        self._reported, self._is_first_step = began, False
        for target, version in sorted(new):
            self._report_peak(target, version)
        self._meter.measure_if_due()
        return CHECK_S

    def _report_peak(self, target: str, version: int) -> None:
        per_min = round(60 * self._meter.peak_of_target(target))
        if not per_min:
            return
        for database in self._databases:
            with suppress(
                StoreUnavailable, StatementFailed
            ):  # then its copy says less: see the ADR
                add_peak(database, target, version, per_min)


class PauseFollower:
    """The gate of a process, and the services that keep it up to date. `cache`: the pauses that it knows."""

    def __init__(self, settings: Settings, clock: Clock, databases: Databases) -> None:
        self._databases, self._clock = databases, clock
        self.cache = PauseCache(databases)
        timer, refresh_s = settings.timer, settings.pauses.refresh_s
        # No reminder in a hold topic is due later than the horizon and the slack from now.
        leaving_s = timer.horizon_s + timer.slack_s + timer.stay_s + LEAVING_S
        self.gate = Gate(
            settings.home_topic_of,
            clock,
            leaving_ms=round(leaving_s * 1000),
            now_ms=self._now_ms,
            ageing_s=settings.priorities.ageing_s,
        )
        self.gate.add_listener(lambda: settings.held_types.replace_targets(self.gate.held_targets))
        meter = PeakMeter(clock, settings.home_topic_of)
        self.services: Sequence[Service] = [
            *(PauseReader(database, self.cache, self.gate, refresh_s) for database in databases),
            PeakReporter(databases, self.cache, self.gate, meter),
        ]

    def read_now(self) -> None:
        """Reads the copies of all databases that answer, before anything is claimed."""
        for database in self._databases:
            if not database.is_first_check_pending:
                with suppress(StoreUnavailable, StatementFailed):  # the readers try again
                    self.cache.read_copy(database)
        self.gate.update_pauses(self.cache.all())

    def _now_ms(self) -> int:
        """The time of the first database whose clock this process knows."""
        for database in self._databases:
            known = database.server_clock.believed_now_ms()
            if known is not None:
                return known
        return self._clock.wall_ms()
