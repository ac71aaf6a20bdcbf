"""The code of docs/how-to/batches.md and results.md runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toc
from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO
from toc.domain.job import Status
from toc.handlers.registry import HandlerSpec, registry

DOCS = Path(__file__).parents[2] / "docs/how-to"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def specs() -> Iterator[dict[str, HandlerSpec]]:
    """The handlers that the code of a page registers."""
    before = dict(registry._specs)
    registry._specs.clear()
    try:
        yield registry._specs
    finally:
        registry._specs.clear()
        registry._specs.update(before)


def test_the_page_of_batches(make_rig: MakeRig, specs: dict[str, HandlerSpec]) -> None:
    (code,) = blocks_of("batches.md")
    exec(compile(code, "batches.md", "exec"), {"__name__": "page"})  # noqa: S102 - it is ours
    rig = make_rig()
    rig.registry._specs.update(specs)
    jobs: list[Any] = [
        {"biz_id": n, "action_time": LONG_AGO, "attribute": {"to": to}}
        for n, to in enumerate(["a@b", "nobody", "c@d"])
    ]
    ids = rig.center.schedule_many(jobs, biz_type="mail")
    rig.start()
    rig.wait_for(Status.DONE, ids[0], ids[2])
    rig.wait_for(Status.DEAD, ids[1])
    (letter,) = rig.center.dead()
    assert letter.error == "the server refuses this address"


def test_the_page_of_results(
    make_rig: MakeRig,
    specs: dict[str, HandlerSpec],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler, caller = blocks_of("results.md")
    exec(compile(handler, "results.md", "exec"), {"__name__": "page"})  # noqa: S102 - it is ours
    rig = make_rig()
    rig.registry._specs.update(specs)
    rig.start()
    monkeypatch.setattr(toc, "schedule", rig.center.schedule)
    monkeypatch.setattr(toc, "wait", rig.center.wait)
    exec(compile(caller, "results.md", "exec"), {})  # noqa: S102 - it is ours
    *pages, last = capsys.readouterr().out.splitlines()
    assert pages == ["page one", "page two", "page three"]
    assert last == "DONE {'pages': 3} Progress(done=3, total=3)"
