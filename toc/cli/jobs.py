"""`toc schedule`, `cancel`, `reschedule` and `job show`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from toc.cli.clients import (
    BIZ_ID_HELP,
    AnyType,
    BizId,
    Key,
    Reason,
    Type,
    check_one_target_given,
    job_as_json,
    open_client,
    parse_biz_id,
    print_answer,
)
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import WHEN_HELP, parse_time_argument, time_for_people


class OnDuplicateOption(StrEnum):
    """What happens when a live job holds the key."""

    KEEP = "keep"
    REPLACE = "replace"
    EARLIEST = "earliest"
    LATEST = "latest"
    ONCE = "once"
    ERROR = "error"


When = Annotated[str, typer.Argument(metavar="WHEN", help=WHEN_HELP, show_default=False)]
JobId = Annotated[int | None, typer.Argument(metavar="[JOB_ID]", show_default=False)]
Attribute = Annotated[
    str | None, typer.Option("--attribute", metavar="JSON", help="A JSON object for the handler.")
]
Duplicate = Annotated[
    OnDuplicateOption,
    typer.Option("--on-duplicate", help="What to do when a live job holds the --key."),
]


Priority = Annotated[
    int,
    typer.Option(
        "--priority", metavar="0-9", help="Where due jobs of the type wait, higher ones go first."
    ),
]


@answering_command
def schedule_job(
    output: Output,
    *,
    biz_id: Annotated[str, typer.Argument(metavar="BIZ_ID", help=BIZ_ID_HELP, show_default=False)],
    when: When,
    biz_type: Type = "default",
    attribute: Attribute = None,
    key: Key = None,
    on_duplicate: Duplicate = OnDuplicateOption.KEEP,
    priority: Priority = 0,
) -> None:
    """Schedule a job: act on BIZ_ID at WHEN.

    When this command has answered, the job is as durable as the database's COMMIT. If a live job holds
    the key, the answer says whether that job was kept or replaced; --on-duplicate error exits 1.
    """
    moment, value = parse_time_argument(when), parse_attribute_option(attribute)
    with open_client() as center:
        done = center.schedule(
            parse_biz_id(biz_id),
            moment,
            biz_type=biz_type,
            attribute=value,
            dedup_key=key,
            on_duplicate=on_duplicate.value,
            priority=priority,
            details=True,
        )
        job = center.get(done.job_id)
    due = None if job is None else job.due_ms  # None: the job was due so soon that it has ended
    value = job_as_json(job) if job is not None else {"job_id": str(done.job_id)}
    value |= {"did": done.did, "kept_running": done.running}
    text = f"job {done.job_id}: due {time_for_people(due)}" if due else f"job {done.job_id}"
    if done.running:
        text = f"job {done.job_id}: kept: it holds the key and runs already; nothing was scheduled"
    elif not done.created:
        text += f" ({done.did}: it holds the key)"
    output.print_value(value, text)


@answering_command
def cancel_jobs(
    output: Output,
    job_id: JobId = None,
    biz_id: BizId = None,
    biz_type: Type = "default",
    key: Key = None,
    reason: Reason = None,
) -> int:
    """Cancel a job by its id, or the live jobs of a business id and type.

    "cancelled" means: no handler has started or will. Otherwise the job's current status is shown
    (running, done, already_cancelled, dead, unknown), and the command exits 1.
    """
    check_one_target_given(job_id, biz_id)
    business = None if biz_id is None else parse_biz_id(biz_id)
    with open_client() as center:
        answer = center.cancel(
            job_id, biz_id=business, biz_type=biz_type, dedup_key=key, reason=reason
        )
    return print_answer(output, answer)


@answering_command
def reschedule_job(
    output: Output,
    target: Annotated[list[str], typer.Argument(metavar="[JOB_ID] WHEN", help=WHEN_HELP)],
    biz_id: BizId = None,
    biz_type: Type = "default",
    key: Key = None,
    reason: Reason = None,
) -> int:
    """Move a pending job to another time.

    Exits 1 with the job's current status when it is not pending.
    """
    if len(target) != (1 if biz_id is not None else 2):
        raise CommandError("give JOB_ID and WHEN, or --biz-id (with --type) and WHEN", USAGE)
    moment = parse_time_argument(target[-1])
    job_id = _parse_job_id(target[0]) if biz_id is None else None
    business = None if biz_id is None else parse_biz_id(biz_id)
    with open_client() as center:
        answer = center.reschedule(
            job_id,
            moment,
            biz_id=business,
            biz_type=biz_type,
            dedup_key=key,
            reason=reason,
        )
    return print_answer(output, answer)


@answering_command
def show_jobs(
    output: Output, job_id: JobId = None, biz_id: BizId = None, biz_type: AnyType = None
) -> int:
    """Show a job, or the jobs of a business id: live and ended, newest first.

    `toc explain JOB_ID` shows more about one job. Exits 1 when there is no such job.
    """
    check_one_target_given(job_id, biz_id)
    with open_client() as center:
        if biz_id is not None:
            jobs = center.find(parse_biz_id(biz_id), biz_type)
        else:
            found = center.get(job_id or 0)
            jobs = [] if found is None else [found]
    rows = [
        (job.job_id, job.biz_id, job.biz_type, job.status.name.lower(), time_for_people(job.action_ms),
         time_for_people(job.due_ms), job.attempts, job.dedup_key if job.dedup_key is not None else "-",
         json.dumps(job.attribute, ensure_ascii=False))
        for job in jobs
    ]  # fmt: skip
    columns = (
        ">job_id", ">biz_id", "biz_type", "status", "action_time", "due_time", ">attempts", "key",
        "attribute",
    )  # fmt: skip
    output.print_table(
        {"jobs": [job_as_json(job) for job in jobs]}, columns, rows, empty="there is no such job"
    )
    return OK if jobs else NO


def parse_attribute_option(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CommandError(f"--attribute: not JSON: {error}", USAGE) from error
    if not isinstance(value, dict):
        raise CommandError("--attribute: must be a JSON object, like '{\"note\": 1}'", USAGE)
    return value


def _parse_job_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CommandError(f"JOB_ID: must be a number; got {text!r}", USAGE)
    return int(text)
