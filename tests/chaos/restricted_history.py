"""What a run has shown of the restricted types: attempts, admissions, pauses, occurrences."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.restricted import RESTRICTED_TYPES
from toc.limits.holder import Holder
from toc.testing import Fault

_NAMES = "|".join(map(re.escape, RESTRICTED_TYPES))
_TYPE = re.compile(rf'"biz_type":\s*"(?:{_NAMES})"'.encode())
_JOB_ID = re.compile(rb'"job_id":\s*(\d+)')


class Span(NamedTuple):
    from_ms: float
    to_ms: float


@dataclass(slots=True)
class Attempt:
    """One run of a handler. `end_ms`: if the process died in it, the last moment at which it wrote."""

    job_id: int
    biz_type: str
    process: str
    start_ms: float
    end_ms: float
    token: str = ""

    @property
    def holder(self) -> str:
        """Its name in Redis, if its type has limits."""
        return holder_of(self.job_id, self.token)


def holder_of(job_id: int, token: str) -> str:
    return Holder("", "", job_id, token).member


class Admission(NamedTuple):
    """The limits have admitted a job at some moment of this span. `by_share`: without Redis."""

    from_ms: float
    to_ms: float
    by_share: bool = False


class PauseSpan(NamedTuple):
    """A type was surely paused from the answer to `pause` until `to_ms`: its end, or the call of `resume`.

    `by_clock`: it ended by itself, by the databases' clock.
    """

    biz_type: str
    answered_ms: float
    to_ms: float
    by_clock: bool = False


class Occurrence(NamedTuple):
    """A job of a recurring schedule, by its record in the database."""

    name: str
    nominal_ms: int
    job_id: int
    made_ms: float


@dataclass(slots=True)
class Seen:
    """All that the checks need.

    taken: by holder, its admission. named: by holder, when its process has told Redis that it still holds.
    blind: by process, when it knew no newer pauses than those at the beginning of the span. shares: when a
    node went by its share of the limits, since Redis did not answer it. nominal: by job, its schedule and
    time.
    """

    attempts: list[Attempt] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    taken: dict[str, Admission] = field(default_factory=dict)
    named: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    blind: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    shares: list[Span] = field(default_factory=list)
    shops: dict[int, object] = field(default_factory=dict)
    nominal: dict[int, tuple[str, int]] = field(default_factory=dict)
    pauses: list[PauseSpan] = field(default_factory=list)
    occurrences: list[Occurrence] = field(default_factory=list)

    def of_type(self, biz_type: str) -> list[Attempt]:
        """Its attempts, in the order of their starts."""
        found = [each for each in self.attempts if each.biz_type == biz_type]
        return sorted(found, key=lambda each: each.start_ms)

    def add_line(self, line: dict[str, Any]) -> None:
        """Adds one line of a `.seen` file. Raises KeyError for an unknown one."""
        what, process = line["what"], line["process"]
        if what == "shop":
            self.shops[line["job_id"]] = line["shop"]
            return
        if what == "nominal":
            self.nominal[line["job_id"]] = (line["name"], line["nominal_ms"])
            return
        span = Span(line["from_ms"], line["to_ms"])
        if what == "taken":
            for job_id in line["jobs"]:
                self.taken[holder_of(job_id, line["token"])] = Admission(*span, line["by_share"])
        elif what == "named":
            for holder in line["holders"]:
                self.named[holder].append(span)
        elif what == "blind":
            self.blind[process].append(span)
        elif what == "share":
            self.shares.append(span)
        else:
            raise KeyError(what)


def read_seen(directory: Path) -> Seen:
    """Everything that the processes of a run have written, without pauses and occurrences."""
    seen = Seen()
    for path in sorted(directory.glob("*.seen")):
        for line in _whole_lines(path):
            seen.add_line(json.loads(line))
    for path in sorted(directory.glob("*.history")):
        seen.attempts += _read_attempts(path)
    for line in _whole_lines(directory / "rig.history"):
        if line.startswith(b'["Fault"'):
            values = json.loads(line)[1]
            seen.faults.append(Fault(**values | {"processes": tuple(values["processes"])}))
    return seen


def _read_attempts(path: Path) -> list[Attempt]:
    """The attempts in the journal of one process; other types' lines are not parsed."""
    found: list[Attempt] = []
    live: dict[tuple[int, str, int], Attempt] = {}
    jobs: set[int] = set()
    last = b""
    for line in _whole_lines(path):
        last = line
        if line.startswith(b'["Started"'):
            if _TYPE.search(line):
                v = json.loads(line)[1]
                attempt = Attempt(
                    v["job_id"], v["biz_type"], v["process"], v["at_ms"], v["at_ms"], v["token"]
                )
                live[v["job_id"], v["token"], v["attempt"]] = attempt
                jobs.add(v["job_id"])
                found.append(attempt)
        elif jobs and line.startswith(b'["Ended"') and _job_id_of(line) in jobs:
            v = json.loads(line)[1]
            ended = live.pop((v["job_id"], v["token"], v["attempt"]), None)
            if ended is not None:
                ended.end_ms = v["at_ms"]
    if live:
        last_ms = json.loads(last)[1].get("at_ms", 0.0)
        for attempt in live.values():
            attempt.end_ms = max(attempt.start_ms, last_ms)
    return found


def _job_id_of(line: bytes) -> int:
    match = _JOB_ID.search(line)
    return int(match[1]) if match else 0


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def covering(spans: Iterable[Span], at_ms: float) -> list[Span]:
    """Those that have begun, and not ended, at this moment."""
    return [span for span in spans if span.from_ms <= at_ms < span.to_ms]
