"""Batch handlers: which jobs one call gets; what verdicts, failures and lost claims do to the rows."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, Rig, metric
from tests.worker.test_declared import declare
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.errors import InvalidInput
from toc.handlers.registry import Registry
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze
from toc.worker.handler_batch import results_of_batch
from toc.worker.worker import Worker

MAIL = "batch.mail"
ROOMY = {"lease_s": 60, "queue_max": 400}  # a batch waits until it is full
LATER = timedelta(hours=2)


class Calls:
    """A batch handler that records its calls. `answer(jobs)`: returns or raises the answer of a call."""

    def __init__(self, answer: Callable[[list[Job]], Any] = lambda jobs: None) -> None:
        self.calls: list[list[int]] = []
        self.answer = answer

    def __call__(self, jobs: list[Job]) -> Any:
        self.calls.append([job.job_id for job in jobs])
        return self.answer(jobs)

    def sizes_with(self, job_id: int) -> list[int]:
        return [len(call) for call in self.calls if job_id in call]


def async_form(calls: Calls) -> Callable[[list[Job]], Any]:
    async def handle(jobs: list[Job]) -> Any:
        await asyncio.sleep(0)
        return calls(jobs)

    return handle


def copy_of(calls: Calls) -> Callable[[list[Job]], Any]:
    def handle(jobs: list[Job]) -> Any:
        return calls(jobs)

    return handle


def schedule(rig: Rig, count: int, **options: Any) -> list[int]:
    jobs: list[Any] = [{"biz_id": n, "action_time": LONG_AGO} | options for n in range(count)]
    return rig.center.schedule_many(jobs, biz_type=MAIL)


def settled(rig: Rig, worker: Worker, *job_ids: int) -> dict[int, Status]:
    wait_until(lambda: worker.jobs_in_flight == 0, "all jobs to be settled")
    return {job_id: rig.status(job_id) for job_id in job_ids}


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig(worker=ROOMY, shards=1)


# ---- which jobs one call gets


@pytest.mark.parametrize("form", [lambda calls: calls, async_form])
def test_one_call_gets_a_full_batch(rig: Rig, form: Callable[[Calls], Any]) -> None:
    calls = Calls()
    rig.handler(MAIL, batch=5, batch_wait=5)(form(calls))
    worker = rig.alone()
    ids = schedule(rig, 10)
    assert rig.offer(worker, *ids) == 10
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}
    assert [len(call) for call in calls.calls] == [5, 5]
    assert sorted(itertools.chain(*calls.calls)) == sorted(ids)
    assert [rig.row(job_id).attempts for job_id in ids] == [1] * 10


def test_an_incomplete_batch_runs_after_batch_wait(rig: Rig) -> None:
    calls = Calls()
    rig.handler(MAIL, batch=100, batch_wait=0.05)(calls)
    worker = rig.alone()
    ids = schedule(rig, 3)
    rig.offer(worker, *ids)
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}
    assert [len(call) for call in calls.calls] == [3]


def test_a_batch_has_one_type(rig: Rig) -> None:
    calls = Calls()
    types: list[set[str]] = []
    calls.answer = lambda jobs: types.append({job.biz_type for job in jobs})
    rig.handler("*", batch=2, batch_wait=0.05)(calls)
    worker = rig.alone()
    ids = [rig.center.schedule(n, LONG_AGO, biz_type=f"batch.mail{n % 2}") for n in range(4)]
    rig.offer(worker, *ids)
    settled(rig, worker, *ids)
    assert sorted(map(len, types)) == [1, 1]


def test_a_job_of_another_type_does_not_wait_for_a_batch(rig: Rig) -> None:
    rig.handler(MAIL, batch=100, batch_wait=5)(Calls())
    done = threading.Event()
    rig.handler("batch.other")(lambda job: done.set())
    worker = rig.alone()
    waits = rig.center.schedule(1, LONG_AGO, biz_type=MAIL)
    other = rig.center.schedule(1, LONG_AGO, biz_type="batch.other")
    rig.offer(worker, waits, other)
    assert done.wait(20)
    assert rig.status(waits) is Status.RUNNING


class BatchSink:
    """The handler of a sink that gets lists of jobs."""

    batch, batch_wait = 3, 5.0

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, jobs: list[Job]) -> None:
        self.sizes.append(len(jobs))


def test_a_sink_may_take_batches(rig: Rig) -> None:
    sink = BatchSink()
    declare(rig, MAIL, mode="sink", sink="webhook:x")
    ids = schedule(rig, 3)
    rig.start(sinks={"webhook": lambda name: sink})
    rig.wait_for(Status.DONE, *ids)
    assert sink.sizes == [3]


# ---- verdicts

KINDS = ("none", "text", "drop", "dead", "retry", "snooze", "error")
ENDS = {
    "none": Status.DONE, "text": Status.DONE, "drop": Status.CANCELLED, "dead": Status.DEAD,
    "retry": Status.PENDING, "snooze": Status.PENDING, "error": Status.PENDING,
}  # fmt: skip


def verdict(kind: str) -> Any:
    return {
        "none": None, "text": "sent", "drop": Drop("no"), "dead": Dead("never"), "retry": Retry(LATER),
        "snooze": Snooze(LATER), "error": ValueError("broken"),
    }[kind]  # fmt: skip


def expected(kind: str, max_attempts: int) -> tuple[Status, int]:
    """The model: the status and the attempts of a job after one attempt with this verdict."""
    if kind in ("retry", "error") and max_attempts == 1:
        return Status.DEAD, 1
    return ENDS[kind], 0 if kind == "snooze" else 1


CASES = st.tuples(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=6),
    st.sampled_from(
        ["list", "tuple", "dict", "one", "raise one", "short", "strange dict", "raises"]
    ),
    st.booleans(),
    st.sampled_from([1, 3]),
)


def make_answer(form: str, kinds: dict[int, str]) -> Callable[[list[Job]], Any]:
    """A handler's answer in this form. Alone, each job gets its own verdict; errors are raised."""

    def answer(jobs: list[Job]) -> Any:
        found = [verdict(kinds[job.job_id]) for job in jobs]
        if len(jobs) == 1 and form in ("one", "raise one", "raises", "short", "strange dict"):
            if isinstance(found[0], BaseException):
                raise found[0]
            return found[0]
        if form == "raises":
            raise RuntimeError("the batch failed")
        if form == "raise one" and isinstance(found[0], BaseException):
            raise found[0]
        by_id = {job.job_id: it for job, it in zip(jobs, found, strict=True)}
        return {
            "list": found, "tuple": tuple(found), "dict": by_id, "one": found[0],
            "raise one": found[0], "short": found[1:], "strange dict": by_id | {7: None},
        }[form]  # fmt: skip

    return answer


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases=st.lists(CASES, min_size=1, max_size=3))
def test_rows_follow_the_table_of_rules(rig_of_cases: Cases, cases: list[Any]) -> None:
    for kinds, form, is_async, max_attempts in cases:
        rig_of_cases.check(kinds, form, is_async=is_async, max_attempts=max_attempts)


