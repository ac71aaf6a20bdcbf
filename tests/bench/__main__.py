"""`make bench`: all cases, with the bare drivers measured beside toc."""

import argparse
import json
import sys
from pathlib import Path

from tests.bench.plot import check_plot, plot
from tests.bench.run import ALL_CASES, run
from tests.bench.targets import target_lines
from toc.bench.child_process import interrupt_on_signals
from toc.bench.common import BenchOptions
from toc.cli.output import make_console
from toc.errors import TocError
from toc.runtime.settings import load_settings


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make bench")
    add = parser.add_argument
    add("--case", action="append", choices=list(ALL_CASES), help="only this one; may be repeated")
    add("--jobs", type=int, default=BenchOptions.jobs, help="jobs in each round")
    add("--rate", action="append", type=float, help="jobs/s of lateness; may be repeated")
    add("--due", choices=["even", "random", "whole"], default=BenchOptions.due)
    add("--seconds", type=float, default=BenchOptions.seconds, help="duration of lateness")
    add(
        "--batch",
        type=int,
        default=BenchOptions.batch,
        help="jobs per call, and per pop of the baseline",
    )
    add(
        "--rounds",
        type=int,
        default=BenchOptions.rounds,
        help="how often baseline and toc take turns",
    )
    add("--clients", type=int, help="threads that schedule")
    add("--workers", type=int, help="worker processes")
    add("--shards", type=int, help="job tables, and slots")
    add("--pending", type=int, default=0, help="rows that fill the tables before, due next year")
    add("--plot", type=Path, metavar="FILE.png", help="write a picture too")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Exits 1 when a count or an invariant is wrong; a figure that misses its target is no error."""
    given = read_arguments(arguments)
    options = BenchOptions(
        given.jobs,
        tuple(given.rate or BenchOptions.rates),
        given.due,
        given.seconds,
        given.batch,
        given.rounds,
        given.clients,
        given.workers,
    )
    progress = make_console(stderr=True)
    try:
        if given.plot is not None:
            check_plot(given.plot)
        with interrupt_on_signals():
            report = run(
                load_settings(),
                options,
                given.case or list(ALL_CASES),
                lambda line: progress.print(line, highlight=False, markup=False),
                shards=given.shards,
                pending=given.pending,
            )
        report.notes += target_lines(report)
        if given.json:
            sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
        else:
            report.print_to_console(make_console())
        if given.plot is not None:  # last: the figures are printed before a drawing can fail
            plot(report, given.plot)
    except TocError as error:
        progress.print(str(error), highlight=False, markup=False)
        return 4
    return 1 if report.failed_checks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
