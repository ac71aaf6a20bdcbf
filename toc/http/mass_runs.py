"""The mass changes that this process makes, each in a thread.

Every second the thread writes how far it is, and reads whether it is to stop. If it cannot write for LOST_S,
it ends: nobody could stop it any more, and other processes soon show it as interrupted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from toc.access.access import Access
from toc.access.audit import AuditEntry
from toc.access.caller import Caller
from toc.access.sessions import is_session
from toc.admin.bulk_changes import open_bulk_changes
from toc.admin.bulk_run import BulkRunProgress, RunInterrupted
from toc.admin.mass_jobs import make_request
from toc.domain.mass_change import MassVerb
from toc.errors import AccessUnavailable, StatementFailed, StoreUnavailable, TocError
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.databases import Database
from toc.store.mass_change_rows import (
    SILENT_MS,
    MassChange,
    end_mass_change,
    note_sign_out,
    write_progress,
)

log = logging.getLogger(__name__)

BEAT_S = 1.0
LOST_S = 10.0
STOP_S_MAX = 10.0

assert LOST_S < SILENT_MS / 1000  # noqa: S101 - a relation of limits

JobsByShard = Mapping[int, Mapping[int, int]]
"""shard -> job_id -> type number."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Who has started a change, for the audit of its end."""

    caller: Caller
    address: str | None
    request_id: str


class MassRuns:
    """Starts the threads, and ends them when the process stops. `database`: the one with the rows."""

    def __init__(
        self, settings: Settings, clock: Clock, database: Database, access: Access
    ) -> None:
        self.settings, self.clock = settings, clock
        self.database, self.access = database, access
        self.is_stopping = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, change: MassChange, chosen: JobsByShard, starter: Starter) -> None:
        """Begins to change the chosen jobs; the change has its row already."""
        run = _MassRun(self, change, starter)
        name = f"toc-mass-{change.mass_change_id}"
        thread = threading.Thread(target=run.change_jobs, args=(chosen,), name=name, daemon=True)
        with self._lock:
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()

    def note_sign_out(self, caller: Caller) -> None:
        """The caller's session is about to end: the changes that it started go on, in any process. Blocks."""
        if not is_session(caller.owner):
            return
        try:
            note_sign_out(self.database, caller.actor)
        except (StoreUnavailable, StatementFailed) as error:
            log.warning("the mass changes of %s stop with the session: %s", caller.actor, error)

    def stop(self) -> None:
        """Ends all threads; jobs that are not changed yet stay as they are. Blocks."""
        self.is_stopping = True
        for thread in self._threads:
            thread.join(STOP_S_MAX)


class _MassRun:
    """One mass change, in its thread."""

    def __init__(self, runs: MassRuns, change: MassChange, starter: Starter) -> None:
        self._runs, self._change, self._starter = runs, change, starter
        self._progress = BulkRunProgress()
        self._written_s = self._tried_s = runs.clock.monotonic_s()
        self._has_signed_out = False  # as the row said last
        # How it ends: the state and the cause of the row.
        self._end: tuple[str, str | None] = ("done", None)

    def change_jobs(self, chosen: JobsByShard) -> None:
        """Changes the jobs until all are changed or the change must stop; records the end."""
        change, runs = self._change, self._runs
        verb = cast(MassVerb, change.verb)
        words = change.actor, change.reason, change.mass_change_id
        try:
            with open_bulk_changes(runs.settings, runs.clock, self._must_stop) as changes:
                self._write_progress()  # the servers may have needed long to be connected
                changes.change_jobs(
                    make_request(verb, change.jobs, *words), chosen, change.rate_per_s,
                    self._progress, lambda _jobs: None,
                )  # fmt: skip
        except RunInterrupted:
            log.info("mass change %s: %s", change.mass_change_id, self._end[0])
        except TocError as error:
            log.warning("mass change %s is interrupted: %s", change.mass_change_id, error)
            self._end = "interrupted", error.code
        except Exception:
            log.exception("mass change %s is interrupted", change.mass_change_id)
            self._end = "interrupted", "internal"
        self._record_end()

    # ---- while it runs

    def _must_stop(self) -> bool:
        """Whether to stop before the next page. Called several times a second."""
        runs, now_s = self._runs, self._runs.clock.monotonic_s()
        if self._end[0] != "done":
            return True
        if runs.is_stopping:
            self._end = "interrupted", "server_stopped"
        elif now_s - self._written_s > LOST_S:  # no answer, or this process stood still
            self._end = "interrupted", "silent"
        elif now_s - self._tried_s >= BEAT_S:
            self._tried_s = now_s
            # Asked before the row is read: who signs out is noted there before the session ends.
            holds = self._is_token_valid()
            self._write_progress()
            if self._end[0] == "done" and not (holds or self._has_signed_out):
                self._end = "stopped", "token_revoked"
        return self._end[0] != "done"

    def _is_token_valid(self) -> bool:
        """Whether the token or session that started the change still holds."""
        caller = self._starter.caller
        return caller.token_id is None or self._runs.access.authenticator.is_still_valid(caller)

    def _write_progress(self) -> None:
        change_id = self._change.mass_change_id
        try:
            beat = write_progress(self._runs.database, change_id, *self._count_jobs())
        except (StoreUnavailable, StatementFailed) as error:
            log.warning("the progress of mass change %s is not written: %s", change_id, error)
            return
        self._written_s = self._runs.clock.monotonic_s()
        self._has_signed_out = beat.has_signed_out
        if beat.stop_actor is not None:
            self._end = "stopped", None
        elif not beat.is_running:
            self._end = "interrupted", "silent"

    def _count_jobs(self) -> tuple[int, int]:
        """How many jobs were changed, and how many were left alone."""
        parts = list(self._progress.databases.values())
        left_alone = sum(part.superseded + part.meanwhile + part.before for part in parts)
        return self._progress.changed_jobs, left_alone

    # ---- its end

    def _record_end(self) -> None:
        change_id, starter = self._change.mass_change_id, self._starter
        changed, left_alone = self._count_jobs()
        entry = AuditEntry(
            starter.caller, starter.address, "mass_changes.end",
            f"{change_id}: {changed} changed, {left_alone} left alone, of {self._change.chosen}",
            changed, self._end[0], starter.request_id,
        )  # fmt: skip
        try:
            self._runs.access.audit.record(entry)
        except AccessUnavailable as error:
            log.warning("the end of mass change %s is not in the audit: %s", change_id, error)
        try:
            end_mass_change(self._runs.database, change_id, *self._end, changed, left_alone)
        except TocError as error:
            log.warning("the end of mass change %s is not written: %s", change_id, error)
