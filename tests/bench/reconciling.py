"""The nightly compare of a healthy system, beside the naive way: speed, memory, and how both grow."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from toc.bench.child_node import settings_message
from toc.bench.child_process import ChildProcess
from toc.bench.common import BenchContext
from toc.bench.job_specs import make_job_specs
from toc.bench.report import BenchCheck
from toc.center.center import TimeoutCenter
from toc.runtime.settings import Settings

SIZES = (25, 50, 100)
"""Live rows, as multiples of --jobs: 500,000, 1,000,000 and 2,000,000 by default."""

MASTER = "local[2]"
PASSES, NAIVE_PASSES = 5, 2  # the first one of each is not warm
PASS_S_MAX = 600.0
CALL_JOBS = 50_000
HOUR_MS = 3_600_000


def reconcile(bench: BenchContext) -> None:
    """Spark on two cores. Baseline: both sides read into Python by one thread. Both warm."""
    name, report, cores = "reconcile", bench.report, 2
    near = bench.scratch.settings.timer.model_copy(update={"horizon_s": 86_400})
    settings = bench.scratch.settings.model_copy(update={"timer": near})
    at = 0
    for size in SIZES:
        wanted = size * bench.options.jobs
        _insert_live_rows(bench, settings, at, wanted)
        at = wanted
        naive = _run_passes(settings, NAIVE_PASSES, naive=True)[0]
        ours, memory = _run_passes(settings, PASSES, naive=False)
        warm, first = ours[1:], ours[0]
        speeds = [answer["rows"] / answer["seconds"] for answer in warm]
        baseline = naive[-1]["rows"] / naive[-1]["seconds"]
        what = f"{wanted:,} live rows"
        report.add_measurement(
            name, f"{what}, warm", "rows/s", [(baseline, speed) for speed in speeds]
        )
        seconds = [(naive[-1]["seconds"], answer["seconds"]) for answer in warm]
        report.add_measurement(name, f"{what}, warm", "s", seconds)
        report.add_measurement(
            name, f"{what}, start to result", "s", [(None, first["start_s"] + first["seconds"])]
        )
        report.add_measurement(name, f"{what}, start-up of that", "s", [(None, first["start_s"])])
        per_core = [(None, speed / cores) for speed in speeds]
        report.add_measurement(name, f"{what}, of each core", "rows/s", per_core)
        report.add_measurement(
            name,
            f"{what}, memory of JVM and Python",
            "MB",
            [(None, memory)],
        )
        for part in ("rows", "reminders", "pair", "verify"):
            shares = [(None, 100 * a["work"].get(part, 0) / sum(a["work"].values())) for a in warm]
            report.add_measurement(name, f"{what}, time of {part}", "%", shares)
        answers = [*ours, *naive]
        report.checks.append(
            BenchCheck(name, f"all {what} were compared", all(a["rows"] == wanted for a in answers))
        )
        report.checks.append(
            BenchCheck(name, f"{what}: nothing disagreed", not any(a["found"] for a in answers))
        )
        bench.tell(
            f"{what}: naive {naive[-1]['seconds']:.2f} s, toc {warm[-1]['seconds']:.2f} s warm"
        )
    bench.scratch.clear_tables_and_queues()


def _insert_live_rows(bench: BenchContext, settings: Settings, have: int, want: int) -> None:
    """Live rows, each with its reminder, due over a day from an hour on."""
    due_ms = int(bench.redis_time_ms()) + HOUR_MS
    with TimeoutCenter(settings) as center:
        for start in range(have, want, CALL_JOBS):
            count = min(CALL_JOBS, want - start)
            center.schedule_many(
                make_job_specs(bench.reserve_biz_ids(count), count, due_ms, 20 * HOUR_MS)
            )


def _run_passes(
    settings: Settings, passes: int, *, naive: bool
) -> tuple[list[dict[str, Any]], float]:
    """What each pass came to, and the sum of the peaks of all processes' memory, in MB."""
    with tempfile.TemporaryDirectory(prefix="toc-bench-") as directory:
        first = settings_message(settings) | {
            "naive": naive,
            "passes": passes,
            "master": MASTER,
            "log": str(Path(directory) / "spark.log"),
        }
        with ChildProcess("tests.bench.reconciler", first) as child:
            answers = [child.receive_message(PASS_S_MAX) for _ in range(passes)]
            # It waits for us now. Sampling it while it works would slow it down by a third.
            peak_mb = sum(map(_peak_kb, _process_tree(child.pid))) / 1000
        return answers, peak_mb


def _process_tree(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (folder / "stat").read_text("ascii", "replace")
            parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _peak_kb(pid: int) -> int:
    """The most that a process has held; pages that it shares with others are counted in each. On Linux."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
