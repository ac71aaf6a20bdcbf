"""How many rows are overdue, counted from the index of due times, up to a bound in each shard."""

from __future__ import annotations

from tests.contract.library import Library
from toc.store.overdue_count import OverdueCount, count_overdue_rows


def test_live_rows_of_all_shards_are_counted_once_they_are_due(library: Library) -> None:
    for number in range(40):
        library.pending(number, in_ms=-1000)
    ended = library.pending(99, in_ms=-1000)
    library.jobs.cancel(ended)
    library.pending(100, in_ms=60_000)
    counts = [count_overdue_rows(each, library.now_ms, 1000) for each in library.databases]
    assert sum(count.rows for count in counts) == 40
    assert not any(count.is_at_least for count in counts)
    assert all(
        count_overdue_rows(each, library.now_ms - 2000, 1000).rows == 0
        for each in library.databases
    )


def test_no_more_rows_are_counted_than_the_bound(library: Library) -> None:
    ids = [
        inserted.job_id for inserted in library.insert(*(library.new(42, -n) for n in range(30)))
    ]
    database = library.databases.database_of_shard(library.shard(ids[0]))
    assert count_overdue_rows(database, library.now_ms, 10) == OverdueCount(10, is_at_least=True)
    assert count_overdue_rows(database, library.now_ms, 31) == OverdueCount(30, is_at_least=False)
