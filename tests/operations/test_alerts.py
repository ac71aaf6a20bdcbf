"""The alerts and dashboards of deploy/: promtool accepts them, and they name what there is."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml

from tests.operations.alert_rules import (
    GRAFANA,
    METRIC,
    PROMETHEUS,
    ROOT,
    dashboards,
    known_metric_names,
    parts_without_threshold,
    read_alerts,
)
from tests.servers.process import ServerUnavailableError
from tests.servers.programs import prometheus_program

RUNBOOK = (ROOT / "docs/how-to/runbook.md").read_text("utf-8")
OF_PROMETHEUS = {"up", "process_resident_memory_bytes"}
"""Metrics that are not toc's: of Prometheus itself, and of its client library."""


@pytest.fixture
def promtool() -> str:
    try:
        return prometheus_program("promtool")
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "test rules toc.rules.test.yml"]
)
def test_promtool_accepts(promtool: str, command: str) -> None:
    done = subprocess.run(
        [promtool, *command.split()], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    document = yaml.safe_load((PROMETHEUS / "toc.rules.test.yml").read_text("utf-8"))
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]
    for fires in (True, False):
        tested = {case["alertname"] for case in cases if bool(case["exp_alerts"]) == fires}
        assert tested == set(read_alerts())


def test_each_alert_has_a_section_in_the_runbook() -> None:
    assert re.findall(r"^## (Toc\w+)$", RUNBOOK, re.MULTILINE) == list(read_alerts())
    for name, alert in read_alerts().items():
        assert alert["annotations"]["runbook"] == f"docs/how-to/runbook.md#{name.lower()}"
        assert f"**{alert['labels']['severity']}**" in RUNBOOK.partition(f"## {name}\n")[2][:40]


@pytest.mark.parametrize("expression", [alert["expr"] for alert in read_alerts().values()])
def test_alerts_use_metrics_that_there_are(expression: str) -> None:
    names = set(METRIC.findall(expression))
    assert names
    assert names <= known_metric_names() | OF_PROMETHEUS


@pytest.mark.parametrize("name", ["toc-now.json", "toc-capacity.json"])
def test_a_dashboard_is_what_the_program_makes(name: str) -> None:
    made = dashboards().format_dashboard(name)
    assert (GRAFANA / name).read_text("utf-8") == made, "run deploy/grafana/make_dashboards.py"
    assert name in dashboards().DASHBOARDS


def test_dashboards_use_metrics_that_there_are() -> None:
    panels = [panel for _, _, panels in dashboards().DASHBOARDS.values() for panel in panels]
    shown = [expr for panel in panels for expr in panel.lines.values()]
    used = {name for expr in shown for name in METRIC.findall(expr)}
    assert len(used) > 20
    assert used <= known_metric_names() | OF_PROMETHEUS


def test_thresholds_are_found() -> None:
    assert parts_without_threshold("max(a) > 0\nor\nsum(b == 1) <= -2.5\n") == ["max(a)", "sum(b)"]
