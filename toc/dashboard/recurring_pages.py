"""The pages Recurring (all schedules) and one schedule: its next times, last runs, and backfill."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.responses import HTMLResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.actions import said
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.occurrence_keys import is_chain_key, nominal_ms_of_key
from toc.domain.recurrence import find_zone
from toc.errors import InvalidInput
from toc.http import job_calls, recurring_calls
from toc.http.models import BackfillIn
from toc.http.wire_times import format_datetime
from toc.sentences import sentence
from toc.store.recurring_changes import BackfillCount

NEXT_TIMES = 10
RUNS = 20
_TIME_CHARS_MAX = 64


class Run(NamedTuple):
    """A job of a schedule. is_extra: made by a person or a backfill, not by the chain."""

    job: dict[str, Any]
    nominal_ms: int
    is_extra: bool


class BackfillPlan(NamedTuple):
    """A range as the person asked for it, in RFC 3339, and what a backfill would do."""

    start: str
    end: str
    counted: BackfillCount


async def show_recurring(visit: Visit) -> Response:
    """GET /ui/recurring."""
    reply = await recurring_calls.list_schedules(visit.backend, visit.call())
    schedules = reply.document["recurring"]
    operable = {each["name"] for each in schedules if _may_operate(visit, each)}
    html = render(
        visit, "recurring.html", schedules=schedules, operable=operable, in_zone=wall_time,
        said=said(visit),
    )  # fmt: skip
    return HTMLResponse(html)


async def show_schedule(visit: Visit) -> Response:
    """GET /ui/recurring/{name}?start=&end=: start and end: a range for a backfill, which is counted."""
    path = {"name": visit.request.path_params["name"]}
    call = visit.call(path, {"next": str(NEXT_TIMES)})
    schedule = (await recurring_calls.get_schedule(visit.backend, call)).document
    may_operate = _may_operate(visit, schedule)
    plan, refused = None, ""
    if may_operate and (visit.query.get("start") or visit.query.get("end")):
        try:
            plan = await _count_backfill(visit, schedule["tz"], path)
        except InvalidInput as error:
            refused = visit.texts.refusal(error)
    html = render(
        visit, "schedule.html", schedule=schedule, runs=await _read_runs(visit, schedule), plan=plan,
        refused=refused, may_operate=may_operate, runs_max=RUNS, in_zone=wall_time, said=said(visit),
    )  # fmt: skip
    return HTMLResponse(html)


def wall_time(value: str, zone: str) -> str:
    """A time as the clocks of a zone show it."""
    return f"{datetime.fromisoformat(value).astimezone(find_zone(zone)):%Y-%m-%d %H:%M:%S %z}"


async def _read_runs(visit: Visit, schedule: dict[str, Any]) -> list[Run]:
    """The newest jobs of a schedule: its name is their business id."""
    query = {"biz_id": schedule["name"], "biz_id_is_text": "true", "limit": str(RUNS)}
    call = visit.call({"biz_type": schedule["biz_type"]}, query)
    jobs = (await job_calls.find_jobs(visit.backend, call)).document["jobs"]
    runs = [(job, nominal_ms_of_key(job["key"])) for job in jobs]
    return [
        Run(job, nominal_ms, not is_chain_key(job["key"]))
        for job, nominal_ms in runs
        if nominal_ms is not None
    ]


async def _count_backfill(visit: Visit, zone: str, path: dict[str, str]) -> BackfillPlan:
    """Raises InvalidInput. The end is at most now, so that no further time can be added later."""
    start, end = (_parse_wall_time(visit, name, zone) for name in ("start", "end"))
    now = datetime.fromtimestamp(visit.backend.clock.wall_ms() / 1000, UTC)
    if start > now:
        raise InvalidInput("start", visit.query.get("start"), "must not lie ahead")
    body = BackfillIn(start=format_datetime(start), end=format_datetime(min(end, now)))
    count = await recurring_calls.count_backfill(visit.backend, visit.call(path, {}, body))
    return BackfillPlan(body.start, body.end, count)


def _parse_wall_time(visit: Visit, field: str, zone: str) -> datetime:
    """A time of a form, on the wall of the schedule's zone if it names no other one."""
    text = visit.query.get(field, "").strip()
    rule = sentence("must be a time, as 2026-01-31T18:00 (in {zone})", zone=zone)
    if len(text) > _TIME_CHARS_MAX:
        raise InvalidInput(field, text[:_TIME_CHARS_MAX], rule)
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=find_zone(zone))
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(field, text, rule) from None


def _may_operate(visit: Visit, schedule: dict[str, Any]) -> bool:
    return is_allowed(visit.person, "operate", schedule["biz_type"], visit.person.tenant)
