"""Jobs, answers and ids as documents, and business ids of requests."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timedelta
from typing import Any

from toc.domain.argument_checks import check_integer
from toc.domain.biz_ids import TEXT_CHARS_MAX
from toc.domain.countdown import ArrivalAnswer, Countdown
from toc.domain.ids import check_job_id
from toc.domain.job import Answer, Job, Scheduled
from toc.errors import InvalidInput
from toc.http.wire_times import format_time, parse_action_time, parse_delay
from toc.sentences import sentence

_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?", re.ASCII)
_JOB_ID = re.compile(r"[0-9]{1,19}", re.ASCII)


def parse_job_id(text: str) -> int:
    """A job_id of a path or body. Raises InvalidInput."""
    if not _JOB_ID.fullmatch(text):
        raise InvalidInput("job_id", text, "must be a job_id: up to 19 digits")
    return check_job_id(int(text))


def parse_biz_id(value: int | str, is_text: bool | None, *, digits_are_text: bool) -> int | str:
    """A business id of a body or query. Raises InvalidInput.

    is_text: as the caller says; None: an integer of JSON is an integer, and a text of digits is a text if
    `digits_are_text` (a body), else an integer (a query, whose values are all texts).
    """
    if isinstance(value, int):
        if is_text:
            raise InvalidInput("biz_id_is_text", is_text, "must not be true for an integer")
        return value
    if len(value) > TEXT_CHARS_MAX:
        raise InvalidInput(
            "biz_id", value, sentence("must have 1 to {most} characters", most=TEXT_CHARS_MAX)
        )
    are_digits = _DIGITS.fullmatch(value) is not None
    if is_text is False and not are_digits:
        raise InvalidInput("biz_id", value, "must be digits if biz_id_is_text is false")
    if is_text is False or (is_text is None and are_digits and not digits_are_text):
        return int(value)
    return value


def parse_when(action_time: str | None, delay: float | str | None) -> datetime | timedelta:
    """The time of a request: exactly one of both. Raises InvalidInput."""
    if action_time is not None and delay is None:
        return parse_action_time(action_time)
    if delay is not None and action_time is None:
        return parse_delay(delay)
    raise InvalidInput("action_time", action_time, "give either action_time or delay")


def parse_limit(text: str | None, most: int) -> int:
    """The size of a page. Raises InvalidInput."""
    if text is None:
        return min(100, most)
    return check_integer("limit", int(text) if _JOB_ID.fullmatch(text) else text, 1, most)


def parse_wait(text: str | None, most: float) -> float:
    """The seconds that a call may wait; 0 if none are given. Raises InvalidInput."""
    if text is None:
        return 0.0
    seconds = float(text) if _SECONDS.fullmatch(text) else -1.0
    if not 0 <= seconds <= most:
        raise InvalidInput("wait_s", text, f"must be 0 to {most:g} seconds, as 2.5 (limits.wait_s)")
    return seconds


def parse_flag(text: str | None, field: str) -> bool | None:
    """true or false of a query. Raises InvalidInput."""
    if text is None:
        return None
    if text not in ("true", "false"):
        raise InvalidInput(field, text, "must be true or false")
    return text == "true"


def job_document(job: Job, countdown: Countdown | None = None) -> dict[str, Any]:
    """A job for `JobOut`. The token of its claim is left out: it would let the reader settle the job.

    countdown: the job's own, where it has been read.
    """
    return {
        "job_id": str(job.job_id),
        "biz_id": str(job.biz_id),
        "biz_id_is_text": isinstance(job.biz_id, str),
        "tenant": job.tenant,
        "biz_type": job.biz_type,
        "status": job.status.name.lower(),
        "action_time": format_time(job.action_ms),
        "due_time": format_time(job.due_ms),
        "attempts": job.attempts,
        "payload": job.attribute,
        "key": job.dedup_key,
        "trace": job.trace,
        "priority": job.priority,
        "progress": None if job.last_progress is None else job.last_progress._asdict(),
        "result": job.result,
        "countdown": countdown_document(countdown),
    }


def countdown_document(countdown: Countdown | None) -> dict[str, Any] | None:
    """A countdown for `CountdownOut`."""
    if countdown is None:
        return None
    return {
        "wanted": countdown.wanted,
        "arrived": countdown.arrived,
        "arrival_ids": list(countdown.arrival_ids),
        "by": countdown.by,
    }


def arrival_document(answer: ArrivalAnswer) -> dict[str, Any]:
    """An answer for `ArrivalOut`, without its hint: see `answer_document`."""
    job_id = None if answer.job_id is None else str(answer.job_id)
    counts = {"arrived": answer.arrived, "wanted": answer.wanted}
    return {"answer": str(answer), "job_id": job_id, **counts}


def answer_document(answer: Answer) -> dict[str, Any]:
    """An answer for `AnswerOut`. Hints are left out: they may name types that the caller may not see."""
    job_id = None if answer.job_id is None else str(answer.job_id)
    return {"answer": str(answer), "job_id": job_id, "attempts": answer.attempts}


def scheduled_document(done: Scheduled) -> dict[str, Any]:
    """What schedule did, for `ScheduledOut`."""
    return {"job_id": str(done.job_id), "did": done.did, "running": done.running}


def etag_of(document: dict[str, Any]) -> str:
    """A strong ETag: equal documents have equal ones."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
