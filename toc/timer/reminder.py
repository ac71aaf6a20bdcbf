"""A reminder. It has a module of its own, so that clients can use it without importing redis."""

from __future__ import annotations

from typing import NamedTuple


class Reminder(NamedTuple):
    """A reminder: look at the row of `job_id` at `due_ms`.

    `due_ms` is None only in `put_back`: nothing is armed, since the loader will load the row in time.
    """

    due_ms: int | None
    job_id: int
