"""Short histories, written as one reads them. Times are ms; each job is due at 1000 unless it says so."""

from __future__ import annotations

from toc.testing import (
    CancelAnswered,
    DiscardAnswered,
    Ended,
    Entry,
    Fault,
    Redriven,
    RescheduleAnswered,
    Row,
    Scheduled,
    Started,
)

DUE_MS = 1000
TYPE = "order.close"


def scheduled(
    job_id: int = 1, due_ms: int = DUE_MS, at_ms: float = 10, biz_type: str = TYPE
) -> Scheduled:
    return Scheduled(job_id, biz_type, due_ms, at_ms - 1, at_ms)


def cancel(answer: str, at_ms: float, job_id: int = 1) -> CancelAnswered:
    return CancelAnswered(job_id, answer, at_ms - 5, at_ms)


def move(answer: str, due_ms: int, at_ms: float, job_id: int = 1) -> RescheduleAnswered:
    return RescheduleAnswered(job_id, answer, due_ms, at_ms - 5, at_ms)


def redriven(at_ms: float, answer: str = "redriven", job_id: int = 1) -> Redriven:
    return Redriven(job_id, answer, at_ms - 5, at_ms)


def discard(at_ms: float, answer: str = "cancelled", job_id: int = 1) -> DiscardAnswered:
    return DiscardAnswered(job_id, answer, at_ms - 5, at_ms)


def token(attempt: int, process: str = "w1", job_id: int = 1) -> str:
    return f"{process}:7:{job_id}:{attempt}"


def start(
    at_ms: float,
    attempt: int = 1,
    process: str = "w1",
    job_id: int = 1,
    biz_type: str = TYPE,
    claim: str | None = None,
) -> Started:
    claim = token(attempt, process, job_id) if claim is None else claim
    return Started(job_id, biz_type, attempt, at_ms, process, claim)


def end(
    at_ms: float,
    attempt: int = 1,
    process: str = "w1",
    job_id: int = 1,
    *,
    failed: bool = False,
    verdict: str = "",
    claim: str | None = None,
) -> Ended:
    claim = token(attempt, process, job_id) if claim is None else claim
    return Ended(job_id, attempt, failed, at_ms, process, claim, verdict)


def run(
    at_ms: float, attempt: int = 1, process: str = "w1", job_id: int = 1, *, failed: bool = False
) -> list[Entry]:
    """A handler's run of 1 ms."""
    return [
        start(at_ms, attempt, process, job_id),
        end(at_ms + 1, attempt, process, job_id, failed=failed),
    ]


def row(
    status: str = "done",
    attempts: int = 1,
    process: str = "w1",
    job_id: int = 1,
    due_ms: int = DUE_MS,
    claim: str | None = None,
    letter: bool | None = None,
) -> Row:
    if claim is None:
        claim = token(attempts, process, job_id) if attempts else ""
    return Row(job_id, status, attempts, due_ms, claim, letter)


def fault(name: str, from_ms: float, to_ms: float, *processes: str) -> Fault:
    return Fault(name, from_ms, to_ms, processes)
