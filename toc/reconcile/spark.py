"""Opens a Spark session, on any master, with properties from several places."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toc.domain.secret_masking import reveal_secret
from toc.errors import SettingsError, TocError
from toc.reconcile.executors import check_executors, is_local, refuse_without_protection
from toc.reconcile.reconciliation import Reconciliation
from toc.reconcile.spark_errors import short_error_text
from toc.runtime.private_files import open_private_file
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import DataFrame, SparkSession

APP = "toc"

_PROPERTY = re.compile(r"\s*(spark\.[\w.-]+)[ \t=:]+(.*?)\s*$")  # a line of spark-defaults.conf

_DEFAULTS = {
    "spark.app.name": APP,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The archive is of jobs' data: files 0600, folders 0700, also on a local disk.
    "spark.hadoop.fs.permissions.umask-mode": "077",
}
_LOCAL = {
    # Other users of this machine reach Spark's ports on loopback.
    "spark.authenticate": "true",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "8",
    "spark.python.daemon.module": "toc.reconcile.spark_workers",
    # A short run: a quick start and a small heap matter more than the highest speed.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
}
"""For Spark in this process."""
_CLUSTER = {
    # What goes to executors is encrypted on the network and on their disks.
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""For Spark on a cluster; all else is for its own settings to decide."""


@contextmanager
def open_spark_session(
    settings: Settings, master: str | None = None, log_file: Path | None = None
) -> Iterator[SparkSession]:
    """A Spark session, with executors that can run toc.

    Spark's output goes to `log_file` (default: nowhere); under spark-submit, where spark-submit sends it.

    Properties: first `master`, then what spark-submit was given, then `reconcile.spark`, then
    spark-defaults.conf, then toc's defaults (`local[*]`). Under spark-submit, its properties include those of
    spark-defaults.conf. An active session is used as it is, and stays. Raises SettingsError without the
    extra, or Java, or executors.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError:
        raise SettingsError("pyspark is not installed: pip install 'toc[reconcile]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        check_executors(active, settings.reconcile.executors_wait_s)
        yield active
        return
    try:
        with _redirect_stderr(None if is_submitted() else log_file or Path(os.devnull)):
            spark = _start_session(settings, master)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(_describe_start_error(error, log_file)) from error
    try:
        check_executors(spark, settings.reconcile.executors_wait_s)
        yield spark
    finally:
        spark.stop()


def compare(spark: SparkSession, settings: Settings) -> DataFrame:
    """Compares the databases with Redis on a session of the caller; changes nothing.

    Returns the findings, a row each, with the columns of findings.parquet (docs/how-to/reconcile.md). Raises
    SettingsError as `open_spark_session`, and TocError if a shard could not be compared.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    from toc.reconcile.report.parquet import SCHEMA, findings_as_batches  # noqa: PLC0415 - too

    check_executors(spark, settings.reconcile.executors_wait_s)
    outcome = Reconciliation(settings, spark, repair=False, actor="").run()
    if outcome.failures:
        first = outcome.failures[0]
        raise TocError(
            f"{len(outcome.failures)} of {outcome.shards} shards were not compared; "
            f"shard {first.shard}: {first.text}"
        )
    table = pa.Table.from_batches(findings_as_batches(outcome), SCHEMA)
    place = table.schema.get_field_index("biz_id")
    # Spark has no unsigned numbers.
    biz_ids = table.column(place).cast(pa.decimal128(20, 0))
    return spark.createDataFrame(table.set_column(place, "biz_id", biz_ids))


def is_submitted() -> bool:
    """Whether spark-submit started this process; then Java is there, with the submitted properties."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _start_session(settings: Settings, master: str | None) -> SparkSession:
    from pyspark import SparkContext  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if is_submitted():
        # Only an attached process knows what was submitted.
        SparkContext._ensure_initialized()  # noqa: SLF001 - no public call attaches to Java alone
    conf, hidden = _split_spark_properties(settings, master)
    python = conf.get("spark.pyspark.python")
    if _is_local(conf):
        # Spark's workers use this Python, not the first one on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif python is not None:
        # Of this property only spark-submit takes notice.
        os.environ.setdefault("PYSPARK_PYTHON", python)
    _start_java_process(conf)
    for name, value in hidden.items():
        conf.set(name, value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


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

    conf = SparkConf(loadDefaults=is_submitted())
    submitted = dict(conf.getAll())
    hidden: dict[str, str] = {}
    for name, value in settings.reconcile.spark.items():
        if name in submitted:
            continue
        if str(value) == reveal_secret(value) or name.endswith("JavaOptions"):
            conf.set(name, reveal_secret(value))
        else:
            hidden[name] = reveal_secret(value)
    if master is not None:
        conf.set("spark.master", master)
    # Java reads this file when it starts; what is set here would win over it.
    of_file = {} if submitted else _read_spark_defaults()
    conf.setIfMissing("spark.master", of_file.get("spark.master", "local[*]"))
    defaults = dict(_DEFAULTS)
    if _is_local(conf):
        defaults |= _LOCAL
    else:
        defaults |= _CLUSTER
        given = {**_CLUSTER, **of_file, **dict(conf.getAll())}
        refuse_without_protection(given)
    for name, value in defaults.items():
        if name not in of_file:
            conf.setIfMissing(name, value)
    return conf, hidden


def _is_local(conf: SparkConf) -> bool:
    return is_local(str(conf.get("spark.master")))


def _read_spark_defaults() -> dict[str, str]:
    """The properties of spark-defaults.conf, in the folder where spark-submit looks for it."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - an extra

    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    file = Path(folder, "spark-defaults.conf")
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = (_PROPERTY.match(line) for line in lines)
    return {match[1]: match[2] for match in found if match}


@contextmanager
def _redirect_stderr(log_file: Path | None) -> Iterator[None]:
    """Redirects the error output of this process in the block; a Java started there keeps the redirection.

    `log_file` None: not at all.
    """
    if log_file is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        # The file has only the output of the last run: it tells why that run failed.
        with open_private_file(log_file, "wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _describe_start_error(error: Exception, log_file: Path | None) -> str:
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text or isinstance(error, FileNotFoundError):
        return "Spark does not start: is Java 17 or later installed (java on PATH, or JAVA_HOME)?"
    # What follows when Spark has given up on its master says nothing of the reason.
    if "_taskScheduler()" in text or "stopped SparkContext" in text:
        where = f" Spark's own messages are in {log_file}." if log_file else ""
        return (
            "Spark does not start: the master does not answer, or refuses this process. Are its address and "
            f"spark.authenticate.secret right?{where}"
        )
    return f"Spark does not start: {short_error_text(error)}"
