"""AsyncTimeoutCenter: calls that wait at the same time are written together, and answered one by one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.contract.library import Library
from tests.integration.world import World
from tests.servers.endpoint import Endpoint
from toc.center import schedule_batches
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.schedule_batches import WRITERS_MAX
from toc.domain.routing import routing_hash_of
from toc.errors import DuplicateJob, InvalidInput, StatementFailed, StoreUnavailable

MINUTE = timedelta(minutes=1)


def test_waiting_calls_are_written_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    library = world.center._open_connections().jobs
    insert, sizes = library.insert, list[int]()

    def record(jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        sizes.append(len(jobs))
        return insert(jobs, on_duplicate, **options)

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
    assert len(sizes) < 50


def test_a_batch_has_a_limit(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(schedule_batches, "BATCH_MAX", 7)
    small.center.schedule(0, MINUTE)  # connected
    hold_inserts(small, monkeypatch, lambda ids: sizes.append(len(ids)))

    async def schedule_all() -> None:
        async with AsyncTimeoutCenter(small.center) as center:
            await asyncio.gather(*(center.schedule(n, MINUTE) for n in range(60)))

    asyncio.run(schedule_all())
    assert sum(sizes) == 60
    assert max(sizes) == 7


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


def test_a_type_too_many_fails_its_own_calls_only(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_cancelled_call_that_waits_is_not_written(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hold(ids: list[int]) -> None:
        begun.release()
        assert go_on.wait(20)

    hold_inserts(small, monkeypatch, hold)

    async def cancel_one() -> None:
        center = AsyncTimeoutCenter(small.center)
        busy = []
        for n in range(WRITERS_MAX):
            busy.append(asyncio.ensure_future(center.schedule(100 + n, MINUTE)))
            assert await asyncio.to_thread(begun.acquire, timeout=20)
        calls = [asyncio.ensure_future(center.schedule(n, MINUTE)) for n in range(3)]
        await asyncio.sleep(0)  # they have begun to wait
        calls[1].cancel()
        go_on.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        await asyncio.gather(*busy)
        await center.close()

    asyncio.run(cancel_one())
    assert [small.library.count(), len(small.center.find(1))] == [2 + WRITERS_MAX, 0]


def hold_inserts(
    world: World, monkeypatch: pytest.MonkeyPatch, before: Callable[[list[int]], None]
) -> None:
    """Calls `before` with the ids of each insert."""
    library = world.center._open_connections().jobs
    insert = library.insert

    def held(jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        before([job.job_id for job in jobs])
        return insert(jobs, on_duplicate, **options)

    monkeypatch.setattr(library, "insert", held)


def test_no_call_waits_for_ever_beside_a_busy_loop(small: World) -> None:
    """The writers end and begin again all the time, while the loop is busy."""

    async def schedule_some(center: AsyncTimeoutCenter, first: int) -> None:
        for n in range(10):
            await center.schedule(first + n, MINUTE)
            if n % 3 == 0:
                time.sleep(0.003)

    async def schedule_all() -> None:
        async with AsyncTimeoutCenter(small.center) as center:
            async with asyncio.timeout(60):
                await asyncio.gather(*(schedule_some(center, 10 * task) for task in range(7)))

    asyncio.run(schedule_all())
    assert small.library.count() == 70


def test_a_close_that_is_cancelled_loses_no_answer(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(ids: list[int]) -> None:
        begun.set()
        assert go_on.wait(20)

    hold_inserts(small, monkeypatch, hold)

    async def close_amid_a_call() -> None:
        center = AsyncTimeoutCenter(small.center)
        call = asyncio.ensure_future(center.schedule(1, MINUTE))
        assert await asyncio.to_thread(begun.wait, 20)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await center.close()
        go_on.set()
        async with asyncio.timeout(20):
            assert small.center.get(await call) is not None

    asyncio.run(close_amid_a_call())


def test_loops_in_several_threads_share_a_client(small: World) -> None:
    center = AsyncTimeoutCenter(small.center)
    found: list[int] = []

    async def schedule_some(first: int) -> None:
        async with asyncio.timeout(60):
            found.extend(
                await asyncio.gather(*(center.schedule(first + n, MINUTE) for n in range(20)))
            )

    threads = [
        threading.Thread(target=asyncio.run, args=(schedule_some(20 * n),)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == small.library.count() == 80


def test_a_broken_table_fails_its_own_jobs_only(small: World) -> None:
    async def schedule_all() -> list[Any]:
        async with AsyncTimeoutCenter(small.center) as center:
            calls = [center.schedule(n, MINUTE) for n in range(40)]
            return await asyncio.gather(*calls, return_exceptions=True)

    small.center.schedule(0, MINUTE)  # connected
    database = small.library.databases[0]
    database.run_autocommit(
        lambda connection: connection.exec_driver_sql(f"DROP TABLE {database.job_table_name(2)}")
    )
    answers = asyncio.run(schedule_all())
    shards = [small.settings.routing.shard_of_hash(routing_hash_of(n)) for n in range(40)]
    assert [isinstance(answer, StatementFailed) for answer in answers] == [n == 2 for n in shards]
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    assert len({id(error) for error in errors}) == len(errors)  # each call has its own


def test_context_variables_reach_the_verb(small: World) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="")
    seen: list[str] = []

    async def get() -> None:
        variable.set("request 7")
        async with AsyncTimeoutCenter(small.center) as center:
            await center._run_in_thread(lambda: seen.append(variable.get()))

    asyncio.run(get())
    assert seen == ["request 7"]


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

    def fail_database_1(jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        if two.library.home(jobs[0].job_id).index == 1:
            raise StoreUnavailable(1, OSError("away"))
        return insert(jobs, on_duplicate, **options)

    monkeypatch.setattr(library, "insert", fail_database_1)

    async def schedule_all() -> list[Any]:
        center = AsyncTimeoutCenter(two.center)
        calls = [center.schedule(n, MINUTE) for n in range(20)]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(schedule_all())
    assert [isinstance(answer, StoreUnavailable) for answer in answers] == [i == 1 for i in home_of]
    assert two.library.count() == home_of.count(0)


def test_schedule_each_gives_each_job_its_own_result(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held key and a database that is away cost only their own jobs."""
    library = two.center._open_connections().jobs
    insert = library.insert
    held = two.center.schedule(4, MINUTE, dedup_key="k")
    away = two.library.home(two.center.schedule(1, MINUTE)).index
    home_of = [two.settings.routing.database_index(routing_hash_of(n) % 4) for n in range(20)]

    def fail_database(jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        if two.library.home(jobs[0].job_id).index == away:
            raise StoreUnavailable(away, OSError("away"))
        return insert(jobs, on_duplicate, **options)

    monkeypatch.setattr(library, "insert", fail_database)
    jobs: list[Any] = [{"biz_id": n, "action_time": MINUTE, "dedup_key": "k"} for n in range(20)]
    results = two.center.schedule_each(jobs, on_duplicate="error")
    for n, result in enumerate(results):
        if home_of[n] == away:
            assert isinstance(result, StoreUnavailable)
        elif n == 4:
            assert isinstance(result, DuplicateJob)
            assert result.job_id == held
        else:
            assert not isinstance(result, Exception)
            assert result.created
    with pytest.raises(InvalidInput, match=r"jobs\[1\]"):
        two.center.schedule_each([*jobs[:1], {"biz_id": -1, "action_time": MINUTE}])
