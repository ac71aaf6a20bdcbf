"""The net under the timer: what no reminder announced is run all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, LONG_AGO, NOW, SOON, TYPE, Gate, Rig, metric
from tests.worker.waiting import remains, wait_until
from toc.domain.ids import JobIdFactory
from toc.domain.job import Job, Status
from toc.domain.routing import routing_hash_of
from toc.node import probes
from toc.store import sessions
from toc.store.due_pages import DuePages

QUIET = {"load_tick_s": 60.0}  # the loader brings nothing after its first step


def insert_by_sql(rig: Rig, biz_id: int, action: datetime, attribute: str | None = None) -> int:
    """A row that no client of ours made."""
    job_id = JobIdFactory(rig.clock.wall_ms, biz_id).make_ids([routing_hash_of(biz_id)])[0]
    opened = rig.center._open_connections()
    type_no = opened.database_metadata.types.get_or_create_number(TYPE, opened.databases[0])
    when = action.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    rig.sql(
        job_id,
        "INSERT INTO {table} (job_id, biz_id, type_no, action_time, due_time, attribute)"
        " VALUES (:job_id, :biz_id, :type_no, :action, :action, :attribute)",
        job_id=job_id,
        biz_id=biz_id,
        type_no=type_no,
        action=when,
        attribute=attribute,
    )
    return job_id


def test_rows_made_by_plain_sql_are_run(make_rig: MakeRig) -> None:
    rig = make_rig(timer=QUIET, scanner={"grace_s": 0})
    seen: list[Job] = []
    rig.handler()(seen.append)
    rig.start()
    rig.wait_for_loader()
    before = metric("toc_jobs_rescued_total")
    job_id = insert_by_sql(rig, 7, LONG_AGO, json.dumps({"by": "hand"}))
    rig.wait_for(Status.DONE, job_id)
    assert [(job.biz_id, job.attribute, job.action_time) for job in seen] == [
        (7, {"by": "hand"}, LONG_AGO)
    ]
    assert metric("toc_jobs_rescued_total") == before + 1


def test_a_lost_reminder_costs_the_grace(make_rig: MakeRig) -> None:
    rig = make_rig(timer=QUIET, scanner={"grace_s": 0.3})
    times: list[int] = []
    rig.handler()(lambda _: times.append(rig.clock.wall_ms()))
    rig.start()
    rig.wait_for_loader()
    job_id = rig.center.schedule(2, SOON, biz_type=TYPE)
    slots = rig.center._open_connections().reminders
    assert slots is not None
    slots.ack("default", [job_id])  # lost
    rig.wait_for(Status.DONE, job_id)
    assert times[0] > rig.row(job_id).action_ms + 300


def test_the_scanner_leaves_what_is_not_overdue_to_the_timer(make_rig: MakeRig) -> None:
    rig = make_rig(timer=QUIET, scanner={"grace_s": 30})
    rig.handler()(lambda _: None)
    rig.start()
    before = metric("toc_jobs_rescued_total")
    jobs = [rig.center.schedule(n, SOON, biz_type=TYPE) for n in range(10)]
    rig.wait_for(Status.DONE, *jobs)
    assert metric("toc_jobs_rescued_total") == before


def test_without_redis_the_scanner_is_the_engine(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none", scanner={"grace_s": 30, "tick_s": 0.05})
    attempts: list[tuple[int, int]] = []

    @rig.handler(retry=[0.1], max_attempts=2)
    def handle(job: Job) -> None:
        attempts.append((job.biz_id, job.attempts))
        if job.biz_id % 2:
            raise ValueError("odd")

    rig.start()
    jobs = [rig.center.schedule(n, SOON, biz_type=TYPE) for n in range(6)]
    far = rig.center.schedule(99, FAR, biz_type=TYPE)
    gone = rig.center.schedule(98, SOON, biz_type=TYPE)
    assert rig.center.cancel(gone) == "cancelled"
    rig.wait_for(Status.DONE, *jobs[::2])
    rig.wait_for(Status.DEAD, *jobs[1::2])
    assert sorted(attempts) == sorted([(n, 1) for n in range(6)] + [(n, 2) for n in range(1, 6, 2)])
    assert rig.status(far) is Status.PENDING


def test_the_scanner_works_faster_while_redis_is_away(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="redis://127.0.0.1:1/0", scanner={"grace_s": 3600, "tick_s": 600})
    rig.handler()(lambda _: None)
    rig.start()
    jobs = [rig.center.schedule(n, SOON, biz_type=TYPE) for n in range(6)]
    rig.wait_for(Status.DONE, *jobs)


@pytest.mark.parametrize("redis", [True, False])
def test_rows_that_cannot_be_claimed_do_not_starve_those_behind(
    make_rig: MakeRig, redis: bool
) -> None:
    url = {} if redis else {"redis_url": "none"}
    rig = make_rig(scanner={"grace_s": 0, "page": 3}, timer=QUIET, **url)
    gate = Gate()
    rig.handler("hangs", timeout=30)(gate)
    rig.handler()(lambda _: None)
    blocked = []
    for n in range(10):  # all older, and of the same shard: one is taken over, nine wait for it
        job_id = rig.center.schedule(rig.biz_id_on(0, n), LONG_AGO, biz_type="hangs")
        rig.run_elsewhere(job_id, token="gone", attempts=1, lease_s=-100)
        blocked.append(job_id)
    for n in range(10, 20):  # and types that nobody handles
        rig.center.schedule(rig.biz_id_on(0, n), LONG_AGO, biz_type="foreign")
    rig.start()
    gate.wait(1)
    behind = [insert_by_sql(rig, rig.biz_id_on(0, 20 + n), datetime.now(UTC)) for n in range(4)]
    rig.wait_for(Status.DONE, *behind)
    assert len(gate.begun) == 1
    gate.open.set()
    rig.wait_for(Status.DONE, *blocked)


def test_a_scan_goes_on_where_it_stopped_for_want_of_room(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none", worker={"concurrency": 2, "queue_max": 2}, scanner={"page": 2})
    order: list[int] = []
    rig.handler()(lambda job: order.append(job.biz_id))
    jobs = [rig.center.schedule(n, LONG_AGO, biz_type=TYPE) for n in range(40)]
    rig.start()
    rig.wait_for(Status.DONE, *jobs)
    assert sorted(order) == list(range(40))


def refuse(*_: Any) -> Any:
    raise ValueError("no such row can be written")


def renamed(rig: Rig, job_id: int, stack: ExitStack) -> None:
    rig.sql(job_id, "ALTER TABLE {table} RENAME TO away")
    stack.callback(rig.sql, job_id, "ALTER TABLE away RENAME TO {table}")


def without_its_file(rig: Rig, job_id: int, stack: ExitStack) -> None:
    columns = "job_id, biz_id, type_no, action_time, due_time, attribute"
    rig.sql(job_id, "CREATE TABLE kept LIKE {table}")
    rig.sql(job_id, f"INSERT INTO kept ({columns}) SELECT {columns} FROM {{table}}")
    rig.sql(job_id, "ALTER TABLE {table} DISCARD TABLESPACE")
    stack.callback(rig.sql, job_id, "ALTER TABLE kept RENAME TO {table}")
    stack.callback(rig.sql, job_id, "DROP TABLE {table}")


def changed_by_somebody(rig: Rig, job_id: int, stack: ExitStack) -> None:
    database = rig.center._open_connections().databases.database_of_shard(rig.shard(job_id))
    connection = stack.enter_context(database.engine.connect())
    connection.execute(text("SET SESSION wait_timeout = 600"))
    connection.execute(text(f"LOCK TABLES {database.job_table_name(rig.shard(job_id))} WRITE"))
    stack.callback(connection.invalidate)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("broken", [renamed, without_its_file, changed_by_somebody])
@pytest.mark.parametrize("net", ["scanner", "loader"])
def test_one_broken_table_holds_up_no_other(
    make_rig: MakeRig,
    mysql_database: str,
    net: str,
    broken: Callable[[Rig, int, ExitStack], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "LOCK_WAIT_S", 1)
    by_loader = {"timer": {"load_tick_s": 0.05}, "scanner": {"grace_s": 3600}}
    settings: dict[str, Any] = {"redis_url": "none"} if net == "scanner" else by_loader
    rig = make_rig(urls=[mysql_database], **settings)
    rig.handler()(lambda _: None)
    lost = insert_by_sql(rig, rig.biz_id_on(0), LONG_AGO)
    with ExitStack() as stack:
        broken(rig, lost, stack)
        # For the loader's, the scanner has an hour of grace.
        due = datetime.now(UTC) - timedelta(minutes=1)
        jobs = [insert_by_sql(rig, rig.biz_id_on(shard), due) for shard in (1, 2, 3)]
        rig.start()
        rig.wait_for(Status.DONE, *jobs)
    rig.wait_for(Status.DONE, lost, seconds=60)  # one that was locked is left alone for a while


@pytest.mark.parametrize("broken", [renamed, without_its_file])
def test_one_broken_table_costs_those_that_are_due_with_it_nothing(
    make_rig: MakeRig, mysql_database: str, broken: Callable[[Rig, int, ExitStack], None]
) -> None:
    rig = make_rig(urls=[mysql_database], timer=QUIET, scanner={"grace_s": 3600})
    rig.handler()(lambda _: None)
    lost, *jobs = (rig.center.schedule(rig.biz_id_on(n), NOW, biz_type=TYPE) for n in range(4))
    with ExitStack() as stack:
        broken(rig, lost, stack)
        rig.start()
        rig.wait_for(Status.DONE, *jobs)


@pytest.mark.parametrize("broken", [renamed, without_its_file])
def test_one_broken_table_costs_the_outcomes_of_others_nothing(
    make_rig: MakeRig, mysql_database: str, broken: Callable[[Rig, int, ExitStack], None]
) -> None:
    rig = make_rig(urls=[mysql_database], timer=QUIET)
    gate = Gate()
    rig.handler(timeout=30)(gate)
    lost, *jobs = (rig.center.schedule(rig.biz_id_on(n), NOW, biz_type=TYPE) for n in range(4))
    rig.start()
    gate.wait(4)
    with ExitStack() as stack:
        broken(rig, lost, stack)
        gate.open.set()
        rig.wait_for(Status.DONE, *jobs)
    if broken is renamed:  # the row is there again, and its outcome was kept
        rig.wait_for(Status.DONE, lost)
        assert len(gate.begun) == 4


def test_an_outcome_that_cannot_be_recorded_is_kept_until_its_lease_is_over(
    make_rig: MakeRig, mysql_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(urls=[mysql_database], timer=QUIET, worker={"lease_s": 4})
    rig.handler(timeout=1)(lambda _: None)
    worker = rig.alone()
    monkeypatch.setattr(worker.context.claims, "settle_jobs", refuse)
    refused = metric("toc_settles_refused_total")
    rig.offer(worker, rig.center.schedule(1, LONG_AGO, biz_type=TYPE))
    assert remains(lambda: worker.jobs_in_flight == 1, 2.0)
    wait_until(lambda: worker.jobs_in_flight == 0, "the lease to be over")
    assert worker.permits.unsettled_count == 0
    assert metric("toc_settles_refused_total") == refused  # nobody has refused it


def test_an_outcome_that_failed_is_tried_again_beside_a_steady_flow(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(timer=QUIET)
    rig.handler(timeout=30)(lambda _: None)
    worker = rig.alone()
    bad = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    settle, alone = worker.context.claims.settle_jobs, list[int]()

    def refusing(database: Any, outcomes: Any) -> Any:
        ids = [outcome.job_id for outcome in outcomes]
        if bad not in ids:
            return settle(database, outcomes)
        alone.extend(ids)
        raise ValueError("no such row can be written")

    monkeypatch.setattr(worker.context.claims, "settle_jobs", refusing)
    rig.offer(worker, bad)
    wait_until(lambda: bad in alone, "the first try")
    first = len(alone)
    for n in range(12):
        rig.offer(worker, rig.center.schedule(2 + n, LONG_AGO, biz_type=TYPE))
        assert remains(lambda: True, 0.2)
    assert len(alone) > first
    monkeypatch.undo()
    rig.wait_for(Status.DONE, bad)


def test_one_attribute_that_is_no_json_costs_the_others_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none")
    seen: list[int] = []
    rig.handler(max_attempts=2, retry=[0])(lambda job: seen.append(job.biz_id))
    ids = [rig.biz_id_on(0, n) for n in range(5)]
    jobs = [
        insert_by_sql(rig, biz_id, LONG_AGO, "{no json" if n == 2 else "{}")
        for n, biz_id in enumerate(ids)
    ]
    rig.start()
    innocent = [job_id for n, job_id in enumerate(jobs) if n != 2]
    rig.wait_for(Status.DONE, *innocent)
    assert {rig.row(job_id).attempts for job_id in innocent} == {1}
    rig.wait_for(Status.DEAD, jobs[2])
    (letter,) = rig.center.dead()
    assert "attribute" in letter.error
    assert ids[2] not in seen


# ---- clocks that disagree


def test_clocks_too_far_apart_pause_the_pollers(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    skew_ms = 3_600_000
    rig = make_rig(timer=QUIET, scanner={"grace_s": 3600})
    started: list[int] = []
    rig.handler()(lambda job: started.append(job.job_id))
    monkeypatch.setattr(probes, "TICK_S", 0.02)
    rig.start()
    assert rig.node is not None
    clocks = rig.node._clocks
    assert clocks is not None
    first = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, first)
    assert not clocks.skew_is_too_large

    probe = rig.node.probes[0]
    true_ms = probe._ask_ms
    monkeypatch.setattr(probe, "_ask_ms", lambda: [true_ms()[0] + skew_ms])
    wait_until(lambda: clocks.skew_is_too_large)
    assert metric("toc_clock_skew_seconds") == pytest.approx(-3600, abs=5)
    second = rig.center.schedule(2, NOW, biz_type=TYPE)
    # A poll that was under way may still pop one; then it is quiet.
    third = rig.center.schedule(3, SOON, biz_type=TYPE)
    assert remains(lambda: rig.status(third) is Status.PENDING, 0.6)
    assert rig.armed_ms(third) is not None

    monkeypatch.setattr(probe, "_ask_ms", true_ms)
    rig.wait_for(Status.DONE, second, third)
    assert not clocks.skew_is_too_large


def test_the_scanner_fires_while_the_timer_is_paused(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = probes.ClockComparison._compare_clocks

    def skew_is_too_large(clocks: probes.ClockComparison) -> None:
        compare(clocks)
        clocks.skew_is_too_large = True

    monkeypatch.setattr(probes.ClockComparison, "_compare_clocks", skew_is_too_large)
    rig = make_rig(timer=QUIET, scanner={"grace_s": 0.1})
    rig.handler()(lambda _: None)
    rig.start()
    before = metric("toc_jobs_rescued_total")
    job_id = rig.center.schedule(1, SOON, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    assert metric("toc_jobs_rescued_total") == before + 1


def test_pages_go_past_rows_that_share_a_due_time(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none")
    jobs = sorted(insert_by_sql(rig, rig.biz_id_on(0, n), LONG_AGO) for n in range(7))
    pages, after, seen = DuePages(rig.databases()), (0, 0), []
    while page := pages.read_overdue_rows(0, after, 0, None, 3):
        seen += [row.job_id for row in page]
        after = (page[-1].due_ms, page[-1].job_id)
    assert seen == jobs
