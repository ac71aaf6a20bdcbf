"""What becomes of one id after the claim (design §6). Pure: the row, the token, the time."""

from __future__ import annotations

from enum import Enum

from toc.domain.job import Status
from toc.store.claims import Seen


class Fate(Enum):
    RUN = "mine: run it"
    FORGET = "ended or gone: ack"
    LATER = "live, its time is ahead: put back at due_time"
    SUSPECT = "running, its lease is over: take it over alone"
    UNHANDLED = "due or lost, but no handler here: put back for a while"


def fate_of(row: Seen | None, token: str, now_ms: int, *, handled: bool) -> Fate:
    """`now_ms`: the time that found the id due. `handled`: whether its type has a handler here.

    A row that was rescheduled, waits for a retry, or runs under a live lease is one and the same case:
    its due_time is ahead.
    """
    if row is None or row.due_ms is None or not row.status.live:
        return Fate.FORGET
    if row.status is Status.RUNNING:
        if row.token == token:
            return Fate.RUN
        if row.overdue:
            return Fate.SUSPECT if handled else Fate.UNHANDLED
        return Fate.LATER
    return Fate.UNHANDLED if row.due_ms <= now_ms and not handled else Fate.LATER
