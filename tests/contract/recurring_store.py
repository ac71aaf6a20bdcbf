"""Recurring schedules on the store of one engine, without threads: a test is worker, keeper and clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.contract.library import ACTOR, Library
from toc.domain.job import Job, Status
from toc.domain.occurrence_keys import nominal_ms_of_key
from toc.domain.recurrence import Recurrence
from toc.domain.recurring import RecurringSchedule
from toc.store import recurring_rows
from toc.store.claims import Outcome, OutcomeKind
from toc.store.recurring_chains import MadeOccurrence, RecurringChains
from toc.store.recurring_changes import ChangedSchedule, RecurringChanges
from toc.store.recurring_rows import RecurringRow

NAME = "nightly"
HOUR_MS = 3_600_000


class RecurringStore:
    """A library with one schedule. Times are relative to the start of the clock, 2026-01-01 00:00 UTC."""

    def __init__(
        self, library: Library, codec_of: Callable[[str], str | None] = lambda name: None
    ) -> None:
        self.library, self.start_ms = library, library.now_ms
        self.chains = RecurringChains(library.databases, library.jobs, codec_of)
        self.changes = RecurringChanges(
            library.databases, library.database_metadata, self.chains,
            biz_types_max=100, schedules_max=3, tenant_schedules_max=2, backfill_max=500, occurrence_days=31,
        )  # fmt: skip
        self.database = self.changes._database_of(NAME, None)
        self._tokens = 0

    def schedule(self, *, cron: str | None = None, every_s: int | None = None, **more: Any) -> Any:
        cron = "0 * * * *" if cron is None and every_s is None else cron
        rule = Recurrence(cron=cron, every_s=every_s, **more.pop("rule", {}))
        return RecurringSchedule(more.pop("name", NAME), "report", rule, **more)

    def declare(self, **terms: Any) -> ChangedSchedule:
        return self.changes.declare(self.schedule(**terms), ACTOR)

    @property
    def row(self) -> RecurringRow:
        return self.changes.read(NAME)

    @property
    def job_id(self) -> int:
        job_id = self.row.job_id
        assert job_id is not None
        return job_id

    def job(self, job_id: int | None = None) -> Job:
        found = self.library.jobs.get(self.job_id if job_id is None else job_id)
        assert found is not None
        return found

    @property
    def nominal_h(self) -> float:
        """The nominal time of the newest occurrence, in hours after the start."""
        return self.hours(nominal_ms_of_key(self.job().dedup_key))

    def hours(self, ms: int | None) -> float:
        assert ms is not None
        return (ms - self.start_ms) / HOUR_MS

    def advance(self, hours: float) -> None:
        self.library.clock.advance(timedelta(hours=hours))

    def claim(self) -> tuple[Job, str]:
        """Claims the newest occurrence, which must be due."""
        self._tokens += 1
        token, job_id = f"worker:{self._tokens}", self.job_id
        assert self.library.claim([job_id], token)[job_id].token == token
        return self.job(job_id), token

    def end(
        self, claimed: tuple[Job, str], kind: OutcomeKind = OutcomeKind.DONE
    ) -> MadeOccurrence | None:
        """Settles a claimed occurrence as a worker does; the occurrence that this made."""
        job, token = claimed
        outcome = Outcome(job.job_id, token, kind, error="it failed")
        return self.chains.settle_occurrence(
            self.library.claims, self.database, job, outcome, self.library.now_ms
        ).made

    def run(self, hours: float = 0.0) -> None:
        """Runs the newest occurrence, for so many hours."""
        claimed = self.claim()
        self.advance(hours)
        self.end(claimed)

    def keep(self) -> MadeOccurrence | None:
        return self.chains.keep_chain(self.database, self.row, self.library.now_ms)

    def all_jobs(self) -> list[Job]:
        """All jobs of the schedule, oldest first."""
        business = self.schedule().business
        found = self.library.jobs.find(self.library.shard(self.job_id), business, None, 1000)
        return sorted(found, key=lambda job: job.job_id)

    def statuses(self) -> list[tuple[float, Status]]:
        """The nominal hour and the status of each job, by nominal time."""
        return sorted(
            (self.hours(nominal_ms_of_key(job.dedup_key)), job.status) for job in self.all_jobs()
        )

    def occurrences(self) -> list[float]:
        """The nominal hours that have a job, as `toc_occurrence` says."""
        database = self.database
        with database.engine.begin() as connection:
            row = RecurringRow(None, NAME, *[0] * 9, "", None)  # type: ignore[arg-type]
            hours = range(-100, 2000)
            times = [self.start_ms + hour * HOUR_MS for hour in hours]
            made = recurring_rows.select_made_times(database, connection, row, times)
        return sorted(map(self.hours, made))
