"""kill -9 of the driver, or of executors, in each phase: nothing is lost or told twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.deep import deep
from tests.forked_functions import run_forked
from tests.reconcile import dying_run
from tests.reconcile.test_run import SHARDS, Damaged, own_redis_url
from tests.servers import Server
from tests.servers.spark import SparkCluster
from tests.table import add_line
from toc.reconcile.findings import RunVerdict
from toc.runtime.setting_groups import ReconcileSettings
from toc.runtime.settings import Settings

__all__ = ["own_redis_url"]

pytestmark = pytest.mark.timeout(600)

RUN_S_MAX = 500


class KilledRuns:
    """A damaged system, and processes that reconcile it."""

    def __init__(
        self, directory: Path, database: str, redis_url: str, spark: dict[str, str]
    ) -> None:
        self.directory, self.reports = directory, directory / "reports"
        self.reconcile = {
            "grace_s": 0.05, "repairs_per_s": 100_000, "directory": str(self.reports), "spark": spark
        }  # fmt: skip
        self.settings = Settings(
            databases=(database,),
            shards=SHARDS,
            redis_url=redis_url,
            reconcile=ReconcileSettings.model_validate(self.reconcile),
        )
        self.damaged = Damaged(self.settings)

    def run(self, phase: str, master: str, killed: str) -> int:
        """The exit code of a process that reconciles; see dying_run.py."""
        variables = {
            "TOC_DATABASES": self.settings.databases[0],
            "TOC_REDIS_URL": self.settings.redis_url,
            "TOC_SHARDS": str(SHARDS),
            "TOC_RECONCILE": json.dumps(self.reconcile),
        }
        given = (variables, self.directory / "answer.json", phase, master, killed)
        return run_forked(dying_run.main, *given, timeout_s=RUN_S_MAX)

    def answer(self) -> Any:
        return json.loads((self.directory / "answer.json").read_text())

    def check_report(self, answer: dict[str, Any]) -> None:
        """Each finding is reported once, and repaired; then nothing is left."""
        assert answer["verdict"] == "repaired"
        rows = pq.read_table(Path(answer["report"]) / "findings.parquet").to_pylist()
        assert sorted(row["job_id"] for row in rows) == sorted(self.damaged.lost)
        assert all(row["mended"] for row in rows)
        assert self.damaged.run().verdict == RunVerdict.AGREED
        assert not list(self.reports.glob("*.unfinished"))


@pytest.mark.parametrize(
    ("phase", "master", "taken_up"),
    [
        ("comparing", "none", 2),  # the fifth shard is of the third wave, the second one waits
        pytest.param("grace", "none", 2, marks=deep),
        pytest.param("rechecking", "none", 4, marks=deep),
        ("repairing", "none", 8),
        ("report", "none", 8),
        pytest.param("planning", "local[2]", 0, marks=deep),
    ],
)
def test_the_next_run_goes_on(
    tmp_path: Path,
    mysql_database: str,
    own_redis_url: tuple[Server, str],
    phase: str,
    master: str,
    taken_up: int,
    request: pytest.FixtureRequest,
) -> None:
    runs = KilledRuns(tmp_path, mysql_database, own_redis_url[1], {})
    assert runs.run(phase, master, "driver") == -signal.SIGKILL
    assert runs.run("none", "none", "nobody") == 0
    answer = runs.answer()
    shards = [shard for part in answer["taken_up"] for shard in part["shards"]]
    assert len(shards) == len(set(shards)) == taken_up
    # What the first run has finished is not done again.
    assert answer["calls"].get("comparing", 0) == SHARDS - taken_up
    if phase == "report":
        assert "repairing" not in answer["calls"]
    runs.check_report(answer)
    add_line(request, "killed", (phase, master, f"{taken_up} of {SHARDS}"))


@deep
@pytest.mark.parametrize("phase", ["comparing", "rechecking", "repairing"])
def test_executors_are_killed(
    tmp_path: Path,
    mysql_database: str,
    own_redis_url: tuple[Server, str],
    cluster: SparkCluster,
    phase: str,
) -> None:
    """Spark does their tasks again on others, and the run finds, repairs and reports all."""
    runs = KilledRuns(tmp_path, mysql_database, own_redis_url[1], cluster.driver_properties())
    assert runs.run(phase, cluster.url, "executors") == 0
    answer = runs.answer()
    assert answer["killed"] >= 1
    runs.check_report(answer)
