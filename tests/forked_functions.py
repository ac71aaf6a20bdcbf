"""Functions that tests kill, each in a process forked from one that has imported toc: that takes a second.

For commands there is tests/forked.py. A fork of the tests' own process would lack its libraries' threads.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

_context = get_context("forkserver")
_context.set_forkserver_preload(
    [
        "jinja2",
        "pyarrow.parquet",
        "toc.cli.reconcile",
        "toc.reconcile.archive",
        "toc.reconcile.report.report",
        "toc.store.database_mover",
        "toc.store.migrate",
        "toc.testing",
    ]
)


def run_forked(function: Callable[..., object], *arguments: Any, timeout_s: float = 280) -> int:
    """Calls the function, of a module, in a new process; returns its exit code: -9 if it was killed."""
    process = _context.Process(target=function, args=arguments)
    process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{function.__name__} did not end within {timeout_s:g} s")
    return process.exitcode
