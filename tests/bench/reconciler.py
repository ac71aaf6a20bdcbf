"""A reconciliation in a process of its own, as `toc reconcile` is one; it tells each pass as it is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.bench.naive import disagreements
from toc.bench.child_node import settings_from_message
from toc.bench.child_process import read_parent_messages, send_to_parent
from toc.reconcile.reconciliation import Reconciliation
from toc.reconcile.spark import open_spark_session
from toc.runtime.settings import Settings


def main() -> None:
    lines = read_parent_messages()
    first = next(lines)
    settings = settings_from_message(first)
    if first["naive"]:
        for _ in range(first["passes"]):
            send_to_parent(_run_naive_pass(settings))
        return
    began_s = time.monotonic()
    with open_spark_session(settings, first["master"], Path(first["log"])) as spark:
        start_s = time.monotonic() - began_s
        for _ in range(first["passes"]):
            send_to_parent(_run_pass(settings, spark) | {"start_s": start_s})
        next(lines, None)  # the parent looks at our memory meanwhile, and says when it is done


def _run_naive_pass(settings: Settings) -> dict[str, Any]:
    began_s = time.monotonic()
    rows, found = disagreements(settings)
    return {"seconds": time.monotonic() - began_s, "rows": rows, "found": found}


def _run_pass(settings: Settings, spark: Any) -> dict[str, Any]:
    began_s = time.monotonic()
    outcome = Reconciliation(settings, spark, repair=False, actor="bench").run()
    return {
        "seconds": time.monotonic() - began_s,
        "rows": outcome.counts["rows"],
        "found": outcome.found.total() + len(outcome.failures),
        "work": dict(outcome.work),
    }


if __name__ == "__main__":
    main()
