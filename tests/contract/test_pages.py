"""Pages of live rows in the order (due_time, job_id): what the loader and the scanner walk."""

from __future__ import annotations

import pytest

from tests.contract.library import LEASE_MS, Library
from toc.store.claims import OutcomeKind
from toc.store.due_pages import BITS, SHARDS_PER_QUERY_MAX, DueRow

BEGINNING = (0, 0)


def rows_of(library: Library, *jobs: int) -> list[DueRow]:
    rows = [(library.row(job_id).due_ms, job_id) for job_id in jobs]
    return [
        DueRow((due_ms or 0, job_id), due_ms or 0, library.close_no)
        for due_ms, job_id in sorted(rows)
    ]


def test_due_after_walks_every_row_once(library: Library) -> None:
    # Many equal due times: a page may end amid them.
    jobs = [library.new(42, in_ms=n // 7) for n in range(50)]
    library.insert(*jobs[::-1])
    shard = library.shard(jobs[0].job_id)
    walked: list[DueRow] = []
    after = BEGINNING
    while page := library.pages.read_due_rows(shard, after, library.now_ms + 3600_000, 4):
        assert len(page) <= 4
        walked += page
        after = page[-1].key
    assert walked == sorted(walked)
    assert walked == [
        DueRow((due_ms, job_id), due_ms, library.close_no)
        for due_ms, job_id in sorted((job.action_ms, job.job_id) for job in jobs)
    ]


def test_due_after_stops_at_its_bound(library: Library) -> None:
    jobs = [library.pending(42, in_ms=n) for n in range(5)]
    shard = library.shard(jobs[0])
    page = library.pages.read_due_rows(shard, BEGINNING, library.now_ms + 2, 10)
    assert [row.job_id for row in page] == jobs[:3]
    # (due_time, job_id) > after: the row itself is not given again.
    after = (library.now_ms + 1, jobs[1])
    page = library.pages.read_due_rows(shard, after, library.now_ms + 2, 10)
    assert [row.job_id for row in page] == [jobs[2]]


def test_pages_are_of_one_shard(library: Library) -> None:
    jobs = [library.pending(biz_id) for biz_id in range(20)]
    for shard in range(4):
        mine = [job_id for job_id in jobs if library.shard(job_id) == shard]
        assert library.pages.read_due_rows(shard, BEGINNING, library.now_ms, 50) == rows_of(
            library, *mine
        )


@pytest.mark.invariant("I1")
def test_a_running_row_is_due_at_the_end_of_its_lease(library: Library) -> None:
    """It keeps its place in the index, and is overdue when its lease is over."""
    due_ms = library.now_ms
    job_id = library.running("one")
    shard = library.shard(job_id)
    assert library.pages.read_due_rows(shard, BEGINNING, due_ms, 10) == [
        DueRow((due_ms, job_id), due_ms + LEASE_MS, library.close_no)
    ]
    library.clock.advance(LEASE_MS / 1000 - 0.001)
    assert library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10) == []
    assert library.pages.find_overdue_shards({shard: 0}) == set()
    library.clock.advance(0.001)
    (row,) = library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10)
    assert row.job_id == job_id
    assert library.pages.find_overdue_shards({shard: 0}) == {shard}
    assert library.pages.read_overdue_rows(shard, BEGINNING, 1, None, 10) == []
    assert library.pages.find_overdue_shards({shard: 1}) == set()


@pytest.mark.invariant("I1")
def test_a_row_set_to_running_by_a_person_is_overdue(library: Library) -> None:
    """It has no lease_end_time: nobody runs it."""
    job_id = library.pending()
    shard = library.shard(job_id)
    library.sql(job_id, f"UPDATE toc_job_{shard:04d} SET status = 1, claim_token = 'hand'")
    (row,) = library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10)
    assert row.job_id == job_id
    assert library.take_over(job_id, "hand", "two") is not None


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_ended_rows_never_appear(library: Library, kind: OutcomeKind) -> None:
    shard = library.shard(library.ended(kind))
    library.clock.advance(3600)
    assert library.pages.read_due_rows(shard, BEGINNING, library.now_ms + 10**9, 10) == []
    assert library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10) == []


