"""`toc pause`, `toc resume` and `toc pauses`: stop the claims of a type, a topic or everything."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Annotated, Any

import typer

from toc.cli.clients import open_client
from toc.cli.common_options import answering_command
from toc.cli.output import Output
from toc.cli.time_texts import WHEN_HELP, iso_utc, parse_time_argument, time_for_people
from toc.domain.pauses import PauseInfo, describe_pause
from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store.biz_types import read_known_types
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypeCache

PausedType = Annotated[
    str | None, typer.Argument(metavar="[TYPE]", help="The biz_type.", show_default=False)
]
PausedTopic = Annotated[
    str | None, typer.Option("--topic", metavar="T", help="All types of this topic.")
]
Everything = Annotated[bool, typer.Option("--all", help="All types.")]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="WHEN", help=f"The end: {WHEN_HELP}. Default: toc resume."),
]
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")]
AtOnce = Annotated[bool, typer.Option("--now", help="Without a ramp, or end the ramp now.")]


@answering_command
def pause_jobs(
    output: Output,
    *,
    biz_type: PausedType = None,
    topic: PausedTopic = None,
    everything: Everything = False,
    until: Until = None,
    reason: Why = None,
) -> None:
    """Pause a biz_type, a topic or everything: within a second no job of it starts any more.

    What runs ends; jobs can be scheduled and cancelled. The claims after the end follow a ramp.
    """
    end = None if until is None else parse_time_argument(until)
    with open_client() as center:
        info = center.pause(biz_type, topic=topic, everything=everything, until=end, reason=reason)
    if biz_type is not None:
        _warn_unknown_type(biz_type)
    output.print_value(pause_as_json(info), describe_pause(info))


def _warn_unknown_type(biz_type: str) -> None:
    """A mistyped name pauses nothing, and the jobs that were meant run on."""
    databases = Databases.from_settings(load_settings(), SystemClock(), pool_size=1)
    with closing(databases), suppress(TocError):
        declared = DeclaredTypeCache(databases)
        declared.read_all_copies()
        names, conflicts, _ = read_known_types(databases, all_must_answer=True)
        if not conflicts and biz_type not in {*names.values(), *declared.all()}:
            text = (
                f"no job has ever had the type {biz_type!r}, and it is not declared: is it right?"
            )
            typer.echo(f"toc: {text}", err=True)


@answering_command
def resume_jobs(
    output: Output,
    *,
    biz_type: PausedType = None,
    topic: PausedTopic = None,
    everything: Everything = False,
    now: AtOnce = False,
    reason: Why = None,
) -> None:
    """End a pause: jobs start again, at first few of them, as the ramp says."""
    with open_client() as center:
        info = center.resume(biz_type, topic=topic, everything=everything, now=now, reason=reason)
    output.print_value(pause_as_json(info), describe_pause(info))


@answering_command
def list_pauses(output: Output) -> None:
    """List what is paused, and what ramps after a pause."""
    with open_client() as center:
        found = center.pauses()
    output.print_table(
        [pause_as_json(info) for info in found],
        ("what", "state", "from", "until", ">jobs/s", "by", "reason"),
        [
            (
                info.target, info.state, time_for_people(info.from_ms), time_for_people(info.until_ms),
                "-" if info.rate_per_s is None else f"{info.rate_per_s:g}", info.actor,
                info.reason or "",
            )
            for info in found
        ],
        empty="nothing is paused",
    )  # fmt: skip


def pause_as_json(info: PauseInfo) -> dict[str, Any]:
    """A pause for JSON."""
    return {
        "target": info.target,
        "state": info.state,
        "from": iso_utc(info.from_ms),
        "until": iso_utc(info.until_ms),
        "rate_per_s": info.rate_per_s,
        "actor": info.actor,
        "reason": info.reason,
    }
