"""`toc debounce`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from toc.cli.clients import BIZ_ID_HELP, Type, open_client, parse_biz_id
from toc.cli.common_options import answering_command
from toc.cli.jobs import Attribute, Priority, parse_attribute_option
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc, parse_time_argument, time_for_people
from toc.errors import InvalidInput


@answering_command
def debounce_job(
    output: Output,
    *,
    biz_id: Annotated[str, typer.Argument(metavar="BIZ_ID", help=BIZ_ID_HELP, show_default=False)],
    quiet: Annotated[
        str,
        typer.Option("--quiet", metavar="LENGTH", help="Act when no call came for so long: 30s."),
    ],
    max_wait: Annotated[
        str,
        typer.Option(
            "--max-wait", metavar="LENGTH", help="At the latest, from the first call: 10m."
        ),
    ],
    biz_type: Type = "default",
    attribute: Attribute = None,
    key: Annotated[str, typer.Option("--key", metavar="K", help="The dedup_key of the job.")] = "",
    priority: Priority = 0,
) -> None:
    """Move the pending job of BIZ_ID to the end of a quiet period, or make one.

    The job acts when no call has come for --quiet, at the latest --max-wait after the call that made it,
    with the attribute of the last call. Exits 1 if two jobs of the key run already.
    """
    lengths = _parse_length("quiet", quiet), _parse_length("max_wait", max_wait)
    value = parse_attribute_option(attribute)
    with open_client() as center:
        done = center.debounce(
            parse_biz_id(biz_id), quiet=lengths[0], max_wait=lengths[1], biz_type=biz_type,
            attribute=value, dedup_key=key, priority=priority, details=True,
        )  # fmt: skip
        job = center.get(done.job_id)
    due_ms = None if job is None else job.due_ms  # None: it was due so soon that it has ended
    due = "" if due_ms is None else f": due {time_for_people(due_ms)}"
    output.print_value(
        {"job_id": str(done.job_id), "did": done.did, "due_time": iso_utc(due_ms)},
        f"job {done.job_id}{due}" + ("" if done.created else f" ({done.did}: it holds the key)"),
    )


def _parse_length(field: str, text: str) -> timedelta:
    try:
        value = parse_time_argument(text)
    except InvalidInput:
        value = None
    if not isinstance(value, timedelta):
        raise InvalidInput(field, text, "must be a length of time, as 30s, 10m or 1h30m")
    return value
