"""The bound on live jobs of a business id: on each engine, and with few questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.access import live_jobs
from toc.access.live_jobs import REFUSED_S, LiveJobLimit
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.errors import TooManyCalls
from toc.store.live_counts import count_live_jobs

TYPE = "order.close"


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("live")) as library:
        yield library


@pytest.fixture
def library(engine: Library) -> Library:
    engine.reset()
    return engine


def count(library: Library, business: BusinessId, rows_max: int = 100) -> int:
    return count_live_jobs(library.databases, business, library.close_no, rows_max)


def test_only_live_jobs_of_the_business_id_type_and_tenant_count(library: Library) -> None:
    mine = check_business_id(42)
    library.pending(42)
    library.running(biz_id=42)
    library.pending(42, key="k")
    library.dead(biz_id=42)
    library.pending(43)
    library.pending(42, tenant="t")
    library.pending(42, type_no=library.report_no)
    library.pending("42")
    assert count(library, mine) == 3
    assert count(library, check_business_id(42, "t")) == 1
    assert count(library, check_business_id("42")) == 1
    assert count(library, check_business_id(44)) == 0


def test_the_newest_rows_are_counted_and_no_more_are_read(library: Library) -> None:
    for _ in range(5):
        library.dead(biz_id=42)
    for _ in range(3):
        library.pending(42)
    mine = check_business_id(42)
    assert count(library, mine, 3) == 3
    assert count(library, mine, 2) == 2
    if not library.sqlite:  # backwards through the index: no sort of all rows
        with library.databases[0].engine.begin() as connection:
            plan = connection.exec_driver_sql(
                "EXPLAIN FORMAT=TREE SELECT status FROM toc_job_0000 WHERE biz_id = 42 AND type_no = 1 "
                "ORDER BY live_key DESC, job_id DESC LIMIT 3"
            ).scalar_one()
        assert "uq_live" in plan
        assert "reverse" in plan
        assert "Sort" not in plan


def test_the_bound_holds_with_few_questions(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, mine, asked = (
        LiveJobLimit(library.databases, library.clock, 20),
        check_business_id(42),
        0,
    )
    for _ in range(20):
        if not limit.admits(mine, TYPE):
            asked += 1
            limit.check(mine, TYPE)
        library.pending(42)
    assert asked == 3  # after 5, 10 and 15
    assert not limit.admits(mine, TYPE)
    with pytest.raises(TooManyCalls, match=r"web\.limits\.jobs_per_biz_id"):
        limit.check(mine, TYPE)
    monkeypatch.setattr(live_jobs, "count_live_jobs", None)  # for a while nobody asks again
    with pytest.raises(TooManyCalls):
        limit.admits(mine, TYPE)
    assert limit.admits(check_business_id(43), TYPE)
    assert limit.admits(check_business_id(42, "t"), TYPE)
    assert limit.admits(mine, "report")


def test_room_comes_back_when_jobs_end(library: Library) -> None:
    limit, mine = LiveJobLimit(library.databases, library.clock, 4), check_business_id(42)
    ids = [library.pending(42) for _ in range(4)]
    assert limit.admits(mine, TYPE)
    with pytest.raises(TooManyCalls):
        limit.check(mine, TYPE)
    library.jobs.cancel(ids[0])
    library.clock.advance(REFUSED_S)
    assert not limit.admits(mine, TYPE)
    limit.check(mine, TYPE)


def test_near_the_bound_the_database_is_asked_sooner(library: Library) -> None:
    limit, mine = LiveJobLimit(library.databases, library.clock, 20), check_business_id(42)
    for _ in range(18):
        library.pending(42)
    limit.check(mine, TYPE)  # of the two that are left one is taken
    assert limit.admits(mine, TYPE)
    assert not limit.admits(mine, TYPE)


def test_a_bulk_of_one_business_id_counts_whole(library: Library) -> None:
    limit, mine = LiveJobLimit(library.databases, library.clock, 8), check_business_id(42)
    assert limit.admits(mine, TYPE, 2)
    assert not limit.admits(mine, TYPE, 8)
    limit.check(mine, TYPE, 8)
    with pytest.raises(TooManyCalls):
        limit.check(mine, TYPE, 9)


def test_the_table_of_business_ids_is_bounded(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_jobs, "BUSINESSES_MAX", 5)
    limit = LiveJobLimit(library.databases, library.clock, 20)
    for n in range(100):
        assert limit.admits(check_business_id(n), TYPE)
    assert len(limit._counts) == 5
