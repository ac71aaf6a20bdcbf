"""debounce by a client, on a database and Redis."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.test_countdowns import settings_as_environment
from tests.integration.world import World
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import TimeoutCenter
from toc.domain.job import Scheduled
from toc.errors import InvalidInput
from toc.handlers.registry import registry

CLOSE: dict[str, Any] = {"biz_type": "order.close"}
QUIET: dict[str, timedelta] = {
    "quiet": timedelta(minutes=1), "max_wait": timedelta(minutes=2),
}  # fmt: skip


def test_each_call_moves_the_row_and_leaves_the_reminder(world: World) -> None:
    center = world.center
    first = center.debounce(42, **QUIET, **CLOSE, attribute={"n": 1}, details=True)
    assert first == Scheduled(first.job_id, "inserted")
    assert world.reminder(first.job_id) == 60_000
    for armed_ms in (20_000, -20_000):
        world.clock.advance(40)
        moved = center.debounce(42, **QUIET, **CLOSE, attribute={"n": armed_ms}, details=True)
        assert moved == Scheduled(first.job_id, "replaced")
        assert world.reminder(first.job_id) == armed_ms
    job = center.get(first.job_id)
    assert job is not None
    assert (job.attribute, job.due_ms, job.countdown) == (
        {"n": -20_000},
        world.now_ms + 40_000,
        None,
    )
    assert world.reminders() == 1
    assert center.debounce(42, **QUIET, **CLOSE, dedup_key="k") != first.job_id
    assert center.cancel(biz_id=42, **CLOSE)
    again = center.debounce(42, **QUIET, **CLOSE, details=True)
    assert (again.did, world.reminder(again.job_id)) == ("inserted", 60_000)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"quiet": 5}, "quiet"),
    ({"quiet": timedelta(0)}, "quiet"),
    ({"max_wait": timedelta(seconds=59)}, "max_wait"),
    ({"max_wait": timedelta(days=367)}, "max_wait"),
    ({"max_wait": None}, "max_wait"),
    ({"biz_id": ""}, "biz_id"),
    ({"biz_type": "a b"}, "biz_type"),
    ({"attribute": {"x": "y" * 5000}}, "attribute"),
    ({"dedup_key": "k" * 57}, "dedup_key"),
    ({"tenant": "a b"}, "tenant"),
]


@pytest.mark.parametrize(("wrong", "field"), BAD)
def test_bad_arguments_write_nothing(small: World, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        small.center.debounce(**{"biz_id": 42, **QUIET, **wrong})
    assert caught.value.field == field
    assert small.library.count() == 0


def test_the_async_client_has_it(small: World) -> None:
    async def run() -> list[int]:
        async with AsyncTimeoutCenter(TimeoutCenter(small.settings, clock=small.clock)) as center:
            calls = [center.debounce(42, **QUIET, attribute={"n": n}) for n in range(9)]
            return list(await asyncio.gather(*calls))

    assert len(set(asyncio.run(run()))) == 1
    assert small.library.count() == 1


PAGE = (Path(__file__).parents[2] / "docs/how-to/debounce.md").read_text()


def test_the_code_of_the_page_runs(
    small: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings_as_environment(small).items():
        monkeypatch.setenv(name, value)
    code, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, Any] = {}
    before = dict(registry._specs)
    try:
        exec(compile(code, "debounce.md", "exec"), known)  # noqa: S102 - it is ours
        with known["center"] as center:
            spec = registry.get("index.rebuild")
            assert spec is not None
            spec.function(center.get(known["job_id"]))
    finally:
        registry._specs.clear()
        registry._specs.update(before)
    assert capsys.readouterr().out == "shop-7 {'price': 11}\n"
    assert small.library.count() == 1


def test_the_throttle_of_the_page_makes_one_job_for_each_window(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings_as_environment(small).items():
        monkeypatch.setenv(name, value)
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, Any] = {}
    exec(compile(code, "debounce.md", "exec"), known)  # noqa: S102 - it is ours
    window = 3_000_000_000 // 30  # in the future: no job is due while the test runs

    def call_in_window(number: int) -> Scheduled:
        known["time"] = SimpleNamespace(time=lambda: number * 30 + 7.5)
        found = known["rebuild_at_once"]("shop-7")
        assert isinstance(found, Scheduled)
        return found

    with known["center"] as center:
        first, second, third = (call_in_window(window) for _ in range(3))
        assert (first.did, second.did, third.did) == ("inserted", "inserted", "kept")
        assert second.job_id == third.job_id != first.job_id
        assert center.get(second.job_id).action_ms == (window + 1) * 30_000
        # The run of the next window is there already; its further calls share that of the one after.
        center.cancel(second.job_id)  # an ended job holds its window, too
        next_one, same = call_in_window(window + 1), call_in_window(window + 1)
        assert (next_one.did, same.did) == ("inserted", "kept")
        assert center.get(same.job_id).action_ms == (window + 2) * 30_000
        # After an empty window a call runs at once again.
        at_once = call_in_window(window + 4)
        assert at_once.did == "inserted"
        assert center.get(at_once.job_id).action_ms < window * 30_000
    assert small.library.count() == 4