class Cases:
    """Runs batches with drawn verdicts, and compares each row with the model."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.biz_ids = rig, iter(range(10**9))
        self.calls = Calls()
        for size in range(1, 7):
            for attempts in (1, 3):
                for is_async in (False, True):
                    handler: Any = async_form(self.calls) if is_async else copy_of(self.calls)
                    rig.handler(
                        self._type(size, attempts, is_async=is_async),
                        batch=size, batch_wait=5, max_attempts=attempts, retry=[7200],
                    )(handler)  # fmt: skip
        self.worker = rig.alone()

    @staticmethod
    def _type(size: int, attempts: int, *, is_async: bool) -> str:
        return f"batch.case.{size}.{attempts}.{is_async}"

    def check(self, kinds: list[str], form: str, *, is_async: bool, max_attempts: int) -> None:
        size = len(kinds)
        biz_type = self._type(size, max_attempts, is_async=is_async)
        jobs: list[Any] = [(next(self.biz_ids), LONG_AGO) for _ in kinds]
        ids = self.rig.center.schedule_many(jobs, biz_type=biz_type)
        kind_of = dict(zip(ids, kinds, strict=True))
        self.calls.calls.clear()
        self.calls.answer = make_answer(form, kind_of)
        self.rig.offer(self.worker, *ids)
        settled(self.rig, self.worker)
        first = self.calls.calls[0]
        assert sorted(first) == sorted(ids)
        is_split = size > 1 and (
            form in ("raises", "short", "strange dict")
            or (form in ("raise one", "one") and self._splits(form, kind_of[first[0]]))
        )
        if is_split:
            assert sorted(self.calls.calls[1:]) == sorted([job_id] for job_id in ids)
        else:
            assert len(self.calls.calls) == 1
        for job_id in ids:
            one_for_all = form in ("one", "raise one") and not is_split
            kind = kind_of[first[0]] if one_for_all else kind_of[job_id]
            row = self.rig.row(job_id)
            assert (row.status, row.attempts) == expected(kind, max_attempts), (form, kind)

    @staticmethod
    def _splits(form: str, kind: str) -> bool:
        """An exception that is raised is the failure of all; one that is returned for all is so too."""
        return kind == "error" and form in ("one", "raise one")


@pytest.fixture
def rig_of_cases(make_rig: MakeRig) -> Cases:
    return Cases(make_rig(worker=ROOMY, shards=1))


def test_results_of_a_batch_need_each_job() -> None:
    error = ValueError()
    assert results_of_batch([1, 2], None) == [None, None]
    assert results_of_batch([1, 2], [None, error]) == [None, error]
    assert results_of_batch([1, 2], {2: error, 1: None}) == [None, error]
    assert results_of_batch([1, 2], error) is error
    assert isinstance(results_of_batch([1, 2], [None]), TypeError)
    assert isinstance(results_of_batch([1, 2], {1: None}), TypeError)
    assert isinstance(results_of_batch([1, 2], {1: None, 2: None, 3: None}), TypeError)
    found = results_of_batch([1, 2], [None, Retry])
    assert isinstance(found, list)
    assert isinstance(found[1], TypeError)


# ---- failures


def test_one_poison_job_among_200_ends_dead_alone(make_rig: MakeRig) -> None:
    rig = make_rig(worker=ROOMY | {"concurrency": 8}, shards=1, scanner={"grace_s": 0})
    poison: set[int] = set()

    def answer(jobs: list[Job]) -> None:
        bad = [job.job_id for job in jobs if job.biz_id == 77]
        poison.update(bad)
        if bad:
            raise ValueError("poison")

    calls = Calls(answer)
    rig.handler(MAIL, batch=200, batch_wait=2, max_attempts=3, retry=[0])(calls)
    ids = schedule(rig, 200)
    rig.start()
    rig.wait_for(Status.DEAD, ids[77], seconds=60)
    rig.wait_for(Status.DONE, *(ids[:77] + ids[78:]), seconds=60)
    (bad,) = poison
    assert bad == ids[77]
    assert rig.row(bad).attempts == 3
    sizes = calls.sizes_with(bad)
    assert sizes[0] > 1
    assert sizes[1:] == [1, 1, 1]  # after it has failed once, it breaks no other batch
    assert metric("toc_handler_batches_split_total", biz_type=MAIL) >= 1


def test_a_job_that_has_failed_joins_no_batch_until_it_succeeds(rig: Rig) -> None:
    bad = schedule(rig, 1)[0]
    fails = True

    def answer(jobs: list[Job]) -> None:
        if fails and bad in [job.job_id for job in jobs]:
            raise ValueError("poison")

    calls = Calls(answer)
    rig.handler(MAIL, batch=3, batch_wait=0.5, retry=[0])(calls)
    worker = rig.alone()
    for count in (1, 2, 3):
        fails = count < 3
        others = rig.center.schedule_many(
            [(100 * count + n, LONG_AGO) for n in (1, 2)], biz_type=MAIL
        )
        rig.offer(worker, bad, *others)
        assert set(settled(rig, worker, *others).values()) == {Status.DONE}
        assert calls.sizes_with(bad) == [3, 1, 1, 1][: count + 1]
    assert rig.row(bad)[:2] == (Status.DONE, 3)


def test_an_async_batch_beyond_its_timeout_is_split(rig: Rig) -> None:
    calls: list[int] = []

    async def handle(jobs: list[Job]) -> None:
        calls.append(len(jobs))
        if len(jobs) > 1:
            await asyncio.sleep(3600)

    rig.handler(MAIL, batch=3, batch_wait=5, timeout=0.2, max_attempts=1)(handle)
    worker = rig.alone()
    ids = schedule(rig, 3)
    rig.offer(worker, *ids)
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}
    assert sorted(calls) == [1, 1, 1, 3]


def test_an_extension_by_one_job_is_for_the_batch(rig: Rig) -> None:
    go = asyncio.Event()

    async def handle(jobs: list[Job]) -> None:
        jobs[1].extend(3000)
        await go.wait()

    rig.handler(MAIL, batch=2, batch_wait=5, timeout=0.3, max_attempts=1)(handle)
    worker = rig.alone()
    ids = schedule(rig, 2)
    rig.offer(worker, *ids)
    runs = wait_until(lambda: worker.pool.running.runs_of_database(0))
    wait_until(lambda: all(run.timeout_s == 3000.3 for run in runs))
    loop = worker.pool.async_handlers.loop
    assert loop is not None
    loop.call_soon_threadsafe(
        loop.call_later, 0.6, go.set
    )  # beyond the timeout without the extension
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}


def test_jobs_that_wait_to_run_alone_keep_their_leases(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 1, "lease_s": 3, "queue_max": 50}, shards=1)
    go, alone = threading.Event(), threading.Event()

    def answer(jobs: list[Job]) -> None:
        if len(jobs) > 1:
            raise ValueError("no")
        alone.set()
        assert go.wait(60)

    calls = Calls(answer)
    rig.handler(MAIL, batch=3, batch_wait=1, timeout=120)(calls)
    worker = rig.alone()
    ids = schedule(rig, 3)
    rig.offer(worker, *ids)
    assert alone.wait(20)
    assert len(calls.calls) == 2
    ends = {job_id: rig.row(job_id).due_ms or 0 for job_id in ids}
    wait_until(
        lambda: all((rig.row(i).due_ms or 0) > ends[i] for i in ids), "renewals of all three"
    )
    go.set()
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}
    assert [rig.row(job_id).attempts for job_id in ids] == [1, 1, 1]


def test_a_lost_claim_is_told_to_its_job_only(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"lease_s": 3, "queue_max": 50}, shards=1)
    lost: list[int] = []
    begun = threading.Event()

    def answer(jobs: list[Job]) -> None:
        begun.set()
        assert jobs[0].lost.wait(60)
        lost.extend(job.job_id for job in jobs if job.lost.is_set())

    rig.handler(MAIL, batch=3, batch_wait=1, timeout=120)(Calls(answer))
    worker = rig.alone()
    ids = schedule(rig, 3)
    rig.offer(worker, *sorted(ids))
    assert begun.wait(20)
    first = worker.pool.running.runs_of_database(0)[0].job.job_id
    rig.run_elsewhere(first, token="other:1:x:1", attempts=2, lease_s=3600)
    found = settled(rig, worker, *ids)
    assert lost == [first]
    assert found.pop(first) is Status.RUNNING
    assert rig.row(first).token == "other:1:x:1"
    assert set(found.values()) == {Status.DONE}


def test_an_async_batch_goes_on_while_one_claim_holds(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"lease_s": 3, "queue_max": 50}, shards=1)
    begun = threading.Event()

    async def handle(jobs: list[Job]) -> list[Any]:
        begun.set()
        while not any(job.lost.is_set() for job in jobs):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # a cancellation would come here
        return [Drop("it went on")] * len(jobs)

    rig.handler(MAIL, batch=2, batch_wait=1, timeout=7200)(handle)
    worker = rig.alone()
    ids = schedule(rig, 2)
    rig.offer(worker, *ids)
    assert begun.wait(20)
    rig.run_elsewhere(ids[0], token="other:1:x:1", attempts=2, lease_s=3600)
    assert settled(rig, worker, *ids) == {ids[0]: Status.RUNNING, ids[1]: Status.CANCELLED}


def test_a_job_whose_attribute_is_not_json_fails_by_itself(rig: Rig) -> None:
    calls = Calls()
    rig.handler(MAIL, batch=3, batch_wait=5, max_attempts=1)(calls)
    worker = rig.alone()
    ids = schedule(rig, 4)
    rig.sql(ids[1], "UPDATE {table} SET attribute = '[' WHERE job_id = :id", id=ids[1])
    rig.offer(worker, *ids)
    found = settled(rig, worker, *ids)
    assert found.pop(ids[1]) is Status.DEAD
    assert set(found.values()) == {Status.DONE}
    assert [len(call) for call in calls.calls] == [3]
    assert rig.center.dead()[0].error.startswith("ValueError: the attribute is not JSON")


def test_a_stuck_batch_counts_as_one_thread_and_all_its_jobs(rig: Rig) -> None:
    go = threading.Event()
    rig.handler(MAIL, batch=3, batch_wait=5, timeout=0.1)(Calls(lambda jobs: go.wait(60)))
    worker = rig.alone()
    ids = schedule(rig, 3)
    rig.offer(worker, *ids)
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    assert worker.pool.running.stuck_job_ids == set(ids)
    assert (
        worker.permits.no_handler_runs
    )  # a last attempt elsewhere need not wait for the stuck jobs
    go.set()
    assert set(settled(rig, worker, *ids).values()) == {Status.DONE}


def test_an_async_batch_is_cancelled_when_all_claims_are_lost(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"lease_s": 3, "queue_max": 50}, shards=1)
    begun, cancelled = threading.Event(), threading.Event()

    async def handle(jobs: list[Job]) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            assert all(job.lost.is_set() for job in jobs)
            cancelled.set()
            raise

    rig.handler(MAIL, batch=2, batch_wait=1, timeout=7200)(handle)
    worker = rig.alone()
    ids = schedule(rig, 2)
    rig.offer(worker, *ids)
    assert begun.wait(20)
    for job_id in ids:
        rig.run_elsewhere(job_id, token="other:1:x:1", attempts=2, lease_s=3600)
    assert cancelled.wait(20)
    assert set(settled(rig, worker, *ids).values()) == {Status.RUNNING}


def test_a_job_whose_lease_was_lost_runs_alone(make_rig: MakeRig) -> None:
    rig = make_rig(worker=ROOMY, shards=1, scanner={"grace_s": 0})
    calls = Calls()
    rig.handler(MAIL, batch=10, batch_wait=1)(calls)
    ids = schedule(rig, 4)
    for job_id in ids[:2]:
        rig.run_elsewhere(job_id, token="dead:1:x:1", attempts=1, lease_s=-1)
    rig.start()
    rig.wait_for(Status.DONE, *ids)
    assert [calls.sizes_with(job_id) for job_id in ids[:2]] == [[1], [1]]
    assert [rig.row(job_id).attempts for job_id in ids] == [2, 2, 1, 1]


# ---- stop


def test_a_stop_gives_back_a_batch_that_waits(rig: Rig) -> None:
    calls = Calls()
    rig.handler(MAIL, batch=10, batch_wait=5)(calls)
    worker = rig.alone()
    ids = schedule(rig, 3)
    assert rig.offer(worker, *ids) == 3
    assert worker.stop(0.0)  # a batch that still waited would keep its jobs
    assert [rig.row(job_id)[:2] for job_id in ids] == [(Status.PENDING, 0)] * 3
    assert calls.calls == []


def test_a_stop_cancels_an_async_batch_and_gives_back_its_jobs(make_rig: MakeRig) -> None:
    rig = make_rig(worker=ROOMY | {"stop_s": 0.1}, shards=1)
    begun = threading.Event()

    async def handle(jobs: list[Job]) -> None:
        begun.set()
        await asyncio.sleep(3600)

    rig.handler(MAIL, batch=3, batch_wait=5, timeout=7200)(handle)
    ids = schedule(rig, 3)
    rig.start()
    assert begun.wait(20)
    rig.stop()
    assert [rig.row(job_id)[:2] for job_id in ids] == [(Status.PENDING, 0)] * 3


# ---- death of the process

CHILD = """
import os, sys, threading
from tests.worker.rig import Rig

