"""`toc reconcile` on a standalone cluster, whose executors share neither Python nor directory with us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.deep import deep
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import redis_client
from tests.servers.spark import EXECUTOR_PYTHON, SparkCluster
from tests.table import add_line
from toc.cli.main import main
from toc.timer import redis_keys

pytest.importorskip("pyspark")
pytestmark = pytest.mark.timeout(480)

PASSWORD = "s3cret-of-the-database"
JOBS, LOST = 40, 3
EXECUTORS_S_MAX = 300
PROCESS_S_MAX = 400


class Shop(NamedTuple):
    """A system with damage: `LOST` reminders are missing in Redis."""

    variables: Mapping[str, str]
    directory: Path

    def run(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.directory, env={**self.variables, **more}, capture_output=True, text=True,
            timeout=PROCESS_S_MAX, check=False,
        )  # fmt: skip

    def summary(self) -> Any:
        (file,) = self.directory.glob("reports/*/summary.json")
        return json.loads(file.read_text())


@pytest.fixture
def shop(
    cluster: SparkCluster,
    mysql_database: str,
    redis_server: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shop:
    url = make_url(mysql_database)
    engine = create_engine(url, poolclass=NullPool)
    user = f"u{abs(hash(url.database)):x}"[:16]
    with engine.begin() as connection:
        connection.execute(text(f"CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'"))
        connection.execute(text(f"GRANT ALL ON {url.database}.* TO {user}@'%'"))
    own = url.set(username=user, password=PASSWORD)
    events = tmp_path / "events"
    events.mkdir()
    properties = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": cluster.secret,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
    }
    monkeypatch.chdir(tmp_path)
    ours = {
        "TOC_DATABASES": own.render_as_string(hide_password=False),
        "TOC_REDIS_URL": redis_server.url,
        "TOC_NAMESPACE": f"t{time.time_ns():x}",
        "TOC_SHARDS": "4",
        "TOC_RECONCILE__GRACE_S": "0.5",
        "TOC_RECONCILE__EXECUTORS_WAIT_S": f"{EXECUTORS_S_MAX}",
        "TOC_RECONCILE__SPARK": json.dumps(properties),
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    assert main(["migrate"]) == 0
    from toc import TimeoutCenter  # noqa: PLC0415 - with these settings

    with TimeoutCenter() as center:
        ids = center.schedule_many(
            [{"biz_id": n, "action_time": timedelta(minutes=10)} for n in range(JOBS)],
            biz_type="order.close",
        )
    client = redis_client(redis_server.url, is_cluster=False)
    lost = 0
    for slot in range(4):
        key = redis_keys.store_queue_key(ours["TOC_NAMESPACE"], "default", slot)
        lost += sum(client.zrem(key, job_id) for job_id in ids[:LOST])
    assert lost == LOST
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    return Shop(variables, tmp_path)


@contextmanager
def command_lines_watched() -> Iterator[set[str]]:
    """Yields the command lines of all processes that live during the block, as `ps` shows them."""
    seen, enough = set[str](), threading.Event()

    def look() -> None:
        while not enough.wait(0.1):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(file.read_bytes().replace(bytes(1), b" ").decode(errors="replace"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join(10)


def test_what_toc_spark_pack_prints_runs_on_the_cluster(
    shop: Shop, cluster: SparkCluster, request: pytest.FixtureRequest
) -> None:
    toc = (sys.executable, "-m", "toc")
    packed = shop.run(*toc, "spark", "pack", "--master", cluster.url, "--json")
    assert packed.returncode == 0, packed.stderr
    command = json.loads(packed.stdout)["spark_submit"]
    secrets = shop.directory / "secrets.conf"
    secrets.touch(mode=0o600)
    properties = json.loads(shop.variables["TOC_RECONCILE__SPARK"])
    secrets.write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
    command = command.replace("spark-submit ", f"spark-submit --properties-file {secrets} ")
    path = f"{Path(EXECUTOR_PYTHON).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = {one["id"] for one in cluster.applications()}
    began_s = time.monotonic()
    with command_lines_watched() as lines:
        done = shop.run("sh", "-c", f"{command} --json", PATH=path, TOC_RECONCILE__SPARK="{}")
    seconds = time.monotonic() - began_s

    assert done.returncode == 1, done.stderr[-3000:]
    (application,) = [one for one in cluster.applications() if one["id"] not in before]
    summary = shop.summary()
    assert summary["engine"] == cluster.url
    assert summary["found"] == {"missing": LOST}
    executors = cluster.executor_directories(application["id"])
    add_line(
        request,
        "spark",
        (
            "spark-submit with `toc spark pack`",
            cluster.url,
            application["id"],
            str(len(executors)),
            f"{seconds:.0f}",
        ),
    )
    assert executors
    # Where others could look for passwords: command lines, the event log, the executors' folders, the output.
    assert any("CoarseGrainedExecutorBackend" in line for line in lines)
    logs = [file for file in shop.directory.glob("events/**/*") if file.is_file()]
    assert any(application["id"] in file.read_text(errors="replace") for file in logs)
    of_executors = [file for folder in executors for file in folder.rglob("*") if file.is_file()]
    assert of_executors
    for word in (PASSWORD, cluster.secret):
        assert not [line for line in lines if word in line]
        assert not [file for file in (*logs, *of_executors) if word.encode() in file.read_bytes()]
        assert word not in done.stdout + done.stderr


def test_executors_without_toc_are_named_with_what_to_do(shop: Shop, cluster: SparkCluster) -> None:
    toc = (sys.executable, "-m", "toc")
    done = shop.run(*toc, "reconcile", "--master", cluster.url, PYSPARK_PYTHON=EXECUTOR_PYTHON)
    assert done.returncode == 4, done.stderr
    assert "cannot run toc: No module named 'toc'" in done.stderr
    assert "`toc spark pack`" in done.stderr


ASK = """
import sys
from toc.reconcile.spark import open_spark_session
from toc.runtime.settings import load_settings

with open_spark_session(load_settings(), sys.argv[1]):
    print("opened")
"""


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (
            {"spark.executor.memory": "900g"},
            "began a task within 10 s. Has a worker as many free cores",
        ),
        pytest.param(
            {"spark.pyspark.python": "python-that-is-not-there"},
            "an executor cannot start Python: ",
            marks=deep,
        ),
        ({"spark.authenticate": "false"}, "spark.authenticate is not 'true'"),
    ],
    ids=["no worker is large enough", "no such Python", "whoever asks"],
)
def test_what_hinders_executors_is_said(
    shop: Shop, cluster: SparkCluster, properties: dict[str, str], said: str
) -> None:
    given = json.loads(shop.variables["TOC_RECONCILE__SPARK"]) | properties
    variables = {"TOC_RECONCILE__SPARK": json.dumps(given), "TOC_RECONCILE__EXECUTORS_WAIT_S": "10"}
    done = shop.run(sys.executable, "-c", ASK, cluster.url, **variables)
    assert "opened" not in done.stdout
    assert said in done.stderr
