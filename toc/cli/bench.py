"""`toc bench`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from toc.bench.cases import CASES
from toc.bench.common import Options
from toc.bench.plot import check_plot, plot
from toc.bench.run import run
from toc.cli import exit_codes
from toc.cli.output import make_console
from toc.runtime.settings import load_settings
from toc.trial.child import unwind_on_signals


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
        typer.Option(
            min=10, help="jobs a round; a tenth one by one, five times as many for the idle worker"
        ),
    ] = Options.jobs,
    rate: Annotated[
        list[float] | None,
        typer.Option(min=1, help="jobs per second of the lateness case, may be repeated"),
    ] = None,
    due: Annotated[
        Due,
        typer.Option(
            help="how due times are spread there: even, random (a Poisson process), whole (all of a "
            "second at its beginning)"
        ),
    ] = Due.EVEN,
    seconds: Annotated[
        float,
        typer.Option(min=1, help="how long that lasts; the idle worker is watched half as long"),
    ] = Options.seconds,
    batch: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="jobs per call of schedule_many, and per pop of the floor"
        ),
    ] = Options.batch,
    rounds: Annotated[
        int, typer.Option(min=1, help="how often floor and toc take turns")
    ] = Options.rounds,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="threads that schedule (default: 1, and 8 where as many do so one by one)",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="worker processes (default: 1, and 2 for the drain of several)"
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="job tables, and slots (default: as in the settings)")
    ] = None,
    pending: Annotated[
        int, typer.Option(min=0, help="rows that stand in the tables from the start, due next year")
    ] = 0,
    picture: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="write a picture too")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,  # noqa: FBT002
) -> None:
    """Measures toc beside the bare drivers, on the servers of the settings.

    It makes databases `<name>_bench_…` and a namespace of its own there, and drops them at the end.
    Exits 1 when a count or an invariant is wrong; a figure that misses its target is no error.
    """
    unknown = set(case or ()) - CASES.keys()
    if unknown:
        raise typer.BadParameter(
            f"{min(unknown)} is none of: {', '.join(CASES)}", param_hint="--case"
        )
    if picture is not None:
        check_plot(picture)
    progress = make_console(stderr=True)
    with unwind_on_signals():
        report = run(
            load_settings(),
            Options(
                jobs=jobs,
                rates=tuple(rate or Options.rates),
                due=due.value,
                seconds=seconds,
                batch=batch,
                rounds=rounds,
                clients=clients,
                workers=workers,
                pending=pending,
            ),
            [name for name in CASES if not case or name in case],
            lambda line: progress.print(line, highlight=False, markup=False),
            shards=shards,
        )
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        report.show(make_console())
    if picture is not None:  # last: what cannot be drawn has been told then
        plot(report, picture)
    if report.broken:
        raise typer.Exit(exit_codes.NO)
