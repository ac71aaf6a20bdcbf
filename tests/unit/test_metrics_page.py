"""docs/reference/metrics.md names every metric with its labels, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from toc.runtime import metrics
from toc.store.claims import OutcomeKind

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()


def test_the_page_and_the_program_agree() -> None:
    declared = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            declared[name] = ", ".join(metric._labelnames)
    rows = re.findall(r"^\| `(toc_\w+)` \| ([\w, ]*?) ?\|", PAGE, re.MULTILINE)
    assert dict(rows) == declared


def test_the_outcomes_are_those_of_the_program() -> None:
    (row,) = re.findall(r"runs settled: (.*?) \|", PAGE)
    assert set(re.findall(r"`(\w+)`", row)) == {kind.value for kind in OutcomeKind}
