"""`toc recurring …`: recurring schedules."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from toc.cli.clients import open_client
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import USAGE, CommandError
from toc.cli.jobs import Priority
from toc.cli.output import Output
from toc.cli.time_texts import parse_time_argument
from toc.domain.duration_texts import duration_text
from toc.domain.recurrence import find_zone
from toc.domain.recurring import Recurring
from toc.errors import InvalidInput

COUNT_DEFAULT, COUNT_MAX = 10, 1000


class GapOption(StrEnum):
    """What happens to wall times that daylight saving skips."""

    SKIP = "skip"
    NEXT = "next"


class OverlapOption(StrEnum):
    """What happens at a time at which the job before still lives."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_OTHER = "cancel-other"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.", show_default=False)]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Whose schedule it is.")]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the schedule.")
]
Cron = Annotated[
    str | None, typer.Option("--cron", metavar="C", help='Five fields of cron: "0 3 * * *".')
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="D", help="Time between two jobs: 30s, 5m, 1h.")
]
Rrule = Annotated[
    str | None, typer.Option("--rrule", metavar="R", help="An RRULE (RFC 5545); needs --start.")
]
Zone = Annotated[str, typer.Option("--tz", metavar="ZONE", help="The zone of cron and rrule.")]
BizType = Annotated[
    str | None, typer.Option("--type", metavar="T", help="The biz_type (default: NAME).")
]
Attribute = Annotated[
    str | None, typer.Option("--attribute", metavar="JSON", help="A JSON object for the handler.")
]
Start = Annotated[
    str | None, typer.Option("--start", metavar="TIME", help="No job before; it may be one.")
]
End = Annotated[
    str | None, typer.Option("--end", metavar="TIME", help="No job after; it may be one.")
]
Gap = Annotated[GapOption, typer.Option("--gap", help="For times that daylight saving time skips.")]
Overlap = Annotated[
    OverlapOption, typer.Option("--overlap", help="For times at which the job before still lives.")
]
CatchUp = Annotated[
    str, typer.Option("--catch-up", metavar="D", help="A job may begin so late: 1h.")
]
Jitter = Annotated[
    str, typer.Option("--jitter", metavar="D", help="Each job is due up to so much later.")
]
Count = Annotated[
    int, typer.Option("--count", min=1, max=COUNT_MAX, help="How many times to show.")
]


@answering_command
def add_schedule(
    output: Output,
    *,
    name: Name,
    cron: Cron = None,
    every: Every = None,
    rrule: Rrule = None,
    tz: Zone = "UTC",
    biz_type: BizType = None,
    attribute: Attribute = None,
    start: Start = None,
    end: End = None,
    gap: Gap = GapOption.SKIP,
    overlap: Overlap = OverlapOption.SKIP,
    catch_up: CatchUp = "1h",
    jitter: Jitter = "0s",
    priority: Priority = 0,
    tenant: Tenant = None,
    reason: Reason = None,
) -> None:
    """Declare a recurring schedule, or change it as a whole.

    Its job that has not begun is replaced; a job that has begun goes on. A paused schedule stays paused.
    """
    with open_client() as center:
        found = center.recur(
            name, cron=cron, every=None if every is None else _duration("--every", every),
            rrule=rrule, tz=tz, biz_type=biz_type, attribute=_parse_attribute(attribute),
            start=_moment("--start", start), end=_moment("--end", end), gap=gap.value,
            overlap=overlap.value, catch_up=_duration("--catch-up", catch_up),
            jitter=_duration("--jitter", jitter), priority=priority, tenant=tenant, reason=reason,
        )  # fmt: skip
    _print_schedule(output, found)


@answering_command
def list_schedules(output: Output) -> None:
    """List the recurring schedules, with their next times."""
    with open_client() as center:
        found = center.recurring.list()
    output.print_table(
        {"recurring": [_as_json(each) for each in found]},
        ("name", "tenant", "when", "biz_type", "next", ">made", ">skipped", "overlap", "catch-up"),
        [
            (
                each.name,
                each.schedule.tenant or "",
                _rule_text(each),
                each.schedule.biz_type,
                "paused" if each.is_paused else _local_text(each, each.next_times),
                each.made,
                each.skipped,
                each.schedule.overlap,
                duration_text(each.schedule.catch_up_s * 1000),
            )
            for each in found
        ],
        empty="no recurring schedules",
    )


@answering_command
def show_next_times(
    output: Output, *, name: Name, count: Count = COUNT_DEFAULT, tenant: Tenant = None
) -> None:
    """Show the next nominal times of a schedule, in its own zone and in UTC."""
    with open_client() as center:
        found = center.recurring.get(name, tenant=tenant, next_times=count)
    output.print_table(
        _as_json(found),
        (found.schedule.recurrence.tz, "UTC"),
        [(_local_text(found, [each]), _utc_text(each)) for each in found.next_times],
        empty="no time is left",
        last="the schedule is paused: none of these will be made" if found.is_paused else "",
    )


