"""What the log says of handlers' runs, and what it adds to lines that handlers log themselves."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

import pytest

import toc
from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, NOW, TYPE
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.handlers.verdicts import Retry, Snooze

own = logging.getLogger("shop")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def of_runs(log: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[logging.LogRecord]:
    return [r for r in log.records if r.name == "toc.worker.run_log" and r.levelno == level]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_failure_is_a_warning_with_its_traceback(
    make_rig: MakeRig, log: pytest.LogCaptureFixture, is_async: bool
) -> None:
    rig = make_rig()

    def act(job: Job) -> None:
        raise ConnectionError("bank says\nno\x1b[2J")

    async def act_later(job: Job) -> None:
        act(job)

    rig.handler(max_attempts=2, retry=[0])(act_later if is_async else act)
    rig.start()
    job_id = rig.center.schedule(42, NOW, biz_type=TYPE)
    rig.wait_for(Status.DEAD, job_id)
    wait_until(lambda: len(of_runs(log)) == 2)
    first, last = of_runs(log)
    text = first.getMessage()
    assert text.startswith(f"job {job_id} of {TYPE} (biz_id 42) failed in attempt 1 of 2: ")
    assert r"ConnectionError: bank says\nno\x1b[2J" in text
    again = datetime.fromisoformat(text.rpartition("the next one is at ")[2])
    assert abs((again.timestamp() * 1000) - rig.now_ms(job_id)) < 60_000
    assert "failed in attempt 2 of 2" in last.getMessage()
    assert last.getMessage().endswith("; no attempt is left, the job is dead")
    for record in (first, last):
        assert record.getMessage().isprintable()
        assert record.exc_info
        assert record.exc_info[1].__class__ is ConnectionError
        assert (record.job_id, record.biz_type, record.biz_id) == (job_id, TYPE, 42)  # type: ignore[attr-defined]


def test_a_failure_whose_text_no_file_takes_is_written_nevertheless(
    make_rig: MakeRig, log: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()

    @rig.handler(max_attempts=1)
    def act(job: Job) -> None:
        raise ConnectionError("bank \udcff says no")

    rig.start()
    rig.wait_for(Status.DEAD, rig.center.schedule(42, NOW, biz_type=TYPE))
    wait_until(lambda: len(of_runs(log)) == 1)
    (record,) = of_runs(log)
    line = logging.Formatter().format(record)
    assert line.encode()
    assert r"ConnectionError: bank \udcff says no" in line
    assert ", in act" in line


def test_a_flood_of_failures_has_few_tracebacks_and_every_line(
    make_rig: MakeRig, log: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(worker={"tracebacks_per_minute": 2})
    for name in (TYPE, "another"):
        rig.handler(name, max_attempts=3, retry=[0])(lambda _: 1 / 0)
    rig.start()
    rig.wait_for(
        Status.DEAD,
        *[rig.center.schedule(n, NOW, biz_type=name) for n in (1, 2) for name in (TYPE, "another")],
    )
    wait_until(lambda: len(of_runs(log)) == 12)
    whole = [record for record in of_runs(log) if record.exc_info]
    short = [record for record in of_runs(log) if not record.exc_info]
    assert sorted(record.biz_type for record in whole) == ["another"] * 2 + [TYPE] * 2  # type: ignore[attr-defined]
    assert all("ZeroDivisionError" in record.getMessage() for record in short)


def test_a_retry_that_is_asked_for_is_no_warning(
    make_rig: MakeRig, log: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    answers = iter([Retry(0, "still busy")])  # by runs: a lease may be lost before the first one
    rig.handler()(lambda _: next(answers, None))
    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: len(of_runs(log, logging.INFO)) == 1)
    (record,) = of_runs(log, logging.INFO)
    assert record.getMessage().startswith(f"job {job_id} of {TYPE} (biz_id 1) asks in attempt ")
    assert "still busy" in record.getMessage()
    assert of_runs(log) == []


@pytest.mark.parametrize(
    ("until", "warns"), [(LONG_AGO, True), (timedelta(-1), True), (timedelta(0), False)]
)
def test_a_snooze_into_the_past_is_named(
    make_rig: MakeRig,
    log: pytest.LogCaptureFixture,
    until: datetime | timedelta,
    warns: bool,
) -> None:
    rig = make_rig(worker={"snooze_s_min": 0.01})
    runs: list[int] = []

    @rig.handler()
    def handle(job: Job) -> Snooze | None:
        runs.append(job.job_id)
        return Snooze(until) if len(runs) < 4 else None

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    lines = [record.getMessage() for record in of_runs(log)]
    assert len(lines) == warns  # once a minute, not each time
    assert all("which has passed" in line and str(job_id) in line for line in lines)


def test_starts_and_ends_are_told_at_debug(
    make_rig: MakeRig, log: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    log.set_level(logging.DEBUG, "toc.worker.run_log")
    rig.start()
    job_id = rig.center.schedule(7, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    began, ended = [record.getMessage() for record in of_runs(log, logging.DEBUG)]
    assert began == f"job {job_id} of {TYPE} (biz_id 7) starts, attempt 1 of 16"
    assert ended.startswith(f"job {job_id} of {TYPE} (biz_id 7) ended after ")
    assert ended.endswith(": done")


@pytest.mark.parametrize("is_async", [False, True])
def test_lines_of_handlers_carry_their_jobs_ids(
    make_rig: MakeRig, log: pytest.LogCaptureFixture, is_async: bool
) -> None:
    rig = make_rig(worker={"concurrency": 4})
    log.handler.addFilter(toc.JobFilter())
    begun: list[int] = []

    def act(job: Job) -> None:
        begun.append(job.job_id)
        wait_until(lambda: len(begun) >= 3)
        own.info("closing %d", job.job_id)
        assert toc.current_job() is job

    async def act_later(job: Job) -> None:
        begun.append(job.job_id)
        while len(begun) < 3:
            await asyncio.sleep(0.001)
        own.info("closing %d", job.job_id)
        await asyncio.to_thread(own.info, "closing %d", job.job_id)
        assert toc.current_job() is job

    rig.handler()(act_later if is_async else act)
    rig.start()
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(3)]
    rig.wait_for(Status.DONE, *jobs)
    own.info("outside")
    lines = [record for record in log.records if record.name == "shop"]
    *inside, outside = lines
    assert len(inside) == (6 if is_async else 3)
    for record in inside:
        assert record.getMessage() == f"closing {record.job_id}"  # type: ignore[attr-defined]
        assert (record.biz_type, record.attempt) == (TYPE, 1)  # type: ignore[attr-defined]
        assert record.biz_id in range(3)  # type: ignore[attr-defined]
    assert outside.job_id is None  # type: ignore[attr-defined]
    assert toc.current_job() is None
