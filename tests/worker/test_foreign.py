"""What toc did not write: members of queues that are no job_id, rows in a table that is not theirs."""

from __future__ import annotations

import logging

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, NOW, TYPE, Rig, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.timer import redis_keys
from toc.timer.reminders import Reminders

STAY_S = 600.0  # far beyond the test: what is lost with a look stays lost

FOREIGN = [
    b"order-42",
    b"",
    b"-7",
    b"007",  # int() takes these four, and an ack by the number would not find them
    b" 7",
    b"+7",
    b"1_000",
    b"\xff\xfe",
    b"evil\nWARNING all is well",
    b"9" * 5000,  # more digits than int() takes
    str(2**63).encode(),
    b"x" * 100_000,
]


def slots_of(rig: Rig) -> Reminders:
    slots = rig.center._open_connections().reminders
    assert slots is not None
    return slots


def put(rig: Rig, slot: int, *members: bytes, prepared: bool = False) -> None:
    """Puts overdue members into a slot, by other hands."""
    key_of = redis_keys.prepare_queue_key if prepared else redis_keys.store_queue_key
    key = key_of(rig.settings.namespace, "default", slot)
    slots_of(rig).connected_client().zadd(key, dict.fromkeys(members, 1.0))


def stands(rig: Rig, slot: int, *members: bytes) -> bool:
    """Whether any of the members is in a queue of a slot."""
    name = rig.settings.namespace, "default", slot
    client = slots_of(rig).connected_client()
    scores = [
        client.zmscore(key(*name), list(members))
        for key in (redis_keys.store_queue_key, redis_keys.prepare_queue_key)
    ]
    return any(score is not None for some in scores for score in some)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("member", FOREIGN)
def test_a_member_that_is_no_job_id_is_removed_and_delays_nobody(
    make_rig: MakeRig, member: bytes, prepared: bool
) -> None:
    rig = make_rig(timer={"stay_s": STAY_S})
    before = metric("toc_foreign_members_total", topic="default")
    jobs = [rig.center.schedule(biz_id, NOW, biz_type=TYPE) for biz_id in range(20)]
    put(rig, 1, member, prepared=prepared)
    rig.handler()(lambda _: None)
    rig.start()
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: metric("toc_foreign_members_total", topic="default") == before + 1)
    assert not stands(rig, 1, member)


def test_foreign_members_are_named_once_and_cannot_forge_a_line(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(timer={"stay_s": STAY_S})
    rig.handler()(lambda _: None)
    rig.start()
    with caplog.at_level(logging.WARNING):
        put(rig, 1, *FOREIGN)
        wait_until(lambda: not stands(rig, 1, *FOREIGN))
        put(rig, 2, b"another")
        wait_until(lambda: not stands(rig, 2, b"another"))
    (line,) = [r.getMessage() for r in caplog.records if "no job_id" in r.getMessage()]
    assert "\n" not in line
    assert len(line) < 1000


def test_health_says_how_many_were_met(make_rig: MakeRig) -> None:
    rig = make_rig(timer={"stay_s": STAY_S})
    rig.handler()(lambda _: None)
    rig.start()
    assert rig.node is not None
    assert "queues" not in {part.part for part in rig.node.health()}
    put(rig, 1, b"a", b"b\n")
    put(rig, 2, b"c")
    slots = rig.node.reminders
    assert slots is not None
    wait_until(lambda: slots.foreign.recent_removals[0] == 3)
    (part,) = [part for part in rig.node.health() if part.part == "queues"]
    assert part.state == "degraded"
    assert "3 members" in part.how
    assert part.since_ms is not None


def test_a_foreign_field_among_the_marks_stops_no_loader(make_rig: MakeRig) -> None:
    rig = make_rig(timer={"load_tick_s": 0.05})
    mark = redis_keys.marks_key(rig.settings.namespace, "default", 1)
    slots_of(rig).connected_client().hset(mark, mapping={b"not a shard": b"x", b"1": b"\xff"})
    rig.handler()(lambda _: None)
    rig.start()
    rig.wait_for_loader()
    assert rig.node is not None
    work_sources = rig.node.work_sources
    assert work_sources is not None
    wait_until(lambda: work_sources.load_age_s < 5)


@pytest.mark.parametrize("also_at_home", [False, True])
def test_a_reminder_in_a_wrong_slot_is_moved_and_its_job_runs_once(
    make_rig: MakeRig, also_at_home: bool
) -> None:
    rig = make_rig(timer={"stay_s": STAY_S})
    started: list[int] = []
    rig.handler()(lambda job: started.append(job.job_id))
    job_id = rig.center.schedule(rig.biz_id_on(0), NOW, biz_type=TYPE)
    if not also_at_home:
        slots_of(rig).connected_client().delete(
            redis_keys.store_queue_key(rig.settings.namespace, "default", 0)
        )
    put(rig, 3, b"%d" % job_id)
    rig.start()
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: not stands(rig, 3, b"%d" % job_id))
    assert started == [job_id]


# ---- rows in a table that is not theirs


def misplaced(rig: Rig, own: int, table: int) -> int:
    """A due row whose id says shard `own`, in another shard's table."""
    job_id = rig.center.schedule(rig.biz_id_on(own), LONG_AGO, biz_type=TYPE)
    (row,) = rig.sql(
        job_id,
        "SELECT biz_id, type_no, CAST(action_time AS CHAR) FROM {table} WHERE job_id = :id",
        id=job_id,
    )
    rig.sql(job_id, "DELETE FROM {table} WHERE job_id = :id", id=job_id)
    database = rig.center._open_connections().databases.database_of_shard(table)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO toc_job_{table:04d} (job_id, biz_id, type_no, action_time, due_time)"
            f" VALUES ({job_id}, {row[0]}, {row[1]}, '{row[2]}', '{row[2]}')"
        )
    return job_id


@pytest.mark.parametrize("table", [1, 3])  # of its own database, and of the other
def test_a_row_in_a_table_that_is_not_its_own_is_not_run(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, table: int
) -> None:
    rig = make_rig(databases=2, scanner={"grace_s": 0, "tick_s": 0.05})
    started: list[Job] = []
    rig.handler()(started.append)
    job_id = misplaced(rig, 0, table)
    well = rig.center.schedule(rig.biz_id_on(table), LONG_AGO, biz_type=TYPE)
    slots_of(rig).connected_client().delete(  # the scanner brings both
        *(redis_keys.store_queue_key(rig.settings.namespace, "default", slot) for slot in range(4))
    )
    before = metric("toc_rows_misplaced_total")
    with caplog.at_level(logging.WARNING):
        rig.start()
        rig.wait_for(Status.DONE, well)
        wait_until(lambda: metric("toc_rows_misplaced_total") >= before + 2)  # met again and again
    assert [job.job_id for job in started] == [well]
    database = rig.center._open_connections().databases.database_of_shard(table)
    with database.engine.begin() as connection:
        row = connection.exec_driver_sql(
            f"SELECT status, attempts, claim_token FROM toc_job_{table:04d} WHERE job_id = {job_id}"
        ).one()
    assert tuple(row) == (0, 0, None)
    assert [r for r in caplog.records if str(job_id) in r.getMessage()]
