"""A standalone cluster of Spark: a master and workers, from the jars that PySpark brings along.

Executors use another Python than the tests (the one that the tests' environment was made with), in a working
directory of their own: what they lack must reach them by Spark's means.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.servers.process import Server, free_port

ROOT = Path(__file__).resolve().parents[2]

QUICK_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # Spark's classes need no proof that their bytecode is sound: that takes a sixth of a start.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""Options of Java for processes that live for seconds: Java's own default is for hours, at twice the cost."""
JVM = ("-Xmx256m", *QUICK_JAVA)
EXECUTOR_PYTHON = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
WORKER_CORES, WORKER_MEMORY = 1, "1g"
EXECUTORS = "executors"
"""The folder of a worker in which each executor has its directory."""


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster. secret: of spark.authenticate. page_url: the master's page."""

    url: str
    page_url: str
    secret: str
    master: Server
    workers: Sequence[Server]
    directory: Path

    def executor_directories(self, application_id: str) -> list[Path]:
        """The directories of an application's executors, one each."""
        return list(self.directory.glob(f"*/{EXECUTORS}/{application_id}/*"))

    def connection_properties(self) -> dict[str, str]:
        """For `reconcile.spark` of any driver."""
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": " ".join(QUICK_JAVA),
            "spark.executor.extraJavaOptions": " ".join(QUICK_JAVA),
        }

    def driver_properties(self) -> dict[str, str]:
        """For `reconcile.spark` of a driver, whose executors run this Python and this toc."""
        return self.connection_properties() | {
            "spark.pyspark.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
        }

    def applications(self) -> list[dict[str, Any]]:
        """What the master knows of the applications, running and ended."""
        with urlopen(f"{self.page_url}/json/", timeout=10) as answer:  # noqa: S310 - ours
            state = json.load(answer)
        return [*state["activeapps"], *state["completedapps"]]


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Starts a master and workers; ends them after the block."""
    import pyspark  # noqa: PLC0415 - an extra

    home = Path(pyspark.__file__).parent
    (core,) = home.glob("jars/spark-core_*.jar")
    scala = core.name.removeprefix("spark-core_").partition("-")[0]
    directory = directory.absolute()
    directory.mkdir(parents=True)
    secret = secrets.token_hex(16)
    properties = directory / "spark.conf"
    properties.touch(mode=0o600)
    properties.write_text(
        f"spark.authenticate true\nspark.authenticate.secret {secret}\n"
        "spark.network.crypto.enabled true\n"
    )
    port, page = free_port(), free_port()

    def server(name: str, main: str, page_port: int, *arguments: str) -> Server:
        own = directory / name
        argv = [
            "env", "-u", "PYTHONPATH", f"SPARK_HOME={home}", f"SPARK_LOCAL_DIRS={own / 'local'}",
            f"SPARK_SCALA_VERSION={scala}", f"PATH={Path(EXECUTOR_PYTHON).parent}:{os.environ['PATH']}",
            "java", *JVM, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{main}",
            "--host", "127.0.0.1", "--webui-port", str(page_port), "--properties-file", str(properties),
            *arguments,
        ]  # fmt: skip
        url = f"http://127.0.0.1:{page_port}"
        return Server(name, url, argv, own, lambda: _probe(url))

    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{port}"
        master = stack.enter_context(
            server("master", "master.Master", page, "--port", str(port)).start()
        )
        started = [
            stack.enter_context(
                server(
                    f"worker-{number}", "worker.Worker", free_port(),
                    "--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY,
                    "--work-dir", str(directory / f"worker-{number}" / EXECUTORS), url,
                )
            )
            for number in range(workers)
        ]  # fmt: skip
        for worker in started:
            worker.launch()
        for worker in started:
            worker.wait()
        yield SparkCluster(url, master.url, secret, master, started, directory)


def _probe(url: str) -> str:
    with urlopen(f"{url}/json/", timeout=5) as answer:  # noqa: S310 - ours
        json.load(answer)
    return "there"
