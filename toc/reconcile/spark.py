"""A Spark session that prints nothing, and functions that run on its executors.

The work is plain functions over a few small items (shards); the rows that they read never pass through Spark.
So this uses RDDs and not DataFrames with mapInArrow: measured on `local[2]`, the first answer takes half the
time, and a worker's process a third of the memory, because neither Arrow nor the SQL engine starts.
Only the modules that write Parquet files (`archive_files`, `lateness`) use DataFrames.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toc.domain.secret_masking import reveal_secret
from toc.errors import SettingsError, TocError
from toc.runtime.private_files import open_private_file
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

APP = "toc"
# Each task costs tens of ms by itself; progress is reported after each task.
TASK_ITEMS_MAX = 32
PROGRESS_S = 0.2

_OURS = re.compile(r"^(?:toc\.errors\.)(\w+): (.+)$", re.MULTILINE)

_DEFAULTS = {
    "spark.app.name": APP,
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The archive is of jobs' data: files 0600, folders 0700, also on a local disk.
    "spark.hadoop.fs.permissions.umask-mode": "077",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "8",
    # A short run: a quick start and a small heap matter more than the highest speed.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
}
"""For Spark in this process; on a cluster its own settings decide."""


@contextmanager
def open_spark_session(
    settings: Settings, master: str | None = None, log_file: Path | None = None
) -> Iterator[SparkSession]:
    """A Spark session. The output of Spark and Java goes to `log_file` (default: nowhere).

    `master`: default: `spark.master` of `reconcile.spark`, else that of spark-submit, else all cores of this
    machine. An active session is used as it is, and stays. Raises SettingsError without the extra, or Java.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError:
        raise SettingsError("pyspark is not installed: pip install 'toc[reconcile]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    conf, hidden = _split_spark_properties(settings, master)
    if str(conf.get("spark.master")).startswith("local"):
        # Spark's workers use this Python, not the first one on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        with _redirect_stderr(log_file):
            _start_java_process(conf)
            for name, value in hidden.items():
                conf.set(name, value)
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise SettingsError(_describe_start_error(error)) from error
    try:
        yield spark
    finally:
        spark.stop()


def run_on_executors(
    spark: SparkSession,
    function: Callable[[Iterable[T]], Iterable[R]],
    items: Sequence[T],
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> list[R]:
    """Runs `function` on the executors, once for each task with the task's items; returns all results.

    `tell` is called a few times per second: (tasks that are done, all tasks).
    """
    context = spark.sparkContext
    if not items:
        return []
    tasks = max(2 * context.defaultParallelism, -(-len(items) // TASK_ITEMS_MAX))
    rdd = context.parallelize(items, min(tasks, len(items))).mapPartitions(function)
    stop = threading.Event()
    watcher = threading.Thread(
        target=_report_progress, args=(spark, tell, stop), daemon=True, name="toc-progress"
    )
    watcher.start()
    try:
        return list(rdd.collect())
    finally:
        stop.set()
        watcher.join()


def _report_progress(
    spark: SparkSession, tell: Callable[[int, int], None], stop: threading.Event
) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(PROGRESS_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                tell(info.numCompletedTasks, info.numTasks)


def _start_java_process(conf: SparkConf) -> None:
    """Starts Java's process. All properties of `conf` become its arguments, which `ps` shows to any user; so
    secrets are set afterwards, through pyspark's own connection to Java.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 - no public call starts Java alone


def _split_spark_properties(
    settings: Settings, master: str | None
) -> tuple[SparkConf, dict[str, str]]:
    """The properties that other users may see, and those of `reconcile.spark` that are secrets.

    Java's own options are always arguments of its process.
    """
    from pyspark import SparkConf  # noqa: PLC0415 - an extra

    conf = SparkConf()  # with the properties given to spark-submit
    hidden: dict[str, str] = {}
    for name, value in settings.reconcile.spark.items():
        if str(value) == reveal_secret(value) or name.endswith("JavaOptions"):
            conf.set(name, reveal_secret(value))
        else:
            hidden[name] = reveal_secret(value)
    if master is not None:
        conf.set("spark.master", master)
    conf.setIfMissing("spark.master", "local[*]")
    defaults = dict(_DEFAULTS)
    if str(conf.get("spark.master")).startswith("local"):
        defaults |= _LOCAL
    for name, value in defaults.items():
        conf.setIfMissing(name, value)
    return conf, hidden


@contextmanager
def _redirect_stderr(log_file: Path | None) -> Iterator[None]:
    """Redirects the error output of this process in the block; a Java started there keeps the redirection."""
    where = log_file or Path(os.devnull)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        # The file has only the output of the last run: it tells why that run failed.
        with open_private_file(where, "wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _describe_start_error(error: Exception) -> str:
    first = str(error).strip().splitlines()[:1]
    if "JAVA_GATEWAY_EXITED" in str(error) or isinstance(error, FileNotFoundError):
        return "Spark does not start: is Java 17 or later installed (java on PATH, or JAVA_HOME)?"
    return f"Spark does not start: {first[0] if first else type(error).__name__}"


def spark_error_types() -> tuple[type[Exception], ...]:
    """The errors of toc, of Spark and Java, and of file systems, that work on Spark may raise."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return TocError, OSError, Py4JError, PySparkException


def short_error_text(error: Exception) -> str:
    """The text of toc's own error on an executor, else the first line of Spark's; never a traceback."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    java = getattr(error, "java_exception", None)
    if java is not None:
        while java.getCause() is not None:
            java = java.getCause()
        text = str(java.toString())
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
