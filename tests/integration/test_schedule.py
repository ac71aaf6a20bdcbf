"""schedule and its sisters, on a database and Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import toc
from tests.contract.library import LEASE_MS
from tests.contract.test_mending import misfit
from tests.integration.world import NEAR_MS, World
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.errors import DuplicateJob, InvalidInput, SchemaMismatch
from toc.runtime.setting_groups import TopicSettings
from toc.store import jobs
from toc.store.claims import OutcomeKind
from toc.store.databases import Database
from toc.store.job_repair import JobRepair
from toc.store.jobs import InsertResult
from toc.timer.reminders import Reminders

MINUTE = timedelta(minutes=1)


def test_a_near_job_is_in_the_database_and_in_redis(world: World) -> None:
    job_id = world.center.schedule(42, MINUTE, biz_type="order.close", attribute={"a": "中"})
    job = world.center.get(job_id)
    assert job == toc.Job(
        job_id, 42, "order.close", Status.PENDING, world.now_ms + 60_000, {"a": "中"},
        world.now_ms + 60_000, 0, None, None,
    )  # fmt: skip
    assert world.reminder(job_id) == 60_000
    assert world.reminders() == 1


@pytest.mark.parametrize(("in_ms", "armed"), [(NEAR_MS, True), (NEAR_MS + 1, False)])
def test_what_is_far_is_not_in_redis(world: World, in_ms: int, armed: bool) -> None:
    job_id = world.center.schedule(42, timedelta(milliseconds=in_ms))
    assert world.center.get(job_id) is not None
    assert world.reminder(job_id) == (in_ms if armed else None)


def test_a_moment_is_rounded_up_and_the_past_means_at_once(world: World) -> None:
    moment = world.clock.now + timedelta(microseconds=1)
    assert world.reminder(world.center.schedule(1, moment)) == 1
    assert world.reminder(world.center.schedule(1, timedelta(days=-1))) == -86_400_000


def test_each_topic_has_slots_of_its_own(world: World) -> None:
    job_id = world.center.schedule(42, MINUTE, biz_type="vip.close")
    assert world.reminder(job_id, "vip") == 60_000
    assert world.reminder(job_id, "default") is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"biz_id": -1}, "biz_id"),
        ({"action_time": datetime(2026, 1, 1)}, "action_time"),  # noqa: DTZ001
        ({"biz_type": "a b"}, "biz_type"),
        ({"attribute": {"x": object()}}, "attribute"),
        ({"attribute": {"x": "y" * 4096}}, "attribute"),
        ({"dedup_key": "a b"}, "dedup_key"),
        ({"on_duplicate": "ignore"}, "on_duplicate"),
    ],
)
def test_bad_arguments_write_nothing(world: World, arguments: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        world.center.schedule(**{"biz_id": 42, "action_time": MINUTE, **arguments})
    assert caught.value.field == field
    assert (world.library.count(), world.reminders()) == (0, 0)


def test_one_live_job_per_key(world: World) -> None:
    center = world.center
    first = center.schedule(42, MINUTE, dedup_key="k")
    assert center.schedule(42, 2 * MINUTE, dedup_key="k") == first
    assert world.reminder(first) == 60_000
    assert center.schedule(42, MINUTE / 2, dedup_key="k", on_duplicate="replace") == first
    assert world.reminder(first) == 30_000
    with pytest.raises(DuplicateJob) as caught:
        center.schedule(42, MINUTE, dedup_key="k", on_duplicate="error")
    assert (caught.value.job_id, caught.value.running) == (first, False)
    assert world.library.count() == 1


@pytest.mark.invariant("I1")
def test_a_job_replaced_from_far_to_near_is_armed(world: World) -> None:
    far = world.center.schedule(42, timedelta(days=30), dedup_key="k")
    assert world.reminder(far) is None
    world.center.schedule(42, MINUTE, dedup_key="k", on_duplicate="replace")
    assert world.reminder(far) == 60_000


# ---- cancel


def test_cancel_by_id_and_again(world: World) -> None:
    job_id = world.center.schedule(42, MINUTE)
    assert world.center.cancel(job_id) == "cancelled"
    assert world.center.cancel(job_id) == "already_cancelled"
    assert world.center.cancel(world.library.new().job_id) == "unknown"


def test_cancel_by_business_key(world: World) -> None:
    center = world.center
    jobs = [center.schedule(42, MINUTE, biz_type="t.a", dedup_key=key) for key in ("x", "y", None)]
    other = center.schedule(42, MINUTE, biz_type="t.b")
    assert center.cancel(biz_id=42, biz_type="t.a", dedup_key="x") == "cancelled"
    assert [center.get(job_id).status for job_id in jobs] == [3, 0, 0]  # type: ignore[union-attr]
    assert center.cancel(biz_id=42, biz_type="t.a") == "cancelled"
    assert [center.get(job_id).status for job_id in jobs] == [3, 3, 3]  # type: ignore[union-attr]
    assert center.cancel(biz_id=42, biz_type="t.a") == "already_cancelled"
    assert center.get(other).status == 0  # type: ignore[union-attr]
    assert center.cancel(biz_id=43, biz_type="t.a") == "unknown"
    assert center.cancel(biz_id=42, biz_type="never.heard.of") == "unknown"


def test_one_running_job_outweighs_the_cancelled_ones(world: World) -> None:
    running = world.center.schedule(42, timedelta(0), biz_type="order.close")
    pending = world.center.schedule(42, MINUTE, biz_type="order.close")
    world.library.claim([running], "one")
    answer = world.center.cancel(biz_id=42, biz_type="order.close")
    assert (answer, answer.job_id, answer.attempts) == ("running", running, 1)
    assert world.center.cancel(pending) == "already_cancelled"


@pytest.mark.parametrize(
    "arguments", [{}, {"job_id": 1, "biz_id": 1}, {"job_id": -1}, {"biz_id": -1}]
)
def test_cancel_needs_one_way_to_find_the_job(world: World, arguments: Any) -> None:
    with pytest.raises(InvalidInput):
        world.center.cancel(**arguments)


# ---- reschedule


@pytest.mark.parametrize(
    ("in_ms", "reminder"), [(30_000, 30_000), (90_000, 60_000), (NEAR_MS * 9, 60_000)]
)
def test_a_rescheduled_job_is_reminded_of_in_time(world: World, in_ms: int, reminder: int) -> None:
    # Too early is put right by the claim; too late would be late.
    job_id = world.center.schedule(42, MINUTE)
    answer = world.center.reschedule(job_id, timedelta(milliseconds=in_ms))
    assert (answer, answer.job_id) == ("rescheduled", job_id)
    assert world.center.get(job_id).due_ms == world.now_ms + in_ms  # type: ignore[union-attr]
    assert world.reminder(job_id) == reminder


@pytest.mark.invariant("I1")
def test_a_far_job_made_near_is_armed_in_its_topic(world: World) -> None:
    job_id = world.center.schedule(42, timedelta(days=30), biz_type="vip.close")
    assert world.center.reschedule(job_id, MINUTE) == "rescheduled"
    assert world.reminder(job_id, "vip") == 60_000


def test_reschedule_by_business_key(world: World) -> None:
    center = world.center
    first = center.schedule(42, MINUTE, dedup_key="x")
    moment = world.clock.now + 2 * MINUTE
    assert center.reschedule(moment, biz_id=42) == "rescheduled"
    assert center.get(first).action_time == moment  # type: ignore[union-attr]
    center.schedule(42, MINUTE, dedup_key="y")
    with pytest.raises(InvalidInput, match="2 live jobs match: give dedup_key or job_id"):
        center.reschedule(MINUTE, biz_id=42)
    assert center.reschedule(MINUTE, biz_id=42, dedup_key="x") == "rescheduled"
    assert center.reschedule(MINUTE, biz_id=41) == "unknown"
    with pytest.raises(InvalidInput, match="action_time"):
        center.reschedule(first)


def test_the_old_id_of_a_repaired_misfit_moves_the_reminder_of_its_copy(world: World) -> None:
    job = misfit(world.library, 0, 0)
    copy_id = JobRepair(world.library.databases, "night").copy_to_right_shard(0, job.job_id).job_id
    assert copy_id is not None
    answer = world.center.reschedule(job.job_id, MINUTE)
    assert (answer, answer.job_id) == ("rescheduled", copy_id)
    assert (world.reminder(copy_id), world.reminder(job.job_id)) == (60_000, None)


def test_a_running_job_is_not_rescheduled(world: World) -> None:
    job_id = world.center.schedule(42, timedelta(0), biz_type="order.close")
    world.library.claim([job_id], "one")
    assert world.center.reschedule(job_id, MINUTE) == "running"
    assert world.center.get(job_id).due_ms == world.now_ms + LEASE_MS  # type: ignore[union-attr]


# ---- look and redrive


def test_find_by_business_key(world: World) -> None:
    center = world.center
    one = center.schedule(42, MINUTE, biz_type="t.a")
    world.clock.advance(0.001)
    two = center.schedule(42, MINUTE, biz_type="t.b")
    center.schedule(43, MINUTE)
    center.cancel(one)
    assert [job.job_id for job in center.find(42)] == [two, one]
    assert [job.job_id for job in center.find(42, "t.a")] == [one]
    assert center.find(42, "never.heard.of") == []
    assert center.find(44) == []
    assert center.get(world.library.new().job_id) is None


def test_a_dead_job_is_driven_again_at_once(world: World) -> None:
    job_id = world.center.schedule(42, timedelta(0), biz_type="order.close")
    world.slots.ack("default", [job_id])
    world.library.claim([job_id], "one")
    world.library.settle_as(OutcomeKind.BURY, job_id, "one", error="no luck")
    (letter,) = world.center.dead()
    assert (letter.job_id, letter.biz_type, letter.error) == (job_id, "order.close", "no luck")
    assert world.center.dead(biz_type="order.close") == [letter]
    assert world.center.cancel(job_id) == "dead"
    world.clock.advance(5)
    assert world.center.redrive(job_id) == "redriven"
    assert world.reminder(job_id) == 0
    assert (world.center.dead(), world.center.redrive(job_id)) == ([], "pending")


def test_a_center_connects_again_after_close(world: World) -> None:
    with world.center as center:
        job_id = center.schedule(42, MINUTE)
    assert world.center.get(job_id) is not None
    assert world.reminder(world.center.schedule(42, MINUTE)) == 60_000


def test_time_is_the_servers_and_not_this_machines(small: World) -> None:
    # No frozen clock here: Redis and the database agree with this machine only by chance.
    center = toc.TimeoutCenter(small.settings)
    try:
        server_ms = small.library.databases[0].now_ms()
        assert server_ms == small.now_ms  # this one is frozen, the center's is not
        job = center.get(center.schedule(42, timedelta(0)))
        assert job is not None
        assert abs(job.action_time - datetime.now(UTC)) < timedelta(seconds=30)
    finally:
        center.close()


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
def test_a_redis_with_a_wrong_clock_moves_no_job(
    small: World, monkeypatch: pytest.MonkeyPatch, wrong_ms: int
) -> None:
    asked: list[Database] = []
    arm, now_ms = Reminders.arm, Database.now_ms

    def arm_elsewhen(self: Reminders, topic: str, entries: Any) -> int:
        return arm(self, topic, entries) + wrong_ms

    def counted(self: Database) -> int:
        asked.append(self)  # also those of servers of other tests in this process
        return now_ms(self)

    monkeypatch.setattr(Reminders, "arm", arm_elsewhen)
    monkeypatch.setattr(Database, "now_ms", counted)
    center = toc.TimeoutCenter(small.settings)  # its clock is not frozen
    try:
        for n in range(5):
            job = center.get(center.schedule(n, MINUTE))
            assert job is not None
            off = job.action_time - datetime.now(UTC) - MINUTE
            assert abs(off) < timedelta(seconds=30)
        state = center._open_connections()
        assert state.reminder_queue is not None
        by_redis_ms = state.redis_time.estimate_now_ms()
        by_database_ms = state.database_times[0].estimate_now_ms()
        assert abs(by_redis_ms - by_database_ms - wrong_ms) < 30_000
        assert asked.count(state.databases[0]) == 1
    finally:
        center.close()


def test_an_answer_of_the_store_is_what_schedule_returns(world: World) -> None:
    # A key's holder that waits for a retry is due at the retry's time, not at its action time.
    job_id = world.center.schedule(42, timedelta(0), biz_type="order.close", dedup_key="k")
    world.library.claim([job_id], "one")
    world.library.settle_as(OutcomeKind.RETRY, job_id, "one", world.now_ms + 5_000)
    (kept,) = world.library.insert(world.library.new(42, key="k"))
    assert kept == InsertResult(job_id, world.now_ms + 5_000, written=False, holder=Status.PENDING)


def test_schedule_tells_whether_it_inserted(world: World) -> None:
    center = world.center
    first = center.schedule(42, MINUTE, dedup_key="k", details=True)
    kept = center.schedule(42, 2 * MINUTE, dedup_key="k", details=True)
    replaced = center.schedule(42, 2 * MINUTE, dedup_key="k", on_duplicate="replace", details=True)
    assert first == (first.job_id, "inserted", False)
    assert kept == (first.job_id, "kept", False)
    assert replaced == (first.job_id, "replaced", False)
    assert [it.created for it in (first, kept, replaced)] == [True, False, False]
    jobs: list[toc.JobSpec] = [
        {"biz_id": 42, "action_time": MINUTE, "dedup_key": key} for key in ("k", "new", "new")
    ]
    many = center.schedule_many(jobs, details=True)
    assert [it.did for it in many] == ["kept", "inserted", "kept"]
    assert center.schedule_many(jobs) == [it.job_id for it in many]
    with Session(create_engine(world.settings.databases[0], poolclass=NullPool)) as session:
        given = center.schedule(42, MINUTE, dedup_key="k", session=session, details=True)
        assert given.did == "kept"


def test_a_holder_that_runs_is_told(world: World) -> None:
    """It is kept, and will not act on the later wish."""
    job_id = world.center.schedule(42, timedelta(0), biz_type="order.close", dedup_key="k")
    world.library.claim([job_id], "one")
    kept = world.center.schedule(42, MINUTE, biz_type="order.close", dedup_key="k", details=True)
    assert kept == (job_id, "kept", True)


@pytest.mark.parametrize("job_id", [42, 2**40, 2**63 - 1])
@pytest.mark.parametrize("verb", ["cancel", "reschedule", "redrive", "discard"])
def test_a_number_that_is_hardly_a_job_id_gets_a_hint(world: World, verb: str, job_id: int) -> None:
    arguments = (job_id, MINUTE) if verb == "reschedule" else (job_id,)
    answer = getattr(world.center, verb)(*arguments)
    assert (answer, answer.kind, answer.ok, bool(answer)) == ("unknown", "unknown", False, False)
    assert f"biz_id={job_id}" in answer.hint
    gone = getattr(world.center, verb)(world.library.new().job_id, *arguments[1:])
    assert (gone, bool(gone), gone.hint) == ("unknown", False, None)


def test_a_business_id_of_other_types_gets_a_hint(world: World) -> None:
    center = world.center
    jobs = [center.schedule(42, MINUTE, biz_type=name) for name in ("t.b", "t.a", "t.a")]
    for answer in (center.cancel(biz_id=42), center.reschedule(MINUTE, biz_id=42, biz_type="no")):
        assert (answer, bool(answer)) == ("unknown", False)
        assert "'t.a', 't.b'" in (answer.hint or "")
        assert "biz_type=None" in (answer.hint or "")
    assert [center.get(job_id).status for job_id in jobs] == [0, 0, 0]  # type: ignore[union-attr]
    assert center.cancel(biz_id=43).hint is None


def test_no_type_means_all_types(world: World) -> None:
    center = world.center
    only = center.schedule(43, MINUTE, biz_type="t.a")
    assert center.reschedule(MINUTE / 2, biz_id=43, biz_type=None)
    assert world.reminder(only) == 30_000
    jobs = [center.schedule(42, MINUTE, biz_type=name) for name in ("default", "t.a", "t.b")]
    keyed = center.schedule(42, MINUTE, biz_type="t.c", dedup_key="k")
    with pytest.raises(InvalidInput, match="4 live jobs"):
        center.reschedule(MINUTE, biz_id=42, biz_type=None)
    assert center.cancel(biz_id=42, biz_type=None, dedup_key="k").job_id == keyed
    assert center.cancel(biz_id=42, biz_type=None) == "cancelled"
    assert [center.get(job_id).status for job_id in jobs] == [3, 3, 3]  # type: ignore[union-attr]
    assert center.cancel(biz_id=42, biz_type=None) == "already_cancelled"


@pytest.mark.invariant("I3")
def test_cancel_by_key_reaches_every_live_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ROWS_MAX", 3)  # a page; the look-up takes as many as it needs
    ended = [world.center.schedule(7, MINUTE) for _ in range(3)]
    live = [world.center.schedule(7, MINUTE) for _ in range(8)]
    later = [world.center.schedule(7, MINUTE) for _ in range(3)]
    for job_id in ended + later:
        assert world.center.cancel(job_id) == "cancelled"
    assert world.center.cancel(biz_id=7) == "cancelled"
    assert {world.center.get(job_id).status for job_id in live} == {Status.CANCELLED}  # type: ignore[union-attr]


def test_a_client_with_other_slots_is_refused(small: World) -> None:
    small.center.schedule(1, MINUTE)
    topics = {"vip": TopicSettings(slot_amount=1, biz_types=("vip.close",))}
    other = TimeoutCenter(small.settings.model_copy(update={"topics": topics}), clock=small.clock)
    with pytest.raises(SchemaMismatch, match=r"topic\.vip\.slot_amount"):
        other.schedule(1, MINUTE)
    other.close()


def test_an_enumerated_id_is_the_number_that_it_is(world: World) -> None:
    class Shop(int, Enum):
        ONE = 42

    world.center.schedule(Shop.ONE, MINUTE)
    assert world.center.cancel(biz_id=42) == "cancelled"


@pytest.mark.parametrize("limit", [-1, 0, "x", True, 10**9])
def test_dead_takes_a_number_in_bounds(small: World, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        small.center.dead(limit)


def test_a_row_that_other_hands_have_written_is_shown(world: World) -> None:
    job_id = world.center.schedule(42, MINUTE)
    shard = world.settings.routing.shard_of_hash(world.slot(job_id))
    table = world.library.databases[0].job_table_name(shard)
    with world.library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET attribute = 'oops', status = 9")
    job = world.center.get(job_id)
    assert job is not None
    assert (job.status, job.attribute) == (Status.CANCELLED, {"not JSON": "oops"})
