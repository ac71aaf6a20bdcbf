"""Checks of the analysts' tables: what was written is read back and compared with other counts.

A check is a row of the table `checks`. A day of a database counts as filled if all its checks are good, so a
night that was killed, or that found a difference, fills the day again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from toc.reconcile.delta_tables import DAY, TableSpec, find_table, replace_days
from toc.reconcile.tables.database_counts import DayCounts
from toc.reconcile.tables.table_rows import rows_of_spec
from toc.reconcile.tables.table_specs import CHECKS, COHORTS, DATABASE, LATENESS, VOLUME

GAP_DAYS = 31
"""How many days back a gap counts: older days may be neither archived nor in the database."""

COUNT, SCHEDULED, DOUBLES, GAPS = "count", "scheduled", "doubles", "gaps"
_EPOCH = date(1970, 1, 1)

_KEYS = {
    LATENESS.name: ["hour", "type_no", "shard", "node", "outcome"],
    VOLUME.name: ["hour", "type_no", "shard"],
    COHORTS.name: ["type_no", "shard", "outcome"],
}
_ENDED = ("done", "cancelled", "dead")


class TableCheck(NamedTuple):
    """One check of one day. found, expected: jobs; for DOUBLES: rows, and different keys; for GAPS: days."""

    table: str
    check: str
    day: date
    found: int
    expected: int

    @property
    def is_good(self) -> bool:
        return self.found == self.expected

    def __str__(self) -> str:
        texts = {
            DOUBLES: f"{self.found:,} rows, but {self.expected:,} different keys",
            GAPS: f"{self.found:,} of the {GAP_DAYS} days before are missing",
        }
        default = f"{self.check}: {self.found:,} jobs, but {self.expected:,} are expected"
        return f"{self.table}, {self.day}: {texts.get(self.check, default)}"


def day_of_number(number: int) -> date:
    """The day that is so many days after 1970-01-01."""
    return _EPOCH + timedelta(days=number)


def check_tables(
    root: str,
    database: int,
    ended_days: Sequence[date],
    created_days: Sequence[date],
    expected: DayCounts,
) -> list[TableCheck]:
    """Reads days back from the tables, and compares them with `expected`. Raises DELTA_ERRORS."""
    found = []
    ended = {day_of_number(number): jobs for number, jobs in expected.ended.items()}
    created = {day_of_number(number): jobs for number, jobs in expected.created.items()}
    for spec, days, check, columns, wanted in (
        (LATENESS, ended_days, COUNT, ("jobs",), ended),
        (VOLUME, ended_days, COUNT, _ENDED, ended),
        (VOLUME, ended_days, SCHEDULED, ("scheduled",), created),
        (COHORTS, created_days, COUNT, ("jobs",), created),
    ):
        jobs = Counter[date]()
        rows = _read_days(root, spec, database, days, [DAY, *columns])
        for column in columns:
            for row in rows.group_by(DAY).aggregate([(column, "sum")]).to_pylist():
                jobs[row[DAY]] += row[f"{column}_sum"]
        found += [TableCheck(spec.name, check, day, jobs[day], wanted.get(day, 0)) for day in days]
    for spec, days in ((LATENESS, ended_days), (VOLUME, ended_days), (COHORTS, created_days)):
        found += _count_doubles(root, spec, database, days)
    return found


def _count_doubles(
    root: str, spec: TableSpec, database: int, days: Sequence[date]
) -> Iterator[TableCheck]:
    rows = _read_days(root, spec, database, days, [DAY, *_KEYS[spec.name]])
    every = Counter(rows[DAY].to_pylist())
    keys = Counter(rows.group_by([DAY, *_KEYS[spec.name]]).aggregate([])[DAY].to_pylist())
    for day in days:
        yield TableCheck(spec.name, DOUBLES, day, every[day], keys[day])


def _read_days(
    root: str, spec: TableSpec, database: int, days: Collection[date], columns: list[str]
) -> pa.Table:
    table = find_table(root, spec.name)
    if table is None or not days:
        return pa.table({name: pa.array([], spec.columns.field(name).type) for name in columns})
    of_days = pc.field(DAY).isin(sorted(days)) & (pc.field(DATABASE) == database)
    return table.to_pyarrow_dataset().to_table(columns=columns, filter=of_days)


def find_gaps(root: str, database: int, yesterday: date) -> list[TableCheck]:
    """Checks that all tables have each day between their first one and yesterday, GAP_DAYS back at most."""
    first = yesterday - timedelta(days=GAP_DAYS - 1)
    checked = read_checked_days(root, database, first)
    found = []
    for spec in (LATENESS, VOLUME, COHORTS):
        days = {day for (table, day), _ in checked.items() if table == spec.name}
        missing = (yesterday - min(days)).days + 1 - len(days) if days else 0
        found.append(TableCheck(spec.name, GAPS, yesterday, missing, 0))
    return found


def list_gap_days(root: str, database: int, yesterday: date) -> list[date]:
    """The days that `find_gaps` counts, of any table."""
    first = yesterday - timedelta(days=GAP_DAYS - 1)
    checked = read_checked_days(root, database, first)
    missing = set()
    for spec in (LATENESS, VOLUME, COHORTS):
        days = {day for (table, day), _ in checked.items() if table == spec.name}
        if days:
            span = (yesterday - min(days)).days + 1
            missing |= {min(days) + timedelta(days=n) for n in range(span)} - days
    return sorted(missing)


def read_checked_days(root: str, database: int, first: date) -> dict[tuple[str, date], bool]:
    """(table, day) → whether all its checks are good, from the day `first` on. GAPS do not count."""
    table = find_table(root, CHECKS.name)
    if table is None:
        return {}
    of_days = (pc.field(DAY) >= first) & (pc.field(DATABASE) == database)
    columns = ["table", "check", DAY, "is_good"]
    found: dict[tuple[str, date], bool] = {}
    for row in table.to_pyarrow_dataset().to_table(columns=columns, filter=of_days).to_pylist():
        if row["check"] != GAPS:
            key = row["table"], row[DAY]
            found[key] = found.get(key, True) and row["is_good"]
    return found


def write_checks(
    root: str, database: int, checks: Iterable[TableCheck], now_ms: int, days: Sequence[date]
) -> None:
    """Replaces checks of some days; keeps the other checks of these days."""
    checks = list(checks)
    new_keys = {check[:3] for check in checks}
    rows = [_row_of_check(check, database, now_ms) for check in checks]
    kept = _read_days(root, CHECKS, database, days, CHECKS.columns.names).to_pylist()
    rows += [
        row | {"checked_at": round(row["checked_at"].timestamp() * 1000)}
        for row in kept
        if (row["table"], row["check"], row[DAY]) not in new_keys
    ]
    columns = {name: [row[name] for row in rows] for name in CHECKS.columns.names}
    replace_days(root, CHECKS, days, database, rows_of_spec(CHECKS, columns))


def _row_of_check(check: TableCheck, database: int, now_ms: int) -> dict[str, object]:
    return check._asdict() | {
        "is_good": check.is_good,
        "checked_at": now_ms,
        DATABASE: database,
    }
