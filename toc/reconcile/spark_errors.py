"""Errors of Spark and of its file systems, as one line."""

from __future__ import annotations

import re

_OURS = re.compile(r"^(?:toc\.errors\.)(\w+): (.+)$", re.MULTILINE)


def spark_errors() -> tuple[type[Exception], ...]:
    """The classes of all errors that Spark, Java and a file system may raise."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return Py4JError, PySparkException


def reason_of(error: Exception) -> str:
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