def test_cancelled_rows_never_appear(library: Library) -> None:
    job_id = library.pending()
    library.jobs.cancel(job_id)
    assert library.pages.read_overdue_rows(library.shard(job_id), BEGINNING, 0, None, 10) == []


def test_overdue_is_by_the_databases_clock_less_the_grace(library: Library) -> None:
    job_id = library.pending()
    shard = library.shard(job_id)
    library.clock.advance(29.999)
    assert library.pages.read_overdue_rows(shard, BEGINNING, 30_000, None, 10) == []
    library.clock.advance(0.001)
    assert library.pages.read_overdue_rows(shard, BEGINNING, 30_000, None, 10) == rows_of(
        library, job_id
    )
    early = library.pending(in_ms=1)
    assert library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10) == rows_of(
        library, job_id
    )
    library.clock.advance(0.001)
    assert library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 10) == rows_of(
        library, job_id, early
    )


def test_overdue_pages_oldest_first_and_goes_on_after_a_row(library: Library) -> None:
    jobs = [library.pending(42, in_ms=-n // 3) for n in range(9)]
    shard = library.shard(jobs[0])
    expected = rows_of(library, *jobs)
    first = library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 4)
    assert first == expected[:4]
    after = first[-1].key
    assert library.pages.read_overdue_rows(shard, after, 0, None, 10) == expected[4:]


def test_overdue_of_some_types(library: Library) -> None:
    close = library.pending(42)
    report = library.pending(42, type_no=library.report_no)
    shard = library.shard(close)

    def overdue(types: list[int] | None) -> list[int]:
        page = library.pages.read_overdue_rows(shard, BEGINNING, 0, types, 10)
        return [row.job_id for row in page]

    assert overdue(None) == [close, report]
    assert overdue([library.report_no]) == [report]
    assert overdue([library.report_no, library.close_no]) == [close, report]
    assert overdue([]) == []


def test_a_page_ends_at_a_key(library: Library) -> None:
    keys = [
        row.key for row in rows_of(library, *(library.pending(42, in_ms=-n // 2) for n in range(5)))
    ]
    shard = library.shard(keys[0][1])

    def ids(after: tuple[int, int], end: tuple[int, int]) -> list[int]:
        page = library.pages.read_overdue_rows(shard, after, 0, None, 10, end)
        return [row.job_id for row in page]

    assert ids(BEGINNING, keys[2]) == [job_id for _, job_id in keys[:3]]
    assert ids(keys[0], keys[3]) == [job_id for _, job_id in keys[1:4]]
    assert ids(keys[4], keys[2]) == []


def test_the_key_so_many_rows_later(library: Library) -> None:
    rows = rows_of(library, *(library.pending(42, in_ms=-n // 2) for n in range(5)))
    shard = library.shard(rows[0].job_id)
    library.pending(42, in_ms=1)  # not due
    for after, rest in ((BEGINNING, rows), (rows[1].key, rows[2:])):
        for count in range(1, 7):
            found = library.pages.read_due_key(shard, after, 0, count)
            assert found == (rest[count - 1].key if count <= len(rest) else None)
            known = library.pages.find_shards_with_rows_behind({shard: 0}, {shard: after}, count)
            assert known == ({shard} if found else set())
    library.clock.advance(1)
    assert library.pages.read_due_key(shard, BEGINNING, 1000, 5) == rows[4].key
    assert library.pages.read_due_key(shard, BEGINNING, 1002, 5) is None


def test_a_step_of_rows_is_checked_for_other_types(library: Library) -> None:
    """The first two rows of each shard are of a type that is left out; the third one is not."""
    shards = {}
    for shard, job_id in one_on_each(library, type_no=library.report_no, in_ms=-2).items():
        biz_id = library.row(job_id).biz_id
        shards[shard] = library.pages.read_overdue_rows(shard, BEGINNING, 0, None, 1)[0].key
        library.pending(biz_id, in_ms=-1, type_no=library.report_no)
        library.pending(biz_id)
    by_database = library.settings.routing.database_index
    grace_ms = dict.fromkeys((shard for shard in shards if by_database(shard) == 0), 0)

    def found(after: tuple[int, int] | None, rows: int, *left_out: int) -> set[int]:
        begin = {shard: after or shards[shard] for shard in grace_ms}
        return library.pages.find_overdue_shards_after(grace_ms, begin, rows, left_out)

    every = set(grace_ms)
    assert found(BEGINNING, 2, library.report_no) == set()
    assert found(BEGINNING, 3, library.report_no) == every
    assert found(None, 2, library.report_no) == every  # after the first row
    assert found(None, 1, library.report_no) == set()
    assert found(BEGINNING, 9, library.report_no, library.close_no) == set()
    assert found(BEGINNING, 1, library.close_no) == every


# ---- the question before a page, of many shards at once


def one_on_each(library: Library, **more: int) -> dict[int, int]:
    """A pending job on each shard: shard -> job_id."""
    found: dict[int, int] = {}
    for biz_id in range(200):
        shard = library.shard(library.new(biz_id).job_id)
        if shard not in found:
            found[shard] = library.pending(biz_id, **more)
    assert len(found) == library.settings.shards
    return found


def test_any_after_says_what_due_after_would_find(library: Library) -> None:
    jobs = one_on_each(library, in_ms=5)
    due_ms, shards = library.now_ms + 5, sorted(jobs)
    cases = {
        "all": dict.fromkeys(shards, (BEGINNING, due_ms)),
        "too early": dict.fromkeys(shards, (BEGINNING, due_ms - 1)),
        "the row itself": {shard: ((due_ms, jobs[shard]), due_ms) for shard in shards},
        "the row before": {shard: ((due_ms, jobs[shard] - 1), due_ms) for shard in shards},
        "each its own": {
            shard: ((due_ms, jobs[shard] - shard % 2), due_ms + shard) for shard in shards
        },
        "some": {shards[1]: (BEGINNING, due_ms)},
        "none": {},
    }
    by_database = library.settings.routing.database_index
    for what, wanted in cases.items():
        for database in library.databases:
            mine = {s: w for s, w in wanted.items() if by_database(s) == database.index}
            expected = {
                s
                for s, (after, until) in mine.items()
                if library.pages.read_due_rows(s, after, until, 1)
            }
            assert library.pages.find_shards_with_due(mine) == expected, what


def test_any_overdue_is_by_the_databases_clock_less_each_shards_grace(library: Library) -> None:
    jobs = one_on_each(library)
    grace_ms = {shard: 1000 + shard for shard in jobs}
    mine = {s: ms for s, ms in grace_ms.items() if library.settings.routing.database_index(s) == 0}
    library.clock.advance(0.999)
    assert library.pages.find_overdue_shards(mine) == set()
    for shard in sorted(mine):
        library.clock.advance(0.001)
        assert library.pages.find_overdue_shards(mine) == {s for s in mine if s <= shard}


def test_as_many_shards_as_can_be_are_asked_about_at_once(library: Library) -> None:
    # Among them the lowest and the highest bit of the numbers that they are told in.
    job_id = library.pending()
    shard, database = (
        library.shard(job_id),
        library.databases.database_of_shard(library.shard(job_id)),
    )
    far = [10_000 + n for n in range(SHARDS_PER_QUERY_MAX - 1)]
    for number in far:  # names of the same, empty table
        database._job_table_names[number] = database.job_table_name(shard ^ 1)
    wanted = dict.fromkeys((*far, shard), (BEGINNING, library.now_ms))
    names = [*wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library.databases, "database_of_shard", lambda _: database)
        assert library.pages.find_shards_with_due(wanted) == {shard}
        busy = {names[n] for n in (0, BITS - 1, BITS, 2 * BITS)}
        for number in busy:
            database._job_table_names[number] = database.job_table_name(shard)
        assert library.pages.find_shards_with_due(wanted) == {*busy, shard}
