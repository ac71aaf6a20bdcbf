"""Delta tables: made once, with a version; columns of a newer toc; days replaced."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake  # noqa: E402 - an extra
from deltalake.exceptions import CommitFailedError  # noqa: E402
from pyarrow import parquet  # noqa: E402

from toc.errors import SchemaMismatch, SettingsError  # noqa: E402
from toc.reconcile.archive_tables import JOBS  # noqa: E402
from toc.reconcile.delta_tables import (  # noqa: E402
    COMMIT_TRIES_MAX,
    VERSION_PROPERTY,
    TableSpec,
    describe_delta_error,
    find_table,
    list_days,
    open_table,
    repeat_commit,
    replace_day,
    table_url,
)

DAY = pa.field("day", pa.date32(), nullable=False)
SPEC = TableSpec(
    "counts", 1, pa.schema([pa.field("jobs", pa.int64(), nullable=False), DAY]), ("jobs",)
)
NEWER = replace(
    SPEC, version=2, columns=pa.schema([SPEC.columns.field("jobs"), ("name", pa.string()), DAY])
)
FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)


def rows(day: date, *jobs: int, spec: TableSpec = SPEC, **more: Any) -> Any:
    values = {
        "jobs": jobs,
        "day": [day] * len(jobs),
        **{k: [v] * len(jobs) for k, v in more.items()},
    }
    return pa.table(values, spec.columns)


def read(table: DeltaTable) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(row.values()) for row in DeltaTable(table.table_uri).to_pyarrow_table().to_pylist()
    )


def test_a_day_is_replaced_and_no_other(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), SPEC)
    assert list_days(table) == []
    for day, jobs in ((FIRST, (1, 2)), (SECOND, (3,)), (FIRST, (4,)), (FIRST, (5,))):
        replace_day(open_table(str(tmp_path), SPEC), SPEC, day, rows(day, *jobs))
    table = open_table(str(tmp_path), SPEC)
    assert read(table) == [(3, SECOND), (5, FIRST)]
    assert list_days(table) == [FIRST, SECOND]
    replace_day(table, SPEC, FIRST, rows(FIRST))
    assert list_days(open_table(str(tmp_path), SPEC)) == [SECOND]


def test_a_newer_toc_adds_its_columns(tmp_path: Path) -> None:
    replace_day(open_table(str(tmp_path), SPEC), SPEC, FIRST, rows(FIRST, 1))
    table = open_table(str(tmp_path), NEWER)
    assert table.metadata().configuration[VERSION_PROPERTY] == "2"
    replace_day(table, NEWER, SECOND, rows(SECOND, 2, spec=NEWER, name="a"))
    found = DeltaTable(table.table_uri).to_pyarrow_table().to_pylist()
    assert sorted((row["jobs"], row["name"]) for row in found) == [(1, None), (2, "a")]
    assert open_table(str(tmp_path), NEWER).version() == DeltaTable(table.table_uri).version()


def test_an_interrupted_addition_of_columns_is_completed(tmp_path: Path) -> None:
    table = open_table(str(tmp_path), SPEC)
    from deltalake import Schema  # noqa: PLC0415 - only here

    table.alter.add_columns(Schema.from_arrow(pa.schema([("name", pa.string())])).fields)
    assert open_table(str(tmp_path), NEWER).metadata().configuration[VERSION_PROPERTY] == "2"


def test_a_table_of_a_newer_toc_is_refused(tmp_path: Path) -> None:
    open_table(str(tmp_path), NEWER)
    with pytest.raises(
        SchemaMismatch, match="schema version 2, and this toc knows versions up to 1"
    ):
        open_table(str(tmp_path), SPEC)


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "counts"), rows(FIRST, 1))
    with pytest.raises(SchemaMismatch, match="toc has not made it"):
        open_table(str(tmp_path), SPEC)


def test_many_may_open_at_once_and_no_row_is_lost(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        added = rows(FIRST, number, spec=NEWER, name="a")
        barrier.wait()
        repeat_commit(
            lambda: write_deltalake(open_table(str(tmp_path), NEWER), added, mode="append")
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = open_table(str(tmp_path), NEWER)
    assert [row[0] for row in read(table)] == [0, 1, 2, 3]
    assert table.metadata().configuration[VERSION_PROPERTY] == "2"


def test_commits_are_repeated_so_often(tmp_path: Path) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise CommitFailedError("no")

    with pytest.raises(CommitFailedError):
        repeat_commit(fail)
    assert len(calls) == COMMIT_TRIES_MAX


def test_urls(tmp_path: Path) -> None:
    assert table_url("s3a://bucket/toc/", "jobs") == "s3://bucket/toc/jobs"
    assert table_url("gs://bucket", "jobs") == "gs://bucket/jobs"
    assert table_url(f"{tmp_path}/a b", "jobs") == f"file://{tmp_path}/a%20b/jobs"
    with pytest.raises(SettingsError, match="no URL that deltalake knows"):
        find_table("nowhere://bucket", "jobs")
    replace_day(open_table(f"{tmp_path}/a é b", SPEC), SPEC, FIRST, rows(FIRST, 1))
    assert list_days(open_table(f"{tmp_path}/a é b", SPEC)) == [FIRST]


def test_errors_in_one_line() -> None:
    colours = OSError("Kernel error\n   \x1b[31m↳\x1b[0m no session\n \x1b[31m↳\x1b[0m denied")
    assert describe_delta_error(colours) == "Kernel error: no session: denied"
    assert describe_delta_error(OSError()) == "OSError"
    assert describe_delta_error(SchemaMismatch("so")) == "so"


def test_the_page_brings_an_early_archive_into_the_table(tmp_path: Path) -> None:
    """The code of docs/how-to/upgrade.md."""
    old, new = tmp_path / "old", tmp_path / "new"
    columns = [name for name in JOBS.columns.names if name not in ("day", "database")]
    values = {field.name: [_value_of(field, place) for place in range(3)] for field in JOBS.columns}
    for day in ("2026-01-05", "2026-01-06"):
        folder = old / "jobs" / f"day={day}" / "database=1"
        folder.mkdir(parents=True)
        rows = pa.table(values, JOBS.columns).select(columns)
        parquet.write_table(rows, folder / "part-0.zstd.parquet")
    page = (Path(__file__).parents[2] / "docs/how-to/upgrade.md").read_text()
    code = page.partition("## The archive of an early toc")[2].split("```python\n")[1]
    exec(code.split("```")[0], {"old_folder": str(old), "new_folder": str(new)})  # noqa: S102
    found = DeltaTable(f"{new}/jobs").to_pyarrow_table().sort_by([("day", "ascending")])
    assert found.num_rows == 6
    assert set(found["database"].to_pylist()) == {1}
    assert [str(day) for day in found["day"].to_pylist()] == ["2026-01-05"] * 3 + ["2026-01-06"] * 3
    for name in set(columns) - {"day", "database"}:
        assert sorted(map(str, found[name].to_pylist())) == sorted(map(str, values[name] * 2))
    with pytest.raises(SchemaMismatch, match=r"is no Delta table.*upgrade\.md"):
        open_table(str(old), JOBS)


def _value_of(field: pa.Field, place: int) -> object:
    if pa.types.is_timestamp(field.type):
        return datetime(2026, 1, 5, place, tzinfo=UTC)
    if pa.types.is_date(field.type):
        return date(2026, 1, 5)
    if field.type == pa.string():
        return f"Ä😀{place}"
    return 2**64 - 1 - place if field.name == "biz_id" else place
