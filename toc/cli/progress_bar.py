"""A progress bar for commands that may take long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toc.cli.output import make_console


@contextmanager
def progress_bar(words: str, *, after_s: float = 0.0) -> Iterator[Callable[..., None]]:
    """Shows a progress bar after `after_s` seconds, if standard error is a terminal.

    Yields a function to call with the steps done, all steps and, if they change, other words.
    """
    screen = make_console(stderr=True)
    if not screen.is_terminal:
        yield lambda done, total, words="": None
        return
    from rich.progress import (  # noqa: PLC0415 - quick start
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task(words, total=None)
    began_s = time.monotonic()
    if not after_s:
        bar.start()

    def show_progress(done: int, total: int, words: str = words) -> None:
        if time.monotonic() - began_s >= after_s:
            bar.start()  # does nothing for a started bar
        bar.update(task, description=words, completed=done, total=total)

    try:
        yield show_progress
    finally:
        bar.stop()
