"""All cases, beside the baseline."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tests.bench.baseline import open_baseline
from tests.bench.crowd import crowd
from tests.bench.idling import idle
from tests.bench.purging import purge
from tests.bench.reconciling import reconcile
from tests.bench.starting import start
from tests.bench.tracing import trace
from toc.bench.child_node import wall_ms
from toc.bench.common import BenchOptions
from toc.bench.report import BenchReport
from toc.bench.run import CASES, open_bench, run_cases
from toc.bench.scratch_databases import STOCK_FROM
from toc.errors import SettingsError
from toc.runtime.settings import Settings

ALL_CASES = {
    **CASES,
    "crowd": crowd,
    "idle": idle,
    "start": start,
    "purge": purge,
    "reconcile": reconcile,
    "tracing": trace,
}
NO_BASELINE = "SQLite: there is no baseline to compare with, it is made of MySQL's statements"
STOCK_PART = 20_000
YEAR_MS = 365 * 86_400_000


def run(
    settings: Settings,
    options: BenchOptions,
    cases: Sequence[str],
    tell: Callable[[str], None],
    *,
    shards: int | None = None,
    pending: int = 0,
) -> BenchReport:
    """Runs the cases. `pending`: rows that fill the tables of both sides before, due next year."""
    with (
        open_bench(settings, options, tell, shards=shards, stocked=pending > 0) as bench,
        ExitStack() as stack,
    ):
        bench.report.about["options"]["pending"] = pending
        if bench.scratch.databases[0].sqlite:
            if pending:
                raise SettingsError("databases: --pending needs MySQL's statements, not SQLite")
            bench.report.about["baseline"] = NO_BASELINE
            tell(NO_BASELINE)
        else:
            baseline = bench.baseline = stack.enter_context(open_baseline(bench, settings))
            for at in range(0, pending, STOCK_PART):
                count = min(STOCK_PART, pending - at)
                baseline.insert_stock(STOCK_FROM + at, count, int(wall_ms()) + YEAR_MS)
                tell(f"{at + count:,} of {pending:,} pending rows, on both sides")
        names = [name for name in ALL_CASES if name in cases]
        return run_cases(bench, ALL_CASES, names)
