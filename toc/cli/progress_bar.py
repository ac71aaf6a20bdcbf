"""A progress bar for commands that may take long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toc.cli.output import make_console


@contextmanager
def progress_bar(words: str, *, after_s: float = 0.0) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error if that is a terminal, from `after_s` seconds on.

    Yields a function to call with the steps done, and all steps.
    """
    screen = make_console(stderr=True)
    if not screen.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import (  # noqa: PLC0415 - quick start
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
    )

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn())
    bar, tasks = Progress(*columns, console=screen, transient=True), list[TaskID]()
    began_s = time.monotonic()

    def show(done: int, total: int) -> None:
        if not tasks and time.monotonic() - began_s >= after_s:
            bar.start()
            tasks.append(bar.add_task("", total=total))
        if tasks:
            bar.update(tasks[0], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            bar.stop()
