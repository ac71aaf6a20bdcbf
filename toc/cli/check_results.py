"""The results of the checks of `toc doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["ok", "warn", "fail"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels of results, from good to bad."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `advice`: what to do when the level is not ok."""

    subject: str
    check: str
    level: Level
    found: str
    advice: str = ""


def result_ok_or_fail(good: bool, subject: str, check: str, found: str, advice: str) -> CheckResult:
    return CheckResult(subject, check, "ok" if good else "fail", found, advice)


def result_ok_or_warn(good: bool, subject: str, check: str, found: str, advice: str) -> CheckResult:
    return CheckResult(subject, check, "ok" if good else "warn", found, advice)
