"""`schedule`, `schedule_many` and their async form refuse payloads that do not fit the type's schema."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.library import Library
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.errors import InvalidInput, StoreUnavailable
from toc.store.databases import Database
from toc.store.declared_types import DeclaredTypeCache, DeclaredTypes

LATER = timedelta(days=1)
NAME = "order.close"
SCHEMA = {"required": ["price"], "properties": {"price": {"type": "integer"}}}


@pytest.fixture
def center(library: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(library.settings, clock=library.clock) as center:
        yield center


def declare(library: Library, **fields: Any) -> None:
    types = DeclaredTypes(library.databases, library.database_metadata.types, 10)
    types.change(NAME, lambda now: DeclaredType.from_fields(NAME, fields), "ann")


def test_schedule_refuses_before_anything_is_written(
    library: Library, center: TimeoutCenter
) -> None:
    declare(library, payload_schema=SCHEMA)
    for attribute, field in (({"price": "1"}, "attribute/price"), (None, "attribute")):
        with pytest.raises(InvalidInput, match=r"order\.close") as caught:
            center.schedule(1, LATER, biz_type=NAME, attribute=attribute)
        assert caught.value.field == field
    good = center.schedule(1, LATER, biz_type=NAME, attribute={"price": 1})
    free = center.schedule(1, LATER, biz_type="report", attribute={"price": "1"})
    assert {job.job_id for job in center.find(1)} == {good, free}


def test_schedule_many_refuses_the_whole_call(library: Library, center: TimeoutCenter) -> None:
    declare(library, payload_schema=SCHEMA)
    jobs = [
        JobSpec(biz_id=n, action_time=LATER, biz_type=NAME, attribute={"price": n})
        for n in range(3)
    ]
    jobs.append(JobSpec(biz_id=1, action_time=LATER, attribute={"price": ""}))
    jobs.append(JobSpec(biz_id=1, action_time=LATER, biz_type=NAME, attribute={"price": ""}))
    with pytest.raises(InvalidInput) as caught:
        center.schedule_many(jobs)
    assert caught.value.field == "jobs[4].attribute/price"
    assert center.find(1) == []
    assert len(center.schedule_many(jobs[:4])) == 4
    assert center.schedule_many([]) == []


def test_async_calls_are_checked_each_alone(library: Library, center: TimeoutCenter) -> None:
    declare(library, payload_schema=SCHEMA)

    async def schedule_three() -> list[Any]:
        client = AsyncTimeoutCenter(center)
        calls = [
            client.schedule(7, LATER, biz_type=NAME, attribute={"price": price})
            for price in (1, "x", 3)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
        return found

    first, second, third = asyncio.run(schedule_three())
    assert isinstance(second, InvalidInput)
    assert second.field == "attribute/price"
    assert {job.job_id for job in center.find(7)} == {first, third}


def test_a_change_is_in_force_after_the_refresh(library: Library, center: TimeoutCenter) -> None:
    center.schedule(1, LATER, biz_type=NAME)
    declare(library, payload_schema=SCHEMA)
    library.clock.advance(library.settings.catalogue.refresh_s)
    with pytest.raises(InvalidInput):
        center.schedule(1, LATER, biz_type=NAME)


def test_a_failed_read_is_repeated_by_the_next_call(
    library: Library, center: TimeoutCenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(library, payload_schema=SCHEMA)

    def fail(cache: DeclaredTypeCache, database: Database) -> None:
        raise StoreUnavailable(database.index, OSError("away"))

    with monkeypatch.context() as patch:
        patch.setattr(DeclaredTypeCache, "read_copy", fail)
        center.schedule(1, LATER, biz_type=NAME)
    with pytest.raises(InvalidInput):
        center.schedule(1, LATER, biz_type=NAME)
    # The same where declarations were read before: until then the old ones count.
    declare(library)
    library.clock.advance(library.settings.catalogue.refresh_s)
    with monkeypatch.context() as patch:
        patch.setattr(DeclaredTypeCache, "read_copy", fail)
        with pytest.raises(InvalidInput):
            center.schedule(1, LATER, biz_type=NAME)
    center.schedule(1, LATER, biz_type=NAME)


def test_declarations_are_read_once_in_a_while(
    library: Library, center: TimeoutCenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[DeclaredTypeCache] = []
    real = DeclaredTypeCache.read_copy

    def counted(cache: DeclaredTypeCache, database: Database) -> None:
        reads.append(cache)  # also those of servers of other tests in this process
        real(cache, database)

    monkeypatch.setattr(DeclaredTypeCache, "read_copy", counted)
    for n in range(5):
        center.schedule(n, LATER)
    center.schedule_many([(n, LATER) for n in range(5)])
    assert reads.count(center._open_connections().database_metadata.declared) == 1
