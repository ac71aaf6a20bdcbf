"""One run: scratch databases, the cases in their order, the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict

from sqlalchemy import text

from toc.bench.cases import CASES
from toc.bench.common import Bench, Options, open_bench
from toc.bench.report import BenchReport
from toc.bench.scratch import Scratch, scratch
from toc.bench.stock import insert_stock
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.timer.reminders import Reminders
from toc.trial.connected import open_databases

TELLS = 20
NO_FLOOR = "SQLite: there is no floor to compare with, it is made of MySQL's statements"


def run(
    settings: Settings,
    options: Options,
    cases: Sequence[str],
    tell: Callable[[str], None],
    *,
    shards: int | None = None,
) -> BenchReport:
    """Runs the cases on the servers of the settings. Raises SettingsError and StoreUnavailable."""
    with scratch(settings, shards, stocked=options.pending > 0) as made:
        report = BenchReport(_about(made, options))
        if made.floor is None:
            report.about["floor"] = NO_FLOOR
            tell(NO_FLOOR)
        tell(", ".join(f"{name} {value}" for name, value in report.about["servers"].items()))
        with open_bench(made, options, report, tell) as bench:
            if options.pending:
                _stock(bench)
            for name in cases:
                tell(f"{name} …")
                CASES[name](bench)
        return report


def _stock(bench: Bench) -> None:
    rows, done = bench.options.pending, 0
    total = rows * len(bench.scratch.sides())

    def passed(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before * TELLS // total != done * TELLS // total:
            bench.tell(f"{done:,} of {total:,} pending rows, for both sides")

    insert_stock(bench, rows, passed)


def _about(made: Scratch, options: Options) -> dict[str, object]:
    """What a reader must know before he compares figures."""
    settings = made.ours
    reminders = Reminders.from_settings(settings, SystemClock())
    with open_databases(settings) as databases:
        database = databases[0]
        sql = "SELECT sqlite_version()" if database.sqlite else "SELECT VERSION()"
        version = str(database.run_transaction(lambda c: c.execute(text(sql)).scalar_one()))
        engine = database.engine.dialect.name
    try:
        redis = reminders.server_info()
    finally:
        reminders.close()
    return {
        "servers": {engine: version, "redis": f"{redis['version']} ({redis['mode']})"},
        "databases": len(settings.databases),
        "shards": settings.shards,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "options": asdict(options),
    }
