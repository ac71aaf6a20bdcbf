"""The loader: brings rows as their time comes near, and notices whatever it would miss by."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.library import LEASE_MS
from tests.integration.world import HORIZON_MS, NEAR_MS, SLACK_MS, World
from toc.errors import StoreUnavailable, TimerUnavailable
from toc.timer import loader as module
from toc.timer import redis_keys
from toc.timer.loader import Loader, LoadMark
from toc.timer.redis_answers import SlotMarks
from toc.timer.reminders import Reminder

MINUTE = timedelta(minutes=1)


def turn(loader: Loader) -> int:
    """So many steps that every shard has had its turn."""
    return sum(loader.load_due_shards() for _ in range(module.READ_EVERY_MAX))


def marks(world: World, shard: int) -> str:
    slot = shard % world.settings.slot_amount_of("default")
    return world.slots.read_marks("default", [slot])[slot].by_shard[shard]


def test_a_far_job_is_brought_when_its_time_comes_near(world: World) -> None:
    job_id = world.center.schedule(42, timedelta(hours=1))
    loader = world.loader()
    assert (turn(loader), world.reminder(job_id)) == (0, None)
    world.clock.advance(timedelta(hours=1) - timedelta(milliseconds=HORIZON_MS + 1))
    assert (turn(loader), world.reminder(job_id)) == (0, None)
    world.clock.advance(0.001)
    assert (turn(loader), world.reminder(job_id)) == (1, HORIZON_MS)
    assert turn(loader) == 0  # once


def test_pages_meet_without_a_gap(world: World) -> None:
    # 7 to a millisecond, 5 to a page.
    jobs = [world.library.new(42, in_ms=n // 7) for n in range(60)]
    world.library.insert(*jobs)
    assert world.loader().load_due_shards() == 60
    assert all(world.reminder(j.job_id) == j.action_ms - world.now_ms for j in jobs)


def test_a_step_is_bounded_and_the_next_ones_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGES_MAX", 2)
    world.library.insert(*(world.library.new(42, in_ms=n) for n in range(25)))
    loader = world.loader()
    assert [loader.load_due_shards() for _ in range(4)] == [10, 10, 5, 0]


def test_a_row_committed_behind_the_mark_is_its_clients(world: World) -> None:
    loader = world.loader()
    first = world.library.pending(42, in_ms=5000)
    loader.load_due_shards()
    behind = world.library.pending(42, in_ms=4000)  # its client would arm it now
    turn(loader)
    assert (world.reminder(first), world.reminder(behind)) == (5000, None)
    world.slots.delete_marks("default", [world.slot(behind)])
    turn(loader)
    assert world.reminder(behind) == 4000


def test_running_jobs_are_reminded_of_at_the_end_of_their_lease(world: World) -> None:
    job_id = world.library.running("one")
    world.loader().load_due_shards()
    assert world.reminder(job_id) == LEASE_MS


def test_topics_take_their_own_rows(world: World) -> None:
    vip_no = world.library.database_metadata.types.get_or_create_number(
        "vip.close", world.library.databases[0]
    )
    vip = [world.library.pending(n, type_no=vip_no) for n in range(8)]
    other = [world.library.pending(n) for n in range(8)]
    assert world.loader("vip").load_due_shards() == 8
    assert all(world.reminder(job_id, "vip") == 0 for job_id in vip)
    assert world.reminders() == 8
    assert world.loader().load_due_shards() == 8
    assert all(world.reminder(job_id) == 0 for job_id in other)


# ---- marks that do not count


def load_and_drop(world: World, job_id: int) -> Loader:
    """Loads, and then loses the reminder, as a server with older data would have."""
    loader = world.loader()
    loader.load_due_shards()
    assert world.reminder(job_id) == 0
    world.slots.ack("default", [job_id])
    return loader


def test_a_mark_that_stands_is_believed(world: World) -> None:
    job_id = world.library.pending(42)
    loader = load_and_drop(world, job_id)
    assert (turn(loader), world.reminder(job_id)) == (0, None)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("change", ["run_id", "future", "nonsense", "missing"])
def test_a_mark_that_cannot_be_believed_starts_over(world: World, change: str) -> None:
    job_id = world.library.pending(42)
    loader = load_and_drop(world, job_id)
    shard, slot = world.library.shard(job_id), world.slot(job_id)
    mark = LoadMark.parse_mark(marks(world, shard))
    assert mark is not None
    beyond = world.now_ms + HORIZON_MS + SLACK_MS + 1
    texts = {
        "run_id": str(mark._replace(run_id="another")),
        "future": str(mark._replace(due_ms=beyond)),
        "nonsense": "nonsense",
    }
    if change == "missing":
        world.slots.delete_marks("default", [slot])
    else:
        world.slots.write_start_mark("default", slot, shard, texts[change])
    assert (turn(loader), world.reminder(job_id)) == (1, 0)
    found = LoadMark.parse_mark(marks(world, shard))
    assert found is not None
    assert found.load_id != mark.load_id
    assert (found.run_id, found.due_ms, found.job_id) == (mark.run_id, world.now_ms, job_id)


@pytest.mark.invariant("I1")
def test_what_a_server_has_lost_is_noticed_at_once(world: World) -> None:
    # Whosever turn it is: all of a server's marks are gone, or are another's, and one of them is read.
    jobs = [world.library.pending(n) for n in range(40)]
    loader = world.loader()
    for _ in range(5):
        assert loader.load_due_shards() == len(jobs)
        assert loader.load_due_shards() == 0
        world.slots.connected_client().flushdb()
    assert loader.load_due_shards() == len(jobs)
    client, namespace = world.slots.connected_client(), world.settings.namespace
    for slot in range(4):  # as a fail-over to a replica, with the marks of who was there before
        world.slots.ack("default", [job_id for job_id in jobs if world.slot(job_id) == slot])
        key = redis_keys.marks_key(namespace, "default", slot)
        for shard, text in client.hgetall(key).items():
            mark = LoadMark.parse_mark(text.decode())
            assert mark is not None
            client.hset(key, shard, str(mark._replace(run_id="before")))
    assert loader.load_due_shards() == len(jobs)
    assert all(world.reminder(job_id) == 0 for job_id in jobs)


@pytest.mark.invariant("I1")
def test_what_another_loader_began_to_bring_again_is_brought_to_the_end(world: World) -> None:
    jobs = [world.library.pending(n) for n in range(40)]
    loader, other = world.loader(), world.loader()
    loader.load_due_shards()
    other.set_slots([0])
    world.slots.connected_client().flushdb()
    other.load_due_shards()  # and dies there
    assert 0 < world.reminders() < len(jobs)
    loader.load_due_shards()
    assert all(world.reminder(job_id) == 0 for job_id in jobs)


@pytest.mark.parametrize("slot", range(4))
def test_a_key_of_marks_that_is_broken_costs_its_slot_only(world: World, slot: int) -> None:
    loader = world.loader()
    turn(loader)
    client = world.slots.connected_client()
    key = redis_keys.marks_key(world.settings.namespace, "default", slot)
    client.delete(key)
    client.set(key, "no marks")
    world.clock.advance(1)
    jobs = [world.library.pending(n, in_ms=HORIZON_MS - 1) for n in range(40)]
    turn(loader)
    assert loaded(world, jobs) == {0, 1, 2, 3} - {slot}
    client.delete(key)
    loader.load_due_shards()
    assert loaded(world, jobs) == {0, 1, 2, 3}


def test_a_mark_just_within_the_slack_is_believed(world: World) -> None:
    job_id = world.library.pending(42)
    loader = load_and_drop(world, job_id)
    shard, slot = world.library.shard(job_id), world.slot(job_id)
    mark = LoadMark.parse_mark(marks(world, shard))
    assert mark is not None
    edge = str(mark._replace(due_ms=world.now_ms + HORIZON_MS + SLACK_MS))
    world.slots.write_start_mark("default", slot, shard, edge)
    assert (turn(loader), marks(world, shard)) == (0, edge)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("event", ["wipe", "other loader"])
def test_a_change_between_snapshot_and_page_is_noticed(
    world: World, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.library.pending(42, in_ms=n) for n in range(3)]
    slot, shard = world.slot(jobs[0]), world.library.shard(jobs[0])
    loader = world.loader()
    due_after = world.library.pages.read_due_rows
    times: list[int] = []

    def overtaken(*arguments: Any) -> Any:
        rows = due_after(*arguments)
        if arguments[0] == shard and not times:
            times.append(1)
            if event == "wipe":
                world.slots.delete_marks("default", [slot])
            else:
                run_id = world.slots.read_marks("default", [slot])[slot].run_id
                other = str(LoadMark("other", run_id, 0, 0))
                world.slots.write_start_mark("default", slot, shard, other)
        return rows

    monkeypatch.setattr(world.library.pages, "read_due_rows", overtaken)
    assert loader.load_due_shards() == 0
    assert world.reminders() == 0
    assert loader.load_due_shards() == 3
    assert [world.reminder(job_id) for job_id in jobs] == [0, 1, 2]


@pytest.mark.invariant("I1")
def test_the_bound_is_read_before_the_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job that comes in during the snapshot, due just beyond what its client arms: were the bound
    # read after it, the mark could pass the job unseen.
    asked: list[str] = []
    slots, pages = world.slots, world.library.pages

    def noted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def note(*arguments: Any) -> Any:
            asked.append(name)
            return call(*arguments)

        monkeypatch.setattr(owner, name, note)

    for owner, name in (
        (slots, "read_marks"), (slots, "read_time_ms"),
        (pages, "read_due_rows"), (pages, "find_shards_with_due"),
    ):  # fmt: skip
        noted(owner, name)
    loader = world.loader()
    monkeypatch.setattr(loader, "_steps_between_reads", 1)  # at every step it is the turn of all
    loader.load_due_shards()
    assert asked == ["read_marks"] + ["read_time_ms", "read_due_rows"] * 4
    asked.clear()
    loader.load_due_shards()
    assert asked == ["read_marks", "find_shards_with_due"]  # the marks' answer tells the time
    asked.clear()
    job_id = world.library.pending(42)
    assert loader.load_due_shards() == 1
    assert asked == ["read_marks", "find_shards_with_due", "read_time_ms", "read_due_rows"]
    assert world.reminder(job_id) == 0


@pytest.mark.invariant("I6")
def test_memory_follows_the_near_future(world: World) -> None:
    world.library.insert(*(world.library.new(n, in_ms=NEAR_MS * (n + 1)) for n in range(50)))
    assert (turn(world.loader()), world.reminders()) == (0, 0)


@pytest.mark.parametrize("answers", [True, False])
def test_a_shard_that_cannot_be_read_costs_its_database_only_if_that_is_away(
    world: World, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {world.library.shard(job_id): job_id for job_id in map(world.library.pending, range(20))}
    due_after = world.library.pages.read_due_rows

    def away(shard: int, *arguments: Any) -> Any:
        if shard == 1:
            raise StoreUnavailable(0, OSError("away"))
        return due_after(shard, *arguments)

    monkeypatch.setattr(world.library.pages, "read_due_rows", away)
    monkeypatch.setattr(world.library.pages, "database_answers", lambda shard: answers)
    loader = world.loader()
    assert loader.load_due_shards() > 0
    assert world.reminder(jobs[1]) is None
    assert world.reminder(jobs[0]) == 0
    assert [world.reminder(jobs[shard]) for shard in (2, 3)] == [0 if answers else None] * 2
    monkeypatch.setattr(world.library.pages, "read_due_rows", due_after)
    loader.load_due_shards()
    assert all(world.reminder(job_id) == 0 for job_id in jobs.values())


def test_a_table_that_is_locked_does_not_take_all_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = world.loader()
    due_after = world.library.pages.read_due_rows
    tries_s: list[float] = []

    def locked(shard: int, *arguments: Any) -> Any:
        if shard != 1:
            return due_after(shard, *arguments)
        tries_s.append(world.clock.monotonic_s())
        world.clock.advance(25.0)
        raise StoreUnavailable(0, OSError("lock wait timeout"))

    monkeypatch.setattr(world.library.pages, "read_due_rows", locked)
    for _ in range(300):
        loader.load_due_shards()
        world.clock.advance(1.0)
    assert {later - sooner >= 5 * 25.0 for sooner, later in pairwise(tries_s)} == {True}
    assert loader.oldest_read_age_s >= 300


@pytest.mark.invariant("I1")
def test_a_table_that_breaks_leaves_those_that_are_asked_about_with_it(world: World) -> None:
    loader = world.loader()
    turn(loader)
    lost, *jobs = (world.library.pending(n, in_ms=HORIZON_MS + 1) for n in range(40))
    shard = world.library.shard(lost)
    name = f"toc_job_{shard:04d}"
    world.library.sql(lost, f"ALTER TABLE {name} RENAME TO away")
    world.clock.advance(0.001)
    turn(loader)
    world.library.sql(lost, f"ALTER TABLE away RENAME TO {name}")
    others = [job_id for job_id in jobs if world.library.shard(job_id) != shard]
    assert all(world.reminder(job_id) == HORIZON_MS for job_id in others)
    assert world.reminder(lost) is None
    loader.load_due_shards()
    assert world.reminder(lost) == HORIZON_MS


def test_a_database_that_is_away_is_not_asked_shard_by_shard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = world.loader()
    monkeypatch.setattr(loader, "_steps_between_reads", 1)  # at every step it is the turn of all
    monkeypatch.setattr(module, "SHARDS_PER_QUERY_MAX", 2)
    loader.load_due_shards()
    job_id = world.library.pending()
    asked: list[str] = []

    def away(what: str) -> Any:
        def ask(*_: Any) -> Any:
            asked.append(what)
            raise StoreUnavailable(0, OSError("away"))

        return ask

    with monkeypatch.context() as patch:
        for what in ("find_shards_with_due", "read_due_rows"):
            patch.setattr(world.library.pages, what, away(what))
        patch.setattr(world.library.pages, "database_answers", lambda _: False)
        loader.load_due_shards()
    assert asked == ["find_shards_with_due"]
    loader.load_due_shards()
    assert world.reminder(job_id) == 0


def test_two_loaders_do_no_harm(world: World) -> None:
    jobs = [world.library.pending(n, in_ms=n) for n in range(40)]
    one, two = world.loader(), world.loader()
    assert one.load_due_shards() + two.load_due_shards() == 40
    assert [world.reminder(job_id) for job_id in jobs] == list(range(40))
    world.slots.arm("default", [Reminder(1, 1)])
    assert turn(one) + turn(two) == 0


# ---- slots whose node of Redis is away or full


class Torn:
    """The world's Redis, as if slot 0 to 3 lay on a node each; some of them fail."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self.gone: set[int] = set()  # that do not answer
        self.full: set[int] = set()  # that take nothing
        self.reads: list[int] = []  # the shards that were read from the database
        slots, pages = world.slots, world.library.pages
        marks, load_page, due_after = slots.read_marks, slots.load_page, pages.read_due_rows

        def up(topic: str, asked: Any) -> dict[int, SlotMarks]:
            return {
                slot: found._replace(run_id=self.node(found.run_id, slot))
                for slot, found in marks(topic, asked).items()
                if slot not in self.gone
            }

        def load(topic: str, slot: int, *arguments: Any) -> bool:
            if slot in self.full:
                raise TimerUnavailable(OSError(f"node {slot} is full"))
            return load_page(topic, slot, *arguments)

        def read(shard: int, *arguments: Any) -> Any:
            self.reads.append(shard)
            return due_after(shard, *arguments)

        patch.setattr(slots, "read_marks", up)
        patch.setattr(slots, "first_and_last_slot_per_node", lambda topic, asked: set(asked))
        patch.setattr(slots, "load_page", load)
        patch.setattr(pages, "read_due_rows", read)

    def node(self, run_id: str, slot: int) -> str:
        return f"{run_id}-{slot}"


