"""The life of a job for its page: the steps in the order of time, and its attempts.

Both are made of the document of `explain`. The event that ends an attempt says when the attempt began. An
attempt that ended well has no event (there would be billions): the row says when it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Kind = Literal["made", "due", "claimed", "event", "done", "next", "lease_end"]
_ENDS_OF_ATTEMPTS = ("retry", "bury", "take_over", "drop")
_LINE_CHARS_MAX = 200  # of an error where one line tells it


@dataclass(frozen=True, slots=True)
class Step:
    """A moment in the life of a job. after_s: since the step before. event: its document, for an event.

    note: why, for an event; of an error the first line. is_future: it is still to come, as far as toc knows.
    """

    kind: Kind
    time: str
    after_s: float | None
    is_future: bool
    event: Mapping[str, Any] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A start of the job. number: counts from 1, and again after a redrive.

    begin: None: not known, for its worker died or hung; then took_s is None, and it ended at `end` at the
    latest. end: None: it runs. took_s: until now, if it runs. how: the verb that ended it. error: its first
    line. whole_error: "" if that is the same.
    """

    number: int
    begin: str | None
    end: str | None
    took_s: float | None
    how: str
    error: str = ""
    whole_error: str = ""


def life_of(found: Mapping[str, Any], now_ms: int) -> list[Step]:
    """The steps. `found`: what `explain` answers."""
    job, events = found["job"], found["events"]
    begins = {found["claimed_time"], *(event["claimed_time"] for event in events)} - {None}
    known: list[tuple[str, Kind, Mapping[str, Any] | None]] = [
        (found["created_time"], "made", None),
        (job["action_time"], "due", None),
        *((begin, "claimed", None) for begin in begins),
        *((event["time"], "event", event) for event in events),
    ]
    if job["status"] == "done":  # all other ends have an event
        known.append((found["ended_time"], "done", None))
    if job["status"] == "running":
        known.append((job["due_time"], "lease_end", None))
    elif job["due_time"] not in (None, job["action_time"]):
        known.append((job["due_time"], "next", None))
    known.sort(key=lambda step: _ms_of(step[0]))
    steps: list[Step] = []
    before_ms: int | None = None
    for time, kind, event in known:
        at_ms = _ms_of(time)
        after_s = None if before_ms is None else (at_ms - before_ms) / 1000
        steps.append(Step(kind, time, after_s, at_ms > now_ms, event, _note_of(event)))
        before_ms = at_ms
    return steps


def attempts_of(found: Mapping[str, Any], now_ms: int) -> list[Attempt]:
    """The attempts, oldest first."""
    job, claimed = found["job"], found["claimed_time"]
    attempts: list[Attempt] = []
    for event in found["events"]:
        if event["what"] in _ENDS_OF_ATTEMPTS:
            attempts.append(_ended_attempt(event))
        elif event["what"] == "undo_take_over" and attempts and attempts[-1].how == "take_over":
            attempts.pop()
    if job["status"] == "running":
        took_s = None if claimed is None else max(0.0, (now_ms - _ms_of(claimed)) / 1000)
        attempts.append(Attempt(job["attempts"], claimed, None, took_s, "running"))
    elif job["status"] == "done":
        ended = found["ended_time"]
        attempts.append(
            Attempt(job["attempts"], claimed, ended, _seconds_between(claimed, ended), "done")
        )
    return attempts


def _ended_attempt(event: Mapping[str, Any]) -> Attempt:
    # A take-over counts as the next attempt already.
    number = max(1, event["attempts"] - (event["what"] == "take_over"))
    took_s = None if event["took_ms"] is None else event["took_ms"] / 1000
    begin, end = event["claimed_time"], event["time"]
    return Attempt(number, begin, end, took_s, event["what"], *_error_of(event))


def _note_of(event: Mapping[str, Any] | None) -> str:
    if event is None or event["reason"] is None:
        return ""
    return _error_of(event)[0] if event["what"] in _ENDS_OF_ATTEMPTS else str(event["reason"])


def _error_of(event: Mapping[str, Any]) -> tuple[str, str]:
    """The first line of an event's error, and the whole error if it has more."""
    whole = (event["reason"] or "").strip()
    line = next(iter(whole.splitlines()), "")[:_LINE_CHARS_MAX]
    return line, "" if line == whole else whole


def _seconds_between(begin: str | None, end: str) -> float | None:
    return None if begin is None else max(0.0, (_ms_of(end) - _ms_of(begin)) / 1000)


def _ms_of(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
