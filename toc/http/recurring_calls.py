"""The actions about recurring schedules. A schedule's tenant is that of the token.

A schedule that the caller may not use, by the biz_type of its jobs, looks like a missing one. The check
runs under the lock of the schedule's row: nobody can change the type in between.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from toc.access.authorise import is_allowed
from toc.access.caller import Caller, Scope
from toc.center.recurring_verbs import NEXT_TIMES_MAX, RecurringVerbs
from toc.domain.argument_checks import encode_attribute
from toc.domain.biz_ids import check_business_id
from toc.domain.declared_type import check_payload
from toc.domain.recurring import Recurring, check_schedule_name, make_schedule
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Action, Call, Reply
from toc.http.declared import require_type
from toc.http.job_checks import with_names_of_http
from toc.http.masks import mask_schedule
from toc.http.models import RecurringIn
from toc.http.wire_times import format_datetime, format_time, parse_action_time, parse_delay
from toc.store.recurring_changes import BackfillCount, schedule_not_found
from toc.store.recurring_rows import RecurringRow

T = TypeVar("T")


async def list_schedules(backend: Backend, call: Call) -> Reply:
    """GET /v1/recurring."""
    verbs = backend.center.recurring.with_guard(_guard_of(call.caller, "read"))

    def read(index: int) -> list[Recurring]:
        return verbs.list_of_tenant(call.caller.tenant, index)

    indexes = range(len(backend.settings.databases))
    parts = await asyncio.gather(
        *(backend.calls.run(index, functools.partial(read, index)) for index in indexes)
    )
    found = [_show(backend, call.caller, each) for part in parts for each in part]
    return Reply({"recurring": sorted(found, key=lambda each: str(each["name"]))})


async def get_schedule(backend: Backend, call: Call) -> Reply:
    """GET /v1/recurring/{name}."""
    count = _parse_count(call.query.get("next"))

    def read(verbs: RecurringVerbs, name: str) -> Recurring:
        return verbs.get(name, tenant=call.caller.tenant, next_times=count)

    return Reply(_show(backend, call.caller, await _run(backend, call, "read", read)))


async def put_schedule(backend: Backend, call: Call) -> Reply:
    """PUT /v1/recurring/{name}."""
    body: RecurringIn = call.body
    caller, name = call.caller, check_schedule_name(call.path["name"])
    declared = require_type(backend, caller, "admin", body.biz_type)
    try:
        encode_attribute(body.payload, backend.settings.limits.attribute_bytes)
        check_payload(declared, body.payload, field="payload")
        options = _options_of(body)
        # A rule is checked in a thread: the library may need a second for one that never fits.
        await asyncio.to_thread(make_schedule, name, **options)
        changed = await _run(
            backend, call, "admin",
            lambda verbs, name: verbs.add(
                name, **options, tenant=caller.tenant, reason=body.reason, actor=caller.actor
            ),
        )  # fmt: skip
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    return Reply(_show(backend, caller, changed), target=name, rows_changed=1)


async def delete_schedule(backend: Backend, call: Call) -> Reply:
    """DELETE /v1/recurring/{name}."""
    caller = call.caller

    def remove(verbs: RecurringVerbs, name: str) -> Recurring:
        found = verbs.get(name, tenant=caller.tenant)
        verbs.remove(name, tenant=caller.tenant, actor=caller.actor)
        return found

    found = await _run(backend, call, "admin", remove)
    return Reply(_show(backend, caller, found), target=found.name, rows_changed=1)


def _change(verb: Callable[[RecurringVerbs], Callable[..., Recurring]]) -> Action:
    async def act(backend: Backend, call: Call) -> Reply:
        caller = call.caller

        def change(verbs: RecurringVerbs, name: str) -> Recurring:
            return verb(verbs)(
                name, tenant=caller.tenant, reason=call.body.reason, actor=caller.actor
            )

        found = await _run(backend, call, "operate", change)
        return Reply(_show(backend, caller, found), target=found.name, rows_changed=1)

    return act


pause_schedule = _change(lambda verbs: verbs.pause)
resume_schedule = _change(lambda verbs: verbs.resume)


async def run_schedule(backend: Backend, call: Call) -> Reply:
    """POST /v1/recurring/{name}:run."""
    tenant = call.caller.tenant
    job_id = await _run(
        backend, call, "operate", lambda verbs, name: verbs.run(name, tenant=tenant)
    )
    return Reply({"job_id": str(job_id)}, target=call.path["name"], rows_changed=1)


async def backfill_schedule(backend: Backend, call: Call) -> Reply:
    """POST /v1/recurring/{name}:backfill."""
    tenant = call.caller.tenant
    start, end = _parse_time("start", call.body.start), _parse_time("end", call.body.end)
    done = await _run(
        backend, call, "operate",
        lambda verbs, name: verbs.backfill(name, start, end, tenant=tenant),
    )  # fmt: skip
    document = {"job_ids": [str(job_id) for job_id in done.job_ids], "present": done.present}
    return Reply(document, target=call.path["name"], rows_changed=len(done.job_ids))


async def count_backfill(backend: Backend, call: Call) -> BackfillCount:
    """What POST /v1/recurring/{name}:backfill would do now, for those who may send it."""
    tenant = call.caller.tenant
    start, end = _parse_time("start", call.body.start), _parse_time("end", call.body.end)
    return await _run(
        backend, call, "operate",
        lambda verbs, name: verbs.count_backfill(name, start, end, tenant=tenant),
    )  # fmt: skip


async def _run(
    backend: Backend, call: Call, scope: Scope, work: Callable[[RecurringVerbs, str], T]
) -> T:
    """Runs work(verbs, name) in a thread of the schedule's database. Raises NotFound if it is hidden."""
    name = check_schedule_name(call.path["name"])
    verbs = backend.center.recurring.with_guard(
        _guard_of(call.caller, scope), _admit_of(backend, call.caller)
    )
    index = backend.database_of_business(check_business_id(name, call.caller.tenant))
    return await backend.calls.run(index, lambda: work(verbs, name))


