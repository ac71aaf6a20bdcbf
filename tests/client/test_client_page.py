"""The code of docs/how-to/client.md runs as it stands, against a server of this machine."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import pytest

import toc
from tests.client.remote_world import RemoteWorld
from toc.handlers.registry import registry

PAGE = (Path(__file__).parents[2] / "docs/how-to/client.md").read_text()
URL = "https://toc.example.com"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_of_the_page_runs(
    small: RemoteWorld,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOC_TOKEN", small.admin or "")
    sync, in_loop, handlers = (block.replace(URL, small.url) for block in BLOCKS)
    known: dict[str, object] = {}
    exec(compile(sync, "client.md", "exec"), known)  # noqa: S102 - it is ours
    assert capsys.readouterr().out == "PENDING\ncancelled\n"
    compiled = compile(in_loop, "client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(compiled, known))  # noqa: S307 - it is ours
    job = small.connect().get(known["job_id"])  # type: ignore[arg-type]
    assert job is not None
    assert job.biz_id == "A-42"
    before = dict(registry._specs)
    try:
        exec(compile(handlers, "client.md", "exec"), {})  # noqa: S102 - it is ours
        spec = registry.get("order.close")
        assert spec is not None
        spec.function(job)
    finally:
        registry._specs.clear()
        registry._specs.update(before)
    assert capsys.readouterr().out == "closing order A-42 {}\n"


def test_the_page_names_each_error_of_remote_clients() -> None:
    for name in (
        "ServerUnavailable",
        "Unauthenticated",
        "Forbidden",
        "TooManyCalls",
        "RequestFailed",
    ):
        assert f"`{name}`" in PAGE
        assert issubclass(getattr(toc, name), toc.TocError)
