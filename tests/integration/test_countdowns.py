"""countdown and arrive by a client, on a database and Redis."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.world import World
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import TimeoutCenter
from toc.domain.countdown import Countdown
from toc.domain.job import Scheduled
from toc.errors import DuplicateJob, InvalidInput
from toc.handlers.registry import registry
from toc.runtime.setting_groups import LimitSettings

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
CLOSE: dict[str, Any] = {"biz_type": "order.close"}


def test_the_last_arrival_arms_the_job_now(world: World) -> None:
    center = world.center
    job_id = center.countdown(42, count=2, deadline=HOUR, **CLOSE, attribute={"a": 1})
    assert world.reminder(job_id) is None  # beyond the horizon
    assert center.arrive("pay", biz_id=42, **CLOSE) == "arrived"
    assert world.reminder(job_id) is None
    answer = center.arrive("stock", biz_id=42, **CLOSE)
    assert (answer, answer.job_id) == ("completed", job_id)
    assert world.reminder(job_id) == 0
    job = center.get(job_id)
    assert job is not None
    assert (job.action_ms, job.attribute) == (world.now_ms, {"a": 1})
    assert job.countdown == Countdown(2, ("pay", "stock"), None)
    assert [each.countdown for each in center.find(42)] == [job.countdown]
    plain = center.get(center.schedule(42, MINUTE))
    assert plain is not None
    assert plain.countdown is None


def test_a_near_deadline_is_armed_and_the_key_tells_countdowns_apart(world: World) -> None:
    center = world.center
    first = center.countdown(42, count=1, deadline=MINUTE, **CLOSE, details=True)
    assert first == Scheduled(first.job_id, "inserted")
    assert world.reminder(first.job_id) == 60_000
    again = center.countdown(42, count=7, deadline=HOUR, **CLOSE, details=True)
    assert again == Scheduled(first.job_id, "kept")
    other = center.countdown(42, count=1, deadline=HOUR, **CLOSE, dedup_key="k", tenant="blue")
    assert center.arrive("pay", biz_id=42, **CLOSE, dedup_key="k") == "unknown"
    assert center.arrive("pay", biz_id=42, **CLOSE, dedup_key="k", tenant="blue").job_id == other
    with pytest.raises(DuplicateJob):
        center.countdown(42, count=1, deadline=HOUR, **CLOSE, on_duplicate="error")
    # An ordinary job cannot take the key of a countdown.
    with pytest.raises(InvalidInput, match="dedup_key"):
        center.schedule(42, MINUTE, dedup_key="count:")


def test_after_its_end_a_countdown_starts_anew_or_once(world: World) -> None:
    center = world.center
    job_id = center.countdown(42, count=1, deadline=MINUTE, **CLOSE)
    assert center.cancel(biz_id=42, **CLOSE)
    assert center.arrive("pay", biz_id=42, **CLOSE) == "already_cancelled"
    assert center.countdown(42, count=1, deadline=MINUTE, **CLOSE, on_duplicate="once") == job_id
    second = center.countdown(42, count=1, deadline=MINUTE, **CLOSE)
    assert second != job_id
    assert center.arrive("pay", biz_id=42, **CLOSE).job_id == second


def test_an_answer_for_no_countdown_says_why(world: World) -> None:
    center = world.center
    job_id = center.schedule(42, MINUTE, **CLOSE)
    assert center.arrive("pay", job_id=job_id).hint == f"job {job_id} is no countdown"
    answer = center.arrive("pay", biz_id=42, biz_type="report")
    assert (answer, answer.job_id) == ("unknown", None)
    assert "of other types than 'report': 'order.close'" in str(answer.hint)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"count": 0}, "count"),
    ({"count": 4}, "count"),
    ({"count": True}, "count"),
    ({"deadline": 5}, "deadline"),
    ({"biz_id": -1}, "biz_id"),
    ({"biz_type": "a b"}, "biz_type"),
    ({"attribute": {"x": object()}}, "attribute"),
    ({"dedup_key": "k" * 57}, "dedup_key"),
    ({"dedup_key": None}, "dedup_key"),
    ({"on_duplicate": "latest"}, "on_duplicate"),
    ({"actor": ""}, "actor"),
]


@pytest.mark.parametrize(("wrong", "field"), BAD)
def test_bad_arguments_of_countdown_write_nothing(
    small: World, wrong: dict[str, Any], field: str
) -> None:
    settings = small.settings.model_copy(update={"limits": LimitSettings(countdown=3)})
    with TimeoutCenter(settings, clock=small.clock) as center:
        with pytest.raises(InvalidInput) as caught:
            center.countdown(**{"biz_id": 42, "count": 3, "deadline": MINUTE, **wrong})
        assert caught.value.field == field
        assert small.library.count() == 0
        center.countdown(42, count=3, deadline=MINUTE)
        assert small.library.count() == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"arrival_id": ""}, "arrival_id"),
        ({"arrival_id": "a b"}, "arrival_id"),
        ({"arrival_id": 5}, "arrival_id"),
        ({"arrival_id": "x" * 65}, "arrival_id"),
        ({"job_id": 1}, "biz_id"),
        ({"biz_id": None}, "job_id"),
        ({"biz_type": None}, "biz_type"),
    ],
)
def test_bad_arguments_of_arrive(small: World, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        small.center.arrive(**{"arrival_id": "pay", "biz_id": 42, **arguments})
    assert caught.value.field == field


def test_the_async_client_has_both(small: World) -> None:
    async def run() -> list[Any]:
        async with AsyncTimeoutCenter(TimeoutCenter(small.settings, clock=small.clock)) as center:
            job_id = await center.countdown(42, count=1, deadline=MINUTE)
            answer = await center.arrive("pay", job_id=job_id)
            job = await center.get(job_id)
            return [answer, job and job.countdown]

    assert asyncio.run(run()) == ["completed", Countdown(1, ("pay",), None)]


def settings_as_environment(world: World) -> dict[str, str]:
    return {
        "TOC_DATABASES": ",".join(world.settings.databases),
        "TOC_SHARDS": str(world.settings.shards),
        "TOC_REDIS_URL": world.settings.redis_url,
        "TOC_NAMESPACE": world.settings.namespace,
    }


KILLED = """
import os, signal, sys, toc
from sqlalchemy import event
center = toc.TimeoutCenter()
(database,) = center._open_connections().databases
def kill(connection):
    os.kill(os.getpid(), signal.SIGKILL)
