"""One run: scratch databases, the cases in their order, the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict

from sqlalchemy import text

from toc.bench.cancelling import measure_cancel
from toc.bench.common import BenchContext, BenchOptions
from toc.bench.draining import measure_drain
from toc.bench.lateness import measure_lateness
from toc.bench.over_http import measure_http
from toc.bench.report import BenchReport
from toc.bench.scheduling import measure_schedule, measure_schedule_many
from toc.bench.scratch_databases import ScratchDatabases, create_scratch_databases
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.timer.reminders import Reminders

Case = Callable[[BenchContext], None]

CASES: Mapping[str, Case] = {
    "schedule_many": measure_schedule_many,
    "schedule": measure_schedule,
    "cancel": measure_cancel,
    "drain": measure_drain,
    "lateness": measure_lateness,
    "http": measure_http,
}
"""By name, in the order in which they run."""


@contextmanager
def open_bench(
    settings: Settings,
    options: BenchOptions,
    tell: Callable[[str], None],
    *,
    shards: int | None = None,
    stocked: bool = False,
) -> Iterator[BenchContext]:
    """Makes scratch databases on the servers of the settings. Raises SettingsError and StoreUnavailable."""
    with create_scratch_databases(settings, shards, stocked=stocked) as scratch:
        report = BenchReport(_describe_setup(scratch, options))
        tell(", ".join(f"{name} {value}" for name, value in report.about["servers"].items()))
        yield BenchContext(scratch, options, report, tell)


def run_cases(bench: BenchContext, cases: Mapping[str, Case], names: Sequence[str]) -> BenchReport:
    for name in names:
        bench.tell(f"{name} …")
        cases[name](bench)
    return bench.report


def _describe_setup(scratch: ScratchDatabases, options: BenchOptions) -> dict[str, object]:
    """The servers, the machine and the options: figures of different ones cannot be compared."""
    settings, database = scratch.settings, scratch.databases[0]
    sql = "SELECT sqlite_version()" if database.sqlite else "SELECT VERSION()"
    version = str(database.run_transaction(lambda c: c.execute(text(sql)).scalar_one()))
    with closing(Reminders.from_settings(settings, SystemClock())) as reminders:
        redis = reminders.read_server_info()
    return {
        "servers": {
            database.engine.dialect.name: version,
            "redis": f"{redis['version']} ({redis['mode']})",
        },
        "databases": len(settings.databases),
        "shards": settings.shards,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "options": asdict(options),
    }
