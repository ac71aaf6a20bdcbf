"""How many rows are overdue, counted from the index of due times, up to a bound in each shard."""

from __future__ import annotations

import pytest

from tests.contract.library import Library
from toc.store import overdue_count
from toc.store.databases import Database
from toc.store.overdue_count import OverdueCount, count_overdue_rows


def test_live_rows_of_all_shards_are_counted_once_they_are_due(library: Library) -> None:
    for number in range(40):
        library.pending(number, in_ms=-1000)
    ended = library.pending(99, in_ms=-1000)
    library.jobs.cancel(ended)
    library.pending(100, in_ms=60_000)
    counts = [count_overdue_rows(each, library.now_ms) for each in library.databases]
    assert sum(count.rows for count in counts) == 40
    assert not any(count.is_at_least for count in counts)
    assert all(
        count_overdue_rows(each, library.now_ms - 2000).rows == 0 for each in library.databases
    )


def test_no_more_rows_are_read_than_the_bound(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.insert(*(library.new(42, in_ms=-n - 1) for n in range(30)))
    database: Database = library.databases.database_of_shard(library.shard(library.pending(42)))
    monkeypatch.setattr(overdue_count, "ROWS_PER_SHARD_MAX", 10)
    monkeypatch.setattr(
        overdue_count, "_OVERDUE", overdue_count._OVERDUE.limit(overdue_count.literal_column("10"))
    )
    assert count_overdue_rows(database, library.now_ms) == OverdueCount(10, is_at_least=True)
