"""Progress and results: what handlers tell of their jobs, what rows keep, and calls that wait for the end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.conftest import MakeRig
from tests.worker.rig import LATER, LONG_AGO, Rig
from tests.worker.waiting import remains, wait_until
from toc.center import job_wait
from toc.center.async_center import AsyncTimeoutCenter
from toc.domain.job import Job, Status
from toc.domain.result_document import (
    Progress,
    ResultDocument,
    encode_document,
    encode_result,
    parse_document,
)
from toc.errors import InvalidInput, Overloaded
from toc.handlers.verdicts import Dead, Done, Retry
from toc.runtime.job_ends import JobEnds, job_ends
from toc.runtime.setting_groups import LimitSettings

SUM = "result.sum"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig(worker={"progress_s": 0.1}, shards=1)


def run(rig: Rig, handler: Callable[[Job], Any], **terms: Any) -> Job:
    """Runs one job to its settle; returns it as `get` reads it."""
    rig.handler(SUM, **terms)(handler)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=SUM)
    rig.offer(worker, job_id)
    wait_until(lambda: worker.jobs_in_flight == 0, "the job to be settled")
    return found(rig, job_id)


def found(rig: Rig, job_id: int) -> Job:
    job = rig.center.get(job_id)
    assert job is not None
    return job


# ---- results


@pytest.mark.parametrize(
    "value", [{"sum": 7}, [1, 2.5, None], "über", 0, False, None, {"progress": [1, 2]}, ""]
)
def test_a_result_is_read_as_it_was_given(rig: Rig, value: Any) -> None:
    job = run(rig, lambda job: Done(value))
    assert (job.status, job.result, job.last_progress) == (Status.DONE, value, None)
    assert rig.center.find(1)[0].result == value
    ((text,),) = rig.sql(job.job_id, "SELECT result FROM {table}")
    assert json.loads(text) == {"result": value}


@pytest.mark.parametrize("how", ["raised", "async", "batch"])
def test_a_result_may_be_raised_awaited_or_be_one_of_a_batch(rig: Rig, how: str) -> None:
    def raising(job: Job) -> None:
        raise Done(job.biz_id)

    async def later(job: Job) -> Done:
        return Done(job.biz_id)

    def batch(jobs: list[Job]) -> list[Any]:
        return [Done(job.biz_id) for job in jobs]

    handler: Any = {"raised": raising, "async": later, "batch": batch}[how]
    job = run(rig, handler, **({"batch": 1} if how == "batch" else {}))
    assert (job.status, job.result) == (Status.DONE, 1)


def test_other_returns_keep_nothing(rig: Rig) -> None:
    job = run(rig, lambda job: {"sum": 7})
    assert (job.status, job.result) == (Status.DONE, None)
    assert rig.sql(job.job_id, "SELECT result FROM {table}") == [(None,)]


def test_a_result_beyond_the_limit_is_not_kept_and_the_job_is_done(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(shards=1, limits=LimitSettings(result_bytes=10))
    job = run(rig, lambda job: Done("x" * 9))
    assert (job.status, job.result) == (Status.DONE, None)
    assert "its result is not kept: it has 11 bytes, limits.result_bytes is 10" in caplog.text


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"x", "x" * 60_000, "\ud800"])
def test_a_value_that_no_row_can_keep_is_refused_in_the_handler(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Done(value)
    assert caught.value.field == "result"


def test_a_run_that_has_lost_its_claim_writes_nothing(rig: Rig) -> None:
    def lose(job: Job) -> Done:
        rig.run_elsewhere(job.job_id, token="other:1:x:1", attempts=2, lease_s=60)
        job.progress(1, 2)
        return Done("late")

    job = run(rig, lose)
    assert (job.status, job.result, job.last_progress) == (Status.RUNNING, None, None)


# ---- progress


def test_progress_is_visible_while_the_handler_runs(rig: Rig) -> None:
    go = threading.Event()

    def work(job: Job) -> None:
        for n in range(1, 1000):
            job.progress(n, 1000)
        assert go.wait(60)

    rig.handler(SUM, timeout=100)(work)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=SUM)
    rig.offer(worker, job_id)
    wait_until(lambda: found(rig, job_id).last_progress == Progress(999, 1000))
    assert found(rig, job_id).status is Status.RUNNING
    go.set()
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert found(rig, job_id).last_progress == Progress(999, 1000)


@pytest.mark.parametrize(
    ("end", "status", "result"),
    [
        (None, Status.DONE, None),
        (Done(5), Status.DONE, 5),
        (Retry(LATER), Status.PENDING, None),
        (Dead("no"), Status.DEAD, None),
        (ValueError("no"), Status.PENDING, None),
    ],
)
def test_the_last_progress_is_written_with_every_outcome(
    make_rig: MakeRig, end: Any, status: Status, result: Any
) -> None:
    rig = make_rig(worker={"progress_s": 60}, shards=1)  # the writer comes once, and not again

    def work(job: Job) -> Any:
        job.progress(0, 2)
        wait_until(lambda: found(rig, job.job_id).last_progress == Progress(0, 2))
        job.progress(2, 2)
        if isinstance(end, ValueError):
            raise end
        return end

    job = run(rig, work, retry=[3600])
    assert (job.status, job.last_progress, job.result) == (status, Progress(2, 2), result)


def test_progress_is_written_at_most_once_in_a_period(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"progress_s": 60, "concurrency": 1}, shards=1)
    stayed: list[bool] = []

    def work(job: Job) -> None:
        job.progress(0, 9)
        wait_until(lambda: found(rig, job.job_id).last_progress is not None)
        job.progress(5, 9)
        stayed.append(remains(lambda: found(rig, job.job_id).last_progress == Progress(0, 9), 0.3))

    assert run(rig, work).last_progress == Progress(5, 9)
    assert stayed == [True]


@pytest.mark.parametrize(
    ("done", "total", "field"),
    [(-1, 5, "done"), (6, 5, "done"), (1.5, 5, "done"), (True, 5, "done"), (0, 0, "total"), (0, "9", "total"),
     (1, 2**53, "total")],
)  # fmt: skip
def test_impossible_progress_is_refused(rig: Rig, done: Any, total: Any, field: str) -> None:
    fields: list[str] = []

    def work(job: Job) -> None:
        try:
            job.progress(done, total)
        except InvalidInput as error:
            fields.append(error.field)

    run(rig, work)
    assert fields == [field]


def test_a_job_that_no_handler_runs_makes_no_progress(rig: Rig) -> None:
    job_id = rig.center.schedule(1, LATER, biz_type=SUM)
    with pytest.raises(InvalidInput):
        found(rig, job_id).progress(1, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PROGRESS = st.none() | st.integers(1, 2**53 - 1).flatmap(
    lambda total: st.builds(Progress, st.integers(0, total), st.just(total))
)


@given(progress=PROGRESS, value=JSON)
def test_a_document_is_parsed_as_it_was_made(progress: Progress | None, value: Any) -> None:
    assert parse_document(encode_document(progress, encode_result(value))) == ResultDocument(
        progress, value
    )
    assert parse_document(encode_document(progress, None)) == ResultDocument(progress, None)


@given(text=st.text(max_size=20) | JSON.map(json.dumps))
def test_a_text_of_another_program_never_fails(text: str) -> None:
    parse_document(text)


# ---- wait


def test_wait_returns_the_job_when_it_has_ended_here(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(shards=1, limits=LimitSettings(wait_s=3600))
    monkeypatch.setattr(job_wait, "PAUSE_S_MIN", 3600)  # only the settler can wake the call
    monkeypatch.setattr(job_wait, "PAUSE_S_MAX", 3600)
    rig.handler(SUM)(lambda job: Done("sum"))
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=SUM)
    results: list[Job | None] = []
    waiting = threading.Thread(
        target=lambda: results.append(rig.center.wait(job_id, 3600)), daemon=True
    )
    waiting.start()
    wait_until(lambda: job_ends.is_awaited)
    rig.offer(worker, job_id)
    waiting.join(60)
    (job,) = results
    assert job is not None
    assert (job.status, job.result) == (Status.DONE, "sum")
    assert not job_ends.is_awaited


def test_wait_sees_a_job_that_ended_elsewhere(rig: Rig) -> None:
    job_id = rig.center.schedule(1, LATER, biz_type=SUM)

    def cancel() -> None:
        wait_until(lambda: job_ends.is_awaited)
        rig.center.cancel(job_id)

    other = threading.Thread(target=cancel)
    other.start()
    job = rig.center.wait(job_id, timedelta(seconds=60))
    other.join(60)
    assert job is not None
    assert job.status is Status.CANCELLED


def test_wait_returns_a_live_job_when_the_timeout_is_over(rig: Rig) -> None:
    job_id = rig.center.schedule(1, LATER, biz_type=SUM)
    for timeout in (0, 0.05):
        job = rig.center.wait(job_id, timeout)
        assert job is not None
        assert job.status is Status.PENDING


def test_wait_for_an_unknown_job_returns_none(rig: Rig) -> None:
    job_id = rig.center.schedule(1, LATER, biz_type=SUM)
    rig.sql(job_id, "DELETE FROM {table}")
    assert rig.center.wait(job_id, 60) is None


@pytest.mark.parametrize("timeout", [-1, 61, float("nan"), "5", True, timedelta(hours=1), None])
def test_a_wait_beyond_the_bounds_is_refused(rig: Rig, timeout: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        rig.center.wait(1, timeout)
    assert caught.value.field == "timeout"


def test_async_waits_take_no_threads(rig: Rig) -> None:
    rig.handler(SUM)(lambda job: Done(job.biz_id))
    worker = rig.alone()
    count = 40  # more than the client has threads
    jobs: list[Any] = [(n, LONG_AGO) for n in range(count)]
    ids = rig.center.schedule_many(jobs, biz_type=SUM)

    async def wait_for_all() -> list[Any]:
        center = AsyncTimeoutCenter(rig.center)
        waits = [asyncio.ensure_future(center.wait(job_id, 60)) for job_id in ids]
        await asyncio.to_thread(wait_until, lambda: job_ends._count == count)
        await asyncio.to_thread(rig.offer, worker, *ids)
        ended = await asyncio.gather(*waits)
        return [job.result for job in ended if job is not None]

    assert asyncio.run(wait_for_all()) == list(range(count))


def test_the_number_of_waiting_calls_is_bounded() -> None:
    ends, woken = JobEnds(), list[int]()
    with ends.waiting(1, lambda: woken.append(1), 2), ends.waiting(1, lambda: woken.append(2), 2):
        with pytest.raises(Overloaded), ends.waiting(2, lambda: None, 2):
            pass
        ends.tell_ended([2, 1])
        assert woken == [1, 2]
    assert not ends.is_awaited
    ends.tell_ended([1])
    assert woken == [1, 2]


def test_a_wait_reads_the_row_with_growing_pauses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = rig.center.schedule(1, LATER, biz_type=SUM)
    reads: list[float] = []
    get = rig.center.get

    def counted(job_id: int) -> Job | None:
        reads.append(time.monotonic())
        return get(job_id)

    monkeypatch.setattr(rig.center, "get", counted)
    rig.center.wait(job_id, 1.5)
    assert 3 <= len(reads) <= 12  # 0.02 s, and half as much again each time: never a busy loop
