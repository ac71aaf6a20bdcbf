"""Compaction and vacuum change no row of the archive, and let no earlier run commit."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from toc.reconcile.archive_commits import ArchiveTable, CannotArchive
from toc.reconcile.archive_maintenance import (
    UNNAMED_FILES_H,
    compact_days,
    delete_unnamed_files,
    maintain_tables,
)
from toc.reconcile.archive_tables import EVENTS, JOBS
from toc.reconcile.delta_tables import TableSpec, open_table

DAYS = [date(2026, 1, day) for day in (1, 2, 3)]
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def _rows(spec: TableSpec, day: date, biz_type: str, first: int, number: int = 5) -> pa.Table:
    values: dict[str, list[Any]] = {}
    for field in spec.columns:
        if pa.types.is_timestamp(field.type):
            values[field.name] = [WHEN] * number
        elif field.type == pa.string():
            least = None if field.nullable else ""
            values[field.name] = [least, *["Ä😀"] * (number - 1)]
        else:
            values[field.name] = [2**63 - 1] * number if field.name == "biz_id" else [7] * number
    values |= {
        _key(spec): list(range(first, first + number)),
        "day": [day] * number,
        "biz_type": [biz_type] * number,
    }
    return pa.table(values, spec.columns)


def _key(spec: TableSpec) -> str:
    return "job_id" if spec is JOBS else "event_id"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An archive of three days and two types of jobs, each in three files."""
    return _make_table(tmp_path, JOBS)


def _make_table(tmp_path: Path, spec: TableSpec) -> str:
    table = open_table(str(tmp_path), spec)
    for turn in range(3):
        for place, day in enumerate(DAYS):
            for biz_type in ("a.b", "c/d e"):
                first = turn * 1000 + place * 100 + (biz_type == "a.b") * 10
                write_deltalake(table, _rows(spec, day, biz_type, first), mode="append")
    return str(tmp_path)


def _table(root: str, spec: TableSpec = JOBS) -> DeltaTable:
    return DeltaTable(f"{root}/{spec.name}")


def _all_rows(root: str, spec: TableSpec = JOBS) -> list[dict[str, Any]]:
    rows = _table(root, spec).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row[_key(spec)])


@pytest.mark.parametrize(("spec", "partitions"), [(JOBS, 6), (EVENTS, 3)])
def test_the_files_of_a_partition_become_one_and_no_row_changes(
    tmp_path: Path, spec: TableSpec, partitions: int
) -> None:
    root = _make_table(tmp_path, spec)
    before = _all_rows(root, spec)
    assert (len(before), len(_table(root, spec).file_uris())) == (90, 18)
    assert maintain_tables(root) == []
    assert len(_table(root, spec).file_uris()) == partitions
    assert _all_rows(root, spec) == before
    version = _table(root, spec).version()
    maintain_tables(root)
    compacted = [one for one in _table(root, spec).history() if one["operation"] == "OPTIMIZE"]
    assert len(compacted) == 3  # a day each, and none again
    assert _table(root, spec).version() >= version


def test_a_run_compacts_the_newest_days_up_to_a_limit(root: str) -> None:
    compact_days(root, "jobs", days_max=1)
    files = _table(root).file_uris()
    assert [sum(f"day={day}" in file for file in files) for day in DAYS] == [6, 6, 2]


def test_files_that_no_commit_names_go_when_they_are_old(root: str) -> None:
    folder = Path(root, "jobs", "day=2026-01-01", "biz_type=a.b")
    young, old = folder / "run-8.parquet", folder / "run-7.parquet"
    for file in (young, old):
        file.write_bytes(b"of a run that was killed")
    a_while_ago = time.time() - UNNAMED_FILES_H * 3600 - 60
    os.utime(old, (a_while_ago, a_while_ago))
    before = _all_rows(root)
    delete_unnamed_files(root, "jobs")
    assert (young.exists(), old.exists()) == (True, False)
    assert _all_rows(root) == before


def test_after_compaction_checkpoint_and_clean_up_an_earlier_run_is_still_refused(
    root: str,
) -> None:
    frozen, later = (ArchiveTable(root, JOBS, 0, "id-0") for _ in range(2))
    frozen.begin_run(7)
    later.begin_run(8)
    later.commit_files([], 1000, 1000)
    maintain_tables(root)
    table = _table(root)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    _table(root).create_checkpoint()
    _table(root).cleanup_metadata()
    with pytest.raises((CannotArchive, DeltaError), match=r"another run|Invalid table version"):
        frozen.commit_files([], 500, 500)
    fresh = ArchiveTable(root, JOBS, 0, "id-0")
    assert fresh.position == 1000
    with pytest.raises(CannotArchive, match="another run"):
        fresh.begin_run(8)


def test_a_table_that_cannot_be_compacted_is_told_and_raises_nothing(root: str) -> None:
    Path(_table(root).file_uris()[0].removeprefix("file://")).unlink()
    (line,) = maintain_tables(root)
    assert line.startswith("archive, maintenance of the table jobs: ")
    assert "the next run tries again" in line


def test_an_empty_folder_needs_no_care(tmp_path: Path) -> None:
    assert maintain_tables(str(tmp_path)) == []


def test_a_file_that_this_process_does_not_see_is_not_committed(root: str) -> None:
    """An executor on another host may have a directory of the same name."""
    table = ArchiveTable(root, JOBS, 0, "id-0")
    table.begin_run(1)
    path = "day=2026-01-01/biz_type=a.b/elsewhere.parquet"
    partition: dict[str, str | None] = {"day": "2026-01-01", "biz_type": "a.b"}
    action = AddAction(path, 100, partition, 0, True, "{}")
    before = _all_rows(root)
    for size in (None, 99):
        if size is not None:
            Path(root, "jobs", path).write_bytes(b"x" * size)
        with pytest.raises(CannotArchive, match="see the same folder"):
            table.commit_files([action], 1000, 1000)
    assert _all_rows(root) == before
    assert ArchiveTable(root, JOBS, 0, "id-0").position == 0
