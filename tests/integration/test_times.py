"""`schedule(timedelta)` counts from the database's clock, and never from a moment before the call."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from toc.center.center import TimeoutCenter
from toc.handlers.registry import Registry
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Database

SLOW_S = 0.4


@pytest.mark.invariant("I4")
def test_a_slow_answer_makes_no_job_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database reads its clock, and its answer takes its time."""
    settings = Settings(databases=(f"sqlite:///{tmp_path / 'a.db'}",), shards=1, redis_url="none")
    migrate.upgrade(settings)
    ask_ms = Database.now_ms

    def answer_slowly(database: Database) -> int:
        now_ms = ask_ms(database)
        time.sleep(SLOW_S)
        return now_ms

    monkeypatch.setattr(Database, "now_ms", answer_slowly)
    with TimeoutCenter(settings, handlers=Registry()) as center:
        for _ in range(2):
            before_ms = time.time() * 1000
            job = center.get(center.schedule(1, timedelta(seconds=60)))
            asked_ms = before_ms + SLOW_S * 1000  # when it knew the time, at the earliest
            assert job is not None
            assert job.due_ms is not None
            assert job.due_ms - 60_000 >= asked_ms
