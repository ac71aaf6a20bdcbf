"""Spark gets its secrets without `ps` showing them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toc.reconcile.nightly import describe_missing_software

SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hidden-key",
    "spark.hadoop.toc.store": "http://user:hidden-pw@store:80/a",
    "spark.hadoop.toc.password": "hidden-word",
}
SEEN = {"spark.app.name": "seen-name", "spark.driver.memory": "512m"}

CODE = """
import json, sys
from pathlib import Path
from toc.reconcile.spark import open_spark_session
from toc.runtime.settings import load_settings

with open_spark_session(load_settings(), "local[1]") as spark:
    lines = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(one.read_bytes().replace(bytes(1), b" ").decode(errors="replace"))
        except OSError:
            pass
    context = spark.sparkContext
    names = json.loads(sys.argv[1])
    hadoop = context._jsc.hadoopConfiguration()
    print(json.dumps({
        "lines": lines,
        "spark": {name: context.getConf().get(name) for name in names},
        "hadoop": hadoop.get("fs.s3a.secret.key"),
    }))
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
def test_secrets_are_on_no_command_line(tmp_path: Path) -> None:
    if describe_missing_software():
        pytest.skip(describe_missing_software())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
    environment["TOC_RECONCILE__SPARK"] = json.dumps(SECRETS | SEEN)
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([*SECRETS, *SEEN])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [line for line in found["lines"] if "hidden-" in line] == []
    assert [line for line in found["lines"] if "seen-name" in line]  # Java's own is among them
    assert found["spark"] == SECRETS | SEEN
    assert found["hadoop"] == "hidden-key"
