"""Jobs and answers as JSON. Names that this release does not know are ignored: a server may be newer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from toc.center.job_spec import CheckedJob
from toc.domain.biz_ids import BusinessId
from toc.domain.countdown import ArrivalAnswer, Countdown
from toc.domain.job import Answer, Job, Scheduled, Status
from toc.domain.pauses import PauseInfo
from toc.domain.result_document import Progress
from toc.domain.times import EPOCH, ceil_ms, datetime_of
from toc.errors import RequestFailed

_DONE: dict[str, Literal["inserted", "replaced", "kept"]] = {
    "inserted": "inserted", "replaced": "replaced", "kept": "kept",
}  # fmt: skip
_BY: dict[str, Literal["arrivals", "deadline"]] = {"arrivals": "arrivals", "deadline": "deadline"}
IDEMPOTENT = "idem:"
"""How the keys begin that a server makes from the header Idempotency-Key."""


def job_document(job: CheckedJob, payload: Any, on_duplicate: str) -> dict[str, Any]:
    """A job to schedule. `payload`: the attribute as the caller gave it; its JSON was checked."""
    document: dict[str, Any] = {
        **business_document(job.business),
        "biz_type": job.biz_type,
        **when_document(job.action_time),
    }
    if payload is not None:
        document["payload"] = payload
    if job.dedup_key is not None:
        document |= {"key": job.dedup_key, "on_duplicate": on_duplicate}
    if job.trace is not None:
        document["trace"] = job.trace
    if job.priority:
        document["priority"] = job.priority
    return document


def business_document(business: BusinessId) -> dict[str, Any]:
    return {"biz_id": business.given_id}


def when_document(action_time: Any) -> dict[str, Any]:
    """The time of a job, in ms since 1970 or as a delay, rounded up to ms. The past means at once."""
    if isinstance(action_time, int):
        text = datetime_of(action_time).isoformat(timespec="milliseconds")
        return {"action_time": text.replace("+00:00", "Z")}
    return {"delay": max(0, ceil_ms(action_time)) / 1000}


def parse_job(document: Any) -> Job:
    """A job of an answer. `token` and `claimed_ms` are not told over HTTP. Raises RequestFailed."""
    try:
        text = document["biz_id"]
        key = document["key"]
        return Job(
            int(document["job_id"]),
            text if document["biz_id_is_text"] else int(text),
            str(document["biz_type"]),
            Status[document["status"].upper()],
            parse_time_ms(document["action_time"]),
            dict(document["payload"]),
            None if document["due_time"] is None else parse_time_ms(document["due_time"]),
            int(document["attempts"]),
            token=None,
            # Made by a server from the Idempotency-Key of this or another client.
            dedup_key=None if key is None or key.startswith(IDEMPOTENT) else key,
            tenant=document["tenant"],
            trace=document.get("trace"),
            priority=int(document.get("priority", 0)),
            result=document.get("result"),
            last_progress=_parse_progress(document.get("progress")),
            _countdown=parse_countdown(document.get("countdown")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_understood("a job", error) from None


def _parse_progress(document: Any) -> Progress | None:
    return None if document is None else Progress(int(document["done"]), int(document["total"]))


def parse_countdown(document: Any) -> Countdown | None:
    """A countdown of an answer. Raises KeyError, TypeError, ValueError."""
    if document is None:
        return None
    by = None if document["by"] is None else _BY[document["by"]]
    return Countdown(int(document["wanted"]), tuple(map(str, document["arrival_ids"])), by)


def parse_arrival(document: Any) -> ArrivalAnswer:
    """The answer of arrive. Raises RequestFailed."""
    try:
        job_id = document["job_id"]
        return ArrivalAnswer(
            document["answer"],
            None if job_id is None else int(job_id),
            int(document["arrived"]),
            int(document["wanted"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_understood("an arrival", error) from None


def parse_scheduled(document: Any) -> Scheduled:
    """What schedule did. Raises RequestFailed."""
    try:
        did = _DONE[document["did"]]
        return Scheduled(int(document["job_id"]), did, document.get("running") is True)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_understood("a scheduled job", error) from None


def parse_answer(document: Any) -> Answer:
    """The answer of a verb. Raises RequestFailed."""
    try:
        job_id = document["job_id"]
        return Answer(
            document["answer"], None if job_id is None else int(job_id), int(document["attempts"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_understood("an answer", error) from None


def parse_pause(document: Any) -> PauseInfo:
    """A pause in an answer. Raises RequestFailed."""
    try:
        until = document["until"]
        rate = document["rate_per_s"]
        return PauseInfo(
            str(document["target"]),
            str(document["state"]),
            parse_time_ms(document["from"]),
            None if until is None else parse_time_ms(until),
            None if rate is None else float(rate),
            document["actor"] or "",
            document["reason"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_understood("pause", error) from None


def parse_time_ms(text: str) -> int:
    """An RFC 3339 time, in ms since 1970. Raises ValueError, TypeError."""
    moment = datetime.fromisoformat(text)
    return ceil_ms(moment - EPOCH)


def _not_understood(what: str, error: Exception) -> RequestFailed:
    return RequestFailed(
        f"this release does not understand {what} of the server ({type(error).__name__}: {error}): "
        "is the server newer?"
    )