def _guard_of(caller: Caller, scope: Scope) -> Callable[[RecurringRow], None]:
    def guard(row: RecurringRow) -> None:
        if not is_allowed(caller, scope, row.schedule.biz_type, row.tenant):
            raise schedule_not_found(row.name)

    return guard


def _admit_of(backend: Backend, caller: Caller) -> Callable[[RecurringRow, int], None]:
    """The jobs of a run or a backfill cost as those of a bulk, and need room as all others do."""

    def admit(row: RecurringRow, jobs: int) -> None:
        access, schedule = backend.access, row.schedule
        if jobs > 1:
            access.limits.take(caller, access.limits.cost_of(jobs) - 1.0).raise_if_refused()
        if not access.live_jobs.admits(schedule.business, schedule.biz_type, jobs):
            access.live_jobs.check(schedule.business, schedule.biz_type, jobs)

    return admit


def _options_of(body: RecurringIn) -> dict[str, Any]:
    """The options of `TimeoutCenter.recur`."""
    return {
        "cron": body.cron,
        "every": None if body.every is None else parse_delay(body.every, "every"),
        "rrule": body.rrule,
        "tz": body.tz,
        "biz_type": body.biz_type,
        "attribute": body.payload,
        "start": None if body.start is None else _parse_time("start", body.start),
        "end": None if body.end is None else _parse_time("end", body.end),
        "gap": body.gap,
        "overlap": body.overlap,
        "catch_up": parse_delay(body.catch_up, "catch_up"),
        "jitter": parse_delay(body.jitter, "jitter"),
        "priority": body.priority,
    }


def _parse_time(field: str, text: str) -> datetime:
    try:
        return parse_action_time(text)
    except InvalidInput as error:
        raise InvalidInput(field, error.value, error.rule) from None


def _parse_count(text: str | None) -> int:
    if text is None:
        return 1
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) > NEXT_TIMES_MAX:
        raise InvalidInput("next", text[:10], f"must be an integer from 0 to {NEXT_TIMES_MAX}")
    return int(text)


def _show(backend: Backend, caller: Caller, found: Recurring) -> dict[str, Any]:
    """A schedule for `RecurringOut`, as the caller may see it."""
    return mask_schedule(backend, caller, schedule_document(found))


def schedule_document(found: Recurring) -> dict[str, Any]:
    """A schedule for `RecurringOut`, without its mask."""
    schedule, rule = found.schedule, found.schedule.recurrence
    moment = found.nominal_time
    return {
        "name": found.name,
        "biz_type": schedule.biz_type,
        "cron": rule.cron,
        "every_s": rule.every_s,
        "rrule": rule.rrule,
        "tz": rule.tz,
        "gap": rule.gap,
        "start": format_time(rule.start_ms),
        "end": format_time(rule.end_ms),
        "overlap": schedule.overlap,
        "catch_up_s": schedule.catch_up_s,
        "jitter_s": schedule.jitter_s,
        "priority": schedule.priority,
        "payload": schedule.attribute_value,
        "paused_since": None if found.paused_since is None else format_datetime(found.paused_since),
        "job_id": None if found.job_id is None else str(found.job_id),
        "nominal_time": None if moment is None else format_datetime(moment),
        "next_times": [format_datetime(each) for each in found.next_times],
        "made": found.made,
        "skipped": found.skipped,
        "version": found.version,
        "actor": found.actor,
        "reason": found.reason,
    }
