"""Targets, ratios, and what the report gives to people and to programs."""

import io
import json

import pytest
from rich.console import Console

from tests.bench.targets import Target, target_lines
from toc.bench.report import BenchCheck, BenchReport
from toc.bench.statistics import Spread


def make_report() -> BenchReport:
    report = BenchReport({"servers": {"mysql": "9"}})
    rounds = [(100.0, 50.0), (200.0, 180.0)]
    report.add_measurement("drain", "one worker, due to settled", "jobs/s", rounds)
    report.add_measurement("idle", "Redis calls", "1/s", [(None, 5.0)])
    report.checks += [BenchCheck("drain", "counts", holds=True)] * 2
    return report


def test_the_ratio_is_taken_within_a_round() -> None:
    figure = make_report().figures[0]
    assert figure.ratio == Spread(0.5, 0.7, 0.9)
    assert (figure.baseline, figure.toc) == (Spread(100, 150, 200), Spread(50, 115, 180))


def test_without_a_baseline_there_is_no_ratio() -> None:
    figure = make_report().figures[1]
    assert (figure.baseline, figure.ratio) == (None, None)
    assert Target("ratio", ">=", 0.5).met_by(figure) is None


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("ratio", ">=", 0.7), True),
        (Target("ratio", ">=", 0.71), False),
        (Target("toc", ">=", 115), True),
        (Target("toc", "<=", 115), True),
        (Target("toc", "<", 115), False),
    ],
)
def test_a_target_is_about_the_median(target: Target, *, met: bool) -> None:
    assert target.met_by(make_report().figures[0]) is met


def test_the_targets_of_a_run() -> None:
    assert target_lines(make_report()) == [
        "target met: drain: one worker, due to settled: ratio >= 0.7",
        "target missed: idle: Redis calls: toc < 5",
    ]


def test_the_report_as_json() -> None:
    found = json.loads(json.dumps(make_report().as_json()))
    assert found["figures"][0]["ratio"] == [0.5, 0.7, 0.9]
    assert found["checks"][0] == {"case": "drain", "what": "counts", "holds": True}


def test_the_report_as_a_table() -> None:
    report = make_report()
    report.pictures["Lateness"] = ["<= 1 ms [all]"]
    report.checks.append(BenchCheck("idle", "[rows]", holds=False))
    shown_in = io.StringIO()
    report.print_to_console(Console(width=200, file=shown_in))
    shown = shown_in.getvalue()
    assert "0.7 (0.5 to 0.9)" in shown
    assert "<= 1 ms [all]" in shown
    assert "holds  drain: counts, 2 times" in shown
    assert "BROKEN idle: [rows]" in shown
    assert [check.case for check in report.failed_checks] == ["idle"]
