"""Functions that run on Spark's executors, and a check that executors can run them.

The work is plain functions over a few small items (shards); the rows that they read never pass through Spark.
So this uses RDDs and not DataFrames with mapInArrow: measured on `local[2]`, the first answer takes half the
time, and a worker's process a third of the memory, because neither Arrow nor the SQL engine starts.
Only the counts of the analysts' tables are DataFrames.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from toc.errors import SettingsError
from toc.reconcile.spark_errors import short_error_text, spark_error_types
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

PROGRESS_S = 0.2

_CHECK = "toc: can executors run toc?"

PROTECTION = (
    "spark.authenticate",
    "spark.network.crypto.enabled",
    "spark.io.encryption.enabled",
)
"""The properties that protect passwords on their way to executors and on their disks."""

_LOCAL_MASTER = re.compile(r"local(\[[^\]]*\])?")

_checked_applications: set[str] = set()


class Merge(NamedTuple, Generic[R]):
    """How results are merged: `combine` makes one of two that have the same `key`."""

    key: Callable[[R], int]
    combine: Callable[[R, R], R]


class _Executor(NamedTuple):
    """What a task found on its executor. `missing`: why toc cannot be imported there; "": it can."""

    host: str
    python: str
    version: str
    missing: str


def check_executors(spark: SparkSession, wait_s: float) -> None:
    """Raises SettingsError, with what to do, unless executors begin a task in time and have this toc.

    `wait_s`: the setting reconcile.executors_wait_s.

    Does nothing for a `local` master, whose executors are this process, and for an application that was
    checked before.
    """
    context = spark.sparkContext
    if is_local(str(context.master)) or context.applicationId in _checked_applications:
        return
    refuse_without_protection(dict(context.getConf().getAll()))
    ours = version("toc")
    for executor in _ask_executors(context, wait_s):
        here = f"{executor.host} ({executor.python})"
        if executor.missing:
            raise SettingsError(
                f"the executor on {here} cannot run toc: {executor.missing}. {_PACK}"
            )
        if executor.version != ours:
            raise SettingsError(
                f"the executor on {here} has toc {executor.version}, and this process {ours}. {_PACK}"
            )
    _checked_applications.add(context.applicationId)


def is_local(master: str) -> bool:
    """Whether the executors are this process itself."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def refuse_without_protection(properties: Mapping[str, str]) -> None:
    """Raises SettingsError unless Spark protects what executors get, on the network and on their disks."""
    lacks = [name for name in PROTECTION if properties.get(name) != "true"]
    if "spark.authenticate" not in lacks and lacks:
        raise SettingsError(
            f"{' and '.join(lacks)} must be 'true': executors get the passwords of databases and Redis from "
            "this process. Set it when you make the session"
        )
    if lacks:
        raise SettingsError(
            "spark.authenticate is not 'true': executors get the passwords of databases and Redis from this "
            "process, which would give them to whoever asks. Set it in reconcile.spark, or by --conf of "
            "spark-submit. YARN and Kubernetes make the key; elsewhere set spark.authenticate.secret too, as "
            "on the master and its workers"
        )


_PACK = (
    "`toc spark pack` makes an archive of what executors need, and prints how to submit with it "
    "(docs/how-to/spark.md)"
)


