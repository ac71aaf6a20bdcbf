"""AsyncTimeoutCenter: calls that wait at the same time are written together, and answered one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.contract.library import Library
from tests.integration.world import World
from tests.servers.endpoint import Endpoint
from toc.center.async_center import AsyncTimeoutCenter
from toc.domain.routing import routing_hash_of
from toc.errors import DuplicateJob, InvalidInput, StoreUnavailable

MINUTE = timedelta(minutes=1)


def test_waiting_calls_are_written_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    library = world.center._open_connections().jobs
    insert, sizes = library.insert, list[int]()

    def record(jobs: Any, on_duplicate: Any) -> Any:
        sizes.append(len(jobs))
        return insert(jobs, on_duplicate)

    monkeypatch.setattr(library, "insert", record)

    async def schedule_all() -> list[int]:
        async with AsyncTimeoutCenter(world.center) as center:
            return await asyncio.gather(
                *(
                    center.schedule(n, MINUTE, biz_type="t.a", attribute={"n": n})
                    for n in range(100)
                )
            )

    ids = asyncio.run(schedule_all())
    found = [world.center.get(job_id) for job_id in ids]
    assert [(job.biz_id, job.attribute, job.biz_type) for job in found if job] == [
        (n, {"n": n}, "t.a") for n in range(100)
    ]
    assert world.reminders() == 100
    assert sum(sizes) == 100
    assert len(sizes) <= 4


def test_each_verb(world: World) -> None:
    async def use() -> None:
        center = AsyncTimeoutCenter(world.center)
        job_id = await center.schedule("A-1", MINUTE, dedup_key="k")
        assert await center.schedule("A-1", MINUTE, dedup_key="k") == job_id
        with pytest.raises(DuplicateJob):
            await center.schedule("A-1", MINUTE, dedup_key="k", on_duplicate="error")
        assert [job.job_id for job in await center.find("A-1")] == [job_id]
        assert await center.reschedule(job_id, timedelta(hours=1)) == "rescheduled"
        assert await center.cancel(biz_id="A-1") == "cancelled"
        assert (await center.get(job_id)).due_ms is None  # type: ignore[union-attr]
        assert await center.redrive(job_id) == "already_cancelled"
        assert await center.dead() == []
        assert len(await center.schedule_many([(1, MINUTE), (2, MINUTE)])) == 2
        await center.close()
        await center.schedule(3, MINUTE)  # connects again
        await center.close()

    asyncio.run(use())
    assert world.library.count() == 4


def test_bad_input_is_refused_at_once_and_alone(world: World) -> None:
    async def schedule_all() -> list[Any]:
        center = AsyncTimeoutCenter(world.center)
        return await asyncio.gather(
            center.schedule(1, MINUTE),
            center.schedule(-1, MINUTE),
            center.schedule(2, MINUTE, on_duplicate="no"),  # type: ignore[arg-type]
            center.schedule(3, MINUTE),
            return_exceptions=True,
        )

    first, *bad, last = asyncio.run(schedule_all())
    assert [error.field for error in bad] == ["biz_id", "on_duplicate"]
    assert isinstance(first, int)
    assert isinstance(last, int)


def test_a_type_too_many_fails_its_own_calls_only(small: World) -> None:
    database = small.library.databases[0]
    there = database.scalar(select(func.count()).select_from(database.biz_type))
    limits = small.settings.limits.model_copy(update={"biz_types": there + 1})
    center = type(small.center)(
        small.settings.model_copy(update={"limits": limits}), clock=small.clock
    )
    center.schedule(0, MINUTE, biz_type="t.old")

    async def schedule_all() -> list[Any]:
        async with AsyncTimeoutCenter(center) as own:
            calls = [
                own.schedule(n, MINUTE, biz_type="t.new" if n == 3 else "t.old") for n in range(6)
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(schedule_all())
    assert isinstance(answers.pop(3), InvalidInput)
    assert all(isinstance(answer, int) for answer in answers)
    assert small.library.count() == 6


def test_a_cancelled_call_that_waits_is_not_written(small: World) -> None:
    async def cancel_one() -> None:
        center = AsyncTimeoutCenter(small.center)
        calls = [asyncio.ensure_future(center.schedule(n, MINUTE)) for n in range(3)]
        await asyncio.sleep(0)  # each has begun to wait; no batch is taken yet
        calls[1].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        await center.close()

    asyncio.run(cancel_one())
    assert [small.library.count(), len(small.center.find(1))] == [2, 0]


@pytest.fixture
def two(tmp_path: Path, redis_server: Endpoint) -> Iterator[World]:
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"])
    world = World(library, redis_server.url)
    yield world
    world.close()
    library.close()


def test_a_database_that_fails_fails_its_own_jobs_only(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = two.center._open_connections().jobs
    insert = library.insert
    home_of = [two.settings.routing.database_index(routing_hash_of(n) % 4) for n in range(20)]

    def fail_database_1(jobs: Any, on_duplicate: Any) -> Any:
        if two.library.home(jobs[0].job_id).index == 1:
            raise StoreUnavailable(1, OSError("away"))
        return insert(jobs, on_duplicate)

    monkeypatch.setattr(library, "insert", fail_database_1)

    async def schedule_all() -> list[Any]:
        center = AsyncTimeoutCenter(two.center)
        calls = [center.schedule(n, MINUTE) for n in range(20)]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(schedule_all())
    assert [isinstance(answer, StoreUnavailable) for answer in answers] == [i == 1 for i in home_of]
    assert two.library.count() == home_of.count(0)