@pytest.fixture
def torn(world: World, monkeypatch: pytest.MonkeyPatch) -> Torn:
    return Torn(world, monkeypatch)


def loaded(world: World, jobs: list[int]) -> set[int]:
    """The slots whose jobs all have their reminders; of the others none has."""
    found = {(world.slot(job_id), world.reminder(job_id) is not None) for job_id in jobs}
    assert len(found) == 4
    return {slot for slot, there in found if there}


def test_a_nodes_failure_leaves_the_other_slots(
    world: World, torn: Torn, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [world.library.pending(n) for n in range(40)]
    loader = world.loader()
    torn.gone, torn.full = {0}, {2}
    loader.load_due_shards()
    assert loaded(world, jobs) == {1, 3}
    assert [record.getMessage() for record in caplog.records] == [
        "loader: slots are left out of this step: Redis does not answer: node 2 is full"
    ]
    torn.gone, torn.full = set(), set()
    loader.load_due_shards()  # at once, whosever turn it is
    assert loaded(world, jobs) == {0, 1, 2, 3}


def test_a_node_that_was_away_is_read_when_it_is_back(world: World, torn: Torn) -> None:
    loader = world.loader()
    turn(loader)
    world.clock.advance(1)
    late = [world.library.pending(n, in_ms=HORIZON_MS - 1) for n in range(40)]
    torn.gone = {0, 1, 2, 3} - {0}
    turn(loader)  # all had their turn, and one could take it
    assert loaded(world, late) == {0}
    torn.gone = set()
    loader.load_due_shards()
    assert loaded(world, late) == {0, 1, 2, 3}


def test_a_redis_that_takes_nothing_is_told_and_asked_once_a_step(
    world: World, torn: Torn, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.library.pending(n) for n in range(40)]
    monkeypatch.setattr(torn, "node", lambda run_id, _: run_id)
    loader = world.loader()
    torn.full = {0, 1, 2, 3}
    for _ in range(3):
        torn.reads.clear()
        with pytest.raises(TimerUnavailable, match="node 0 is full"):
            loader.load_due_shards()
        assert torn.reads == [0]
    torn.full = set()
    loader.load_due_shards()
    assert loaded(world, jobs) == {0, 1, 2, 3}
