"""Delta Lake tables: opened or made with a schema, a version and properties; one day replaced; days listed.

A table is a folder of Parquet files and a log (`_delta_log`) of commits. A commit is atomic: readers see the
files of all commits before, and nothing of an unfinished one. The package `deltalake` (delta-rs) reads and
writes the log; it needs no Java. A folder is a directory of this machine, or a URL such as `s3://bucket/toc`;
delta-rs takes credentials from the environment (`AWS_ACCESS_KEY_ID` …).

A `TableSpec` says what this release of toc knows of a table. Its version is in the property
`toc.schema_version` of the table. `open_table` adds the columns that an older release did not have, and
refuses a table of a newer release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from deltalake import DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from toc.errors import SchemaMismatch, SettingsError, TocError
from toc.reconcile.spark_errors import short_error_text

T = TypeVar("T")

VERSION_PROPERTY = "toc.schema_version"
DAY = "day"
"""The column with the UTC day. Each table is partitioned by this column, and perhaps by more."""

COMMIT_TRIES_MAX = 15
DELTA_ERRORS: tuple[type[Exception], ...] = (DeltaError, OSError, pa.ArrowException)
"""What delta-rs and pyarrow raise when a store does not answer, a file is damaged, or a commit fails."""

WRITER = WriterProperties(compression="ZSTD", max_row_group_size=100_000)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_COLOURS = re.compile(r"\x1b\[\d*m")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What this release of toc knows of a table.

    columns: with the partition columns. A column that may be NULL must not be an integer: pandas would make
    floats of it. A later release appends columns, which may be NULL, and raises `version`.
    indexed: columns whose least and greatest value per file is in the log, so that readers skip files. No
    decimals: some writers round them in the log.
    """

    name: str
    version: int
    columns: pa.Schema
    indexed: Sequence[str]
    partition_by: Sequence[str] = (DAY,)

    @property
    def file_columns(self) -> pa.Schema:
        """The columns that data files have: all but the partition columns, whose values the log has."""
        return pa.schema([one for one in self.columns if one.name not in self.partition_by])


def table_url(root: str, name: str) -> str:
    """The URL of the table `name` in the folder `root`: a URL, or a directory of this machine.

    `s3a://`, as Spark's URLs begin, becomes `s3://`.
    """
    if not _URL.match(root):
        return f"{Path(root).absolute().as_uri()}/{name}"
    return f"{re.sub('^s3a:', 's3:', root).rstrip('/')}/{name}"


def open_files(url: str) -> fs.FileSystem:
    """The files below a table's URL, by the means and the credentials with which delta-rs reads the table."""
    return fs.PyFileSystem(DeltaStorageHandler(url))


def find_table(root: str, name: str) -> DeltaTable | None:
    """Opens a table; None: it does not exist. Raises SettingsError for a URL that delta-rs does not know."""
    try:
        return DeltaTable(table_url(root, name))
    except TableNotFoundError as error:
        if "Unknown scheme" in str(error):
            raise SettingsError(
                f"the archive {root!r} is no directory, and no URL that deltalake knows"
            ) from None
        return None


def require_table(root: str, name: str) -> DeltaTable:
    """Opens a table that exists, at its newest version. Raises DELTA_ERRORS."""
    return DeltaTable(table_url(root, name))


def open_table(root: str, spec: TableSpec) -> DeltaTable:
    """Opens a table at its newest version; makes it, or adds columns to it, if necessary.

    Raises SchemaMismatch for a table of a newer toc, and for a folder with other files; DELTA_ERRORS.
    """
    return repeat_commit(lambda: _try_to_open(root, spec))