url, redis_url, namespace = sys.argv[1:]
rig = Rig([url], redis_url, namespace, shards=1, worker={"lease_s": 3, "queue_max": 50},
          scanner={"grace_s": 0})

def die(jobs):
    if len(jobs) > 1:
        print(len(jobs), flush=True)
        os._exit(9)

rig.handler("batch.mail", batch=5, batch_wait=0.2)(die)
rig.start()
threading.Event().wait()
"""


def test_a_process_that_dies_in_a_batch_costs_each_job_one_attempt(
    make_rig: MakeRig, tmp_path: Any
) -> None:
    rig = make_rig(shards=1, worker={"lease_s": 3, "queue_max": 50}, scanner={"grace_s": 0})
    ids = schedule(rig, 5)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, rig.settings.databases[0], str(rig.settings.redis_url),
         rig.settings.namespace],
        check=False, capture_output=True, text=True, timeout=100,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert child.returncode == 9, child.stderr
    assert {rig.status(job_id) for job_id in ids} == {Status.RUNNING}
    calls = Calls()
    rig.handler(MAIL, batch=5, batch_wait=0.2, max_attempts=2)(calls)
    rig.start()
    rig.wait_for(Status.DONE, *ids, seconds=60)
    assert sorted(calls.calls) == sorted(
        [job_id] for job_id in ids
    )  # each alone: any may be the reason
    assert [rig.row(job_id).attempts for job_id in ids] == [2] * 5


# ---- arguments


@pytest.mark.parametrize(
    ("field", "terms"),
    [
        ("batch", {"batch": 0}),
        ("batch", {"batch": 1001}),
        ("batch", {"batch": True}),
        ("batch", {"batch": "5"}),
        ("batch_wait", {"batch": 5, "batch_wait": -0.1}),
        ("batch_wait", {"batch": 5, "batch_wait": 5.1}),
        ("batch_wait", {"batch": 5, "batch_wait": "1"}),
        ("batch_wait", {"batch_wait": 1.0}),
    ],
)
def test_bad_terms_are_refused(field: str, terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Registry().handler(MAIL, **terms)
    assert caught.value.field == field
