"""`toc bench`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from toc.bench.child import unwind_on_signals
from toc.bench.common import Options
from toc.bench.run import CASES, open_bench, run_cases
from toc.cli import exit_codes
from toc.cli.output import make_console
from toc.runtime.settings import load_settings


class Due(StrEnum):
    """Of `toc.bench.lateness.due_times_s`."""

    EVEN = "even"
    RANDOM = "random"
    WHOLE = "whole"


def bench(
    case: Annotated[
        list[str] | None, typer.Option(help=f"only this one, may be repeated: {', '.join(CASES)}")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(min=10, help="jobs in each round; a tenth of it for calls with one job"),
    ] = Options.jobs,
    rate: Annotated[
        list[float] | None,
        typer.Option(min=1, help="jobs per second of the lateness case, may be repeated"),
    ] = None,
    due: Annotated[
        Due,
        typer.Option(
            help="how its due times are spread: even, random (a Poisson process), whole (all jobs of a "
            "second at its beginning)"
        ),
    ] = Due.EVEN,
    seconds: Annotated[
        float,
        typer.Option(min=1, help="duration of the lateness case"),
    ] = Options.seconds,
    batch: Annotated[
        int,
        typer.Option(min=1, max=1000, help="jobs per call of schedule_many"),
    ] = Options.batch,
    rounds: Annotated[
        int, typer.Option(min=1, help="how often each case is measured")
    ] = Options.rounds,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="threads that schedule (default: 8 for the schedule case, 1 for lateness)",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="worker processes (default: 1 for lateness, 2 for the drain with several)",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="job tables, and slots (default: as in the settings)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,  # noqa: FBT002
) -> None:
    """Measure how fast toc is on the servers of the settings, and how late its jobs start.

    It creates databases `<name>_bench_…` and a namespace of its own there, and drops them at the end.
    Exits 1 when a count or an invariant is wrong.
    """
    unknown = set(case or ()) - CASES.keys()
    if unknown:
        raise typer.BadParameter(
            f"{min(unknown)} is none of: {', '.join(CASES)}", param_hint="--case"
        )
    progress = make_console(stderr=True)
    options = Options(
        jobs=jobs,
        rates=tuple(rate or Options.rates),
        due=due.value,
        seconds=seconds,
        batch=batch,
        rounds=rounds,
        clients=clients,
        workers=workers,
    )
    with (
        unwind_on_signals(),
        open_bench(
            load_settings(),
            options,
            lambda line: progress.print(line, highlight=False, markup=False),
            shards=shards,
        ) as opened,
    ):
        report = run_cases(opened, CASES, [name for name in CASES if not case or name in case])
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        report.show(make_console())
    if report.broken:
        raise typer.Exit(exit_codes.NO)
