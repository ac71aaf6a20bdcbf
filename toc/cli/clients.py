"""The client that commands use, and jobs and answers as commands print them."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from toc.center.center import TimeoutCenter
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.output import Output
from toc.cli.time_texts import iso_utc
from toc.domain.argument_checks import ACTOR_CHARS_MAX
from toc.domain.countdown import Countdown
from toc.domain.job import Answer, DeadJob, Job
from toc.handlers.registry import Registry

BIZ_ID_HELP = "An integer, or a text such as an order number; a text of digits in quotes: '\"42\"'."
BizId = Annotated[
    str | None, typer.Option("--biz-id", metavar="ID", help=f"The business id. {BIZ_ID_HELP}")
]
Type = Annotated[str, typer.Option("--type", metavar="T", help="The biz_type of the job.")]
AnyType = Annotated[str | None, typer.Option("--type", metavar="T", help="Only this biz_type.")]
Key = Annotated[str | None, typer.Option("--key", metavar="K", help="The dedup_key of the job.")]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why; the reason is kept in the job's events."),
]


_INTEGER = re.compile(r"-?[0-9]+")


@contextmanager
def open_client() -> Iterator[TimeoutCenter]:
    """A client with the settings in force; its events name the person who runs the command."""
    with TimeoutCenter(handlers=Registry(), actor=current_person()) as center:
        yield center


def current_person() -> str:
    """The person who runs the command, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name: in a container
        user = "unknown"
    name = f"{user[:50]}@{socket.gethostname()[:40]}"[:ACTOR_CHARS_MAX]
    return "".join(ch if ch.isprintable() else "?" for ch in name)


def parse_biz_id(words: str) -> int | str:
    """A business id from the command line: digits are an integer; quotes make them a text."""
    if len(words) > 1 and words[0] == words[-1] == '"':
        return words[1:-1]
    return int(words) if _INTEGER.fullmatch(words) else words


def check_one_target_given(job_id: int | None, biz_id: str | None) -> None:
    """Raises CommandError unless exactly one of the two arguments is given."""
    if (job_id is None) == (biz_id is None):
        raise CommandError("give either a JOB_ID or --biz-id (with --type)", USAGE)


def confirm_at_terminal(question: str) -> None:
    """Raises typer.Abort unless the person agrees, CommandError if there is no terminal."""
    if not sys.stdin.isatty():
        raise CommandError("this asks first, and there is no terminal: add --yes", USAGE)
    typer.confirm(question, abort=True, err=True)


def print_answer(output: Output, answer: Answer) -> int:
    """Prints the answer of cancel or reschedule; returns 0 only if the job was changed."""
    job = "" if answer.job_id is None else f"job {answer.job_id}: "
    tried = f" (attempts: {answer.attempts})" if answer.attempts else ""
    hint = f": {answer.hint}" if answer.hint else ""
    output.print_value(answer_as_json(answer), f"{job}{answer}{tried}{hint}")
    return OK if answer.ok else NO


# 64-bit numbers do not survive every reader of JSON (JavaScript, jq before 1.7): ids are texts.


def answer_as_json(answer: Answer) -> dict[str, Any]:
    """An answer for JSON."""
    job_id = None if answer.job_id is None else str(answer.job_id)
    found: dict[str, Any] = {"answer": str(answer), "job_id": job_id, "attempts": answer.attempts}
    return found | ({"hint": answer.hint} if answer.hint else {})


def job_as_json(job: Job | DeadJob) -> dict[str, Any]:
    """A job or a dead job for JSON."""
    value: dict[str, Any] = {
        "job_id": str(job.job_id),
        "biz_id": str(job.biz_id),
        "biz_id_is_text": isinstance(job.biz_id, str),
        "tenant": job.tenant,
        "biz_type": job.biz_type,
        "attempts": job.attempts,
    }
    if isinstance(job, DeadJob):
        return value | {"dead_time": iso_utc(job.dead_ms), "error": job.error}
    return value | {
        "status": job.status.name.lower(),
        "action_time": iso_utc(job.action_ms),
        "due_time": iso_utc(job.due_ms),
        "attribute": job.attribute,
        "dedup_key": job.dedup_key,
        "token": job.token,
        "priority": job.priority,
        "progress": None if job.last_progress is None else job.last_progress._asdict(),
        "result": job.result,
        "countdown": countdown_as_json(job.countdown),
    }


def countdown_as_json(countdown: Countdown | None) -> dict[str, Any] | None:
    """How far a countdown is, for JSON."""
    if countdown is None:
        return None
    return {
        "wanted": countdown.wanted,
        "arrived": countdown.arrived,
        "arrival_ids": list(countdown.arrival_ids),
        "by": countdown.by,
    }
