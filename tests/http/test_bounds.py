"""Bounds inside the server: places of each database; and a process without the extra."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.http.web_world import WebWorld
from toc.http import job_calls
from toc.http.database_calls import DatabaseCalls
from toc.http.job_checks import JobChecks
from toc.http.problems import HttpProblem
from toc.runtime.settings import Settings


def test_a_slow_database_holds_up_no_other_one_and_no_queue_grows(tmp_path: Path) -> None:
    settings = Settings(
        databases=tuple(f"sqlite:///{tmp_path}/toc_{n}.db" for n in range(2)),
        shards=4, pool_size=2, web={"limits": {"waiting_calls": 5}},
    )  # fmt: skip
    hangs, started = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        started.release()
        hangs.wait(100)
        return "slow"

    async def call_both() -> None:
        calls = DatabaseCalls(settings)
        slow = [asyncio.create_task(calls.run(0, hang)) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        assert not started.acquire(blocking=False)  # the others wait: the pool has two connections
        with pytest.raises(HttpProblem) as caught:
            await calls.run(0, hang)
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
        for _ in range(20):
            assert await calls.run(1, lambda: "quick") == "quick"
        # A call whose caller has gone keeps its thread until it ends, and then the next one gets it.
        slow[0].cancel()
        await asyncio.wait([slow[0]])
        assert not started.acquire(blocking=False)
        hangs.set()
        assert await asyncio.gather(*slow[1:]) == ["slow"] * 4
        assert await calls.run(0, lambda: "again") == "again"
        await asyncio.to_thread(calls.close)

    asyncio.run(call_both())


def test_other_calls_go_on_while_the_jobs_of_a_bulk_are_checked(
    small: WebWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_calls, "CHECKS_S_MAX", -1.0)  # the time is over after each job
    turns, turns_at_checks = 0, list[int]()
    check_job = JobChecks.check_job

    def check_and_note(*arguments: Any) -> Any:
        turns_at_checks.append(turns)
        return check_job(*arguments)

    monkeypatch.setattr(JobChecks, "check_job", check_and_note)
    job = {"biz_id": 1, "biz_type": "report", "delay": 60}

    async def post_and_count() -> int:
        nonlocal turns
        call = asyncio.ensure_future(small.client.http.post("/v1/jobs", json={"jobs": [job] * 50}))
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        return call.result().status_code

    assert small.thread.run(post_and_count()) == 200
    assert len(set(turns_at_checks)) == 50


def test_without_the_extra_toc_works_and_says_what_is_missing() -> None:
    code = """
import sys
for name in ("starlette", "uvicorn", "h11"):
    sys.modules[name] = None
import toc.http, toc.cli.dev, toc.cli.web
from toc.errors import SettingsError
load = toc.http.import_web_module
for use in (lambda: toc.http.app, lambda: toc.http.make_app, lambda: load("toc.http.serve")):
    try:
        use()
    except SettingsError as error:
        assert "toc[web]" in str(error), error
    else:
        raise AssertionError("it was imported")
"""
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stderr
