"""schedule_many: all are checked first; databases are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from threading import Barrier, Thread, get_ident
from typing import Any

import pytest

from tests.contract.library import Library
from tests.integration.world import World
from tests.servers.endpoint import Endpoint
from toc.center import bulk_schedule
from toc.domain.ids import routing_bits_of
from toc.domain.routing import routing_hash_of
from toc.errors import DuplicateJob, InvalidInput, PartlyScheduled, StoreUnavailable

MINUTE = timedelta(minutes=1)


def test_ids_come_in_the_order_given(world: World) -> None:
    jobs = [(biz_id, timedelta(seconds=biz_id)) for biz_id in range(50)]
    ids = world.center.schedule_many(jobs, biz_type="t.a")
    for biz_id, job_id in enumerate(ids):
        assert routing_bits_of(job_id) == routing_hash_of(biz_id) % 1024
        assert world.reminder(job_id) == biz_id * 1000
    assert [world.center.get(job_id).biz_id for job_id in ids[:9]] == list(range(9))  # type: ignore[union-attr]
    assert {world.center.get(job_id).biz_type for job_id in ids[:9]} == {"t.a"}  # type: ignore[union-attr]
    assert (world.library.count(), world.reminders()) == (50, 50)


def test_dicts_pairs_types_and_topics(world: World) -> None:
    vip = {"biz_id": 1, "action_time": MINUTE, "biz_type": "vip.close", "dedup_key": "k"}
    far = {"biz_id": 3, "action_time": timedelta(days=30), "attribute": {"a": 1}}
    jobs: list[Any] = [vip, (2, MINUTE), far, vip]
    ids = world.center.schedule_many(iter(jobs))
    assert ids[0] == ids[3]
    assert world.reminder(ids[0], "vip") == 60_000
    assert [world.reminder(job_id) for job_id in ids[1:3]] == [60_000, None]
    assert world.center.get(ids[2]).attribute == {"a": 1}  # type: ignore[union-attr]
    assert world.center.schedule_many([]) == []


GOOD = {"biz_id": 1, "action_time": MINUTE}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({**GOOD, "biz_id": -1}, "jobs[2].biz_id"),
        ({**GOOD, "action_time": datetime(2026, 1, 1)}, "jobs[2].action_time"),  # noqa: DTZ001
        ({**GOOD, "attribute": [1]}, "jobs[2].attribute"),
        ({**GOOD, "dedup_key": "a b"}, "jobs[2].dedup_key"),
        ({**GOOD, "biz_type": ""}, "jobs[2].biz_type"),
        ({"biz_id": 1}, "jobs[2].action_time"),
        ({"action_time": MINUTE}, "jobs[2].biz_id"),
        ({**GOOD, "urgency": 1}, "jobs[2].urgency"),
        ({**GOOD, "priority": 10}, "jobs[2].priority"),
        ((1, MINUTE, "t"), "jobs[2]"),
        (1, "jobs[2]"),
        (("x ", MINUTE), "jobs[2].biz_id"),
    ],
)
def test_a_bad_one_is_named_and_nothing_is_written(world: World, bad: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        world.center.schedule_many([(1, MINUTE), (2, MINUTE), bad, (4, MINUTE)])
    assert caught.value.field == field
    assert (world.library.count(), world.reminders()) == (0, 0)


def test_too_many_are_refused_before_any_is_written(small_library: Library) -> None:
    world = World(small_library, "none", limits={"schedule_many": 10})
    with pytest.raises(InvalidInput, match=r"^jobs: must be at most 10 jobs per call"):
        world.center.schedule_many((n, MINUTE) for n in range(10**9))
    assert small_library.count() == 0
    assert len(world.center.schedule_many([(n, MINUTE) for n in range(10)])) == 10
    world.close()


def test_a_held_key_stops_all_of_them(world: World) -> None:
    held = world.center.schedule(2, MINUTE, dedup_key="k")
    jobs = [{"biz_id": n, "action_time": MINUTE, "dedup_key": "k"} for n in range(5)]
    with pytest.raises(DuplicateJob) as caught:
        world.center.schedule_many(jobs, on_duplicate="error")  # type: ignore[arg-type]
    assert caught.value.job_id == held
    assert (world.library.count(), world.reminders()) == (1, 1)


def test_more_than_one_chunk(small_library: Library) -> None:
    world = World(small_library, "none")
    ids = world.center.schedule_many([(n, MINUTE) for n in range(5001)])
    assert len(set(ids)) == small_library.count() == 5001
    world.close()


# ---- parts


class _Inserts:
    """Records the calls of `jobs.insert`: the job ids of each. `before` is called with them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[int]] = []
        self.before: Callable[[list[int]], object] = lambda ids: None
        library = world.center._open_connections().jobs
        self._insert = library.insert
        monkeypatch.setattr(library, "insert", self._record)

    def _record(self, jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        ids = [job.job_id for job in jobs]
        self.calls.append(ids)
        self.before(ids)
        return self._insert(jobs, on_duplicate, **options)


def test_two_halves_of_a_database_are_written_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 40)
    inserts = _Inserts(world, monkeypatch)
    is_sqlite = world.library.databases[0].sqlite
    both = Barrier(1 if is_sqlite else 2)  # SQLite has one writer
    inserts.before = lambda ids: both.wait(20)
    jobs: list[Any] = [(n, MINUTE) if n % 3 else (f"A-{n}", MINUTE) for n in range(60)]
    ids = world.center.schedule_many(jobs)
    assert len(inserts.calls) == (1 if is_sqlite else 2)
    assert sorted(chain.from_iterable(inserts.calls)) == sorted(ids)
    assert [world.center.get(job_id).biz_id for job_id in ids] == [biz_id for biz_id, _ in jobs]  # type: ignore[union-attr]
    assert (world.library.count(), world.reminders()) == (60, 60)
    both = Barrier(1)
    assert len(world.center.schedule_many(jobs[:39])) == 39
    assert len(inserts.calls) == (2 if is_sqlite else 3)  # too few: one part


