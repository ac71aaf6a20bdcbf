"""`toc bench`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from toc.bench.advice import advise_shards
from toc.bench.child_process import interrupt_on_signals
from toc.bench.common import BenchOptions
from toc.bench.run import CASES, open_bench, run_cases
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK
from toc.cli.output import Output, make_console
from toc.runtime.settings import load_settings

DUE_HELP = (
    "how its due times are spread: even, random (a Poisson process), whole (all jobs of a second at its "
    "beginning)"
)
CLIENTS_HELP = "threads that schedule (default: 8 for the schedule case, 1 for lateness)"
WORKERS_HELP = "worker processes (default: 1 for lateness, 2 for the drain with several)"


class DueTimeSpread(StrEnum):
    """How due times are spread (see `toc.bench.lateness.due_times_s`)."""

    EVEN = "even"
    RANDOM = "random"
    WHOLE = "whole"


@answering_command
def run_bench(
    output: Output,
    *,
    case: Annotated[
        list[str] | None, typer.Option(help=f"only this one, may be repeated: {', '.join(CASES)}")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=10, help="jobs in each round; a tenth of it for calls with one job")
    ] = BenchOptions.jobs,
    rate: Annotated[
        list[float] | None,
        typer.Option(min=1, help="jobs per second of the lateness case, may be repeated"),
    ] = None,
    due: Annotated[DueTimeSpread, typer.Option(help=DUE_HELP)] = DueTimeSpread.EVEN,
    seconds: Annotated[
        float, typer.Option(min=1, help="duration of the lateness case")
    ] = BenchOptions.seconds,
    batch: Annotated[
        int, typer.Option(min=1, max=1000, help="jobs per call of schedule_many")
    ] = BenchOptions.batch,
    rounds: Annotated[
        int, typer.Option(min=1, help="how often each case is measured")
    ] = BenchOptions.rounds,
    clients: Annotated[int | None, typer.Option(min=1, max=1000, help=CLIENTS_HELP)] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=100, help=WORKERS_HELP)] = None,
    shards: Annotated[
        int | None, typer.Option(help="job tables, and slots (default: as in the settings)")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="rows that the tables will hold, live and not yet purged: says how many shards they need",
        ),
    ] = None,
) -> int:
    """Measure how fast toc is on the servers of the settings, and how late its jobs start.

    The benchmark creates databases `<name>_bench_…` and a namespace of its own there, and drops them at the
    end. Exits 1 when a count or an invariant is wrong.
    """
    unknown = set(case or ()) - CASES.keys()
    if unknown:
        raise typer.BadParameter(
            f"{min(unknown)} is none of: {', '.join(CASES)}", param_hint="--case"
        )
    progress = make_console(stderr=True)

    def print_progress_line(line: str) -> None:
        progress.print(line, highlight=False, markup=False)

    rates = tuple(rate or BenchOptions.rates)
    options = BenchOptions(
        jobs=jobs, rates=rates, due=due.value, seconds=seconds, batch=batch, rounds=rounds,
        clients=clients, workers=workers,
    )  # fmt: skip
    with (
        interrupt_on_signals(),
        open_bench(load_settings(), options, print_progress_line, shards=shards) as opened,
    ):
        report = run_cases(opened, CASES, [name for name in CASES if not case or name in case])
    if rows is not None:
        drain = report.median("drain", "one worker, due to settled")
        databases = len(load_settings().databases)
        report.notes += advise_shards(rows, max(rates), databases, drain)
    if output.as_json:
        output.print_value(report.as_json(), "")
    else:
        report.print_to_console(make_console())
    return NO if report.failed_checks else OK
