"""The errors of Spark, Java and executors, as one line."""

from __future__ import annotations

import re

from toc.errors import TocError

_OURS = re.compile(r"^(?:toc\.errors\.)(\w+): (.+)$", re.MULTILINE)


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
