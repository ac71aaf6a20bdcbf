"""Recurring schedules on real nodes: the handler's view, late jobs, replaced jobs, declarations by nodes."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.contract.breaks import statements_of
from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, NOW, Rig
from tests.worker.waiting import wait_until
from toc.domain.ids import JobIdFactory
from toc.domain.job import Job, Status
from toc.domain.occurrence_keys import chain_key_of
from toc.domain.recurrence import Recurrence
from toc.domain.recurring import RecurringSchedule
from toc.errors import InvalidInput, NotFound
from toc.handlers.current_job import current_job
from toc.node import recurring_keeper
from toc.node.recurring_keeper import RecurringKeeper
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import RecurringSettings
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import ConnectionLimits, Databases
from toc.store.jobs import Jobs
from toc.store.recurring_chains import RecurringChains
from toc.store.recurring_changes import RecurringChanges

SECOND = timedelta(seconds=1)
NAME = "rec.tick"


def jobs_of(rig: Rig, name: str = NAME) -> list[Job]:
    """The jobs of a schedule by nominal time."""
    jobs = rig.center.find(name)
    return sorted(jobs, key=lambda job: job.nominal_time or datetime.min.replace(tzinfo=UTC))


@pytest.mark.parametrize("timer", [True, False])
def test_each_nominal_time_runs_once_and_the_handler_knows_it(
    make_rig: MakeRig, timer: bool
) -> None:
    settings = {} if timer else {"redis_url": "none", "scanner": {"grace_s": 0.1}}
    rig = make_rig(**settings)
    seen: list[datetime | None] = []

    # "queue": no time is left out, however slow this machine is.
    @rig.registry.every(1, name=NAME, overlap="queue", attribute={"a": 1})
    def tick(job: Job) -> None:
        now_running = current_job()
        assert now_running is not None
        assert (job.attribute, job.biz_id) == ({"a": 1}, NAME)
        assert job.nominal_time == now_running.nominal_time
        seen.append(job.nominal_time)

    rig.start()
    wait_until(lambda: len(seen) >= 4, "four runs", 60)
    rig.stop()
    first = seen[0]
    assert first is not None
    assert seen == [first + number * SECOND for number in range(len(seen))]
    assert len({job.dedup_key for job in jobs_of(rig)}) == len(jobs_of(rig))


def test_a_node_that_starts_later_continues_the_chain(make_rig: MakeRig) -> None:
    rig = make_rig()
    seen: list[datetime | None] = []

    @rig.registry.every(1, name=NAME, overlap="queue")
    def tick(job: Job) -> None:
        seen.append(job.nominal_time)

    for runs in (2, 4):
        rig.start()
        wait_until(lambda runs=runs: len(seen) >= runs, f"{runs} runs", 60)  # type: ignore[misc]
        assert rig.stop()
    first = seen[0]
    assert first is not None
    assert seen == [first + number * SECOND for number in range(len(seen))]


def test_a_person_cancels_an_occurrence_and_the_keeper_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"recurring_check_s": 0.1})
    rig.registry.every(86_400, name=NAME)(lambda job: None)
    rig.start()
    job = wait_until(lambda: jobs_of(rig)[:1], "the first occurrence")[0]
    # A waiting chain is checked once a minute; one whose time has come, at once.
    assert rig.center.cancel(job.job_id).ok
    keeper = rig.node.recurring_keepers[0]  # type: ignore[union-attr]
    keeper._check_waiting_s.clear()
    keeper.wake()
    wait_until(lambda: len(jobs_of(rig)) == 2, "the occurrence after the cancelled one", 60)
    first, second = jobs_of(rig)
    assert first.nominal_time is not None
    assert second.nominal_time == first.nominal_time + timedelta(days=1)


@pytest.mark.parametrize(
    ("attempts_before", "catch_up_s", "runs"), [(0, 10, False), (1, 10, True), (0, None, True)]
)
def test_an_occurrence_that_begins_too_late_is_dropped(
    make_rig: MakeRig, attempts_before: int, catch_up_s: int | None, runs: bool
) -> None:
    """A retry, and a job that a person asked for, run however late they are."""
    rig = make_rig()
    ran: list[int] = []
    rig.handler(NAME)(lambda job: ran.append(job.job_id))
    worker = rig.alone()
    nominal_ms = round(LONG_AGO.timestamp() * 1000)
    key = "recurring@2025-01-01T00:00:00Z"
    if catch_up_s is not None:
        assert chain_key_of(nominal_ms, catch_up_s) == f"{key};{catch_up_s}"
        key = chain_key_of(nominal_ms, catch_up_s)
    # Directly: callers of `schedule` cannot use such keys.
    job_id = rig.center.schedule(NAME, LONG_AGO, biz_type=NAME, dedup_key="key")
    rig.sql(
        job_id, "UPDATE {table} SET dedup_key = :key, attempts = :n WHERE job_id = :id",
        key=key, n=attempts_before, id=job_id,
    )  # fmt: skip
    rig.offer(worker, job_id)
    rig.wait_for(Status.DONE if runs else Status.CANCELLED, job_id)
    assert ran == [job_id] * runs


def test_a_late_occurrence_is_dropped_outside_of_batches_and_without_hooks(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    batches, hooked = list[list[int]](), list[tuple[str, int]]()
    rig.handler(NAME, batch=10, batch_wait=0)(
        lambda jobs: batches.append([job.job_id for job in jobs])
    )
    hooks = rig.registry.hooks
    for name in ("before_run", "after_run", "on_failure", "on_dead"):
        getattr(hooks, name)(lambda run, name=name: hooked.append((name, run.job.job_id)))
    worker = rig.alone()
    key = chain_key_of(round(LONG_AGO.timestamp() * 1000), 10)
    late, other = (
        rig.center.schedule(NAME, LONG_AGO, biz_type=NAME, dedup_key=f"key-{n}") for n in range(2)
    )
    statement = "UPDATE {table} SET dedup_key = :key WHERE job_id = :id"
    rig.sql(late, statement, key=key, id=late)
    rig.offer(worker, late, other)
    rig.wait_for(Status.CANCELLED, late)
    rig.wait_for(Status.DONE, other)
    assert batches == [[other]]
    assert hooked == [("before_run", other), ("after_run", other)]


def test_callers_cannot_use_the_keys_of_occurrences(make_rig: MakeRig) -> None:
    rig = make_rig()
    with pytest.raises(InvalidInput, match="recurring@"):
        rig.center.schedule(1, NOW, dedup_key="recurring@2025-01-01T00:00:00Z;10")


def test_the_settle_of_an_occurrence_makes_and_arms_the_next_one(make_rig: MakeRig) -> None:
    """No keeper runs here."""
    rig = make_rig()
    rig.handler(NAME)(lambda job: None)
    worker = rig.alone()
    rig.center.recur(NAME, every=60)
    (first,) = jobs_of(rig)
    assert rig.center.run_now(first.job_id).ok
    rig.offer(worker, first.job_id)
    _, second = wait_until(lambda: jobs_of(rig) if len(jobs_of(rig)) == 2 else None, "the next one")
    assert rig.status(first.job_id) is Status.DONE
    wait_until(lambda: rig.armed_ms(second.job_id) == second.action_ms, "the reminder")


def test_the_settle_of_other_jobs_asks_nothing_about_schedules(make_rig: MakeRig) -> None:
    # A claim that a busy machine starts too late is given back, and nobody offers it again.
    rig = make_rig(worker={"lease_s": 60})
    rig.handler(NAME)(lambda job: None)
    worker = rig.alone()
    ids = [rig.center.schedule(n, LONG_AGO, biz_type=NAME, dedup_key="k") for n in range(3)]
    with statements_of(worker.context.process.databases[0]) as seen:
        rig.offer(worker, *ids)
        rig.wait_for(Status.DONE, *ids)
    assert any("toc_job_" in text for text in seen)
    assert not any("toc_recurring" in text or "toc_occurrence" in text for text in seen)


def test_cancel_other_tells_the_running_handler(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"recurring_check_s": 0.1})
    lost, seen = threading.Event(), list[datetime | None]()

    @rig.registry.every(2, name=NAME, overlap="cancel-other")
    def tick(job: Job) -> None:
        seen.append(job.nominal_time)
        if len(seen) == 1 and job.lost.wait(60):
            lost.set()

    rig.start()
    assert lost.wait(60)
    wait_until(lambda: len(seen) >= 2, "the next occurrence", 60)
    rig.stop()
    first = jobs_of(rig)[0]
    assert (first.status, first.nominal_time) == (Status.CANCELLED, seen[0])


def test_a_node_declares_what_toc_toml_says(make_rig: MakeRig) -> None:
    group = RecurringSettings(cron="0 3 * * *", tz="Asia/Shanghai", biz_type="rec.other")
    rig = make_rig(recurring={"from.toml": group})
    rig.start()
    found = wait_until(lambda: [each.name for each in rig.center.recurring.list()], "a schedule")
    assert found == ["from.toml"]
    schedule = rig.center.recurring.get("from.toml", next_times=2)
    assert [f"{each:%H:%M}" for each in schedule.next_times] == ["19:00", "19:00"]


def test_a_step_that_waits_for_a_locked_table_ends_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurring_keeper, "DECLARE_S_MAX", 0)
    monkeypatch.setattr(recurring_keeper, "DECLARE_AGAIN_S", 0)
    path, clock = tmp_path / "toc.db", SystemClock()
    settings = Settings(databases=(f"sqlite:///{path}",), shards=4, redis_url="none")
    migrate.upgrade(settings)
    urls, limits = settings.databases, ConnectionLimits(read_timeout_s=1)
    with closing(Databases(urls, settings.routing, clock, limits=limits)) as databases:
        metadata, ids = DatabaseMetadata(databases), JobIdFactory(clock.wall_ms, 0)
        jobs = Jobs(databases, metadata, lambda bits: ids.make_ids([bits])[0], "rig")
        chains = RecurringChains(databases, jobs, lambda name: None)
        changes = RecurringChanges.from_settings(settings, databases, metadata, chains)
        schedules = [
            RecurringSchedule(f"rec.{name}", "report", Recurrence(every_s=3600)) for name in "abc"
        ]
        keeper = RecurringKeeper(
            databases[0], changes, schedules, clock, "rig", check_s=1, schedules_max=10,
            occurrence_days=1, arm=lambda made, now_ms: None, is_leader=lambda: True,
        )  # fmt: skip

        def step() -> str:
            """The schedules that are left after it, in their order."""
            keeper._declare_schedules(clock.monotonic_s(), clock.wall_ms())
            return "".join(each.name[-1] for each in keeper._undeclared)

        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [step() for _ in range(4)] == ["bca", "cab", "abc", "bca"]
        assert [step() for _ in range(3)] == ["ca", "a", ""]
        assert [row.name for row in changes.read_all()] == ["rec.a", "rec.b", "rec.c"]


def test_a_schedule_stays_paused_when_nodes_start(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.registry.every("0 3 * * *", name=NAME)(lambda job: None)
    rig.start()
    wait_until(rig.center.recurring.list, "the declaration")
    rig.stop()
    assert rig.center.recurring.pause(NAME, reason="moving").is_paused
    rig.start()
    wait_until(
        lambda: not rig.node.recurring_keepers[0]._undeclared,  # type: ignore[union-attr]
        "the second declaration",
    )
    assert rig.center.recurring.get(NAME).is_paused


def test_the_verbs_of_a_client(make_rig: MakeRig) -> None:
    rig = make_rig()
    center, verbs = rig.center, rig.center.recurring
    made = center.recur(
        "rec.report", cron="0 3 * * *", tz="Europe/Berlin", biz_type="rec.type", attribute={"a": 1},
        tenant="shop", actor="ann", reason="asked for",
    )  # fmt: skip
    assert (made.version, made.actor, made.reason, made.made) == (1, "ann", "asked for", 1)
    job = center.get(made.job_id or 0)
    assert job is not None
    assert (job.tenant, job.attribute, job.nominal_time) == ("shop", {"a": 1}, made.nominal_time)
    assert list(made.next_times) == [made.nominal_time]
    with pytest.raises(NotFound):
        verbs.get("rec.report")  # of no tenant
    run = center.get(verbs.run("rec.report", tenant="shop"))
    assert run is not None
    assert run.dedup_key is not None
    assert run.dedup_key.startswith("recurring@")
    assert made.nominal_time is not None
    end = made.nominal_time - timedelta(hours=1)
    done = verbs.backfill("rec.report", end - timedelta(days=2), end, tenant="shop")
    assert (len(done.job_ids), done.present) == (2, 0)
    assert [each.name for each in verbs.list()] == ["rec.report"]
    verbs.remove("rec.report", tenant="shop", reason="over")
    assert verbs.list() == []
    assert center.get(job.job_id).status is Status.CANCELLED  # type: ignore[union-attr]


def test_declarations_in_code(make_rig: MakeRig) -> None:
    rig = make_rig()

    @rig.registry.every("0 3 * * *", tz="Asia/Shanghai")
    @rig.registry.handler("rec.code", timeout=5)
    def report(job: Job) -> None: ...

    @rig.registry.every(timedelta(minutes=5), name="rec.five")
    def five(job: Job) -> None: ...

    schedules = {each.name: each for each in rig.registry.schedules}
    assert {name: each.biz_type for name, each in schedules.items()} == {
        "rec.code": "rec.code", "rec.five": "rec.five",
    }  # fmt: skip
    spec = rig.registry.get("rec.five")
    assert spec is not None
    assert spec.function is five
    with pytest.raises(InvalidInput, match="another function"):
        rig.registry.every("0 4 * * *", name="rec.five")(report)
    for wrong in ("3 o'clock", "5 min"):
        with pytest.raises(InvalidInput, match=r'five fields of cron, .* "30s"'):
            rig.registry.every(wrong, name="rec.six")(report)
    with pytest.raises(InvalidInput, match='text as "30s"'):
        rig.registry.every("hourly", name="rec.six")(report)
    rig.registry.every("1h30m", name="rec.six", priority=5)(report)
    six = next(each for each in rig.registry.schedules if each.name == "rec.six")
    assert (six.recurrence.every_s, six.priority) == (5400, 5)
