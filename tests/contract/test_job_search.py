"""The search of jobs without a business id: each job once, in order, by pages of a bounded size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.library import Library
from toc.domain.ids import created_ms_of
from toc.domain.job import Status
from toc.domain.times import MS_MAX
from toc.store.claims import Outcome, OutcomeKind
from toc.store.job_search import FoundJob, JobSearch, order_of, search_database

ALL_DUE = JobSearch("due", 0, MS_MAX)


def walk(library: Library, search: JobSearch, keys_max: int = 1000) -> list[FoundJob]:
    """All pages of all databases."""
    found: list[FoundJob] = []
    for database in library.databases:
        after = None
        for _ in range(100):
            page = search_database(database, replace(search, after=after), keys_max)
            assert page.read <= keys_max
            keys = [order_of(search.by, job.key) for job in page.found]
            assert keys == sorted(keys)
            found += page.found
            after = page.end
            if after is None:
                break
        else:
            pytest.fail("the pages do not end")
    return found


def ids(found: list[FoundJob]) -> list[int]:
    return [job.key.job_id for job in found]


@pytest.mark.parametrize("keys_max", [9, 150])
def test_live_jobs_are_found_once_by_due_time(library: Library, keys_max: int) -> None:
    # One business: one shard, which has more jobs than a page reads of it; some are due in one millisecond.
    jobs = [library.new(42, in_ms=n // 3, key=f"k{n}") for n in range(120)]
    jobs += [library.new(n, in_ms=39, key="k") for n in range(20)]
    wanted = [each.job_id for each in library.insert(*jobs)]
    library.ended(OutcomeKind.DONE)
    found = walk(library, ALL_DUE, keys_max)
    assert sorted(ids(found)) == sorted(wanted)
    assert {job.status for job in found} == {Status.PENDING}


def test_a_range_and_a_filter_are_kept(library: Library) -> None:
    early = library.pending(1, 1000)
    middle = library.pending("text", 2000, type_no=library.report_no, tenant="acme")
    late = library.pending(3, 3000)
    running = library.running("one", biz_id=4)
    start = library.now_ms

    assert ids(walk(library, replace(ALL_DUE, from_ms=start + 1000, until_ms=start + 2000))) in (
        [early, middle], [middle, early],
    )  # fmt: skip
    assert ids(walk(library, replace(ALL_DUE, status=Status.RUNNING))) == [running]
    (found,) = walk(library, replace(ALL_DUE, biz_type="report"))
    assert (found.key.job_id, found.biz_id, found.tenant) == (middle, "text", "acme")
    assert (found.biz_type, found.time_ms) == ("report", start + 2000)
    assert late in ids(walk(library, replace(ALL_DUE, biz_type="order.close")))
    assert walk(library, replace(ALL_DUE, biz_type="no.such")) == []


def test_ended_jobs_are_found_by_the_time_when_they_were_made(library: Library) -> None:
    before = library.ended(OutcomeKind.DONE, biz_id=1)
    library.clock.advance(10)
    done = [library.ended(OutcomeKind.DONE, biz_id=2, key=f"d{n}") for n in range(30)]
    live = library.pending(2)
    search = JobSearch("made", created_ms_of(done[0]), MS_MAX)

    found = walk(library, search, 5)
    assert ids(found) == sorted([*done, live], reverse=True)
    assert ids(walk(library, replace(search, status=Status.DONE), 5)) == done[::-1]
    until = replace(search, from_ms=0, until_ms=created_ms_of(before))
    assert ids(walk(library, until)) == [before]
    assert walk(library, replace(until, until_ms=0)) == []


def test_dead_jobs_are_found_by_their_error(library: Library) -> None:
    errors = ["TimeoutError: 50% of the shop", "KeyError: 'x'", "timeoutERROR: other"]
    dead = []
    for number, error in enumerate(errors):
        library.clock.advance(1)
        job_id = library.running("one", biz_id=5, key=f"k{number}")
        assert library.settle(Outcome(job_id, "one", OutcomeKind.BURY, error=error))
        dead.append(job_id)
    search = JobSearch("dead", 0, MS_MAX)

    found = walk(library, search, 1)
    assert ids(found) == dead[::-1]
    assert [job.error for job in found] == errors[::-1]
    assert ids(walk(library, replace(search, error="TimeoutError"))) == [dead[2], dead[0]]
    assert ids(walk(library, replace(search, error="0% of"))) == [dead[0]]
    assert walk(library, replace(search, error="%")) == [found[2]]
    assert walk(library, replace(search, error="no such")) == []
    assert walk(library, replace(search, biz_type="report")) == []
