"""Leases that follow the worker: renewed while a handler runs, up to its timeout (ADR 31)."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.worker.rig import LONG_AGO, TYPE, Gate, Rig, metric, outage
from tests.worker.waiting import remains, wait_until
from toc.domain.job import Job, Status
from toc.errors import InvalidInput

MakeRig = Callable[..., Rig]
LEASE_S = 3.0  # of the rig: renewed from 1 s on, every half second


def run(rig: Rig, worker: Any) -> int:
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    assert rig.offer(worker, job_id) == 1
    return job_id


def due_ms_of(rig: Rig, job_id: int) -> int:
    due_ms = rig.row(job_id).due_ms
    assert due_ms is not None
    return due_ms


def test_a_handler_keeps_its_lease_until_its_timeout(make_rig: MakeRig) -> None:
    rig, gate = make_rig(), Gate()
    rig.handler(timeout=30)(gate)
    job_id = run(rig, rig.alone())
    gate.wait()
    end_s = rig.clock.monotonic_s() + 2 * LEASE_S

    def is_leased() -> bool:
        """For no longer than a lease, whatever the timeout: the job of a dead worker waits for its end."""
        end_ms = due_ms_of(rig, job_id)
        return 0 < end_ms - rig.now_ms(job_id) < 2 * LEASE_S * 1000

    assert remains(is_leased, 2 * LEASE_S)
    assert rig.clock.monotonic_s() >= end_s
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    assert rig.row(job_id).attempts == 1


def test_beyond_its_timeout_nothing_is_renewed(make_rig: MakeRig) -> None:
    rig, gate = make_rig(), Gate()
    rig.handler(timeout=2)(gate)
    worker = rig.alone()
    job_id = run(rig, worker)
    gate.wait()
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    last_ms = due_ms_of(rig, job_id)
    assert remains(lambda: due_ms_of(rig, job_id) == last_ms, LEASE_S)
    assert last_ms <= rig.now_ms(job_id)
    gate.open.set()


def test_quick_handlers_cost_no_renewal(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig()
    rig.handler(timeout=30)(lambda _: time.sleep(0.5))
    worker = rig.alone()
    renewed: list[Any] = []
    monkeypatch.setattr(
        worker.context.claims, "renew_leases", lambda _, claims: renewed.append(claims)
    )
    jobs = [run(rig, worker) for _ in range(8)]
    rig.wait_for(Status.DONE, *jobs)
    assert renewed == []


def test_a_handler_extends_its_timeout(make_rig: MakeRig) -> None:
    rig, gate = make_rig(), Gate()

    @rig.handler(timeout=1)
    def handle(job: Job) -> None:
        job.extend(20)
        gate(job)

    worker = rig.alone()
    job_id = run(rig, worker)
    gate.wait()
    assert remains(lambda: due_ms_of(rig, job_id) > rig.now_ms(job_id), 1 + 1.5 * LEASE_S)
    assert worker.pool.running.stuck_count == 0
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)


def test_an_async_handler_extends_its_timeout(make_rig: MakeRig) -> None:
    rig = make_rig()

    @rig.handler(timeout=1, max_attempts=1)
    async def handle(job: Job) -> None:
        await asyncio.to_thread(job.extend, 10)
        await asyncio.sleep(2.5)

    rig.wait_for(Status.DONE, run(rig, rig.alone()))


def test_extensions_have_a_limit(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"extend_s_max": 10})
    refused: list[str] = []

    @rig.handler(timeout=1)
    def handle(job: Job) -> None:
        job.extend(6)
        for seconds in (5, 0, -1, float("nan"), "1"):
            with pytest.raises(InvalidInput) as error:
                job.extend(seconds)  # type: ignore[arg-type]
            refused.append(str(error.value))
        job.extend(4)

    rig.wait_for(Status.DONE, run(rig, rig.alone()))
    assert "4 s left of worker.extend_s_max = 10" in refused[0]
    assert all("above 0" in text for text in refused[1:])


def test_a_job_that_no_handler_runs_cannot_be_extended_and_is_never_lost(make_rig: MakeRig) -> None:
    rig = make_rig()
    job = rig.center.get(rig.center.schedule(1, LONG_AGO, biz_type=TYPE))
    assert job is not None
    assert not job.lost.is_set()
    with pytest.raises(InvalidInput, match="not run by a handler"):
        job.extend(1)


# ---- a claim is lost


def test_a_handler_is_told_that_its_claim_is_lost(make_rig: MakeRig) -> None:
    rig, told = make_rig(), list[bool]()
    gate = Gate()

    @rig.handler(timeout=30)
    def handle(job: Job) -> None:
        gate.begun.append(job)
        told.append(job.lost.wait(10))

    worker = rig.alone()
    job_id = run(rig, worker)
    gate.wait()
    lost, refused = metric("toc_claims_lost_total"), metric("toc_settles_refused_total")
    rig.run_elsewhere(job_id, token="elsewhere", attempts=2, lease_s=60)
    due_ms = due_ms_of(rig, job_id)
    wait_until(lambda: told == [True])
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert metric("toc_claims_lost_total") == lost + 1
    assert metric("toc_settles_refused_total") == refused + 1
    row = rig.row(job_id)
    assert (row.status, row.token, row.due_ms) == (Status.RUNNING, "elsewhere", due_ms)


def test_an_async_handler_that_has_lost_its_claim_is_cancelled(make_rig: MakeRig) -> None:
    rig, seen = make_rig(), list[str]()

    @rig.handler(timeout=30)
    async def handle(job: Job) -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append("lost" if job.lost.is_set() else "cancelled")
            raise

    worker = rig.alone()
    job_id = run(rig, worker)
    wait_until(lambda: seen == ["begun"])
    rig.run_elsewhere(job_id, token="elsewhere", attempts=2, lease_s=60)
    wait_until(lambda: seen == ["begun", "lost"])
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert rig.row(job_id).token == "elsewhere"


def test_no_answer_is_no_loss(make_rig: MakeRig) -> None:
    rig, gate = make_rig(), Gate()
    rig.handler(timeout=60)(gate)
    worker = rig.alone()
    job_id = run(rig, worker)
    gate.wait()
    with outage(worker.context.process.databases[0]) as away:
        wait_until(lambda: away.refused > 0)
        assert remains(lambda: not gate.begun[0].lost.is_set(), LEASE_S)
    # Its lease was over, and nobody has taken it over: it is renewed.
    wait_until(lambda: due_ms_of(rig, job_id) > rig.now_ms(job_id))
    assert not gate.begun[0].lost.is_set()
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    assert rig.row(job_id).attempts == 1


def test_a_job_that_ends_while_it_is_renewed_has_lost_nothing(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, gate = make_rig(), Gate()
    rig.handler(timeout=30)(gate)
    worker = rig.alone()
    claims = worker.context.claims
    renew, answers = claims.renew_leases, list[Any]()

    def late(database: Any, asked: Any) -> Any:
        gate.open.set()
        wait_until(lambda: worker.jobs_in_flight == 0)
        answers.append(renew(database, asked))
        return answers[-1]

    monkeypatch.setattr(claims, "renew_leases", late)
    lost = metric("toc_claims_lost_total")
    job_id = run(rig, worker)
    wait_until(lambda: [each.valid for each in answers] == [set()])
    assert rig.status(job_id) is Status.DONE
    assert metric("toc_claims_lost_total") == lost
    assert rig.row(job_id).due_ms is None


def test_a_job_can_be_copied_and_pickled(make_rig: MakeRig) -> None:
    rig, copies = make_rig(), list[Job]()

    @rig.handler(timeout=30)
    def handle(job: Job) -> None:
        assert not job.lost.is_set()
        copies.extend([copy.deepcopy(job), pickle.loads(pickle.dumps(job))])  # noqa: S301
        assert asdict(job)["job_id"] == job.job_id
        assert copies == [job, job]

    rig.wait_for(Status.DONE, run(rig, rig.alone()))
    with pytest.raises(InvalidInput):
        copies[0].extend(1)
