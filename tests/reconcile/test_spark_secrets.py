"""Spark gets its secrets without `ps` showing them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reconcile.conftest import SECRET_PROPERTIES, SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
def test_secrets_are_on_no_command_line(spark: SparkSession) -> None:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(file.read_bytes().replace(bytes(1), b" ").decode(errors="replace"))
    context = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    assert [line for line in lines if "hidden-" in line] == []
    assert [line for line in lines if SPARK["spark.app.name"] in line]  # Java's own is among them
    assert {n: context.getConf().get(n) for n in SECRET_PROPERTIES} == SECRET_PROPERTIES
    assert context.getConf().get("spark.app.name") == SPARK["spark.app.name"]
    assert hadoop.get("fs.s3a.secret.key") == SECRET_PROPERTIES["spark.hadoop.fs.s3a.secret.key"]