def test_a_half_that_fails_is_told_exactly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.library.databases[0].sqlite:
        pytest.skip("its calls are not halved")
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    inserts = _Inserts(world, monkeypatch)
    both, shard_of_hash = Barrier(2), world.settings.routing.shard_of_hash
    in_order = sorted(range(60), key=lambda n: shard_of_hash(routing_hash_of(n)))
    first = shard_of_hash(routing_hash_of(in_order[0]))

    def fail_second_half(ids: list[int]) -> None:
        both.wait(20)
        if shard_of_hash(routing_bits_of(ids[0])) != first:
            raise StoreUnavailable(0, OSError("away"))

    inserts.before = fail_second_half
    with pytest.raises(PartlyScheduled) as caught:
        world.center.schedule_many([(n, MINUTE) for n in range(60)])
    failed = [n for n, job_id in enumerate(caught.value.job_ids) if job_id is None]
    assert failed == sorted(in_order[30:])
    assert world.library.count() == world.reminders() == 30


def test_jobs_with_keys_are_one_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    inserts = _Inserts(world, monkeypatch)
    jobs = [{"biz_id": n, "action_time": MINUTE} for n in range(20)]
    jobs[7]["dedup_key"] = "k"
    world.center.schedule_many(jobs)  # type: ignore[arg-type]
    assert len(inserts.calls) == 1
    with pytest.raises(DuplicateJob):  # nothing is written
        world.center.schedule_many(jobs, on_duplicate="error")  # type: ignore[arg-type]
    assert world.library.count() == 20


def test_without_a_second_thread_all_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    world.center.schedule(0, MINUTE)  # connected

    def refuse(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    assert len(world.center.schedule_many([(n, MINUTE) for n in range(60)])) == 60
    monkeypatch.undo()
    assert world.library.count() == world.reminders() == 61


def test_a_type_too_many_is_refused_before_any_job_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_schedule, "BULK_ROWS", 5)
    limits = world.settings.limits.model_copy(update={"biz_types": 1})
    world.center._settings = world.settings.model_copy(update={"limits": limits})
    jobs: list[Any] = [{"biz_id": n, "action_time": MINUTE} for n in range(20)]
    with pytest.raises(InvalidInput, match="biz_type"):
        world.center.schedule_many([*jobs, {**jobs[0], "biz_type": "t.unheard-of"}])
    assert world.library.count() == 0


def test_an_error_in_the_second_thread_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.library.databases[0].sqlite:
        pytest.skip("its calls are not halved")
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    inserts, caller, both = _Inserts(world, monkeypatch), get_ident(), Barrier(2)

    def fail_in_helper(ids: list[int]) -> None:
        both.wait(20)
        if get_ident() != caller:
            raise ValueError("broken")

    inserts.before = fail_in_helper
    with pytest.raises(ValueError, match="broken"):
        world.center.schedule_many([(n, MINUTE) for n in range(60)])
    assert not world.center._second_writer.locked()


