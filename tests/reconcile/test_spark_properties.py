"""Properties for Spark: no secret is among the arguments of Java's process."""

from __future__ import annotations

import pytest

from toc.reconcile.spark import _split_spark_properties
from toc.runtime.settings import load_settings

pytest.importorskip("pyspark")

NAMES = [
    "spark.hadoop.fs.azure.sas.container.account", "spark.executorEnv.MYSQL_PWD", "spark.a.apikey",
    "spark.a.apiKey", "spark.a.signature", "spark.executorEnv.REDISCLI_AUTH", "spark.a.sig",
    "spark.executorEnv.DB_PASS", "spark.a.sessionToken", "spark.hadoop.fs.s3a.secret.key",
]  # fmt: skip
"""Each names a secret."""


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_no_argument_of_java(name: str) -> None:
    settings = load_settings(reconcile={"spark": {name: "s3cret", "spark.a.plain": "2g"}})
    arguments, hidden = _split_spark_properties(settings, "local[1]")
    assert [pair for pair in arguments.getAll() if "s3cret" in pair[1]] == []
    assert hidden == {name: "s3cret"}
    assert arguments.get("spark.a.plain") == "2g"
    assert "s3cret" not in repr(settings)


def test_a_url_with_a_signature_is_no_argument_of_java() -> None:
    url = "wasbs://c@a.blob/jobs?sv=2024&sig=s3cret"
    settings = load_settings(reconcile={"spark": {"spark.hadoop.toc.store": url}})
    arguments, hidden = _split_spark_properties(settings, "local[1]")
    assert [pair for pair in arguments.getAll() if "s3cret" in pair[1]] == []
    assert hidden == {"spark.hadoop.toc.store": url}
