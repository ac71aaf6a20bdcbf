"""Reads all that a database stores about one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from toc.domain.job import DeadJob, Job
from toc.store.databases import Database, execute_on_shard
from toc.store.driver_errors import explain_missing_table
from toc.store.job_rows import JOB_COLUMNS, dead_job_from_row, dead_jobs_query, job_from_row
from toc.store.schema import JOB, job_table_name

c = JOB.c


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job's row with all its columns, and its dead letter or None. Times in ms since 1970 UTC."""

    job: Job
    type_no: int
    created_ms: int
    modified_ms: int
    letter: DeadJob | None


def read_job_details(database: Database, shard: int, job_id: int) -> JobDetails | None:
    """Reads a job; None: no such row. Raises StoreUnavailable, and SchemaMismatch for a missing table."""
    row_of = select(*JOB_COLUMNS, c.result, c.gmt_create, c.gmt_modified).where(c.job_id == job_id)
    types = database.biz_type.c
    letter_of = dead_jobs_query(database.dead).where(database.dead.c.job_id == job_id)

    def read_job_and_letter(connection: Connection) -> JobDetails | None:
        row: Any = execute_on_shard(connection, shard, row_of).first()
        if row is None:
            return None
        name = connection.scalar(select(types.name).where(types.type_no == row[2]))
        if name is None:
            name = f"number {row[2]}, which has no name"
        job = job_from_row(row, name, database.payload_codecs, row.result)
        found: Any = connection.execute(letter_of).first()
        letter = None if found is None else dead_job_from_row(found, job.biz_type)
        return JobDetails(job, row[2], row[-2], row[-1], letter)

    with explain_missing_table(database.index, job_table_name(shard)):
        return database.run_read(read_job_and_letter)
