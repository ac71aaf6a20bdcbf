"""Handlers of the worker processes that tests start: each writes what it did into a directory."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import toc

FOLDER = Path(os.environ.get("TOC_TEST_FOLDER", "."))


@toc.handler("client.hangs", timeout=600)
def hang(job: toc.Job) -> None:
    """The first process that runs a job hangs; any other one ends it."""
    started = FOLDER / f"started-{job.biz_id}"
    if not started.exists() or started.read_text() == str(os.getpid()):
        started.write_text(str(os.getpid()))
        time.sleep(600)
    (FOLDER / f"done-{job.biz_id}").write_text(str(job.attempts))


@toc.handler("client.quick")
async def run_quickly(job: toc.Job) -> None:
    await asyncio.sleep(0)
    (FOLDER / f"done-{job.biz_id}").write_text(str(job.attempts))
