"""The code of docs/how-to/types.md runs as it stands: in process, and by a remote client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.client.remote_world import RemoteWorld

PAGE = (Path(__file__).parents[2] / "docs/how-to/types.md").read_text()
(BLOCK,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPENING = re.search(r"^center = (.*?)  # or (.*)$", BLOCK, re.MULTILINE)


@pytest.mark.parametrize("how", ["in process", "remote"])
def test_the_code_of_the_page_runs(
    small: RemoteWorld,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    assert OPENING is not None
    assert OPENING[1] == "toc.TimeoutCenter()"
    assert OPENING[2] == 'toc.connect("https://toc.example.com")'
    monkeypatch.setenv("TOC_TOKEN", small.admin or "")
    center = small.open_in_process() if how == "in process" else small.connect()
    exec(BLOCK.replace(OPENING[0], ""), {"center": center})  # noqa: S102 - it is ours
    lines = capsys.readouterr().out.splitlines()
    fields = "{'mode': 'pull', 'retry': [10, 30, 60], 'rate': '500/s'}"
    assert lines[0] == f"2 {fields}"
    assert lines[1].startswith("mail.send pull ")
    assert lines[1].endswith(" the mail host is slow")
