"""Deletes what the archive has of one business id, from the tables and from the files.

The jobs have the business id; their events have only the ids of the jobs. The rows are deleted by commits;
then the files that had these rows are deleted, so that no older version of a table shows them. Files of runs
that were killed before their commit may have them too. Such a file is deleted if its run can commit no more:
to make this certain, a new run is begun for its database.

Neither the log of a table nor the statistics in it have business ids. A compaction or a deletion that is
killed just now may leave a file; the vacuum of the nightly run deletes it after a week (archive_maintenance).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import unquote

from deltalake import DeltaTable, QueryBuilder
from deltalake.transaction import CommitProperties
from pyarrow import fs

from toc.domain.biz_ids import BusinessId
from toc.reconcile.archive_commits import ArchiveTable
from toc.reconcile.archive_tables import EVENTS, JOBS, MARKS
from toc.reconcile.delta_tables import (
    TableSpec,
    find_table,
    open_files,
    repeat_commit,
    require_table,
    table_url,
)
from toc.runtime.private_files import private_umask
from toc.store.archive_status import EVENTS_ARCHIVED, begin_archive_run, read_archive_status
from toc.store.databases import Databases
from toc.store.event_reader import EventReader

IDS_MAX = 1000
"""Job ids of one commit."""

_RUN_FILE = re.compile(r"database-(\d+)-run-\d+-[^/]*\.parquet", re.ASCII)


def count_archived_rows(root: str, business: BusinessId) -> dict[str, int]:
    """How many rows each table of the archive has of a business id. Reads a few columns of all files."""
    jobs = find_table(root, JOBS.name)
    if jobs is None:
        return {}
    its = _sql_condition(business)
    found = {JOBS.name: _query_tables(f"SELECT COUNT(*) FROM jobs WHERE {its}", jobs=jobs)[0]}  # noqa: S608
    events = find_table(root, EVENTS.name)
    if events is not None:
        query = (
            "SELECT COUNT(*) FROM events WHERE job_id IN "  # noqa: S608
            f"(SELECT job_id FROM jobs WHERE {its})"
        )
        found[EVENTS.name] = _query_tables(query, jobs=jobs, events=events)[0]
    return found


def find_unarchived_events(root: str, databases: Databases, business: BusinessId) -> int | None:
    """A job of a business id that has an event which the archive will get; None: there is none.

    Such an event would be archived after `forget_business`, and then nothing would say whose it is.
    """
    job_ids = _find_job_ids(root, business)
    for database in databases:  # a row that was in the wrong table has its events in that database
        status = read_archive_status(database, EVENTS_ARCHIVED)
        reader = EventReader(database)
        for part in _split_ids(job_ids):
            found = reader.find_job_with_event(part, 0 if status is None else status.position)
            if found is not None:
                return found
    return None


def forget_business(
    root: str, databases: Databases, business: BusinessId, actor: str
) -> dict[str, int]:
    """Deletes the rows of a business id; returns how many rows of each table.

    `actor`: who asked; the history of the table names the actor, and not the business id. Raises
    DELTA_ERRORS, StoreUnavailable, and CannotArchive if a run of the archive has just begun. Can be repeated
    after an error.
    """
    deleted = {}
    with private_umask():
        job_ids = _find_job_ids(root, business)
        # Jobs last: if this is interrupted, they still say which events to delete.
        for spec in (EVENTS, JOBS):
            if find_table(root, spec.name) is None:
                continue
            deleted[spec.name] = _delete_rows(root, spec, job_ids, actor)
            require_table(root, spec.name).vacuum(
                # Only files that commits have removed; a run in progress has files that none names yet.
                retention_hours=0, dry_run=False, enforce_retention_duration=False, full=False
            )  # fmt: skip
            _delete_files_of_dead_runs(root, spec, databases)
    return deleted


def _find_job_ids(root: str, business: BusinessId) -> list[int]:
    jobs = find_table(root, JOBS.name)
    if jobs is None:
        return []
    query = f"SELECT DISTINCT job_id FROM jobs WHERE {_sql_condition(business)}"  # noqa: S608
    return sorted(_query_tables(query, jobs=jobs))


def _delete_rows(root: str, spec: TableSpec, job_ids: Sequence[int], actor: str) -> int:
    """Deletes by job_id: delta-rs writes the condition into the log, where the business id must not be."""
    about = CommitProperties(custom_metadata={"toc": f"rows of a business id deleted by {actor}"})

    def delete_jobs(some: Sequence[int]) -> int:
        condition = f"job_id IN ({', '.join(map(str, some))})"
        done = require_table(root, spec.name).delete(condition, commit_properties=about)
        return int(done["num_deleted_rows"])

    return sum(repeat_commit(partial(delete_jobs, part)) for part in _split_ids(job_ids))


def _split_ids(job_ids: Sequence[int]) -> list[Sequence[int]]:
    return [job_ids[start : start + IDS_MAX] for start in range(0, len(job_ids), IDS_MAX)]


def _query_tables(query: str, **tables: DeltaTable) -> list[int]:
    """The first column of the answer. tables: by their names in the query."""
    builder = QueryBuilder()
    for name, table in tables.items():
        builder = builder.register(name, table)
    return [int(value) for value in builder.execute(query).read_all().column(0).to_pylist()]


def _delete_files_of_dead_runs(root: str, spec: TableSpec, databases: Databases) -> None:
    files = open_files(table_url(root, spec.name))
    for index, paths in _files_of_no_commit(root, spec, files).items():
        status = read_archive_status(databases[index], MARKS[spec.name])
        if status is None:
            continue
        table = ArchiveTable.of_database(root, spec, databases[index])
        table.refuse_other_origin(status)
        mine = begin_archive_run(databases[index], table.mark)
        table.begin_run(mine.begun)
        # From here on no earlier run can commit, so what was not committed until now never will be.
        named = _named_files(root, spec)
        for path in paths:
            if path not in named:
                files.delete_file(path)


def _files_of_no_commit(root: str, spec: TableSpec, files: fs.FileSystem) -> dict[int, list[str]]:
    """By database: the paths of the files that its runs wrote, and that no commit names."""
    named, found = _named_files(root, spec), dict[int, list[str]]()
    for info in files.get_file_info(fs.FileSelector("", recursive=True)):
        match = _RUN_FILE.fullmatch(info.base_name)
        if match and info.path not in named:
            found.setdefault(int(match[1]), []).append(info.path)
    return found


def _named_files(root: str, spec: TableSpec) -> set[str]:
    """The paths in the table of the files that its newest version has."""
    paths = require_table(root, spec.name).get_add_actions().column("path").to_pylist()
    return {*paths, *map(unquote, paths)}  # the log has them as parts of a URL


def _sql_condition(business: BusinessId) -> str:
    """The condition for delta-rs, which takes no bound values: the number is an int, texts are quoted."""
    parts = [f"biz_id = CAST('{business.number:d}' AS DECIMAL(20, 0))"]
    for column, value in (("biz_text", business.text), ("tenant", business.tenant)):
        if value is None:
            parts.append(f"{column} IS NULL")
        else:
            quoted = value.replace("'", "''")
            parts.append(f"{column} = '{quoted}'")
    return " AND ".join(parts)
