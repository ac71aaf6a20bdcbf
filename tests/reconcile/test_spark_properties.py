"""Properties for Spark: no secret is among the arguments of Java's process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toc.errors import SettingsError
from toc.reconcile.executor_archive import SCRIPT, SCRIPT_TEXT
from toc.reconcile.executors import is_local, refuse_without_protection
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


def test_settings_win_over_spark_defaults_and_these_over_the_defaults_of_toc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java itself reads spark-defaults.conf: what is not set here stays as it says."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master  local[7]\nspark.driver.memory=3g\nspark.app.name: theirs\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = load_settings(reconcile={"spark": {"spark.app.name": "ours"}})
    arguments, _ = _split_spark_properties(settings, None)
    assert arguments.get("spark.master") == "local[7]"
    assert arguments.get("spark.driver.memory") is None
    assert arguments.get("spark.app.name") == "ours"
    assert arguments.get("spark.ui.enabled") == "false"
    assert _split_spark_properties(settings, "local[1]")[0].get("spark.master") == "local[1]"


def test_a_cluster_that_does_not_authenticate_is_refused_and_one_that_does_is_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"spark\.authenticate is not 'true'"):
        _split_spark_properties(load_settings(), "spark://host:7077")
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    arguments, _ = _split_spark_properties(load_settings(), "spark://host:7077")
    assert arguments.get("spark.network.crypto.enabled") == "true"
    assert arguments.get("spark.io.encryption.enabled") == "true"
    assert arguments.get("spark.driver.host") is None


PROTECTION = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")


@pytest.mark.parametrize("name", PROTECTION)
def test_each_protection_is_needed_on_a_cluster(name: str) -> None:
    given = dict.fromkeys(PROTECTION, "true")
    refuse_without_protection(given)
    for lacking in ({**given, name: "false"}, {n: "true" for n in PROTECTION if n != name}):
        with pytest.raises(SettingsError, match=re.escape(name)):
            refuse_without_protection(lacking)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local[2,3]", True), ("local-cluster[2,1,512]", False),
     ("spark://local:7077", False), ("yarn", False)],
)  # fmt: skip
def test_only_executors_in_this_process_are_local(master: str, *, local: bool) -> None:
    assert is_local(master) is local


def test_the_program_for_spark_submit_is_the_one_in_deploy() -> None:
    file = Path(__file__).parents[2] / "deploy/spark" / SCRIPT
    assert file.read_text("utf-8") == SCRIPT_TEXT
