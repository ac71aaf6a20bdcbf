"""An alarm: what is wrong with a type, as a text for people."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

DETAIL_CHARS_MAX = 300


class AlarmKind(StrEnum):
    """What is wrong."""

    DEAD = "dead"
    FAILURES = "failures"
    LATE = "late"
    TEST = "test"


class AlarmKey(NamedTuple):
    """Alarms with the same key are the same alarm, repeated after `alarms.quiet_s` at the earliest."""

    kind: AlarmKind
    biz_type: str


class Alarm(NamedTuple):
    """number: jobs or failures since the last message; late jobs: 1. detail: one line, of the newest job."""

    key: AlarmKey
    number: int
    detail: str

    def as_text(self, namespace: str) -> str:
        """The message, in one or two lines. `namespace`: says which toc it is."""
        kind, biz_type = self.key
        what = {
            AlarmKind.DEAD: f"{self.number} {_plural(self.number, 'job')} of {biz_type} died",
            AlarmKind.FAILURES: f"{self.number} failed attempts of {biz_type}",
            AlarmKind.LATE: f"jobs of {biz_type} are late",
            AlarmKind.TEST: "a test of toc's alarms",
        }[kind]
        text = f"toc ({namespace}): {what}"
        return f"{text}\n{self.detail[:DETAIL_CHARS_MAX]}" if self.detail else text


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
