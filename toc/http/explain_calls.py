"""The actions explain and health."""

from __future__ import annotations

import asyncio
import functools
from http import HTTPStatus
from typing import Any

from toc.access.caller import Caller
from toc.admin.job_explanation import (
    JobExplanation,
    ReminderLocation,
    compute_job_delays,
    explain_job,
)
from toc.admin.job_meaning import describe_job_state, runner_of
from toc.domain.job import Event
from toc.errors import NotFound, StoreUnavailable
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.job_calls import read_job
from toc.http.job_documents import job_document
from toc.http.masks import mask_job, mask_reason
from toc.http.wire_times import format_time
from toc.store.job_details import JobDetails


async def explain(backend: Backend, call: Call) -> Reply:
    """GET /v1/jobs/{job_id}/explain."""
    job = await read_job(backend, call)
    async with backend.explanations:
        ask = functools.partial(explain_job, backend.settings, job.job_id, backend.clock)
        found = await asyncio.to_thread(ask)
    if found.database_error is not None:
        raise StoreUnavailable(found.home.database, found.database_error)
    if found.record is None:  # deleted in between
        raise NotFound("no such job")
    return Reply(_explanation_document(backend, call.caller, found, found.record))


def _explanation_document(
    backend: Backend, caller: Caller, found: JobExplanation, record: JobDetails
) -> dict[str, Any]:
    shown = mask_job(backend, caller, job_document(record.job))
    hides = shown["masked"]
    events = [_event_document(event) for event in found.events]
    delays, job = compute_job_delays(record), record.job
    place = found.own_topic_reminder
    return {
        "job": shown,
        "means": describe_job_state(found, backend.settings).text,
        "created_time": format_time(record.created_ms),
        "claimed_time": format_time(job.claimed_ms),
        "ended_time": None if job.status.live else format_time(record.modified_ms),
        "shard": found.home.shard,
        "armed_time": format_time(None if place is None else place.armed_ms),
        "reminder": None if place is None else _reminder_document(place),
        "runner": runner_of(job),
        "owners": [
            {
                "topic": topic or None,
                "node": owner.node,
                "since": format_time(owner.since_ms),
                "deputy": owner.deputy,
            }
            for topic, owners in found.owners.items()
            for owner in owners
        ],
        "claimed_after_ms": delays.claimed_after_ms,
        "ended_after_ms": delays.ended_after_ms,
        "error": None if record.letter is None or hides else record.letter.error,
        "events": [mask_reason(event) for event in events] if hides else events,
        "missing": sorted(found.troubles),  # the names alone: the texts are those of drivers
    }


def _reminder_document(place: ReminderLocation) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "slot": place.slot,
        "armed_time": format_time(place.armed_ms),
        "out_time": format_time(place.out_ms),
    }


def _event_document(event: Event) -> dict[str, Any]:
    return {
        "time": format_time(event.at_ms),
        "what": event.what,
        "from_status": event.from_status.name.lower(),
        "to_status": event.to_status.name.lower(),
        "attempts": event.attempts,
        "claimed_time": format_time(event.claimed_ms),
        "took_ms": event.took_ms,
        "actor": event.actor,
        "reason": event.reason,
    }


async def health(backend: Backend, call: Call) -> Reply:
    """GET /v1/health."""
    state = await backend.read_health()
    status = HTTPStatus.SERVICE_UNAVAILABLE if state == "down" else HTTPStatus.OK
    return Reply({"state": state}, status)
