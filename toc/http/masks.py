"""Payloads, results and errors of `web.masked_types` are shown only to callers with the scope admin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toc.access.authorise import is_allowed, matches_pattern
from toc.access.caller import Caller
from toc.domain.job import DeadJob
from toc.http.backend import Backend

MASKED = "***"
"""In place of the text of an error."""
_CLASS_OF_ERROR = re.compile(r"\s*([A-Za-z_.]{0,60}(?:Error|Exception)): ", re.ASCII)

_VERBS_OF_PEOPLE = frozenset({"cancel", "reschedule", "run_now", "redrive", "discard"})
"""The reasons of other events may be texts of errors."""


def is_masked(backend: Backend, caller: Caller, biz_type: str) -> bool:
    """Whether payloads, results and errors of this type are not for the caller."""
    patterns = backend.settings.web.masked_types
    return any(matches_pattern(each, biz_type) for each in patterns) and not is_allowed(
        caller, "admin", biz_type, caller.tenant
    )


def mask_job(backend: Backend, caller: Caller, job: Mapping[str, Any]) -> dict[str, Any]:
    """A document of a job as the caller may see it; `masked` says whether something was left out."""
    if not is_masked(backend, caller, job["biz_type"]):
        return {**job, "masked": False}
    return {**job, "payload": {}, "progress": None, "result": None, "masked": True}


def mask_schedule(backend: Backend, caller: Caller, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A document of a recurring schedule, as `mask_job`: each of its jobs gets its payload."""
    if not is_masked(backend, caller, schedule["biz_type"]):
        return {**schedule, "masked": False}
    return {**schedule, "payload": {}, "masked": True}


def mask_dead_job(backend: Backend, caller: Caller, job: DeadJob) -> DeadJob:
    """A dead job without the text of its error, if that is not for the caller; the class stays."""
    if not is_masked(backend, caller, job.biz_type):
        return job
    found = _CLASS_OF_ERROR.match(job.error)
    return replace(job, error=MASKED if found is None else f"{found[1]}: {MASKED}")


def mask_reason(event: Mapping[str, Any]) -> dict[str, Any]:
    """The document of an event without what may be the text of an error."""
    return {**event, "reason": event["reason"] if event["what"] in _VERBS_OF_PEOPLE else None}
