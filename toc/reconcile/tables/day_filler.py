"""Fills days of `lateness`, `volume` and `cohorts` for one database, and checks them.

Each table gets all the days in one commit, which replaces what the table had of these days and this database:
so a repeated fill changes nothing, and a reader sees the old or the new rows. The checks are written last. A
process that is killed before leaves days without checks, and the next night fills them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from toc.reconcile.delta_tables import replace_days
from toc.reconcile.tables.counts import CountWork, merge_pages, read_merged_counts
from toc.reconcile.tables.database_counts import DayCounts
from toc.reconcile.tables.table_checks import TableCheck, check_tables, write_checks
from toc.reconcile.tables.table_rows import cohort_rows, lateness_rows, volume_rows
from toc.reconcile.tables.table_specs import COHORTS, LATENESS, VOLUME
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.job_counts import CREATED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 2
"""How often days are counted: jobs that are redriven, discarded or purged during the first try make counts
differ."""


def tables_root(settings: Settings) -> str:
    """The folder of the tables: that of the archive, or of the reports if there is no archive."""
    reconcile = settings.reconcile
    return str(reconcile.directory if reconcile.archive == "none" else reconcile.archive)


@contextmanager
def measured_phase(clock: Clock, seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Adds the duration of the block to the seconds of a phase."""
    began_s = clock.monotonic_s()
    try:
        yield
    finally:
        took_s = clock.monotonic_s() - began_s
        seconds[phase] = seconds.get(phase, 0.0) + took_s


@dataclass(frozen=True, slots=True)
class DayFiller:
    """Fills days of one database. type_names: by type_no. now_ms: by the database's clock.

    seconds: the times of its phases are added here.
    """

    spark: SparkSession | None
    settings: Settings
    database: int
    type_names: Mapping[int, str]
    now_ms: int
    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)

    def fill_days(
        self,
        ended_days: Sequence[date],
        created_days: Sequence[date],
        works: Sequence[CountWork],
        count_expected: Callable[[], DayCounts],
    ) -> list[TableCheck]:
        """Fills `lateness` and `volume` of the one days, and `cohorts` of the others; returns the checks.

        created_days: with all of ended_days, since `volume` counts created jobs too. works: count the jobs of
        all these days. count_expected: the numbers that the tables must have, counted in another way.
        Raises TocError, DELTA_ERRORS, and errors of Spark.
        """
        root, checks = tables_root(self.settings), list[TableCheck]()
        for _ in range(TRIES):
            with measured_phase(self.clock, self.seconds, "count"):
                counts = self._count(works)
            with measured_phase(self.clock, self.seconds, "write"):
                self._replace_rows(root, counts, ended_days, created_days)
            with measured_phase(self.clock, self.seconds, "check"):
                checks = check_tables(
                    root, self.database, ended_days, created_days, count_expected()
                )
            if all(check.is_good for check in checks):
                break
        write_checks(root, self.database, checks, self.now_ms, created_days)
        return checks

    def _count(self, works: Sequence[CountWork]) -> pa.Table:
        parts = [read_merged_counts(self.spark, self.settings, work) for work in works]
        if len(parts) == 1:
            return parts[0]
        pages = (page for part in parts for page in part.to_batches())
        return merge_pages(pages, self.settings.reconcile.table_rows_max)

    def _replace_rows(
        self,
        root: str,
        counts: pa.Table,
        ended_days: Sequence[date],
        created_days: Sequence[date],
    ) -> None:
        if ended_days:
            of_days = _of_days(counts, ended_days)
            rows = lateness_rows(of_days, self.type_names, self.database)
            replace_days(root, LATENESS, ended_days, self.database, rows)
            rows = volume_rows(of_days, self.type_names, self.database)
            replace_days(root, VOLUME, ended_days, self.database, rows)
        created = counts.filter(pc.equal(counts["measure"], CREATED))
        rows = cohort_rows(
            _of_days(created, created_days), self.type_names, self.database, self.now_ms
        )
        replace_days(root, COHORTS, created_days, self.database, rows)


def _of_days(counts: pa.Table, days: Sequence[date]) -> pa.Table:
    numbers = pa.array(days, pa.date32()).cast(pa.int32())
    return counts.filter(pc.is_in(counts["day"], numbers))
