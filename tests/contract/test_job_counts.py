"""The counts of jobs by every engine, against counting in Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.contract.counted_jobs import Job, counts_of, draw_jobs
from tests.contract.ended_rows import write
from tests.contract.library import Library
from toc.domain.ids import lowest_id_at
from toc.errors import SchemaMismatch
from toc.store.archive_status import EndedJobWindow
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import (
    DAY_MS,
    HOUR_MS,
    IdRange,
    possible_ids_of_created,
    possible_ids_of_ended,
)
from toc.store.job_counts import JobCounter

SHARD = 2


@pytest.fixture
def counter(library: Library) -> JobCounter:
    return JobCounter(library.databases)


def store(library: Library, jobs: list[Job]) -> None:
    rows = [
        {"job_id": lowest_id_at(job.made_ms) + n, "biz_id": n, **job.row}
        for n, job in enumerate(jobs)
    ]
    write(library, SHARD, rows)


@pytest.mark.parametrize("archived_days", [0, 1])
def test_all_measures_are_what_counting_gives(
    library: Library, counter: JobCounter, archived_days: int
) -> None:
    base_ms = library.now_ms // DAY_MS * DAY_MS
    jobs = draw_jobs(base_ms, 500, [1, 2])
    store(library, jobs)
    window = EndedJobWindow(base_ms, base_ms + 2 * DAY_MS)
    archived_ms = base_ms + archived_days * DAY_MS
    ids = possible_ids_of_ended(window)
    created = possible_ids_of_created(window), window, archived_ms
    found = [
        *counter.count_lateness(SHARD, ids, window),
        *counter.count_ended(SHARD, ids, window),
        *counter.count_created(SHARD, *created),
    ]
    wanted = list(counts_of(jobs, window.since_ms, window.until_ms, archived_ms))
    assert Counter(found) == Counter(wanted)
    assert len({count.bucket for count in wanted}) > 18  # else it would prove little
    for days, measure in (
        (counter.count_ended_per_day(SHARD, ids, window), 2),
        (counter.count_created_per_day(SHARD, *created), 3),
    ):
        jobs_of_day: Counter[int] = Counter()
        for count in wanted:
            jobs_of_day[count.day] += count.jobs if count.measure == measure else 0
        assert dict(days) == +jobs_of_day


def test_an_unknown_status_is_counted_as_it_is(library: Library, counter: JobCounter) -> None:
    base_ms = library.now_ms // DAY_MS * DAY_MS
    jobs = [replace(job, status=7) for job in draw_jobs(base_ms, 5, [1], days=1)]
    store(library, jobs)
    window = EndedJobWindow(base_ms, base_ms + DAY_MS)
    found = counter.count_created(SHARD, possible_ids_of_created(window), window)
    assert {(count.status, count.bucket) for count in found} == {(7, None)}


def test_due_jobs_are_counted_by_span(library: Library, counter: JobCounter) -> None:
    base_ms = library.now_ms // DAY_MS * DAY_MS
    due = [base_ms - 1, base_ms, base_ms + 59_999, base_ms + 60_000, base_ms + HOUR_MS, None]
    rows = [
        {
            "job_id": lowest_id_at(base_ms) + n,
            "biz_id": n,
            "type_no": 1,
            "action_time": sql_time_of_ms(base_ms),
            "due_time": None if ms is None else sql_time_of_ms(ms),
        }
        for n, ms in enumerate(due)
    ]
    write(library, SHARD, rows)
    found = counter.count_due(SHARD, base_ms, base_ms + HOUR_MS, 60_000)
    assert found == {base_ms: 2, base_ms + 60_000: 1}
    found = counter.count_due(SHARD, base_ms, base_ms + 2 * HOUR_MS, HOUR_MS)
    assert found == {base_ms: 3, base_ms + HOUR_MS: 1}


def test_jobs_that_are_not_archived_are_found(library: Library, counter: JobCounter) -> None:
    base_ms = library.now_ms // DAY_MS * DAY_MS
    (one,) = draw_jobs(base_ms, 1, [1])
    jobs = [
        replace(one, made_ms=base_ms, status=status, changed_ms=base_ms + ms)
        for status, ms in ((2, -1), (2, 0), (0, -1))
    ]
    store(library, jobs)
    first = lowest_id_at(base_ms)
    found = counter.find_unarchived(SHARD, [*range(first, first + 900)], base_ms)
    assert found == {first + 1, first + 2}


def test_a_table_that_is_gone_is_named(library: Library, counter: JobCounter) -> None:
    job_id = next(j for j in (library.pending(n) for n in range(100)) if library.shard(j) == 3)
    library.sql(job_id, "ALTER TABLE toc_job_0003 RENAME TO toc_job_away")
    try:
        with pytest.raises(SchemaMismatch, match="toc_job_0003"):
            counter.count_ended(3, IdRange(0, 1), EndedJobWindow(0, library.now_ms))
        with pytest.raises(SchemaMismatch, match="toc_job_0003"):
            counter.find_unarchived(3, [1], 0)
    finally:
        library.sql(job_id, "ALTER TABLE toc_job_away RENAME TO toc_job_0003")
