"""Maintenance of the archive's tables: merges small files of a day, and deletes files that no commit names.

Each run of the archive adds at least one file to a table for each day, type and database. Compaction writes
the rows of a day and type into few files, in one commit that changes no row; the archive's numbers of runs
stay as they are (archive_commits). A vacuum deletes files that no version of the table names any more, and
files of runs that were killed before their commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

from deltalake import DeltaTable

from toc.reconcile.archive_tables import TABLES
from toc.reconcile.delta_tables import (
    DAY,
    DELTA_ERRORS,
    WRITER,
    TableSpec,
    describe_delta_error,
    find_table,
    repeat_commit,
    require_table,
)
from toc.runtime.private_files import private_umask

COMPACTED_DAYS_MAX = 31
"""Days of a table that one run compacts, newest first; the next run does further ones."""

COMPACTED_BYTES = 256 * 2**20
"""The size of the files that compaction makes."""

SMALL_BYTES = COMPACTED_BYTES // 2
"""A partition with several files below this size is compacted."""

UNNAMED_FILES_H = 168
"""In hours. Files that no commit names are deleted when they are older: their run has ended, since
`reconcile.nightly_s_max` is a day at most. With 'none', no run may take so long."""


def maintain_tables(root: str, specs: Sequence[TableSpec] = TABLES) -> list[str]:
    """Compacts and vacuums tables in `root`, by default the archive's; returns a line for each that fails.

    Never raises for errors of a store.
    """
    failed = []
    for spec in specs:
        try:
            with private_umask():
                if find_table(root, spec.name) is not None:
                    compact_days(root, spec.name)
                    delete_unnamed_files(root, spec.name)
        except DELTA_ERRORS as error:
            failed.append(
                f"archive, maintenance of the table {spec.name}: {describe_delta_error(error)}. Nothing is "
                "lost; the next run tries again"
            )
    return failed


def compact_days(root: str, name: str, days_max: int = COMPACTED_DAYS_MAX) -> None:
    """Compacts the days that have several files of one type, newest first; at most `days_max` of them."""
    table = require_table(root, name)
    for day in _days_with_small_files(table)[:days_max]:
        repeat_commit(
            lambda day=day: require_table(root, name).optimize.compact(  # type: ignore[misc]
                partition_filters=[(DAY, "=", day.isoformat())],
                target_size=COMPACTED_BYTES,
                max_concurrent_tasks=1,
                writer_properties=WRITER,
            )
        )


def delete_unnamed_files(root: str, name: str, hours: int = UNNAMED_FILES_H) -> Sequence[str]:
    """Deletes files that no commit of the last `hours` names; returns their paths in the table."""
    return require_table(root, name).vacuum(
        retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
    )


def _days_with_small_files(table: DeltaTable) -> list[date]:
    """The days of which a partition has several small files, newest first."""
    actions = table.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in actions.schema.names}
    partitions = [columns[name] for name in columns if name.startswith("partition.")]
    small = Counter(
        partition
        for size, *partition_values in zip(columns["size_bytes"], *partitions, strict=True)
        if size < SMALL_BYTES
        for partition in [tuple(partition_values)]
    )
    place = list(table.metadata().partition_columns).index(DAY)
    days = {str(partition[place]) for partition, files in small.items() if files > 1}
    return [date.fromisoformat(day) for day in sorted(days, reverse=True)]
