"""The commands, the code and the settings of docs/how-to/priorities.md, as they stand there."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toc
from toc.center.center import TimeoutCenter

PAGE = (Path(__file__).parents[2] / "docs/how-to/priorities.md").read_text("utf-8")
COMMANDS = re.findall(r"^    toc ([^#\n]+)", PAGE, re.MULTILINE)
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SETTINGS,) = re.findall(r"(?:^    (?:\[types|rate|priority).*\n)+", PAGE, re.MULTILINE)


@pytest.mark.usefixtures("servers")
def test_the_commands_and_the_code_of_the_page(toc: Toc) -> None:
    toc("types", "declare", "mail.send")
    declare, schedule = COMMANDS
    changed = toc(*declare.split())
    assert changed.code == 0, changed.err
    assert "priority 0" in toc("types", "show", "mail.send").out
    made = toc(*schedule.split(), "--json")
    assert made.code == 0, made.err
    assert made.json["priority"] == 9
    assert "priority      9" in toc("explain", made.json["job_id"]).out
    with closing(TimeoutCenter()) as center:
        known: dict[str, Any] = {"toc": center, "timedelta": timedelta}
        exec(compile(CODE, "priorities.md", "exec"), known)  # noqa: S102 - it is ours
        (first, second) = center.find(42, "mail.send")
        assert (first.priority, second.priority) == (9, 9)
        assert center.find(43, "mail.send")[0].priority == 5


@pytest.mark.usefixtures("servers")
def test_the_settings_of_the_page_are_applied(toc: Toc) -> None:
    Path("toc.toml").write_text(re.sub(r"^    ", "", SETTINGS, flags=re.MULTILINE))
    assert toc("types", "apply").code == 0
    declared = {"mode": "handler", "rate": "100/m", "priority": 0}
    assert toc("types", "show", "mail.send", "--json").json["declared"] == declared
    assert toc("types", "set", "mail.send", "--unset", "priority").code == 0
    assert "priority" not in toc("types", "show", "mail.send", "--json").json["declared"]


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("priority", [-1, 10])
def test_a_priority_is_from_0_to_9(toc: Toc, priority: int) -> None:
    refused = toc("schedule", "1", "30m", "--priority", priority)
    assert refused.code != 0
    assert "priority" in refused.err
    assert "from 0 to 9" in refused.err
    assert toc("types", "declare", "prio.bad", "--priority", priority).code != 0
