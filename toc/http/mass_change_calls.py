"""The actions about mass changes: count, start, list, show and stop.

A change needs the scope operate for its type; a cancel also needs the scope cancel. It concerns the jobs of
the token's tenant alone. A change that the caller may not see looks like a missing one.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.admin.bulk_changes import BulkChanges, open_bulk_changes
from toc.admin.mass_jobs import ChosenJobs, choose_mass_jobs, make_request
from toc.domain.argument_checks import check_biz_type
from toc.domain.biz_ids import check_business_id
from toc.domain.mass_change import JobSelection
from toc.domain.times import action_time_to_ms
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import not_allowed
from toc.http.job_documents import parse_biz_id
from toc.http.masks import MASKED, is_masked
from toc.http.mass_change_models import MassChangeIn, MassCountIn
from toc.http.mass_runs import Starter
from toc.http.problems import HttpProblem
from toc.http.wire_times import format_time, parse_action_time
from toc.store.mass_change_rows import (
    MassChange,
    ask_to_stop,
    end_mass_change,
    insert_mass_change,
    read_mass_change,
    read_mass_changes,
)

LISTED_MAX = 100  # of those that the caller may see
DIFFERENCE_MAX = 0.1  # of the expected count
_DATABASE = 0  # has the rows


async def count_jobs(backend: Backend, call: Call) -> Reply:
    """POST /v1/mass_changes:count."""
    body: MassCountIn = call.body
    wanted = _check_selection(backend, call.caller, body)

    def count() -> dict[str, Any]:
        with open_bulk_changes(backend.settings, backend.clock) as changes:
            jobs = replace(wanted, as_of_ms=changes.now_ms)
            return _count_document(choose_mass_jobs(changes, body.verb, jobs), jobs)

    async with backend.mass_reads:
        return Reply(await backend.calls.run(_DATABASE, count))


async def start_change(backend: Backend, call: Call) -> Reply:
    """POST /v1/mass_changes."""
    body: MassChangeIn = call.body
    wanted = _check_selection(backend, call.caller, body)
    wanted = replace(wanted, as_of_ms=_parse_time("as_of", body.as_of))
    rate_max = backend.settings.web.limits.mass_rate_per_s
    if body.rate_per_s > rate_max:
        rule = f"must be 1 to {rate_max} (web.limits.mass_rate_per_s)"
        raise InvalidInput("rate_per_s", body.rate_per_s, rule)
    make_request(body.verb, wanted, call.caller.actor, body.reason).check_actor_and_reason()

    # In one thread: if the caller does not wait for the end, the change starts as a whole or not at all.
    def start() -> MassChange:
        with open_bulk_changes(backend.settings, backend.clock) as changes:
            change, chosen = _begin(backend, changes, call, wanted)
        if chosen.count:
            starter = Starter(call.caller, call.address, call.request_id)
            backend.mass_runs.start(change, chosen.shards, starter)
            return change
        end_mass_change(backend.mass_runs.database, change.mass_change_id, "done", None, 0, 0)
        return change._replace(state="done")

    async with backend.mass_reads:
        change = await backend.calls.run(_DATABASE, start)
    return Reply(
        _show(backend, call.caller, change),
        HTTPStatus.CREATED,
        {"Location": f"/v1/mass_changes/{change.mass_change_id}"},
        "started",
        _describe(change),
    )


def _begin(
    backend: Backend, changes: BulkChanges, call: Call, wanted: JobSelection
) -> tuple[MassChange, ChosenJobs]:
    """Chooses the jobs, compares their number with the expected one, and writes the row."""
    body: MassChangeIn = call.body
    jobs = replace(wanted, as_of_ms=min(wanted.as_of_ms, changes.now_ms))
    chosen = choose_mass_jobs(changes, body.verb, jobs)
    expected = body.expected_count
    if abs(chosen.count - expected) > DIFFERENCE_MAX * expected:
        raise HttpProblem(
            HTTPStatus.CONFLICT, "count_differs",
            f"{chosen.count} jobs are in reach now, and {expected} were expected: nothing was changed",
            count=chosen.count,
        )  # fmt: skip
    change = MassChange(
        secrets.token_hex(8), body.verb, jobs.biz_type, jobs.tenant, jobs.to_json(), body.rate_per_s,
        chosen.count, 0, 0, "running", None, None, call.caller.actor, body.reason,
        changes.now_ms, changes.now_ms,
    )  # fmt: skip
    running_max = backend.settings.web.limits.mass_changes
    if not insert_mass_change(backend.mass_runs.database, change, running_max):
        raise HttpProblem(
            HTTPStatus.CONFLICT, "too_many_mass_changes",
            f"{running_max} mass changes run already: wait for one, or stop it",
            rule="web.limits.mass_changes",
        )  # fmt: skip
    return change, chosen


async def list_changes(backend: Backend, call: Call) -> Reply:
    """GET /v1/mass_changes."""
    database = backend.mass_runs.database
    found = await backend.calls.run(_DATABASE, lambda: read_mass_changes(database))
    seen = [each for each in found if _may_see(call.caller, each)][:LISTED_MAX]
    return Reply({"mass_changes": [_show(backend, call.caller, each) for each in seen]})


async def get_change(backend: Backend, call: Call) -> Reply:
    """GET /v1/mass_changes/{mass_change_id}."""
    return Reply(_show(backend, call.caller, await _read(backend, call)))


async def stop_change(backend: Backend, call: Call) -> Reply:
    """POST /v1/mass_changes/{mass_change_id}:stop."""
    change = await _read(backend, call)
    if not is_allowed(call.caller, "operate", change.biz_type, change.tenant):
        raise not_allowed("operate")
    # Without news the change may go on: its process stood still, or the clock of database 0 has jumped.
    if change.state != "running" and change.cause != "silent":
        return Reply(
            _show(backend, call.caller, change), outcome=change.state, target=change.mass_change_id,
            is_worth_auditing=False,
        )  # fmt: skip
    database, actor = backend.mass_runs.database, call.caller.actor
    await backend.calls.run(_DATABASE, lambda: ask_to_stop(database, change.mass_change_id, actor))
    change = await _read(backend, call)
    return Reply(
        _show(backend, call.caller, change), outcome="stopping", target=change.mass_change_id
    )


async def _read(backend: Backend, call: Call) -> MassChange:
    database, wanted = backend.mass_runs.database, call.path["mass_change_id"]
    change = await backend.calls.run(_DATABASE, lambda: read_mass_change(database, wanted))
    if change is None or not _may_see(call.caller, change):
        raise HttpProblem(HTTPStatus.NOT_FOUND, "not_found", "there is no such mass change")
    return change


def _may_see(caller: Caller, change: MassChange) -> bool:
    """Who may read the jobs, or change them, may see the change."""
    return any(
        is_allowed(caller, scope, change.biz_type, change.tenant) for scope in ("read", "operate")
    )


def _check_selection(backend: Backend, caller: Caller, body: MassCountIn) -> JobSelection:
    """Which jobs, without the time of the count. Raises HttpProblem (403) and InvalidInput."""
    if not is_allowed(caller, "operate", body.biz_type, caller.tenant):
        raise not_allowed("operate")
    if body.verb == "cancel" and not is_allowed(caller, "cancel", body.biz_type, caller.tenant):
        raise not_allowed("cancel")
    if body.verb == "cancel" and body.error_class is not None:
        rule = "must not be given with cancel: only dead jobs have an error"
        raise InvalidInput("error_class", body.error_class, rule)
    if body.error_class is not None and is_masked(backend, caller, body.biz_type):
        # The count would tell what the error is.
        rule = "must not be given: the errors of this type are masked (web.masked_types)"
        raise InvalidInput("error_class", None, rule)
    biz_id = body.biz_id
    if biz_id is not None:
        biz_id = parse_biz_id(biz_id, body.biz_id_is_text, digits_are_text=True)
        check_business_id(biz_id)
    return JobSelection(
        check_biz_type(body.biz_type), caller.tenant, 0, body.error_class,
        _parse_optional_time("since", body.since), _parse_optional_time("until", body.until), biz_id,
    )  # fmt: skip


def _parse_optional_time(field: str, text: str | None) -> int | None:
    return None if text is None else _parse_time(field, text)


def _parse_time(field: str, text: str) -> int:
    try:
        return action_time_to_ms(parse_action_time(text), 0)
    except InvalidInput as error:
        raise InvalidInput(field, error.value, error.rule) from None


def _count_document(chosen: ChosenJobs, jobs: JobSelection) -> dict[str, Any]:
    return {
        "count": chosen.count,
        "is_complete": chosen.is_complete,
        "examples": [str(job_id) for job_id in chosen.examples],
        "as_of": format_time(jobs.as_of_ms),
    }


def _show(backend: Backend, caller: Caller, change: MassChange) -> dict[str, Any]:
    """A change for `MassChangeOut`, as the caller may see it."""
    jobs = change.jobs
    error_class = jobs.error_class
    if error_class is not None and is_masked(backend, caller, change.biz_type):
        error_class = MASKED
    return {
        "mass_change_id": change.mass_change_id,
        "verb": change.verb,
        "state": change.state,
        "cause": change.cause,
        "stop_actor": change.stop_actor,
        "biz_type": change.biz_type,
        "error_class": error_class,
        "since": format_time(jobs.since_ms),
        "until": format_time(jobs.until_ms),
        "biz_id": None if jobs.biz_id is None else str(jobs.biz_id),
        "biz_id_is_text": isinstance(jobs.biz_id, str),
        "as_of": format_time(jobs.as_of_ms),
        "rate_per_s": change.rate_per_s,
        "chosen": change.chosen,
        "changed": change.changed,
        "left_alone": change.left_alone,
        "actor": change.actor,
        "reason": change.reason,
        "begin_time": format_time(change.begin_ms),
        "last_time": format_time(change.beat_ms),
    }


def _describe(change: MassChange) -> str:
    """A change for the audit. The reason is last: it may be cut off."""
    jobs = change.jobs
    filters = {
        "error class": jobs.error_class,
        "business id": jobs.biz_id,
        "since": format_time(jobs.since_ms),
        "until": format_time(jobs.until_ms),
        "as of": format_time(jobs.as_of_ms),
    }
    words = [f"{name} {value}" for name, value in filters.items() if value is not None]
    return (
        f"{change.mass_change_id}: {change.verb} {change.chosen} of {change.biz_type} at "
        f"{change.rate_per_s}/s, {', '.join(words)}: {change.reason}"
    )