def _ask_executors(context: SparkContext, wait_s: float) -> list[_Executor]:
    """Runs a task for each core of the executors. Raises SettingsError."""
    tracker, begun = context.statusTracker(), False

    def cancel_check() -> None:
        nonlocal begun
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_CHECK)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        begun = any(stage.numActiveTasks for stage in stages if stage)
        context.cancelJobGroup(_CHECK)

    context.setJobGroup(_CHECK, _CHECK, interruptOnCancel=True)
    timer = threading.Timer(wait_s, cancel_check)
    timer.start()
    try:
        tasks = max(2, context.defaultParallelism)
        answers = context.parallelize(range(tasks), tasks).map(_make_check()).collect()
        return sorted(set(map(_Executor._make, answers)))
    except spark_error_types() as error:
        text = f"{error}"
        if timer.is_alive():
            raise SettingsError(_describe_failed_check(text, short_error_text(error))) from None
        if begun:
            raise SettingsError(
                f"an executor did not import toc within {wait_s:g} s: is its machine overloaded? If so, "
                "wait longer (reconcile.executors_wait_s)"
            ) from None
        raise SettingsError(
            f"no executor of {context.master} began a task within {wait_s:g} s. Has a worker as "
            "many free cores and as much memory as spark.executor.cores and spark.executor.memory ask for? "
            "Do executors reach this machine (spark.driver.host)? The master's page shows both. If "
            "they start more slowly, wait longer (reconcile.executors_wait_s)"
        ) from None
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _describe_failed_check(text: str, short: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in text:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"executors have another Python than this process, which is {here}: name one of them by "
            "PYSPARK_PYTHON or spark.pyspark.python"
        )
    if "Cannot run program" in text:
        return (
            f"an executor cannot start Python: {short}. Name its Python by PYSPARK_PYTHON or "
            "spark.pyspark.python"
        )
    return f"executors cannot run Python tasks: {short}"


def _make_check() -> Callable[[int], tuple[str, str, str, str]]:
    """A function for executors that may lack toc: so it is sent whole, not as a name in this module."""

    def check_import(_: int) -> tuple[str, str, str, str]:
        import socket  # noqa: PLC0415 - runs elsewhere
        import sys  # noqa: PLC0415
        from importlib.metadata import version  # noqa: PLC0415

        host = socket.gethostname()
        try:
            import toc.reconcile.executor_tasks  # noqa: F401, PLC0415

            return host, sys.executable, version("toc"), ""
        except ImportError as error:
            return host, sys.executable, "", str(error)

    return check_import


def run_on_executors(
    spark: SparkSession,
    function: Callable[[T], Iterable[R]],
    tasks: Sequence[T],
    tell: Callable[[int, int], None] = lambda done, of: None,
    *,
    merge: Merge[R] | None = None,
) -> list[R]:
    """Runs `function` once for each of `tasks`, on the executors; returns all results.

    merge: results with an equal key are merged on the executors, so that this process gets one of each.
    `tell` is called a few times per second: (tasks that are done, all tasks).
    """
    if not tasks:
        return []
    context = spark.sparkContext
    rdd = context.parallelize(tasks, len(tasks)).flatMap(function)
    if merge is not None:
        merges = min(len(tasks), context.defaultParallelism)
        rdd = rdd.keyBy(merge.key).reduceByKey(merge.combine, merges).values()
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


Work = Callable[[Settings, Iterable[T]], Iterable[R]]
"""Work on some items. It takes passwords from the settings that it is given, and holds none itself."""


@dataclass(frozen=True, slots=True)
class _SettingsTask(Generic[T, R]):
    """The work of one task. settings: not in the task itself, which must hold no passwords."""

    settings: Broadcast[Settings]
    work: Work[T, R]

    def __call__(self, items: Iterable[T]) -> Iterable[R]:
        return self.work(self.settings.value, items)


def run_work(
    spark: SparkSession | None, settings: Settings, work: Work[T, R], items: Sequence[T]
) -> list[R]:
    """Runs `work` on the executors, or in this process if there is no Spark; returns all results.

    The items of one database: at most `reconcile.reads_per_database` tasks share them.
    """
    if spark is None:
        return list(work(settings, items))
    limit = min(spark.sparkContext.defaultParallelism, settings.reconcile.reads_per_database)
    number = min(limit, len(items))
    tasks = [items[place::number] for place in range(number)]
    shared = spark.sparkContext.broadcast(settings)
    try:
        return run_on_executors(spark, _SettingsTask(shared, work), tasks)
    finally:
        shared.destroy()


def _report_progress(
    spark: SparkSession, tell: Callable[[int, int], None], stop: threading.Event
) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(PROGRESS_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                tell(info.numCompletedTasks, info.numTasks)
