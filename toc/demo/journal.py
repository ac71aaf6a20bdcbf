"""What really happened, written down by those who did it: one JSON line per entry.

Each process has a file of its own. Times are milliseconds of this machine's clock, with fractions:
SQLite and the private Redis run on it too, so it is the servers' clock here.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Scheduled:
    """schedule() has returned `job_id`: from now on it must not get lost."""

    job_id: int
    biz_type: str
    action_ms: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class CancelAnswered:
    """cancel() was called at `asked_ms` and has answered at `at_ms`."""

    job_id: int
    answer: str
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class MoveAnswered:
    """reschedule() to `action_ms` was called at `asked_ms` and has answered at `at_ms`."""

    job_id: int
    answer: str
    action_ms: int
    asked_ms: float
    at_ms: float


@dataclass(frozen=True, slots=True)
class Started:
    """The first thing that a handler did."""

    job_id: int
    biz_type: str
    attempt: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The last thing that a handler did. `failed`: it raised."""

    job_id: int
    attempt: int
    failed: bool
    at_ms: float


Entry = Scheduled | CancelAnswered | MoveAnswered | Started | Ended
_KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind for kind in (Scheduled, CancelAnswered, MoveAnswered, Started, Ended)
}


class Journal:
    """Appends entries. Thread-safe and unbuffered: one write call per line, so no kill cuts one."""

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
    """Reads a journal that somebody else is writing; each entry once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """What has come since the last call; nothing while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_entry(line) for line in whole.splitlines()]


def _entry(line: bytes) -> Entry:
    kind, values = json.loads(line)
    return _KINDS[kind](**values)