event.listen(database.engine, "commit", kill)
center.arrive("pay", job_id=int(sys.argv[1]))
"""


def test_an_arrival_whose_process_is_killed_before_the_commit_does_not_count(world: World) -> None:
    job_id = world.center.countdown(42, count=1, deadline=HOUR)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOC_")}
    env |= settings_as_environment(world)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(job_id)], env=env, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    job = world.center.get(job_id)
    assert job is not None
    assert job.countdown == Countdown(1, (), None)
    assert world.reminder(job_id) is None
    assert world.center.arrive("pay", job_id=job_id) == "completed"


PAGE = (Path(__file__).parents[2] / "docs/how-to/countdown.md").read_text()


def test_the_code_of_the_page_runs(
    small: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings_as_environment(small).items():
        monkeypatch.setenv(name, value)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, Any] = {}
    before = dict(registry._specs)
    try:
        exec(compile(code, "countdown.md", "exec"), known)  # noqa: S102 - it is ours
        with known["center"] as center:
            (job,) = center.find(42)
            fired = replace(job, _countdown=replace(job.countdown, by="arrivals"))
            spec = registry.get("order.ship")
            assert spec is not None
            spec.function(fired)
            spec.function(replace(job, _countdown=replace(job.countdown, by="deadline")))
    finally:
        registry._specs.clear()
        registry._specs.update(before)
    assert capsys.readouterr().out.splitlines() == [
        "arrived 1 of 3", "repeated", "arrived", "completed", "order 42 can be shipped",
        "order 42: only payment, packing, check",
    ]  # fmt: skip
