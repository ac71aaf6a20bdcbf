"""How a dry run of `toc reconcile` grows with the number of live rows: in one process, and on a cluster.

    python -m tests.bench.reconcile_curve --millions 1 3 10

starts MySQL, Redis, and a standalone Spark cluster (two workers, one executor of one core each), adds healthy
live rows up to each size, and runs `toc reconcile` in both ways, each in a process of its own. Prints a table
in Markdown: wall time from start to exit; processor time of all processes, by program; the peak of the memory
of toc's and Spark's processes together. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.servers import start_mysql, start_redis
from tests.servers.mysql import execute
from tests.servers.spark import spark_cluster
from toc.bench.job_specs import make_job_specs
from toc.center.center import TimeoutCenter
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate

CALL_JOBS = 50_000
HOUR_MS = 3_600_000
SAMPLE_S = 0.1
RUN_S_MAX = 3600
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Measured(NamedTuple):
    """One run. cpu_s: processor time by program. peak_mb: of toc's and Spark's processes."""

    wall_s: float
    compare_s: float
    cpu_s: dict[str, float]
    peak_mb: float


class ProcessSampler:
    """Samples processor time and memory of some processes and all their descendants.

    roots: the processes, and the program that each of them and its descendants are; "": what their names say,
    Java or Python, and only of these the memory counts.
    """

    def __init__(self, roots: Mapping[int, str]) -> None:
        self._roots = dict(roots)
        # (pid, start) of each process that was seen: its program, and its processor time in ticks.
        self._seen: dict[tuple[int, int], tuple[str, int]] = {}
        self.peak_mb = 0.0
        self.sample()
        self._before = {key: ticks for key, (_, ticks) in self._seen.items()}
        self.peak_mb = 0.0

    def add_root(self, pid: int) -> None:
        self._roots[pid] = ""

    def sample(self) -> None:
        found = dict(_read_processes())
        program_of = dict(self._roots)
        children = [pid for pid, one in found.items() if one.parent in program_of]
        while children:
            program_of |= {pid: program_of[found[pid].parent] for pid in children}
            children = [
                pid
                for pid, one in found.items()
                if one.parent in program_of and pid not in program_of
            ]
        memory_mb = 0.0
        for pid in program_of.keys() & found.keys():
            one, program = found[pid], program_of[pid]
            memory_mb += 0 if program else one.resident_mb
            program = program or ("java" if one.name == "java" else "python")
            self._seen[pid, one.start] = program, one.ticks
        self.peak_mb = max(self.peak_mb, memory_mb)

    def cpu_s(self) -> dict[str, float]:
        """Processor time since the beginning, by program; without what a process used in its last moment."""
        used = Counter[str]()
        for key, (program, ticks) in self._seen.items():
            used[program] += ticks - self._before.get(key, 0)
        return {program: ticks / TICKS for program, ticks in used.items()}


class _Process(NamedTuple):
    parent: int
    start: int
    name: str
    ticks: int
    resident_mb: float


def _read_processes() -> Iterator[tuple[int, _Process]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (folder / "stat").read_text("ascii", "replace")
            name = text.partition("(")[2].rpartition(")")[0]
            fields = [int(field) for field in text.rpartition(")")[2].split()[1:22]]
            ticks, memory_mb = fields[10] + fields[11], fields[20] * PAGE_MB
            yield int(folder.name), _Process(fields[0], fields[18], name, ticks, memory_mb)


@contextmanager
def sampled(sampler: ProcessSampler) -> Iterator[None]:
    done = threading.Event()

    def sample_until_done() -> None:
        while not done.wait(SAMPLE_S):
            sampler.sample()

    thread = threading.Thread(target=sample_until_done, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def insert_live_rows(settings: Settings, have: int, want: int) -> None:
    """Live rows, each with its reminder, due over 20 hours from an hour on."""
    due_ms = SystemClock().wall_ms() + HOUR_MS
    with TimeoutCenter(settings) as center:
        for start in range(have, want, CALL_JOBS):
            count = min(CALL_JOBS, want - start)
            center.schedule_many(make_job_specs(start, count, due_ms, 20 * HOUR_MS))


def run_reconcile(
    variables: dict[str, str], master: str, servers: Mapping[int, str], directory: Path
) -> Measured:
    """Runs `toc reconcile` as a person does. Raises RuntimeError if it does not find all in order."""
    sampler = ProcessSampler(servers)
    argv = [sys.executable, "-m", "toc", "reconcile", "--dry-run", "--master", master, "--json"]
    began_s = time.monotonic()
    with sampled(sampler), (directory / "output").open("w+") as output:
        process = subprocess.Popen(
            argv, env={**os.environ, **variables}, stdout=output, cwd=directory
        )
        sampler.add_root(process.pid)
        code = process.wait(RUN_S_MAX)
        wall_s = time.monotonic() - began_s
        output.seek(0)
        text = output.read()
    if code != 0:
        raise RuntimeError(f"toc reconcile exits with {code}: {text}")
    seconds = json.loads(text)["seconds"]
    return Measured(wall_s, seconds["compare"], sampler.cpu_s(), sampler.peak_mb)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(millions: Iterable[float], databases: int, shards: int) -> None:
    line = "| {:>9} | {:<18} | {:>6} | {:>9} | {:>6} | {:>5} | {:>6} | {:>5} | {:>7} | {:>7} |"
    columns = (
        "live rows",
        "where",
        "wall s",
        "compare s",
        "python",
        "java",
        "mysqld",
        "redis",
        "all CPU",
        "peak MB",
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toc-curve-")))
        mysql = stack.enter_context(
            start_mysql(directory / "mysql", "--innodb-buffer-pool-size=4G", "--skip-log-bin")
        )
        redis = stack.enter_context(start_redis(directory / "redis", "7"))
        cluster = stack.enter_context(spark_cluster(directory / "spark"))
        for index in range(databases):
            execute(mysql, f"CREATE DATABASE toc{index}")
        urls = [f"{mysql.url}/toc{index}" for index in range(databases)]
        variables = {
            "TOC_DATABASES": ",".join(urls),
            "TOC_REDIS_URL": redis.url,
            "TOC_SHARDS": str(shards),
            "TOC_TIMER__HORIZON_S": "86400",
            "TOC_RECONCILE__SPARK": json.dumps(cluster.driver_properties()),
        }
        settings = Settings(
            databases=tuple(urls), redis_url=redis.url, shards=shards, timer={"horizon_s": 86_400}
        )
        migrate.upgrade(settings)
        say(line.format(*columns))
        say(line.format(*["---"] * len(columns)))
        have = 0
        spark = (cluster.master, *cluster.workers)
        servers = {mysql.pid: "mysqld", redis.pid: "redis"}
        ways = {
            "one process": ("none", servers),
            "Spark, 2 executors": (cluster.url, servers | {server.pid: "" for server in spark}),
        }
        for size in millions:
            want = round(size * 1_000_000)
            insert_live_rows(settings, have, want)
            have = want
            for where, (master, processes) in ways.items():
                got = run_reconcile(variables, master, processes, directory)
                programs = [got.cpu_s.get(p, 0) for p in ("python", "java", "mysqld", "redis")]
                numbers = [got.wall_s, got.compare_s, *programs, sum(programs), got.peak_mb]
                say(line.format(f"{want:,}", where, *(f"{number:.1f}" for number in numbers)))


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.bench.reconcile_curve", description=__doc__)
    parser.add_argument(
        "--millions", type=float, nargs="+", default=[1, 3, 10], help="ascending sizes"
    )
    parser.add_argument("--databases", type=int, default=2)
    parser.add_argument("--shards", type=int, default=16)
    given = parser.parse_args()
    measure(given.millions, given.databases, given.shards)


if __name__ == "__main__":
    main()