def test_one_connection_serves_one_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    inserts, threads = _Inserts(world, monkeypatch), set[int]()
    inserts.before = lambda ids: threads.add(get_ident())
    state = world.center._open_connections()
    state.settings = state.settings.model_copy(update={"pool_size": 1})
    assert len(world.center.schedule_many([(n, MINUTE) for n in range(60)])) == 60
    assert threads == {get_ident()}
    assert len(inserts.calls) == 1


def test_one_call_at_a_time_writes_two_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_schedule, "PARALLEL_ROWS_MIN", 2)
    inserts, threads = _Inserts(world, monkeypatch), set[int]()
    inserts.before = lambda ids: threads.add(get_ident())
    with world.center._second_writer:
        assert len(world.center.schedule_many([(n, MINUTE) for n in range(60)])) == 60
    assert threads == {get_ident()}
    assert world.library.count() == world.reminders() == 60


# ---- two databases


@pytest.fixture
def two(tmp_path: Path, redis_server: Endpoint) -> Iterator[World]:
    (tmp_path / "away").mkdir()
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/away/1.db"])
    world = World(library, redis_server.url)
    yield world
    world.close()
    library.close()


def test_jobs_of_two_databases_keep_their_order(two: World) -> None:
    ids = two.center.schedule_many([(n, MINUTE) for n in range(40)])
    assert [two.center.get(job_id).biz_id for job_id in ids] == list(range(40))  # type: ignore[union-attr]
    assert two.reminders() == 40
    assert {two.library.home(job_id).index for job_id in ids} == {0, 1}


def test_one_database_away_is_partly_scheduled(two: World, tmp_path: Path) -> None:
    two.center.schedule_many([(n, MINUTE) for n in range(8)])  # connected to both
    two.center.close()
    two.library.close()
    center = two.center
    center.find(1)
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    center._open_connections().databases[1].close()
    with pytest.raises(PartlyScheduled) as caught:
        center.schedule_many([(n, MINUTE) for n in range(20)])
    error = caught.value
    assert error.retryable
    assert isinstance(error.__cause__, StoreUnavailable)
    databases = [two.settings.routing.database_index(routing_hash_of(n) % 4) for n in range(20)]
    assert [job_id is not None for job_id in error.job_ids] == [n == 0 for n in databases]
    assert all(center.get(job_id) is not None for job_id in error.job_ids if job_id is not None)
    away = next(n for n in range(20) if databases[n] == 1)
    with pytest.raises(StoreUnavailable) as unreached:  # nothing was written at all
        center.schedule_many([(away, MINUTE)])
    assert unreached.value.database == 1
    (tmp_path / "elsewhere").rename(tmp_path / "away")


def test_a_database_that_is_away_does_not_stop_the_others(
    two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_schedule, "BULK_ROWS", 5)
    center = two.center
    databases = [two.settings.routing.database_index(routing_hash_of(n) % 4) for n in range(20)]
    assert all(set(databases[start : start + 5]) == {0, 1} for start in range(0, 20, 5))
    center.schedule_many([(n, timedelta(days=9)) for n in range(8)])  # connected to both
    state = center._open_connections()
    asked: list[int] = []
    insert = state.jobs.insert

    def failing(jobs: Any, on_duplicate: Any, **options: Any) -> Any:
        database = two.settings.routing.database_index(
            two.settings.routing.shard_of_hash(routing_bits_of(jobs[0].job_id))
        )
        asked.append(database)
        if database == 0:  # the first in the order in which they are asked
            raise StoreUnavailable(0, OSError("away"))
        return insert(jobs, on_duplicate, **options)

    monkeypatch.setattr(state.jobs, "insert", failing)
    with pytest.raises(PartlyScheduled) as caught:
        center.schedule_many([(n, MINUTE) for n in range(20)])
    ids = caught.value.job_ids
    assert [job_id is not None for job_id in ids] == [n == 1 for n in databases]
    assert [two.reminder(job_id) for job_id in ids if job_id is not None] == [
        60_000
    ] * databases.count(1)
    assert asked.count(0) == 1  # once it has failed, it is left alone
    assert asked.count(1) == -(-databases.count(1) // 5)
    with pytest.raises(StoreUnavailable):
        center.schedule_many([(n, MINUTE) for n in range(20) if databases[n] == 0])
