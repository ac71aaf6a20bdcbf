"""The jobs of a mass change: chosen by bounded reads, then changed by the runs of `toc admin`.

A choice reads about LETTERS_MAX dead letters, or WINDOWS_MAX windows of live rows, at most: each database has
an equal part. It has at most JOBS_MAX jobs. A count is a choice whose jobs are only counted; so a change is
about the jobs that were counted, and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from toc.admin.bulk_changes import BulkChanges
from toc.admin.bulk_request import BulkRequest, BulkVerb
from toc.domain.biz_ids import check_business_id
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.domain.mass_change import JobSelection, MassVerb, error_class_of
from toc.store.bulk_update import BulkUpdate
from toc.store.databases import Database
from toc.store.dead_pages import DeadLetter, read_dead_page
from toc.store.row_conditions import (
    AllOf,
    Column,
    Comparison,
    Condition,
    IsNull,
    bounds_of_condition,
)

JOBS_MAX = 50_000
LETTERS_MAX = 50_000
LETTERS_PAGE = 5000
WINDOWS_MAX = 100  # of bulk_update.WINDOW_ROWS rows each
EXAMPLES = 5


@dataclass(slots=True)
class ChosenJobs:
    """shards: shard -> job_id -> type number. is_complete: False if there may be more than were read."""

    shards: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    count: int = 0
    is_complete: bool = True

    def add(self, shard: int, job_id: int, type_no: int) -> bool:
        """Adds a job; False: there are JOBS_MAX already."""
        jobs = self.shards[shard]
        if job_id in jobs:  # a row that was rescheduled meanwhile may be read twice
            return True
        if self.count >= JOBS_MAX:
            self.is_complete = False
            return False
        jobs[job_id] = type_no
        self.count += 1
        return True

    @property
    def examples(self) -> list[int]:
        return [job_id for jobs in self.shards.values() for job_id in jobs][:EXAMPLES]


@dataclass(frozen=True, slots=True)
class RowsOfSelection:
    """The condition on the row of a job of a selection; it is checked again, under the row's lock, when the
    job is changed.
    """

    verb: MassVerb
    jobs: JobSelection

    @property
    def text(self) -> str:
        return self.jobs.to_json()

    def check_biz_types(self, names: Mapping[int, str]) -> None:
        """A type without jobs has no number, and matches nothing."""

    def make_condition(self, now_ms: int) -> Condition:
        jobs = self.jobs
        parts: list[Condition] = [
            Comparison(Column("biz_type"), "=", jobs.biz_type), _equals("tenant", jobs.tenant),
        ]  # fmt: skip
        if self.verb != "cancel":
            # A job that was redriven since, and has died again, is another death: its row is younger.
            parts.append(Comparison(Column("gmt_modified"), "<=", jobs.as_of_ms))
        else:
            parts.append(Comparison(Column("gmt_create"), "<=", jobs.as_of_ms))
            if jobs.since_ms is not None:
                parts.append(Comparison(Column("due_time"), ">=", jobs.since_ms))
            if jobs.until_ms is not None:
                parts.append(Comparison(Column("due_time"), "<=", jobs.until_ms))
        if jobs.biz_id is not None:
            number, text, _ = check_business_id(jobs.biz_id, jobs.tenant)
            parts += [Comparison(Column("biz_id"), "=", number), _equals("biz_text", text)]
        return AllOf(tuple(parts))


def make_request(
    verb: MassVerb, jobs: JobSelection, actor: str = "", reason: str = "", run: str = ""
) -> BulkRequest:
    """The request of a run that makes a mass change."""
    where = RowsOfSelection(verb, jobs)
    return BulkRequest(BulkVerb(verb), where, actor=actor, reason=reason, run=run)


def choose_mass_jobs(changes: BulkChanges, verb: MassVerb, jobs: JobSelection) -> ChosenJobs:
    """The jobs that a mass change is about. Raises StoreUnavailable and SchemaMismatch."""
    chosen = ChosenJobs()
    for database in changes.databases:
        if verb == "cancel":
            _choose_pending_jobs(changes, database, jobs, chosen)
        else:
            _choose_dead_jobs(changes, database, jobs, chosen)
    return chosen


def _choose_dead_jobs(
    changes: BulkChanges, database: Database, jobs: JobSelection, chosen: ChosenJobs
) -> None:
    routing = changes.databases.routing
    since_ms = jobs.since_ms or 0
    until_ms = jobs.as_of_ms if jobs.until_ms is None else min(jobs.as_of_ms, jobs.until_ms)
    before: DeadLetter | None = None
    for _ in range(max(1, LETTERS_MAX // LETTERS_PAGE // len(changes.databases.all))):
        page = read_dead_page(database, since_ms, until_ms, before, LETTERS_PAGE)
        for letter in page:
            if changes.names.get(letter.type_no) == jobs.biz_type and _is_chosen(letter, jobs):
                shard = routing.shard_of_hash(routing_bits_of(letter.job_id))
                if not chosen.add(shard, letter.job_id, letter.type_no):
                    return
        if len(page) < LETTERS_PAGE:
            return
        before = page[-1]
    chosen.is_complete = False


def _is_chosen(letter: DeadLetter, jobs: JobSelection) -> bool:
    return (
        letter.tenant == jobs.tenant
        and jobs.biz_id in (None, letter.biz_id)
        and jobs.error_class in (None, error_class_of(letter.error))
    )


def _choose_pending_jobs(
    changes: BulkChanges, database: Database, jobs: JobSelection, chosen: ChosenJobs
) -> None:
    where = RowsOfSelection("cancel", jobs).make_condition(0)
    pending = Comparison(Column("status"), "=", int(Status.PENDING))
    update = BulkUpdate(changes.databases, changes.names, where, pending)
    windows = update.split_into_windows(
        database, bounds_of_condition(AllOf((where, pending))), lambda: None
    )
    windows_max = max(len(database.shards), WINDOWS_MAX // len(changes.databases.all))
    for number, window in enumerate(windows):
        if number == windows_max:
            chosen.is_complete = False
            return
        for job_id, type_no in update.find_changeable_jobs(window).items():
            if not chosen.add(window.shard, job_id, type_no):
                return


def _equals(column: str, value: str | None) -> Condition:
    return IsNull(Column(column)) if value is None else Comparison(Column(column), "=", value)
