"""`toc archive forget`: afterwards no file of the archive has a row of the business id, or of its jobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import text

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from toc.center.center import TimeoutCenter
from toc.domain.biz_ids import hash_text_id
from toc.domain.ids import lowest_id_at
from toc.reconcile import archive_forget
from toc.reconcile.archive import archive_due_rows
from toc.reconcile.archive_commits import ArchiveTable, CannotArchive
from toc.reconcile.archive_files import ArchiveFile, read_add_action
from toc.reconcile.archive_tables import JOBS, MARKS, TABLES
from toc.reconcile.delta_tables import open_files, require_table, table_url
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.archive_status import begin_archive_run
from toc.store.column_types import ms_of_sql_time
from toc.store.databases import Databases

__all__ = ["no_settings", "redis", "servers", "toc"]

GREATEST, QUOTED, OTHER = 2**64 - 1, "O'Neill \\ Ä😀", 7
ENDED = "2026-01-05 00:00:00.000"


@pytest.fixture
def settings(servers: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of databases with cancelled jobs that are in the archive, each with an event."""
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    monkeypatch.setenv("TOC_RETENTION__DAYS", "3")
    settings = load_settings()
    with TimeoutCenter(settings) as center:
        for biz_id in (GREATEST, QUOTED, OTHER):
            for tenant in (None, "shop"):
                job = center.schedule(biz_id, timedelta(days=1), tenant=tenant)
                assert center.cancel(job, reason=f"of {biz_id} of {tenant}")
    # A job is archived only if it was made before it ended, so its id has to be as old as its end.
    younger = lowest_id_at(SystemClock().wall_ms()) - lowest_id_at(ms_of_sql_time(ENDED))
    old_id = f"job_id = job_id - {younger}"
    for database in opened(settings):
        for shard in database.shards:
            change_rows(database, shard, f"UPDATE {{}} SET {old_id}, gmt_modified = '{ENDED}'")
        run_sql(database, f"UPDATE toc_event SET {old_id}, event_time = '{ENDED}'")
    done = archive_due_rows(None, settings, SystemClock(), [].append)
    assert done.is_good
    assert [sum(part.rows for part in done.of_table(name)) for name in MARKS] == [6, 6]
    return settings


def opened(settings: Settings) -> Iterator[Any]:
    with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
        yield from databases


def change_rows(database: Any, shard: int, sql: str) -> None:
    run_sql(database, sql.format(database.job_table_name(shard)))


def run_sql(database: Any, sql: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(sql))


def purge(settings: Settings) -> None:
    for database in opened(settings):
        for shard in database.shards:
            change_rows(database, shard, "DELETE FROM {}")


def data_files(table: str = "jobs") -> list[Path]:
    files = Path("archive", table).rglob("*.parquet")
    return [path for path in files if "_delta_log" not in path.parts]


def rows_on_disk() -> set[tuple[int | str, str | None]]:
    """The business ids and tenants in all files that are there, whether a commit names them or not."""
    return {
        (row["biz_text"] or int(row["biz_id"]), row["tenant"])
        for path in data_files()
        for row in parquet.ParquetFile(path).read().to_pylist()
    }


def reasons_on_disk() -> set[str]:
    """The reasons of events in all files that are there."""
    return {
        row["reason"]
        for path in data_files("events")
        for row in parquet.ParquetFile(path).read().to_pylist()
    }


def reasons_of(pairs: set[tuple[int | str, str | None]]) -> set[str]:
    return {f"of {biz_id} of {tenant}" for biz_id, tenant in pairs}


ALL = {(biz_id, tenant) for biz_id in (GREATEST, QUOTED, OTHER) for tenant in (None, "shop")}


@pytest.mark.parametrize("biz_id", [GREATEST, QUOTED])
def test_no_file_has_the_id_afterwards_and_all_others_are_there(
    toc: Toc, settings: Settings, biz_id: int | str
) -> None:
    purge(settings)
    assert rows_on_disk() == ALL
    counted = toc("archive", "forget", str(biz_id), "--dry-run", "--json")
    assert counted.json == {"dry_run": True, "rows": {"jobs": 1, "events": 1}}
    assert (rows_on_disk(), reasons_on_disk()) == (ALL, reasons_of(ALL))
    done = toc("archive", "forget", str(biz_id), "--yes", "--json")
    assert (done.code, done.json) == (0, {"dry_run": False, "rows": {"events": 1, "jobs": 1}})
    left = ALL - {(biz_id, None)}
    assert (rows_on_disk(), reasons_on_disk()) == (left, reasons_of(left))
    assert toc("archive", "forget", str(biz_id), "--tenant", "shop", "--yes").code == 0
    left -= {(biz_id, "shop")}
    assert (rows_on_disk(), reasons_on_disk()) == (left, reasons_of(left))
    named = [str(GREATEST), "Neill", str(hash_text_id(QUOTED))]
    logs = [path for path in Path("archive").rglob("*") if "_delta_log" in path.parts]
    assert [(path, word) for path in logs if path.is_file()
            for word in named if word.encode() in path.read_bytes()] == []  # fmt: skip
    shown = toc("archive", "show", "--json").json["tables"]
    assert {one["table"]: one["rows"] for one in shown} == {"jobs": 4, "events": 4}


