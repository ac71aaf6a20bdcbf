"""A nightly archive in a process that kills itself in a step. The argument: a JSON list, as of `main`."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import nullcontext
from typing import Any

from toc.reconcile import archive
from toc.reconcile.archive_commits import ArchiveTable
from toc.reconcile.spark import open_spark_session
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store import archive_status


def main(settings: dict[str, Any], master: str, step: str, call: int, table: str) -> None:
    """Archives one table. step: the function in whose call number `call` it dies; "": in none."""
    archive.ARCHIVES = tuple(one for one in archive.ARCHIVES if one.spec.name == table)
    if step:
        owner: Any = {"run_work": archive, "advance_archived_until": archive_status}.get(
            step, ArchiveTable
        )
        real, calls = getattr(owner, step), list[str]()

        def kill_at(*args: Any) -> Any:
            calls.append(step)
            if len(calls) > call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        setattr(owner, step, kill_at)
    loaded = load_settings(**settings)
    with open_spark_session(loaded, master) if master else nullcontext() as spark:
        result = archive.archive_due_rows(spark, loaded, SystemClock(), print)
    sys.exit(not result.is_good)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