def repeat_commit(commit: Callable[[], T]) -> T:
    """Calls `commit` again while another process has committed first. `commit` must read the table anew."""
    for left in reversed(range(COMMIT_TRIES_MAX)):
        try:
            return commit()
        except CommitFailedError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _try_to_open(root: str, spec: TableSpec) -> DeltaTable:
    table = find_table(root, spec.name)
    if table is None:
        _refuse_other_files(root, spec)
        try:
            table = DeltaTable.create(
                table_url(root, spec.name),
                Schema.from_arrow(spec.columns),
                mode="error",
                partition_by=list(spec.partition_by),
                configuration={
                    VERSION_PROPERTY: str(spec.version),
                    "delta.dataSkippingStatsColumns": ",".join(spec.indexed),
                },
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:  # another process may have made it meanwhile
            if find_table(root, spec.name) is None:
                raise
            raise CommitFailedError(str(error)) from error
    version = table.metadata().configuration.get(VERSION_PROPERTY, "")
    where = table_url(root, spec.name)
    if not version.isdecimal():
        raise SchemaMismatch(f"{where} is a Delta table, but toc has not made it")
    if int(version) > spec.version:
        raise SchemaMismatch(
            f"{where} has schema version {version}, and this toc knows versions up to {spec.version}: "
            "a newer toc has written to it. Run the newer toc"
        )
    if int(version) < spec.version:
        present = set(pa.schema(table.schema().to_arrow()).names)
        new = [one for one in spec.columns if one.name not in present]
        if new:
            table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)
        DeltaTable(where).alter.set_table_properties(
            {VERSION_PROPERTY: str(spec.version)}, raise_if_not_exists=False
        )
        table = DeltaTable(where)
    return table


def _refuse_other_files(root: str, spec: TableSpec) -> None:
    """A folder without a log that has files: toc 0.1 wrote the archive so. Both must not be mixed."""
    if not _URL.match(root) and not Path(root, spec.name).exists():
        return
    url = table_url(root, spec.name)
    found = open_files(url).get_file_info(fs.FileSelector("", allow_not_found=True))
    # Folders without files may be left by an interrupted start.
    if any(not info.base_name.startswith("_delta_log") for info in found):
        raise SchemaMismatch(
            f"{url} has files, but is no Delta table. toc 0.1 wrote its archive so: bring these files into a "
            "table first (docs/how-to/upgrade.md), or name another folder in reconcile.archive"
        )


def replace_day(table: DeltaTable, spec: TableSpec, day: date, rows: pa.Table) -> None:
    """Replaces all rows of one day in one commit. `rows`: of `spec.columns`, each with this `day`."""
    _replace_rows(table, spec, f"{DAY} = '{day.isoformat()}'", rows)


def replace_days(
    root: str, spec: TableSpec, days: Sequence[date], database: int, rows: pa.Table
) -> None:
    """Replaces all rows of some days of one database in one commit, also while others write to the table.

    `rows`: of `spec.columns`, each with one of these days and this database; both are partitions. Makes the
    table, if necessary. Raises SchemaMismatch and DELTA_ERRORS.
    """
    texts = ", ".join(f"'{day.isoformat()}'" for day in days)
    predicate = f"{DAY} IN ({texts}) AND database = {database}"
    repeat_commit(lambda: _replace_rows(open_table(root, spec), spec, predicate, rows))


def append_rows(root: str, spec: TableSpec, rows: pa.Table) -> None:
    """Adds rows in one commit. Makes the table, if necessary. Raises SchemaMismatch and DELTA_ERRORS."""
    rows = rows.select(spec.columns.names).cast(spec.columns)
    repeat_commit(
        lambda: write_deltalake(
            open_table(root, spec), rows, mode="append", writer_properties=WRITER
        )
    )


def _replace_rows(table: DeltaTable, spec: TableSpec, predicate: str, rows: pa.Table) -> None:
    write_deltalake(
        table,
        rows.select(spec.columns.names).cast(spec.columns),
        mode="overwrite",
        predicate=predicate,
        writer_properties=WRITER,
    )


def list_days(table: DeltaTable) -> list[date]:
    """The days of which the table has files, oldest first."""
    return sorted({date.fromisoformat(str(one[DAY])) for one in table.partitions()})


def describe_table(root: str, spec: TableSpec) -> dict[str, str | int] | None:
    """Facts of a table, by the log alone; None: there is no such table."""
    table = find_table(root, spec.name)
    if table is None:
        return None
    actions, days = table.get_add_actions(), list_days(table)
    return {
        "table": spec.name,
        "rows": sum(actions.column("num_records").to_pylist()),
        "first_day": days[0].isoformat() if days else "-",
        "last_day": days[-1].isoformat() if days else "-",
        "files": len(actions),
        "bytes": sum(actions.column("size_bytes").to_pylist()),
        "version": table.version(),
        "schema_version": int(table.metadata().configuration.get(VERSION_PROPERTY, "0")),
    }


def describe_delta_error(error: Exception) -> str:
    """The error of toc, delta-rs, pyarrow or an executor, in one line."""
    if isinstance(error, TocError):
        return str(error)
    if not isinstance(error, DELTA_ERRORS):
        return short_error_text(error)
    lines = (line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines())
    return ": ".join(line for line in lines if line) or type(error).__name__