def test_a_job_that_is_in_its_database_still_is_refused(toc: Toc, settings: Settings) -> None:
    refused = toc("archive", "forget", str(OTHER), "--yes")
    assert refused.code == 1
    assert "is still in its database (cancelled), and would be archived later" in refused.err
    assert rows_on_disk() == ALL


def test_an_event_that_the_archive_lacks_is_refused(toc: Toc, settings: Settings) -> None:
    """It would be archived later, and then nothing would say whose it is."""
    purge(settings)
    for database in opened(settings):
        run_sql(database, "DELETE FROM toc_meta WHERE name = 'events_archived_until'")
    refused = toc("archive", "forget", str(OTHER), "--yes")
    assert refused.code == 1
    assert "is in its database and not in the archive" in refused.err
    assert (rows_on_disk(), reasons_on_disk()) == (ALL, reasons_of(ALL))


def test_events_go_before_the_jobs_that_say_whose_they_are(
    toc: Toc, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `forget` is killed between the tables, the next one finds the rest."""
    purge(settings)
    real, calls = archive_forget._delete_rows, list[str]()

    def delete_rows(root: str, spec: Any, *others: Any) -> int:
        calls.append(spec.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(root, spec, *others)

    with monkeypatch.context() as patch:
        patch.setattr(archive_forget, "_delete_rows", delete_rows)
        toc("archive", "forget", str(OTHER), "--yes")
    assert calls == ["events", "jobs"]
    left = ALL - {(OTHER, None)}
    assert (rows_on_disk(), reasons_on_disk()) == (ALL, reasons_of(left))
    again = toc("archive", "forget", str(OTHER), "--yes", "--json")
    assert again.json["rows"] == {"events": 0, "jobs": 1}
    assert (rows_on_disk(), reasons_on_disk()) == (left, reasons_of(left))


@pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.name)
def test_files_of_runs_that_died_are_deleted_and_their_runs_can_commit_no_more(
    toc: Toc, settings: Settings, spec: Any
) -> None:
    purge(settings)
    file = next(path for path in data_files(spec.name) if path.name.startswith("database-0-"))
    shutil.copy(file, file.with_name("database-0-run-2-dead.zstd.parquet"))
    database = next(opened(settings))
    frozen = ArchiveTable.of_database("archive", spec, database)
    frozen.begin_run(begin_archive_run(database, frozen.mark).begun)
    assert toc("archive", "forget", str(GREATEST), "--yes").code == 0
    assert not file.with_name("database-0-run-2-dead.zstd.parquet").exists()
    with pytest.raises(CannotArchive, match="another run"):
        frozen.commit_files([], 1, 1)


def test_a_run_that_has_looked_at_its_files_cannot_commit_after_forget_has_deleted_them(
    toc: Toc, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge(settings)
    file = next(path for path in data_files() if path.name.startswith("database-0-"))
    files = open_files(table_url("archive", "jobs"))
    copy = file.with_name("database-0-run-2-own.zstd.parquet")
    shutil.copy(file, copy)
    database = next(opened(settings))
    run = ArchiveTable.of_database("archive", JOBS, database)
    run.begin_run(begin_archive_run(database).begun)
    day, biz_type = (part.partition("=")[2] for part in copy.parts[-3:-1])
    path = str(copy.relative_to("archive/jobs"))
    action = read_add_action(files, JOBS, ArchiveFile(path, (day, biz_type)))
    look = ArchiveTable._refuse_unseen_files

    def look_and_forget(table: ArchiveTable, actions: Any) -> None:
        look(table, actions)
        assert toc("archive", "forget", str(GREATEST), "--yes").code == 0

    monkeypatch.setattr(ArchiveTable, "_refuse_unseen_files", look_and_forget)
    with pytest.raises(CannotArchive, match="another run"):
        run.commit_files([action], run.position + 1, run.until_ms + 1)
    assert not copy.exists()
    rows = require_table("archive", "jobs").to_pyarrow_table()  # no file is missing
    assert rows.num_rows == 5


def test_nobody_is_asked_without_a_terminal(toc: Toc, settings: Settings) -> None:
    purge(settings)
    refused = toc("archive", "forget", str(GREATEST))
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert rows_on_disk() == ALL


def test_without_an_archive_there_is_nothing_to_show(toc: Toc, servers: Any) -> None:
    assert "reconcile.archive is 'none'" in toc("archive", "show").err
