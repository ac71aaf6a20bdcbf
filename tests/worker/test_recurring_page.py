"""The code of docs/how-to/recurring.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRig
from toc.handlers.registry import registry

PAGE = (Path(__file__).parents[2] / "docs/how-to/recurring.md").read_text()


def test_the_code_of_the_page_runs(
    make_rig: MakeRig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    rig = make_rig()
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    url = rig.settings.databases[0]
    (tmp_path / "toc.toml").write_text(
        f'databases = ["{url}"]\nshards = 4\nredis_url = "none"\n{toml}'
    )
    monkeypatch.chdir(tmp_path)
    specs, schedules = dict(registry._specs), dict(registry._schedules)
    known: dict[str, object] = {}
    try:
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(block, "recurring.md", "exec"), known)  # noqa: S102 - it is ours
        assert registry._schedules["report.nightly"].biz_type == "report.nightly"
    finally:
        registry._specs.clear()
        registry._specs.update(specs)
        registry._schedules.clear()
        registry._schedules.update(schedules)
    assert capsys.readouterr().out.endswith("['board', 'heartbeat', 'invoice:42']\n")
    assert rig.center.recurring.get("heartbeat").reason == "the receiver moves"
    assert f"{rig.center.recurring.get('board').next_times[0]:%A}" == "Friday"
