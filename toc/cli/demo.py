"""`toc demo`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from toc.bench.child_process import interrupt_on_signals
from toc.cli import exit_codes
from toc.cli.output import make_console
from toc.demo.run import DemoOptions, run_demo
from toc.demo.view import DemoTally, make_live_panel, print_summary
from toc.testing.report import Report

PLAIN_EVERY_S = 5.0


def show_demo(
    orders: Annotated[
        int, typer.Option(min=1, help="how many orders come in during the whole demo")
    ] = 4000,
    seconds: Annotated[float, typer.Option(min=3, max=3600, help="duration of the demo")] = 45,
    seed: Annotated[int, typer.Option(help="another seed gives other orders")] = 42,
) -> None:
    """A shop's order timeouts, live, on servers of its own; then a check of what happened.

    The demo needs no server and leaves nothing behind. Exits 1 when a promise was broken.
    """
    screen, plan = make_console(), DemoOptions(orders, seconds, seed)
    with interrupt_on_signals():
        report = (
            _run_demo_in_terminal(plan, screen)
            if screen.is_terminal
            else _run_demo_without_terminal(plan, screen)
        )
    screen.print()
    print_summary(report, screen)
    if not report.holds:
        raise typer.Exit(exit_codes.NO)


def _run_demo_in_terminal(plan: DemoOptions, screen: Console) -> Report:
    with Live(console=screen, auto_refresh=False) as live:
        return run_demo(
            plan,
            lambda tally, passed_s: live.update(
                make_live_panel(tally, passed_s, plan.seconds), refresh=True
            ),
        )


def _run_demo_without_terminal(plan: DemoOptions, screen: Console) -> Report:
    shown_s, is_first = 0.0, True

    def print_figures(tally: DemoTally, passed_s: float) -> None:
        nonlocal shown_s, is_first
        if is_first:
            is_first = False
            address = f"in a browser, while the demo runs: {tally.address}"
            screen.print(address, highlight=False, markup=False, soft_wrap=True)
        if passed_s - shown_s >= PLAIN_EVERY_S:
            shown_s = passed_s
            screen.print(tally.as_one_line(passed_s), highlight=False, markup=False, soft_wrap=True)

    return run_demo(plan, print_figures)
