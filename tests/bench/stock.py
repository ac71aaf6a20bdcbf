"""Stock rows: jobs due next year, so that tables are as large as in real life."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toc.bench.common import Bench
from toc.bench.floor import Floor
from toc.bench.load import group_by_database, plan_rows
from toc.bench.scratch import STOCK_FROM
from toc.errors import SettingsError
from toc.trial.connected import open_databases
from toc.trial.worker import wall_ms

PART = 20_000
YEAR_MS = 365 * 86_400_000


def insert_stock(bench: Bench, rows: int, passed: Callable[[int], None]) -> None:
    """Writes so many on both sides; none of them is armed. `passed(rows)` after each part.

    Raises SettingsError on SQLite.
    """
    sides, (floor, *_) = bench.scratch.sides(), bench.floors or (None,)
    if floor is None:
        raise SettingsError("databases: are SQLite, and --pending is made of MySQL's statements")
    for side in sides:
        with open_databases(side) as databases:
            writer = Floor(side, databases, bench.scratch.client)
            try:
                for first, count in _parts(rows):
                    jobs = plan_rows(bench.ids, first, count, int(wall_ms()) + YEAR_MS)
                    writer.insert_rows(group_by_database(side, jobs))
                    passed(count)
            finally:
                writer.close()


def _parts(rows: int) -> Iterator[tuple[int, int]]:
    for at in range(0, rows, PART):
        yield STOCK_FROM + at, min(PART, rows - at)
