"""One run: scratch databases, the cases in their order, the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict

from sqlalchemy import text

from toc.bench.cancelling import cancel
from toc.bench.common import Bench, Options
from toc.bench.draining import drain
from toc.bench.lateness import lateness
from toc.bench.report import BenchReport
from toc.bench.scheduling import schedule, schedule_many
from toc.bench.scratch import Scratch, open_scratch
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.timer.reminders import Reminders

Case = Callable[[Bench], None]

CASES: Mapping[str, Case] = {
    "schedule_many": schedule_many,
    "schedule": schedule,
    "cancel": cancel,
    "drain": drain,
    "lateness": lateness,
}
"""By name, in the order in which they run."""


@contextmanager
def open_bench(
    settings: Settings,
    options: Options,
    tell: Callable[[str], None],
    *,
    shards: int | None = None,
    stocked: bool = False,
) -> Iterator[Bench]:
    """Databases of its own on the servers of the settings. Raises SettingsError and StoreUnavailable."""
    with open_scratch(settings, shards, stocked=stocked) as scratch:
        report = BenchReport(_read_setup(scratch, options))
        tell(", ".join(f"{name} {value}" for name, value in report.about["servers"].items()))
        yield Bench(scratch, options, report, tell)


def run_cases(bench: Bench, cases: Mapping[str, Case], names: Sequence[str]) -> BenchReport:
    for name in names:
        bench.tell(f"{name} …")
        cases[name](bench)
    return bench.report


def _read_setup(scratch: Scratch, options: Options) -> dict[str, object]:
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
