"""`toc_purge` counts exactly what was deleted, on every engine."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from tests.contract.library import SHARDS, Library
from toc.domain.job import Status
from toc.store import purge_pages
from toc.store.claims import OutcomeKind
from toc.store.purge_pages import (
    PurgeCandidate,
    PurgeCount,
    PurgePages,
    delete_oldest_counts,
    read_purges_around,
)

DAY_MS = 86_400_000
TODAY = "2026-01-01"  # of the library's clock


@pytest.fixture
def purges(library: Library) -> PurgePages:
    return PurgePages(library.databases)


def page(library: Library, purges: PurgePages, shard: int) -> list[PurgeCandidate]:
    library.clock.advance(1)
    return [row for row in purges.read_purge_page(shard, 0, library.now_ms, 100) if row.has_ended]


def counts(library: Library, job_id: int) -> list[tuple[Any, ...]]:
    sql = "SELECT day, type_no, status, jobs, first_id, last_id FROM toc_purge ORDER BY 1, 2, 3"
    return [(str(row[0]), *row[1:]) for row in library.sql(job_id, sql)]


def test_by_day_type_and_status_with_the_smallest_and_the_largest_id(
    library: Library, purges: PurgePages
) -> None:
    done = [library.ended(OutcomeKind.DONE) for _ in range(3)]
    dropped, dead = library.ended(OutcomeKind.DROP), library.dead()
    report = library.ended(OutcomeKind.DONE, type_no=library.report_no)
    shard = library.shard(dead)
    assert purges.delete_unchanged_jobs(shard, page(library, purges, shard)) == 6
    close, other = library.close_no, library.report_no
    first = sorted(
        [
            (TODAY, close, int(Status.DONE), 3, done[0], done[2]),
            (TODAY, close, int(Status.CANCELLED), 1, dropped, dropped),
            (TODAY, close, int(Status.DEAD), 1, dead, dead),
            (TODAY, other, int(Status.DONE), 1, report, report),
        ]
    )
    assert counts(library, dead) == first
    # Later on the same day they are added up, on the next one they begin anew.
    more = library.ended(OutcomeKind.DONE)
    assert purges.delete_unchanged_jobs(shard, page(library, purges, shard)) == 1
    added = (TODAY, close, int(Status.DONE), 4, done[0], more)
    assert [row for row in counts(library, dead) if row[1:3] == added[1:3]] == [added]
    library.clock.advance(DAY_MS / 1000)
    late = library.ended(OutcomeKind.DONE)
    assert purges.delete_unchanged_jobs(shard, page(library, purges, shard)) == 1
    assert counts(library, dead)[-1] == ("2026-01-02", close, int(Status.DONE), 1, late, late)


def test_an_older_page_widens_the_range_downwards(library: Library, purges: PurgePages) -> None:
    old, young = library.ended(OutcomeKind.DONE), library.ended(OutcomeKind.DONE)
    shard = library.shard(old)
    rows = page(library, purges, shard)
    for row in reversed(rows):
        assert purges.delete_unchanged_jobs(shard, [row]) == 1
    ((_, _, _, jobs, first, last),) = counts(library, old)
    assert (jobs, first, last) == (2, old, young)


def test_only_what_was_deleted_is_counted(library: Library, purges: PurgePages) -> None:
    """One was redriven and one redriven and done since the page was read; another is gone."""
    lives, done_again, gone, dead = (library.dead() for _ in range(4))
    shard = library.shard(dead)
    rows = page(library, purges, shard)
    for job_id in (lives, done_again):
        assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    library.claim([done_again], "two")
    assert library.settle_as(OutcomeKind.DONE, done_again, "two")
    library.sql(gone, f"DELETE FROM toc_job_{shard:04d} WHERE job_id = {gone}")
    assert purges.delete_unchanged_jobs(shard, rows) == 1
    ((_, _, status, jobs, first, last),) = counts(library, dead)
    assert (status, jobs, first, last) == (Status.DEAD, 1, dead, dead)
    assert purges.delete_unchanged_jobs(shard, rows) == 0
    assert len(counts(library, dead)) == 1


def test_a_status_is_that_of_the_deleted_row(library: Library, purges: PurgePages) -> None:
    """It ended anew, under a clock that stood still: the page that was read says another status."""
    job_id, other = library.dead(), library.dead()
    shard = library.shard(job_id)
    rows = page(library, purges, shard)
    table = f"toc_job_{shard:04d}"
    library.sql(job_id, f"UPDATE {table} SET status = 2, type_no = 77 WHERE job_id = {job_id}")
    assert purges.delete_unchanged_jobs(shard, rows) == 2
    found = {(row[1], row[2]): row[3:] for row in counts(library, job_id)}
    assert found == {
        (77, Status.DONE): (1, job_id, job_id),
        (library.close_no, Status.DEAD): (1, other, other),
    }


def test_a_page_of_many_types(
    library: Library, purges: PurgePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.store.purge_pages.KINDS_MAX", 3)
    jobs = [library.ended(OutcomeKind.DONE) for _ in range(5)]
    shard = library.shard(jobs[0])
    for n, job_id in enumerate(jobs[:4]):
        table = f"toc_job_{shard:04d}"
        library.sql(job_id, f"UPDATE {table} SET type_no = {n + 1} WHERE job_id = {job_id}")
    assert purges.delete_unchanged_jobs(shard, page(library, purges, shard)) == 5
    assert [row[1:4] for row in counts(library, jobs[0])] == [
        (type_no, Status.DONE, 1) for type_no in sorted([1, 2, 3, 4, library.close_no])
    ]


def test_what_is_not_deleted_is_not_counted_and_the_other_way_round(
    library: Library, purges: PurgePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction: a count that fails keeps the jobs."""
    job_id = library.ended(OutcomeKind.DONE)
    shard = library.shard(job_id)
    rows = page(library, purges, shard)
    library.sql(job_id, "ALTER TABLE toc_purge RENAME TO away")
    try:
        with pytest.raises(Exception, match="toc_purge"):
            purges.delete_unchanged_jobs(shard, rows)
    finally:
        library.sql(job_id, "ALTER TABLE away RENAME TO toc_purge")
    assert library.row(job_id).status == Status.DONE
    count = purge_pages._add_purge_counts

    def count_and_fail(*args: Any) -> None:
        count(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(purge_pages, "_add_purge_counts", count_and_fail)
    with pytest.raises(KeyboardInterrupt):
        purges.delete_unchanged_jobs(shard, rows)
    assert counts(library, job_id) == []
    assert library.row(job_id).status == Status.DONE


def test_purgers_side_by_side_lose_no_count(library: Library, purges: PurgePages) -> None:
    """A thread for each shard, all types in each page, in no order."""
    for n in range(60):
        library.ended((OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY)[n % 3], biz_id=n,
                      type_no=(library.close_no, library.report_no)[n // 3 % 2])  # fmt: skip
    library.clock.advance(1)
    pages = {shard: page(library, purges, shard) for shard in range(SHARDS)}
    expected = Counter((row.type_no, row.status) for rows in pages.values() for row in rows)
    ids = [row.job_id for rows in pages.values() for row in rows]
    assert len(ids) == 60
    start = threading.Barrier(SHARDS)

    def work(shard: int) -> int:
        rows = pages[shard]
        start.wait()
        some = [rows[at : at + 4][:: 1 if shard % 2 else -1] for at in range(0, len(rows), 4)]
        return sum(purges.delete_unchanged_jobs(shard, part) for part in some)

    with ThreadPoolExecutor(SHARDS) as pool:
        assert sum(pool.map(work, pages)) == 60
    found = {row[1:3]: row[3] for row in counts(library, ids[0])}
    assert found == expected
    assert min(row[4] for row in counts(library, ids[0])) == min(ids)
    assert max(row[5] for row in counts(library, ids[0])) == max(ids)


# ---- asking, and forgetting


def put(library: Library, job_id: int, *rows: tuple[str, int, int, int, int, int]) -> None:
    for row in rows:
        values = ", ".join(map(repr, row))
        columns = "day, type_no, status, jobs, first_id, last_id"
        library.sql(job_id, f"INSERT INTO toc_purge ({columns}) VALUES ({values})")


def test_the_closest_counts_around_an_id(library: Library) -> None:
    job_id = library.pending()
    close, top = library.close_no, 2**63 - 1
    put(
        library,
        job_id,
        ("2026-02-01", close, 2, 100, job_id - 50, job_id + 50),
        ("2026-02-02", close, 3, 5, job_id, job_id),
        ("2026-02-03", 99, 4, 7, 1, top),
        ("2026-02-03", close, 4, 7, 1, top - 1),
        ("2026-02-04", close, 2, 9, job_id + 1, top),
        ("2026-01-03", close, 2, 9, 1, job_id - 1),
    )
    database = library.home(job_id)
    found = read_purges_around(database, job_id, 3)
    assert found.counts == [
        PurgeCount("2026-02-02", "order.close", Status.CANCELLED, 5, job_id, job_id),
        PurgeCount("2026-02-01", "order.close", Status.DONE, 100, job_id - 50, job_id + 50),
        PurgeCount("2026-02-03", "order.close", Status.DEAD, 7, 1, top - 1),
    ]
    assert (found.days, found.since) == (3, "2026-01-03")
    assert read_purges_around(database, job_id, 9).counts[-1].biz_type == "number 99"
    assert read_purges_around(database, 0, 9).counts == []


def test_an_empty_table_says_that_nothing_was_counted(library: Library) -> None:
    found = read_purges_around(library.databases[0], 5, 9)
    assert (found.counts, found.days, found.since) == ([], 0, None)


def test_old_days_are_forgotten_one_at_a_time(library: Library) -> None:
    job_id = library.pending()
    days = ("2023-01-01", "2023-01-02", "2023-01-03")
    put(library, job_id, *((day, n, 2, 1, 1, 1) for day in days for n in range(3)))
    database = library.home(job_id)
    left = []
    while delete_oldest_counts(database, "2023-01-03"):
        left.append({row[0] for row in counts(library, job_id)})
    assert left == [{"2023-01-02", "2023-01-03"}, {"2023-01-03"}]
    assert len(counts(library, job_id)) == 3


def test_the_table_refuses_a_second_row_of_a_key(library: Library) -> None:
    row = ("2026-02-01", 1, 2, 1, 1, 1)
    job_id = library.pending()
    put(library, job_id, row)
    with pytest.raises(DBAPIError):
        put(library, job_id, row)
