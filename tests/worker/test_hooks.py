"""Hooks in a worker: they see each run, and never lose or double a job."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.handlers.hooks import HandlerRun, ScheduleCall
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze

SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}
TYPE = "hooks.a"


def schedule(rig: Rig, **attribute: Any) -> int:
    return rig.center.schedule(1, NOW, biz_type=TYPE, attribute=attribute)


def register_handlers(rig: Rig, *, is_async: bool) -> None:
    """A handler that does what the attribute says in each attempt."""

    def act(job: Job) -> Any:
        what = job.attribute["does"][min(job.attempts, len(job.attribute["does"])) - 1]
        if what == "raise":
            raise RuntimeError("no")
        return {"retry": Retry(0), "drop": Drop("d"), "dead": Dead("e"), "done": None}[what]

    async def act_async(job: Job) -> Any:
        return act(job)

    rig.handler(TYPE, max_attempts=3, retry=[0])(act_async if is_async else act)


@pytest.mark.parametrize("is_async", [False, True])
def test_each_kind_of_end_calls_its_hooks(make_rig: MakeRig, is_async: bool) -> None:
    rig = make_rig(**SCANNER)
    register_handlers(rig, is_async=is_async)
    calls: Counter[tuple[int, str]] = Counter()
    hooks = rig.center.hooks
    for kind in ("before_run", "after_run", "on_failure", "on_dead"):

        def note(run: HandlerRun, kind: str = kind) -> None:
            calls[run.job.job_id, kind] += 1

        getattr(hooks, kind)(note)
    # does in each attempt -> its status, runs, failures, deaths
    table: dict[tuple[str, ...], tuple[Status, int, int, int]] = {
        ("done",): (Status.DONE, 1, 0, 0),
        ("drop",): (Status.CANCELLED, 1, 0, 0),
        ("dead",): (Status.DEAD, 1, 1, 1),
        ("raise", "done"): (Status.DONE, 2, 1, 0),
        ("retry", "drop"): (Status.CANCELLED, 2, 1, 0),
        ("raise",): (Status.DEAD, 3, 3, 1),
        ("retry", "raise", "retry"): (Status.DEAD, 3, 3, 1),
    }
    ids = {does: schedule(rig, does=list(does)) for does in table}
    rig.start()
    for does, (status, runs, failures, deaths) in table.items():
        job_id = ids[does]
        rig.wait_for(status, job_id, seconds=60)
        found = [
            calls[job_id, kind] for kind in ("before_run", "after_run", "on_failure", "on_dead")
        ]
        assert found == [runs, runs, failures, deaths], does


def test_a_hook_before_a_run_decides_and_the_others_cannot(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(**SCANNER, worker={"snooze_s_min": 0.05})
    ran: list[int] = []
    rig.handler(TYPE, max_attempts=2, retry=[0])(lambda job: ran.append(job.job_id))
    hooks = rig.center.hooks

    @hooks.before_run
    def guard(run: HandlerRun) -> None:
        what = run.job.attribute.get("guard")
        if what == "raise":
            raise RuntimeError("the guard says no")
        if what == "exit":
            raise SystemExit(1)
        if what == "drop":
            raise Drop("the guard drops it")
        if what == "snooze" and not run.job.attempts > 5 and run.job.job_id not in snoozed:
            snoozed.add(run.job.job_id)
            raise Snooze(NOW)

    @hooks.after_run
    def fail_after(run: HandlerRun) -> None:
        raise SystemExit(2)

    @hooks.on_dead
    def fail_dead(run: HandlerRun) -> None:
        raise RuntimeError("on_dead is broken")

    snoozed: set[int] = set()
    expected = {
        "": Status.DONE, "raise": Status.DEAD, "exit": Status.DEAD, "drop": Status.CANCELLED,
        "snooze": Status.DONE,
    }  # fmt: skip
    ids = {what: schedule(rig, guard=what) for what in expected}
    rig.start()
    for what, status in expected.items():
        rig.wait_for(status, ids[what], seconds=60)
    assert sorted(ran) == sorted([ids[""], ids["snooze"]])  # once each
    assert {letter.job_id for letter in rig.center.dead()} == {ids["raise"], ids["exit"]}
    assert "the after_run hook" in caplog.text
    assert "the on_dead hook" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_refuses_one_job_of_a_batch_ends_only_that_job(
    make_rig: MakeRig, is_async: bool
) -> None:
    rig = make_rig(**SCANNER)
    ran: list[int] = []
    failed: list[int] = []

    def take(jobs: list[Job]) -> None:
        ran.extend(job.job_id for job in jobs)

    async def take_async(jobs: list[Job]) -> None:
        take(jobs)

    handler: Any = take_async if is_async else take
    rig.registry.handler(TYPE, batch=10, batch_wait=0.2, max_attempts=1)(handler)

    @rig.center.hooks.before_run
    def guard(run: HandlerRun) -> None:
        what = run.job.attribute["guard"]
        if what == "drop":
            raise Drop("not this one")
        if what == "raise":
            raise RuntimeError("nor this one")

    rig.center.hooks.on_failure(lambda run: failed.append(run.job.job_id))
    good = [schedule(rig, guard="") for _ in range(3)]
    dropped, dead = schedule(rig, guard="drop"), schedule(rig, guard="raise")
    rig.start()
    rig.wait_for(Status.DONE, *good, seconds=60)
    rig.wait_for(Status.CANCELLED, dropped, seconds=60)
    rig.wait_for(Status.DEAD, dead, seconds=60)
    assert sorted(ran) == sorted(good)  # once each
    assert failed == [dead]


def test_a_run_that_has_lost_its_claim_is_no_failure(make_rig: MakeRig) -> None:
    rig = make_rig(**SCANNER)
    calls: list[str] = []

    @rig.handler(TYPE, max_attempts=5, retry=[0])
    def lose_first(job: Job) -> None:
        if job.attempts == 1:
            assert job._control is not None
            job._control.mark_lost()
            raise RuntimeError("told to stop")

    for kind in ("after_run", "on_failure"):
        getattr(rig.center.hooks, kind)(lambda run, kind=kind: calls.append(kind))
    job_id = schedule(rig)
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert calls == ["after_run", "after_run"]


def test_hooks_that_are_registered_while_the_worker_runs_count(make_rig: MakeRig) -> None:
    rig = make_rig(**SCANNER)
    register_handlers(rig, is_async=False)
    worker = rig.start()
    first = schedule(rig, does=["done"])
    rig.wait_for(Status.DONE, first, seconds=60)
    table = worker.context.handlers
    plain = {no: spec.function for no, spec in table._specs.items()}
    seen: list[int] = []
    rig.center.hooks.after_run(lambda run: seen.append(run.job.job_id))
    second = schedule(rig, does=["done"])
    wait_until(lambda: seen == [second], "the hook")
    # Without hooks the worker calls the handler itself.
    assert plain == {no: rig.registry.get(TYPE).function for no in plain}  # type: ignore[union-attr]


def test_the_trace_of_a_hook_reaches_the_handler_by_each_way_to_schedule(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(**SCANNER)
    seen: dict[int, str | None] = {}
    rig.handler(TYPE)(lambda job: seen.update({job.job_id: job.trace}))
    ended: list[tuple[int | None, BaseException | None]] = []

    @rig.center.hooks.before_schedule
    def trace(call: ScheduleCall) -> None:
        if call.biz_id == "no":
            raise PermissionError("not this one")
        call.trace = f"trace-of-{call.biz_id}"

    rig.center.hooks.after_schedule(lambda call: ended.append((call.job_id, call.error)))
    specs: list[Any] = [{"biz_id": n, "action_time": NOW, "biz_type": TYPE} for n in range(2, 6)]
    ids = [rig.center.schedule(1, NOW, biz_type=TYPE)]
    ids += rig.center.schedule_many(specs[:2])
    ids += [
        it.job_id for it in rig.center.schedule_each(specs[2:]) if not isinstance(it, Exception)
    ]
    assert ended == [(job_id, None) for job_id in ids]
    for call in (
        lambda: rig.center.schedule("no", NOW, biz_type=TYPE),
        lambda: rig.center.schedule_many([*specs, {**specs[0], "biz_id": "no"}]),
    ):
        with pytest.raises(PermissionError):
            call()
    assert rig.center.find("no") == []
    assert len(rig.center.find(2)) == 1  # nothing of the refused bulk was written
    rig.start()
    rig.wait_for(Status.DONE, *ids, seconds=60)
    assert seen == {job_id: f"trace-of-{n}" for n, job_id in enumerate(ids, 1)}


def test_lines_that_a_hook_logs_have_the_job(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    from toc.handlers.current_job import JobFilter  # noqa: PLC0415

    rig = make_rig(**SCANNER)
    register_handlers(rig, is_async=False)
    caplog.handler.addFilter(JobFilter())
    log = logging.getLogger("shop")
    for kind in ("before_run", "after_run", "on_failure", "on_dead"):
        getattr(rig.center.hooks, kind)(lambda run, kind=kind: log.warning("in %s", kind))
    job_id = schedule(rig, does=["dead"])
    rig.start()
    rig.wait_for(Status.DEAD, job_id, seconds=60)
    found = {
        r.getMessage(): (r.job_id, r.biz_type, r.attempt)  # type: ignore[attr-defined]
        for r in caplog.records
        if r.name == "shop"
    }
    assert found == {
        f"in {kind}": (job_id, TYPE, 1)
        for kind in ("before_run", "after_run", "on_failure", "on_dead")
    }
