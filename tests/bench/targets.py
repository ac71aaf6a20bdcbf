"""The figures that toc is to reach, and whether a run has reached them. A missed one is no error."""

import operator
import re
from typing import Literal, NamedTuple

from toc.bench.report import BenchReport, Figure

_RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


class Target(NamedTuple):
    """A wish for the median of a figure: of the ratio to the baseline, or of toc's own value."""

    of: Literal["ratio", "toc"]
    relation: Literal[">=", "<=", "<"]
    value: float

    def met_by(self, figure: Figure) -> bool | None:
        """None: there is nothing to compare with."""
        measured = figure.ratio if self.of == "ratio" else figure.toc
        if measured is None:
            return None
        return bool(_RELATIONS[self.relation](measured.middle, self.value))

    def __str__(self) -> str:
        return f"{self.of} {self.relation} {self.value:,g}"


TARGETS = {
    r"schedule_many: \d+ a call": Target("ratio", ">=", 0.85),
    r"schedule: one by one": Target("ratio", ">=", 0.9),
    r"schedule: \d+ threads": Target("ratio", ">=", 0.9),
    r"cancel: (one by one|by a WHERE)": Target("ratio", ">=", 0.9),
    r"drain: one worker, due to settled": Target("ratio", ">=", 0.7),
    r"drain: its memory": Target("toc", "<", 150),
    r"drain: \d+ workers beside one": Target("ratio", ">=", 1),
    r"drain: without Redis beside with": Target("ratio", ">=", 0.9),
    r"lateness: p50 at 300 jobs/s": Target("toc", "<=", 3),
    r"lateness: p99 at 300 jobs/s": Target("toc", "<=", 10),
    r"lateness: p99 at 2000 jobs/s": Target("toc", "<=", 50),
    r"lateness: p99 at (300|2000) jobs/s": Target("ratio", "<=", 2),
    r"http: POST, \d+ connections beside .*": Target("ratio", ">=", 0.7),
    r"http: POST, \d+ a call": Target("ratio", ">=", 0.6),
    r"http: leases with finish, .*": Target("toc", ">=", 5000),
    r"http: lateness at a consumer, p99 at 300 jobs/s": Target("toc", "<=", 20),
    r"crowd: max of .*": Target("toc", "<=", 1000),
    r"idle: Redis' memory per far job": Target("toc", "<=", 2),
    r"idle: Redis' memory per armed job": Target("toc", "<=", 130),
    r"idle: CPU of a core, .*": Target("toc", "<", 1),
    r"idle: Redis calls": Target("toc", "<", 5),
    r"start: import toc": Target("toc", "<", 0.3),
    r"start: toc --help": Target("toc", "<", 0.5),
    r"purge: drain beside a purge, .*": Target("ratio", ">=", 0.9),
    r"reconcile: 1,000,000 live rows, warm": Target("toc", "<=", 2.5),
    r"reconcile: .*, memory of JVM and Python": Target("toc", "<=", 1000),
}
"""By "case: what" of the figure, as a pattern."""


def targets_of(report: BenchReport) -> list[tuple[str, Target, bool | None]]:
    """(figure, target, whether it is met) of each figure that has a target."""
    return [
        (f"{figure.case}: {figure.what}", target, target.met_by(figure))
        for figure in report.figures
        for pattern, target in TARGETS.items()
        if re.fullmatch(pattern, f"{figure.case}: {figure.what}")
        and (figure.case != "reconcile" or figure.unit != "rows/s")
    ]


def target_lines(report: BenchReport) -> list[str]:
    words = {True: "met", False: "missed", None: "not measured"}
    return [f"target {words[met]}: {name}: {target}" for name, target, met in targets_of(report)]
