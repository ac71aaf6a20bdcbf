"""`toc dead list`, `toc dead redrive` and `toc dead discard`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from toc.center.center import TimeoutCenter
from toc.cli.clients import (
    AnyType,
    Reason,
    answer_as_json,
    confirm_at_terminal,
    job_as_json,
    open_client,
)
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import time_for_people
from toc.domain.job import Answer

ERROR_COLUMNS = 100
JOBS_MAX = 10_000

Limit = Annotated[int, typer.Option("--limit", min=1, max=JOBS_MAX, help="At most so many jobs.")]
JobIds = Annotated[list[int] | None, typer.Argument(metavar="[JOB_ID]...")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Change = Callable[[TimeoutCenter, int], Answer]
"""Changes the job with this id."""


@answering_command
def list_dead(output: Output, biz_type: AnyType = None, limit: Limit = 50) -> None:
    """List dead jobs, newest first: their attempts are used up, and no worker runs them again."""
    with open_client() as center:
        jobs = center.dead(limit, biz_type)
    output.print_table(
        {"dead": [job_as_json(job) for job in jobs]},
        (">job_id", ">biz_id", "biz_type", ">attempts", "dead since", "error"),
        [
            (
                j.job_id,
                j.biz_id,
                j.biz_type,
                j.attempts,
                time_for_people(j.dead_ms),
                _shorten_error(j.error),
            )
            for j in jobs
        ],
        empty="no dead jobs",
        last=f"the newest {limit}: --limit shows more" if len(jobs) == limit else "",
    )


@answering_command
def redrive_dead(
    output: Output,
    *,
    job_ids: JobIds = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Redrive the dead jobs of --type, newest first.")
    ] = False,
    biz_type: AnyType = None,
    limit: Limit = 1000,
    yes: Yes = False,
    reason: Reason = None,
) -> int:
    """Give dead jobs a new life: due now, with all their attempts.

    Either those named, or with --all --type T the dead jobs of a type, at most --limit; --all asks
    for confirmation unless --yes. Exits 1 when a job was not redriven.
    """
    return _change_dead_jobs(
        output, "Redrive", lambda center, job_id: center.redrive(job_id, reason=reason),
        job_ids or [], everything, biz_type, limit, yes,
    )  # fmt: skip


@answering_command
def discard_dead(
    output: Output,
    *,
    job_ids: JobIds = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Discard the dead jobs of --type, newest first.")
    ] = False,
    biz_type: AnyType = None,
    limit: Limit = 1000,
    yes: Yes = False,
    reason: Reason = None,
) -> int:
    """Cancel dead jobs for good: they cannot be redriven any more, and `dead list` does not show them.

    Either those named, or with --all --type T the dead jobs of a type, at most --limit; --all asks
    for confirmation unless --yes. Exits 1 when a job was not cancelled.
    """
    return _change_dead_jobs(
        output, "Discard", lambda center, job_id: center.discard(job_id, reason=reason),
        job_ids or [], everything, biz_type, limit, yes,
    )  # fmt: skip


def _change_dead_jobs(
    output: Output,
    verb: str,
    change: Change,
    job_ids: Sequence[int],
    everything: bool,
    biz_type: str | None,
    limit: int,
    yes: bool,
) -> int:
    """Changes the named dead jobs, or the newest of a type; returns the exit code."""
    if bool(job_ids) == everything or (everything and biz_type is None):
        raise CommandError("give JOB_IDs, or --all with --type", USAGE)
    with open_client() as center:
        ids = list(job_ids)
        if everything:
            ids = [job.job_id for job in center.dead(limit, biz_type)]
            if ids and not yes:
                confirm_at_terminal(f"{verb} {len(ids)} dead jobs of type {biz_type}?")
        found = [(job_id, change(center, job_id)) for job_id in ids]
    counts = Counter(str(answer) for _, answer in found)
    output.print_table(
        {
            "counts": counts,
            "jobs": [answer_as_json(answer) | {"job_id": str(n)} for n, answer in found],
        },
        (">job_id", "answer"),
        found,
        empty="no dead jobs",
        last=", ".join(f"{number} {answer}" for answer, number in counts.items()),
    )
    return OK if all(answer.ok for _, answer in found) else NO


def _shorten_error(error: str) -> str:
    line = error.strip().splitlines()[0] if error.strip() else ""
    return line if len(line) <= ERROR_COLUMNS else line[: ERROR_COLUMNS - 3] + "..."
