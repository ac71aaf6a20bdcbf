"""Estimates how many live jobs of a shard come due in each slice of time, and of which types. Scans no table.

1. The first `scanned_max` entries of the index on due_time are counted: exact, and enough for most shards.
2. What is due later is not read: the server's optimiser says how many entries lie in each slice, and in parts
   of large ones (EXPLAIN; it walks down the index twice for each). SQLite cannot say that: there the estimate
   ends.
3. Types are read from samples: of the entries that were counted, by a hash of the job_id, so that each has
   the same chance; of later ones, some rows at a few places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from toc.domain.due_grid import DAY_MS, HOUR_MS, MINUTE_MS, REGIONS, DueGrid
from toc.store.column_types import routing_hash_of_column, sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.store.driver_errors import explain_missing_table
from toc.store.schema import job_table_name
from toc.store.sql_expressions import expressions_of

SCANNED_MAX, SQLITE_SCANNED_MAX = 10_000, 100_000
SAMPLED_MAX = 100  # rows of a shard and a region of the grid
PROBES_MAX, PROBE_ROWS = 16, 12
RANGES_PER_QUERY_MAX = 16  # each opens the table once more
EXACT_MAX = 7400  # entries of 10 full pages of the index: a range that InnoDB counts
SPLIT_MAX, PARTS_MAX, PART_ENTRIES = 8, 128, 4000  # parts of a slice, and of a shard
_LIMIT_NONE = (
    1_000_000_000  # MySQL leaves out an ORDER BY without a LIMIT, and then does not estimate
)
_HASH_RANGE = 10_000

TypeKey = tuple[int, str | None]
"""The number of a type, and a tenant."""
_Range = tuple[int, int]  # ms since 1970


class DueEstimate(NamedTuple):
    """What is due in a shard. counts: by slice of the grid. counted: how many of these jobs were counted.

    samples: by slice, rows by type and tenant. known_ms: later slices are not known.
    """

    shard: int
    grid: DueGrid
    counts: Sequence[float]
    counted: int
    samples: Mapping[int, Counter[TypeKey]]
    known_ms: int


@dataclass(frozen=True, slots=True)
class DueEstimator:
    """Makes estimates; at most 3 statements of a shard, and 1 for 16 slices or parts that are not counted."""

    databases: Databases
    scanned_max: int | None = None
    sampled_max: int = SAMPLED_MAX

    def estimate_due(self, shard: int, grid: DueGrid, turn: int = 0) -> DueEstimate:
        """The estimate of a shard. turn: another one takes the samples of late slices at other places.

        Raises StoreUnavailable, and SchemaMismatch for a missing table.
        """
        database = self.databases.database_of_shard(shard)
        default = SQLITE_SCANNED_MAX if database.sqlite else SCANNED_MAX
        reader = _ShardReader(
            database, database.job_table_name(shard), grid, self.scanned_max or default
        )
        with explain_missing_table(database.index, job_table_name(shard)):
            return database.run_read(lambda connection: self._read(reader, shard, turn, connection))

    def _read(
        self, reader: _ShardReader, shard: int, turn: int, connection: Connection
    ) -> DueEstimate:
        grid = reader.grid
        counts: list[float] = reader.count_first(connection)
        counted, known_ms = int(sum(counts)), grid.end_ms
        samples = reader.sample_first(connection, counts, self.sampled_max) if counted else {}
        if counted >= reader.scanned_max:
            cut = max(place for place, count in enumerate(counts) if count)
            if reader.database.sqlite:
                known_ms = grid.edges_ms[max(0, cut - 1)]
            else:
                late = reader.estimate_slices(connection, range(cut, len(counts)))
                counts[cut:] = [max(*both) for both in zip(counts[cut:], late, strict=True)]
                for place, rows in reader.probe_slices(connection, cut, late, turn).items():
                    samples[place] = samples.get(place, Counter()) + rows
        return DueEstimate(shard, grid, counts, counted, samples, known_ms)


class _ShardReader:
    """The statements about one shard."""

    def __init__(self, database: Database, table: str, grid: DueGrid, scanned_max: int) -> None:
        self.database, self._table, self.grid, self.scanned_max = database, table, grid, scanned_max
        times = {
            "begin": grid.begin_ms, "hours": grid.hours_ms, "days": grid.days_ms, "end": grid.end_ms,
        }  # fmt: skip
        self._times: dict[str, Any] = {name: sql_time_of_ms(ms) for name, ms in times.items()}
        self._times["scanned"] = scanned_max

    @property
    def _first(self) -> str:
        """The entries that are counted: the index alone is read."""
        return (
            f"(SELECT job_id, due_time FROM {self._table} WHERE due_time < :end "
            "ORDER BY due_time, job_id LIMIT :scanned)"
        )

    def _by_region(self, *values: str) -> str:
        before, *rest = values
        return (
            f"CASE WHEN s.due_time < :begin THEN {before} WHEN s.due_time < :hours THEN {rest[0]} "
            f"WHEN s.due_time < :days THEN {rest[1]} ELSE {rest[2]} END"
        )

    def count_first(self, connection: Connection) -> list[float]:
        """By slice, how many of the first entries lie in it."""
        ms = expressions_of(self.database).ms.format("s.due_time")
        begin = self._by_region("0", *(f"{ms} - {ms} % {n}" for n in (MINUTE_MS, HOUR_MS, DAY_MS)))
        query = text(
            f"SELECT {begin} AS slice_begin, COUNT(*) FROM {self._first} AS s GROUP BY slice_begin"
        )
        counts = [0.0] * len(self.grid.edges_ms)
        for begin_ms, count in connection.execute(query, self._times):
            counts[self.grid.slice_of(int(begin_ms))] += int(count)
        return counts

    def sample_first(
        self, connection: Connection, counts: Sequence[float], sampled_max: int
    ) -> dict[int, Counter[TypeKey]]:
        """By slice, types of a sample of the first entries."""
        of_region = [0.0] * REGIONS
        for place, count in enumerate(counts):
            of_region[self.grid.region_of(place)] += count
        shares = [-(-sampled_max * _HASH_RANGE // max(int(n), sampled_max)) for n in of_region]
        wanted = self._by_region(*(f":share{place}" for place in range(REGIONS)))
        ms = expressions_of(self.database).ms.format("s.due_time")
        hashed = (
            routing_hash_of_column.sqlite if self.database.sqlite else routing_hash_of_column.mysql
        ).format("s.job_id")
        query = text(
            f"SELECT {ms}, j.type_no, j.tenant FROM {self._first} AS s "
            f"JOIN {self._table} AS j ON j.job_id = s.job_id WHERE {hashed} % {_HASH_RANGE} < {wanted} "
            "LIMIT :sampled"
        )
        values = {f"share{place}": share for place, share in enumerate(shares)}
        values |= {"sampled": 2 * REGIONS * sampled_max}
        samples: dict[int, Counter[TypeKey]] = {}
        for due_ms, type_no, tenant in connection.execute(query, self._times | values):
            samples.setdefault(self.grid.slice_of(int(due_ms)), Counter())[type_no, tenant] += 1
        return samples

    def estimate_slices(self, connection: Connection, places: Sequence[int]) -> list[float]:
        """The optimiser's estimates of the entries in these slices. Not on SQLite."""
        ranges = [self._range_of(place) for place in places]
        found = self._explain_ranges(connection, ranges)
        # Parts of a large slice are small enough to be counted by it, if their jobs are not due at once.
        left, owners, parts = PARTS_MAX, list[int](), list[_Range]()
        # Not slice 0: it begins in 1970.
        large = [index for index, place in enumerate(places) if place and found[index] > EXACT_MAX]
        for index in sorted(large, key=lambda index: -found[index]):
            number = min(SPLIT_MAX, left, round(found[index] / PART_ENTRIES))
            if number < 2:
                break
            parts += _split_range(*ranges[index], number)
            owners += [index] * number
            left -= number
        counts = [_entries_of_estimate(rows) for rows in found]
        for index in set(owners):
            counts[index] = 0.0
        for index, rows in zip(owners, self._explain_ranges(connection, parts), strict=True):
            counts[index] += _entries_of_estimate(rows)
        return counts

    def _explain_ranges(self, connection: Connection, ranges: Sequence[_Range]) -> list[int]:
        found: list[int] = []
        for start in range(0, len(ranges), RANGES_PER_QUERY_MAX):
            some = ranges[start : start + RANGES_PER_QUERY_MAX]
            # Columns that the index lacks: else the plan may be to read the whole index.
            part = (
                f"(SELECT type_no FROM {self._table} FORCE INDEX (ix_due) WHERE due_time >= %s "
                f"AND due_time < %s ORDER BY due_time LIMIT {_LIMIT_NONE})"
            )
            query = f"EXPLAIN FORMAT=TRADITIONAL {' UNION ALL '.join([part] * len(some))}"
            values = tuple(sql_time_of_ms(ms) for bounds in some for ms in bounds)
            rows = connection.exec_driver_sql(query, values).mappings().all()
            plans = [row for row in rows if row["select_type"] != "UNION RESULT"]
            found += [int(row["rows"] or 0) for row in plans[: len(some)]]
        return found

    def probe_slices(
        self, connection: Connection, first: int, counts: Sequence[float], turn: int
    ) -> dict[int, Counter[TypeKey]]:
        """Types of some rows of slices from `first` on; a slice with more rows is more likely to be read."""
        sums = list(accumulate(counts))
        places = {
            next(place for place, up_to in enumerate(sums) if up_to * PROBES_MAX >= sums[-1] * n)
            for n in range(1, PROBES_MAX + 1)
            if sums[-1]
        }
        parts: list[str] = []
        values: list[Any] = []
        for place in sorted(places):
            begin_ms, end_ms = self._range_of(first + place)
            if first + place:
                begin_ms += (end_ms - begin_ms) * ((turn + place) % 4) // 4
            parts.append(
                f"(SELECT {first + place} AS place, type_no, tenant FROM {self._table} "
                "FORCE INDEX (ix_due) WHERE due_time >= %s AND due_time < %s "
                f"ORDER BY due_time, job_id LIMIT {PROBE_ROWS})"
            )
            values += sql_time_of_ms(begin_ms), sql_time_of_ms(end_ms)
        samples: dict[int, Counter[TypeKey]] = {}
        if parts:
            query = " UNION ALL ".join(parts)
            for place, type_no, tenant in connection.exec_driver_sql(query, tuple(values)):
                samples.setdefault(int(place), Counter())[type_no, tenant] += 1
        return samples

    def _range_of(self, place: int) -> _Range:
        edges = self.grid.edges_ms
        return (edges[place - 1] if place else 0), edges[place]


def _split_range(begin_ms: int, end_ms: int, number: int) -> list[_Range]:
    edges = [begin_ms + (end_ms - begin_ms) * part // number for part in range(number + 1)]
    return list(pairwise(edges))


def _entries_of_estimate(rows: int) -> float:
    """How many entries InnoDB means. It says 1 for an empty range, too.

    It counts a range of up to 10 pages, and doubles its estimate of a larger one, so as not to be too low
    (btr_estimate_n_rows_in_range_low); measured, half of that is at most a quarter too high or too low.
    """
    if rows <= 1:
        return 0.0
    return rows / 2 if rows > EXACT_MAX else float(rows)
