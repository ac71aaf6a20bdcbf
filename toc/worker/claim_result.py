"""Decides what to do with an id after the claim (design §6), from the row, the token and the time."""

from __future__ import annotations

from enum import Enum

from toc.domain.job import Status
from toc.store.claims import ClaimedRow


class ClaimResult(Enum):
    RUN = "mine: run it"
    FORGET = "ended or gone: ack"
    LATER = "live, its time is ahead: put back at due_time"
    SUSPECT = "running, its lease is over: take it over alone"
    UNHANDLED = "due or lost, but no handler here: put back for a while"


def claim_result_of(
    row: ClaimedRow | None, token: str, now_ms: int, *, handled: bool
) -> ClaimResult:
    """What to do with an id. `row`: as the claim saw it; None: there is none. `token`: of this claim.

    `now_ms`: the server's time that found the id due. `handled`: whether its type has a handler here. A row
    that was rescheduled, waits for a retry, or runs under a valid lease is the same case (LATER): its
    due_time is in the future.
    """
    if row is None or row.due_ms is None or not row.status.live:
        return ClaimResult.FORGET
    if row.status is Status.RUNNING:
        if row.token == token:
            return ClaimResult.RUN
        if row.overdue:
            return ClaimResult.SUSPECT if handled else ClaimResult.UNHANDLED
        return ClaimResult.LATER
    return ClaimResult.UNHANDLED if row.due_ms <= now_ms and not handled else ClaimResult.LATER
