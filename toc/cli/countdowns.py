"""`toc countdown` and `toc arrive`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from toc.cli.clients import (
    BIZ_ID_HELP,
    BizId,
    Type,
    check_one_target_given,
    open_client,
    parse_biz_id,
)
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK
from toc.cli.jobs import Attribute, JobId, Priority, parse_attribute_option
from toc.cli.output import Output
from toc.cli.time_texts import WHEN_HELP, parse_time_argument


class CountdownDuplicateOption(StrEnum):
    """What happens when a live countdown holds the key."""

    KEEP = "keep"
    ONCE = "once"
    ERROR = "error"


Key = Annotated[str, typer.Option("--key", metavar="K", help="The dedup_key of the countdown.")]


@answering_command
def start_countdown(
    output: Output,
    *,
    biz_id: Annotated[str, typer.Argument(metavar="BIZ_ID", help=BIZ_ID_HELP, show_default=False)],
    deadline: Annotated[
        str, typer.Argument(metavar="DEADLINE", help=WHEN_HELP, show_default=False)
    ],
    count: Annotated[int, typer.Option("--count", metavar="N", help="Arrivals to wait for.")],
    biz_type: Type = "default",
    attribute: Attribute = None,
    key: Key = "",
    on_duplicate: Annotated[
        CountdownDuplicateOption,
        typer.Option("--on-duplicate", help="What to do when a countdown holds the --key."),
    ] = CountdownDuplicateOption.KEEP,
    priority: Priority = 0,
) -> None:
    """Start a countdown: act on BIZ_ID when --count arrivals have come, at the latest at DEADLINE.

    `toc arrive` counts an arrival. If a live countdown holds the key, it is kept as it is; once: also one
    that has ended; error: exits 1.
    """
    moment, value = parse_time_argument(deadline), parse_attribute_option(attribute)
    with open_client() as center:
        done = center.countdown(
            parse_biz_id(biz_id), count=count, deadline=moment, biz_type=biz_type, attribute=value,
            dedup_key=key, on_duplicate=on_duplicate.value, priority=priority, details=True,
        )  # fmt: skip
    text = f"job {done.job_id}" + ("" if done.created else ": kept: it holds the key")
    output.print_value({"job_id": str(done.job_id), "did": done.did}, text)


@answering_command
def count_arrival(
    output: Output,
    *,
    arrival_id: Annotated[
        str,
        typer.Argument(metavar="ARRIVAL_ID", help="The same one counts once.", show_default=False),
    ],
    job_id: JobId = None,
    biz_id: BizId = None,
    biz_type: Type = "default",
    key: Key = "",
) -> int:
    """Count an arrival of a countdown, by its job id or by its business id and type.

    Exits 0 if the arrival counts (arrived; completed: it was the last one; repeated), otherwise 1, with the
    status of the job.
    """
    check_one_target_given(job_id, biz_id)
    business = None if biz_id is None else parse_biz_id(biz_id)
    with open_client() as center:
        answer = center.arrive(
            arrival_id, job_id=job_id, biz_id=business, biz_type=biz_type, dedup_key=key
        )
    value = {
        "answer": str(answer),
        "job_id": None if answer.job_id is None else str(answer.job_id),
        "arrived": answer.arrived,
        "wanted": answer.wanted,
    }
    job = "" if answer.job_id is None else f"job {answer.job_id}: "
    counts = f" ({answer.arrived} of {answer.wanted})" if answer.wanted else ""
    hint = f": {answer.hint}" if answer.hint else ""
    output.print_value(
        value | ({"hint": answer.hint} if answer.hint else {}), f"{job}{answer}{counts}{hint}"
    )
    return OK if answer else NO
