"""Entries that clients and handlers write about their own calls and runs: a JSON line `[kind, values]` each.

Each process has a file of its own. Times are milliseconds since 1970 UTC, with fractions, of one clock
that all share: the servers'. Answers are the texts of `toc.Answer`; "" if the call raised, so that its
outcome is unknown. `toc.testing.check` reads all entries and says whether toc kept its promises.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Scheduled:
    """schedule() was called at `asked_ms` and has returned `job_id` at `at_ms`: the job must not get lost."""

    job_id: int
    biz_type: str
    action_ms: int
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class ScheduleUnanswered:
    """schedule() or schedule_many() has raised at `at_ms`: up to `jobs` jobs may be there, or not."""

    biz_type: str
    jobs: int
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class LeaseUnanswered:
    """A remote consumer's call for leases of a type has failed at `at_ms`, or was answered too late.

    Jobs may have been leased to nobody then: their attempts count, and were never started.
    """

    biz_type: str
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class CancelAnswered:
    """cancel() was called at `asked_ms` and has answered, or raised (""), at `at_ms`."""

    job_id: int
    answer: str
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class RescheduleAnswered:
    """reschedule() to `action_ms` was called at `asked_ms` and has answered, or raised, at `at_ms`."""

    job_id: int
    answer: str
    action_ms: int
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class Redriven:
    """redrive() was called at `asked_ms` and has answered, or raised, at `at_ms`."""

    job_id: int
    answer: str
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class DiscardAnswered:
    """discard() was called at `asked_ms` and has answered, or raised, at `at_ms`."""

    job_id: int
    answer: str
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class Started:
    """A handler has started; the first thing that a handler writes.

    `attempt`, `token`: the job's `attempts` and `token`.
    """

    job_id: int
    biz_type: str
    attempt: int
    at_ms: float
    process: str
    token: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler has ended; the last thing that a handler writes. `failed`: the handler raised an error.

    `verdict`: "retry", "snooze", "drop" or "dead", if the handler returned this in place of success;
    "stopped", if an `async def` handler was cancelled because its process ended.
    """

    job_id: int
    attempt: int
    failed: bool
    at_ms: float
    process: str
    token: str
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was injected, and its duration: it explains duplicates and lateness.

    `processes`: the processes that were killed, frozen or cut off, named as in `Started`. Empty: the fault
    hit all processes, because a server or the whole network failed.
    """

    name: str
    from_ms: float
    to_ms: float
    processes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A job's final row in the database. `status`: the word, "pending" to "dead".

    `token`: the row's `claim_token`; "": not read, or the job was never claimed. `dead_letter`: whether the
    job has a dead letter; None: not read.
    """

    job_id: int
    status: str
    attempts: int
    action_ms: int
    token: str = ""
    dead_letter: bool | None = None


Entry = (
    Scheduled
    | ScheduleUnanswered
    | LeaseUnanswered
    | CancelAnswered
    | RescheduleAnswered
    | Redriven
    | DiscardAnswered
    | Started
    | Ended
    | Fault
    | Row
)
KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind
    for kind in (
        Scheduled,
        ScheduleUnanswered,
        LeaseUnanswered,
        CancelAnswered,
        RescheduleAnswered,
        Redriven,
        DiscardAnswered,
        Started,
        Ended,
        Fault,
        Row,
    )
}


class Journal:
    """Appends entries to a file. Thread-safe. Each line is one unbuffered write, so no kill cuts a line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, entry: Entry) -> None:
        line = json.dumps([type(entry).__name__, asdict(entry)], separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Tail:
    """Reads a journal while another process writes to it; each entry is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """The entries that were written since the last call; none while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [parse_entry(line) for line in whole.splitlines()]


def read(path: Path) -> Iterator[Entry]:
    """All entries of a journal, without the last line if that line was cut off."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield parse_entry(line)


def parse_entry(line: bytes) -> Entry:
    """The entry in one line of a journal."""
    kind, values = json.loads(line)
    if kind == "Fault":
        values["processes"] = tuple(values.get("processes", ()))
    return KINDS[kind](**values)