@answering_command
def run_schedule(output: Output, *, name: Name, tenant: Tenant = None) -> None:
    """Make one more job of a schedule, due now. Its chain goes on as if nothing had happened."""
    with open_client() as center:
        job_id = center.recurring.run(name, tenant=tenant)
    output.print_value({"job_id": str(job_id)}, f"job {job_id}: due now")


@answering_command
def pause_schedule(
    output: Output, *, name: Name, tenant: Tenant = None, reason: Reason = None
) -> None:
    """Pause a schedule: its job that has not begun is cancelled, and no other is made."""
    with open_client() as center:
        found = center.recurring.pause(name, tenant=tenant, reason=reason)
    _print_schedule(output, found)


@answering_command
def resume_schedule(
    output: Output, *, name: Name, tenant: Tenant = None, reason: Reason = None
) -> None:
    """Resume a paused schedule from now on. `toc recurring backfill` makes the jobs of earlier times."""
    with open_client() as center:
        found = center.recurring.resume(name, tenant=tenant, reason=reason)
    _print_schedule(output, found)


@answering_command
def remove_schedule(
    output: Output, *, name: Name, tenant: Tenant = None, reason: Reason = None
) -> None:
    """Remove a schedule, and cancel its job that has not begun.

    A schedule that code or toc.toml declares comes back when a node starts: remove it there first.
    """
    with open_client() as center:
        center.recurring.remove(name, tenant=tenant, reason=reason)
    output.print_value({"name": name, "removed": True}, f"{name}: removed")


@answering_command
def backfill_schedule(
    output: Output,
    *,
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first time.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The last time.")],
    tenant: Tenant = None,
) -> None:
    """Make the jobs of the nominal times in a range that had none, all due now.

    At most limits.backfill times; times after now are left out.
    """
    first, last = _moment("--from", start), _moment("--to", end)
    assert first is not None  # noqa: S101 - both are given
    assert last is not None  # noqa: S101
    with open_client() as center:
        done = center.recurring.backfill(name, first, last, tenant=tenant)
    output.print_value(
        {"job_ids": [str(job_id) for job_id in done.job_ids], "present": done.present},
        f"{name}: {len(done.job_ids)} jobs made; {done.present} times had a job already",
    )


def _print_schedule(output: Output, found: Recurring) -> None:
    next_text = _local_text(found, found.next_times)
    state = f"paused since {_utc_text(found.paused_since)}" if found.paused_since else next_text
    text = f"{found.name}: {_rule_text(found)}: {state} (version {found.version})"
    output.print_value(_as_json(found), text)


def _rule_text(found: Recurring) -> str:
    rule = found.schedule.recurrence
    if rule.every_s is not None:
        return f"every {duration_text(rule.every_s * 1000)}"
    return f"{rule.cron or rule.rrule} {rule.tz}"


def _local_text(found: Recurring, times: Any) -> str:
    """The first of the times in the schedule's zone; a text if there is none."""
    if not times:
        return "no time is left"
    zone = find_zone(found.schedule.recurrence.tz)
    local: datetime = times[0].astimezone(zone)
    return local.isoformat(sep=" ", timespec="seconds")


def _utc_text(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _as_json(found: Recurring) -> dict[str, Any]:
    schedule = found.schedule
    return {
        "name": found.name,
        "tenant": schedule.tenant,
        **json.loads(schedule.to_json()),
        "attribute": schedule.attribute_value,
        "priority": schedule.priority,
        "paused_since": None if found.paused_since is None else found.paused_since.isoformat(),
        "job_id": None if found.job_id is None else str(found.job_id),
        "nominal_time": None if found.nominal_time is None else found.nominal_time.isoformat(),
        "next_times": [each.isoformat() for each in found.next_times],
        "made": found.made,
        "skipped": found.skipped,
        "version": found.version,
        "actor": found.actor,
        "reason": found.reason,
    }


def _duration(option: str, text: str) -> timedelta:
    value = parse_time_argument(text)
    if not isinstance(value, timedelta):
        raise CommandError(f"{option}: must be a length of time, as 30s, 5m or 1h", USAGE)
    return value


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    value = parse_time_argument(text)
    if not isinstance(value, datetime):
        raise CommandError(f"{option}: must be a time with its zone: 2030-01-31T08:00:00Z", USAGE)
    return value


def _parse_attribute(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("attribute", text, f"must be a JSON object: {error}") from None
    return value
