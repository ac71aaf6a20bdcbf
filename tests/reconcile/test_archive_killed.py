"""A process that archives is killed, with its Java, while Spark writes; and then another one runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.library import Library
from tests.worker.waiting import wait_until
from toc.store.archive_status import ArchiveStatus, read_archive_status
from toc.store.claims import Outcome, OutcomeKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # it starts Java twice

DAY_S = 86_400
JOBS = 2000
ARCHIVE = """
import json, sys
from toc.reconcile.archive import archive_ended_jobs
from toc.reconcile.spark import open_spark_session
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings

settings = load_settings(**json.loads(sys.argv[1]))
with open_spark_session(settings, "local[2]") as spark:
    result = archive_ended_jobs(spark, settings, SystemClock(), print)
sys.exit(not result.is_good)
"""


def test_killed_while_spark_writes(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    jobs = [job for n in range(JOBS // 100) for job in many(library, n)]
    settings = {
        "databases": library.settings.databases,
        "shards": library.settings.shards,
        "redis_url": "none",
        "reconcile": {"archive": str(tmp_path / "archive"), "page": 10},
    }
    command = [sys.executable, "-c", ARCHIVE, json.dumps(settings)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        temporary = tmp_path / "archive/_staging/database=0/run=1/_temporary"
        # It reads ten rows at a time: there is time to kill it.
        wait_until(temporary.exists, "Spark writes", 60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert read_archive_status(library.databases[0]) == ArchiveStatus(0, 0, 1)
    assert not (tmp_path / "archive/jobs").exists()

    subprocess.run(command, check=True, timeout=100)
    files = list((tmp_path / "archive/jobs").rglob("*.parquet"))
    found = [
        row for file in files for row in parquet.ParquetFile(file).read(["job_id"]).to_pylist()
    ]
    assert sorted(row["job_id"] for row in found) == sorted(jobs)
    assert list((tmp_path / "archive/_staging").rglob("*.parquet")) == []
    library.close()


def many(library: Library, part: int) -> list[int]:
    """A hundred jobs that ended in January 2026."""
    new = [library.new(biz_id=part * 100 + n) for n in range(100)]
    ids = [inserted.job_id for inserted in library.insert(*new)]
    library.claim(ids, "one")
    for shard in {library.shard(job_id) for job_id in ids}:
        mine = [job_id for job_id in ids if library.shard(job_id) == shard]
        outcomes = [Outcome(job_id, "one", OutcomeKind.DONE) for job_id in mine]
        assert len(library.settle(*outcomes)) == len(mine)
    return ids
