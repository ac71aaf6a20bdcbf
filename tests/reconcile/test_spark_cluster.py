"""`toc reconcile` on a standalone cluster, whose executors share neither Python nor directory with us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

import toc
from tests.deep import ALL, deep
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import redis_client
from tests.servers.spark import EXECUTOR_PYTHON, SparkCluster
from tests.table import add_line
from toc.cli.main import main
from toc.reconcile import executor_archive
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
    properties = cluster.connection_properties() | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
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
    there_before = set(Path("/proc").glob("[0-9]*"))

    def look(folders: Iterable[Path]) -> None:
        for folder in folders:
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(bytes(1), b" ")
                seen.add(line.decode(errors="replace"))

    def look_at_new_ones() -> None:
        while not enough.wait(0.1):
            look(set(Path("/proc").glob("[0-9]*")) - there_before)

    look(there_before)
    thread = threading.Thread(target=look_at_new_ones, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join(10)


def toc_alone() -> Iterator[Distribution]:
    """Of what executors need: without the 460 MB of the others, to compress which takes 10 s."""
    yield distribution("toc")


@pytest.mark.parametrize("packed", ["toc alone", pytest.param("all that it requires", marks=deep)])
def test_what_toc_spark_pack_prints_runs_on_the_cluster(
    shop: Shop,
    cluster: SparkCluster,
    packed: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Executors have toc only from the archive."""
    if packed == "toc alone":
        monkeypatch.setattr(executor_archive, "_required_distributions", toc_alone)
    assert main(["spark", "pack", "--master", cluster.url, "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["spark_submit"]
    if packed == "toc alone":
        path = f"PYTHONPATH={executor_archive.UNPACKED}"
        assert command.count(path) == 1
        command = command.replace(path, f"{path}:{sysconfig.get_path('purelib')}")
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
            f"spark-submit with `toc spark pack`, {packed}",
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
    assert any(file.name == "stderr" for file in of_executors)
    contents = [(str(file), file.read_bytes()) for file in (*logs, *of_executors)]
    for word in (PASSWORD, cluster.secret):
        assert not [line for line in lines if word in line]
        assert not [name for name, content in contents if word.encode() in content]
        assert word not in done.stdout + done.stderr


IMPORT = """
import sys
from importlib.machinery import PathFinder

PACKED = set(sys.stdin.read().splitlines())

class PackedAlone:
    @staticmethod
    def find_spec(name, path, target=None):
        spec = PathFinder.find_spec(name, path)
        if spec is not None and "site-packages" in str(spec.origin) and spec.origin not in PACKED:
            raise ModuleNotFoundError(f"{spec.origin} is not packed", name=name)

sys.meta_path.insert(0, PackedAlone)
import toc.reconcile.executor_tasks, toc.reconcile.archive, toc.reconcile.tables.nightly_tables
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_all_that_executors_import_is_packed(tmp_path: Path) -> None:
    """Without making the archive, which takes 10 s."""
    files = {
        str(file)
        for package in executor_archive._required_distributions()
        for _, file in executor_archive._files_of(package)
    }
    assert set(map(str, Path(toc.__file__).parent.rglob("*.py"))) <= files
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], input="\n".join(files), capture_output=True, text=True,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"deltalake", "pyarrow", "redis", "sqlalchemy", "toc"} <= set(done.stdout.split())


RECONCILE = """
import json, os, sys
from contextlib import redirect_stderr
from io import StringIO
from toc.cli.main import main

for reconcile in json.loads(sys.argv[1]):
    os.environ.pop("PYSPARK_PYTHON", None)
    for name, value in reconcile.items():
        os.environ[f"TOC_RECONCILE__{name}"] = value
    with redirect_stderr(StringIO()) as said:
        code = main(["reconcile", "--master", sys.argv[2]])
    print(json.dumps([code, said.getvalue()]))
"""

NO_SUCH_PYTHON = {"spark.pyspark.python": "python-that-is-not-there"}
HINDRANCES: dict[str, tuple[dict[str, str], int, str]] = {
    "no worker is large enough": (
        {"spark.executor.memory": "900g"},
        10,
        "began a task within 10 s. Has a worker as many free cores",
    ),
    "no toc": (
        {"spark.pyspark.python": EXECUTOR_PYTHON},
        EXECUTORS_S_MAX,
        "cannot run toc: No module named 'toc'. `toc spark pack`",
    ),
    "whoever asks": (
        {"spark.authenticate": "false"},
        10,
        "spark.authenticate is not 'true'",
    ),
}
if ALL:
    HINDRANCES["no such Python"] = NO_SUCH_PYTHON, 10, "an executor cannot start Python: "
"""What hinders executors: properties, the seconds to wait for executors, and what `toc reconcile` says."""


def test_what_hinders_executors_is_said(shop: Shop, cluster: SparkCluster) -> None:
    """One process makes all sessions, one after the other: Java starts once."""
    given = json.loads(shop.variables["TOC_RECONCILE__SPARK"])
    reconciles = [
        {"SPARK": json.dumps(given | properties), "EXECUTORS_WAIT_S": str(wait_s)}
        for properties, wait_s, _ in HINDRANCES.values()
    ]
    done = shop.run(sys.executable, "-c", RECONCILE, json.dumps(reconciles), cluster.url)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(HINDRANCES), done.stderr
    for (code, said), (name, (_, _, expected)) in zip(answers, HINDRANCES.items(), strict=True):
        assert (name, code) == (name, 4)
        assert expected in said, name
