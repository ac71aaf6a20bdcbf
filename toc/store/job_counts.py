"""Counts jobs by groups, for the tables that analysts read: one GROUP BY over a range of job ids at a time.

There are three measures. All have the same columns, `JobCount`, so that the counts of many ranges, shards and
measures can be added up in one place. Where a job is archived already, `toc.reconcile.tables.archive_counts`
counts the same groups from the archive; a test compares both. The statements lock no row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, text

from toc.domain.job import Status
from toc.store.archive_status import EndedJobWindow
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Databases
from toc.store.driver_errors import explain_missing_table
from toc.store.ended_jobs import (
    DAY_MS,
    ENDED_STATUSES,
    HOUR_MS,
    IdRange,
)
from toc.store.schema import JOB, job_table_name
from toc.store.sql_expressions import SqlExpressions, expressions_of

BOUNDS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000,
    100_000, 200_000, 500_000, 1_000_000, 2_000_000, 3_600_000,
)  # fmt: skip
"""The inclusive upper bounds of the buckets of lateness. The last bucket has no bound."""

AGE_BOUNDS_MS = (
    60_000, 600_000, HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS,
)  # fmt: skip
"""The inclusive upper bounds of the buckets of the time from creation to end. The last one has no bound."""

LATENESS, ENDED, CREATED = 1, 2, 3
"""The measures."""

IDS_AT_ONCE = 500


class JobCount(NamedTuple):
    """How many jobs have the same measure, day, hour, type_no, status, node and bucket.

    Days and hours are counted since 1970, UTC.

    LATENESS: day: of the end of the jobs. hour: of their action_time. node: of the last claim. bucket: how
    many of BOUNDS_MS the lateness exceeds; None: not measured, because the jobs were tried more than once, or
    never. ms, ms_max: the lateness, as sum and maximum; 0 where it was not measured.
    ENDED: day and hour of the end of the jobs. node, bucket: None. ms, ms_max: 0.
    CREATED: day and hour of the creation of the jobs, of any status. node: None. bucket: how many of
    AGE_BOUNDS_MS the time from creation to end exceeds; None: the jobs are live. ms, ms_max: that time.

    retried: jobs with more than one attempt. attempts: the sum of attempts.
    """

    measure: int
    day: int
    hour: int
    type_no: int
    status: int
    node: str | None
    bucket: int | None
    jobs: int
    retried: int
    attempts: int
    ms: int
    ms_max: int


class DayCount(NamedTuple):
    """How many jobs ended, or were created, on a day since 1970."""

    day: int
    jobs: int


@dataclass(frozen=True, slots=True)
class JobCounter:
    """Counts jobs of a shard. Raises StoreUnavailable, and SchemaMismatch for a missing table."""

    databases: Databases

    def count_lateness(self, shard: int, ids: IdRange, window: EndedJobWindow) -> list[JobCount]:
        """Counts the jobs that ended within the window, for LATENESS."""
        return self._count(shard, _lateness_sql, ids, window)

    def count_ended(self, shard: int, ids: IdRange, window: EndedJobWindow) -> list[JobCount]:
        """Counts the jobs that ended within the window, for ENDED."""
        return self._count(shard, _ended_sql, ids, window)

    def count_created(
        self, shard: int, ids: IdRange, window: EndedJobWindow, archived_ms: int = 0
    ) -> list[JobCount]:
        """Counts the jobs that were created within the window, for CREATED.

        Leaves out jobs that ended before `archived_ms`: the archive has them.
        """
        return self._count(shard, _created_sql, ids, window, archived_ms)

    def count_ended_per_day(
        self, shard: int, ids: IdRange, window: EndedJobWindow
    ) -> list[DayCount]:
        """Counts the jobs that ended within the window, by day: to check tables."""
        rows = self._select(shard, _ended_days_sql, ids, window, 0)
        return [DayCount(*map(int, row)) for row in rows]

    def count_created_per_day(
        self, shard: int, ids: IdRange, window: EndedJobWindow, archived_ms: int = 0
    ) -> list[DayCount]:
        """Counts the jobs that `count_created` counts, by day: to check tables."""
        rows = self._select(shard, _created_days_sql, ids, window, archived_ms)
        return [DayCount(*map(int, row)) for row in rows]

    def count_due(self, shard: int, since_ms: int, until_ms: int, span_ms: int) -> dict[int, int]:
        """Counts live jobs by due_time, in spans of `span_ms`: {ms since 1970: jobs}. Reads only an index."""
        rows = self._select(
            shard,
            lambda of: _due_sql(of, span_ms),
            IdRange(0, 0),
            EndedJobWindow(since_ms, until_ms),
            0,
        )
        return {int(place) * span_ms: int(jobs) for place, jobs in rows}

    def find_unarchived(self, shard: int, job_ids: Sequence[int], archived_ms: int) -> set[int]:
        """The ids of those jobs that are in the shard and have not ended before `archived_ms`."""
        query = select(JOB.c.job_id).where(
            JOB.c.job_id.in_(bindparam("ids", expanding=True)),
            ~(JOB.c.status.in_(ENDED_STATUSES) & (JOB.c.gmt_modified < archived_ms)),
        )
        found: set[int] = set()
        for place in range(0, len(job_ids), IDS_AT_ONCE):
            some = job_ids[place : place + IDS_AT_ONCE]
            with self._explain_missing_table(shard):
                rows = self.databases.select(query.params(ids=list(some)), shard)
            found.update(row[0] for row in rows)
        return found

    def _count(
        self,
        shard: int,
        sql: Callable[[SqlExpressions], str],
        ids: IdRange,
        window: EndedJobWindow,
        archived_ms: int = 0,
    ) -> list[JobCount]:
        return [
            JobCount._make(
                value if value is None or isinstance(value, str) else int(value) for value in row
            )
            for row in self._select(shard, sql, ids, window, archived_ms)
        ]

    def _select(
        self,
        shard: int,
        sql: Callable[[SqlExpressions], str],
        ids: IdRange,
        window: EndedJobWindow,
        archived_ms: int,
    ) -> Sequence[Any]:
        database = self.databases.database_of_shard(shard)
        statement = text(sql(expressions_of(database)).format(job=database.job_table_name(shard)))
        values = {
            "first": ids.first,
            "end": ids.end,
            "since": sql_time_of_ms(window.since_ms),
            "until": sql_time_of_ms(window.until_ms),
            "archived": sql_time_of_ms(archived_ms),
        }
        with self._explain_missing_table(shard):
            return database.run_read(lambda connection: connection.execute(statement, values).all())

    def _explain_missing_table(self, shard: int) -> Any:
        return explain_missing_table(
            self.databases.routing.database_index(shard), job_table_name(shard)
        )


# ---- SQL as text, as in ended_jobs


_STATUSES = ", ".join(map(str, ENDED_STATUSES))
_RANGE = "FROM {job} AS j WHERE j.job_id >= :first AND j.job_id < :end"
_ENDED = f"{_RANGE} AND j.status IN ({_STATUSES}) AND j.gmt_modified >= :since AND j.gmt_modified < :until"
_CREATED = (
    f"{_RANGE} AND j.gmt_create >= :since AND j.gmt_create < :until "
    f"AND NOT (j.status IN ({_STATUSES}) AND j.gmt_modified < :archived)"
)
_DUE = "FROM {job} AS j WHERE j.due_time >= :since AND j.due_time < :until"
_TRIES = "COUNT(*), COALESCE(SUM(j.attempts > 1), 0), COALESCE(SUM(j.attempts), 0)"


def _unit(of: SqlExpressions, column: str, unit_ms: int) -> str:
    return of.whole.format(of.ms.format(f"j.{column}"), unit_ms)


def _sum_and_max(condition: str, value: str) -> str:
    measured = f"CASE WHEN {condition} THEN {value} END"
    return f"COALESCE(SUM({measured}), 0), COALESCE(MAX({measured}), 0)"


def _lateness_sql(of: SqlExpressions) -> str:
    late_ms = of.late_ms.format("j.action_time", "j.claim_time")
    measured = f"j.status = {Status.DONE} AND j.attempts = 1 AND j.claim_time IS NOT NULL"
    bucket = of.bucket(late_ms, BOUNDS_MS)
    return (
        f"SELECT {LATENESS}, {_unit(of, 'gmt_modified', DAY_MS)} AS of_day, "
        f"{_unit(of, 'action_time', HOUR_MS)} AS of_hour, j.type_no, j.status, "
        f"{of.process.format('j.claim_token')} AS node, "
        f"CASE WHEN {measured} THEN {bucket} END AS bucket, "
        f"{_TRIES}, {_sum_and_max(measured, late_ms)} {_ENDED} "
        "GROUP BY of_day, of_hour, j.type_no, j.status, node, bucket"
    )


def _ended_sql(of: SqlExpressions) -> str:
    return (
        f"SELECT {ENDED}, {_unit(of, 'gmt_modified', DAY_MS)} AS of_day, "
        f"{_unit(of, 'gmt_modified', HOUR_MS)} AS of_hour, j.type_no, j.status, NULL, NULL, "
        f"{_TRIES}, 0, 0 {_ENDED} GROUP BY of_day, of_hour, j.type_no, j.status"
    )


def _created_sql(of: SqlExpressions) -> str:
    age_ms = of.late_ms.format("j.gmt_create", "j.gmt_modified")
    ended = f"j.status IN ({_STATUSES})"
    return (
        f"SELECT {CREATED}, {_unit(of, 'gmt_create', DAY_MS)} AS of_day, "
        f"{_unit(of, 'gmt_create', HOUR_MS)} AS of_hour, j.type_no, j.status, NULL, "
        f"CASE WHEN {ended} THEN {of.bucket(age_ms, AGE_BOUNDS_MS)} END AS bucket, "
        f"{_TRIES}, {_sum_and_max(ended, age_ms)} {_CREATED} "
        "GROUP BY of_day, of_hour, j.type_no, j.status, bucket"
    )


def _ended_days_sql(of: SqlExpressions) -> str:
    return (
        f"SELECT {_unit(of, 'gmt_modified', DAY_MS)} AS of_day, COUNT(*) {_ENDED} GROUP BY of_day"
    )


def _created_days_sql(of: SqlExpressions) -> str:
    return (
        f"SELECT {_unit(of, 'gmt_create', DAY_MS)} AS of_day, COUNT(*) {_CREATED} GROUP BY of_day"
    )


def _due_sql(of: SqlExpressions, span_ms: int) -> str:
    return f"SELECT {_unit(of, 'due_time', span_ms)} AS span, COUNT(*) {_DUE} GROUP BY span"
