"""Bounds inside the server: places of each database; and a process without the extra."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toc.http.database_calls import DatabaseCalls
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


def test_without_the_extra_toc_works_and_says_what_is_missing() -> None:
    code = """
import sys
for name in ("starlette", "uvicorn", "httptools"):
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
