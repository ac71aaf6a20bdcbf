"""A process that archives is killed (kill -9), in each step; and then another one runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.library import Library
from tests.deep import deep
from tests.forked_functions import run_forked
from tests.reconcile import dying_archive
from tests.worker.waiting import wait_until
from toc.reconcile import archive
from toc.reconcile.archive_tables import MARKS
from toc.reconcile.delta_tables import find_table
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.archive_status import ArchiveStatus, read_archive_status
from toc.store.claims import Outcome, OutcomeKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it starts Java twice

DAY_S = 86_400
JOBS = 2000
ROOT = Path(__file__).parents[2]


def settings_of(tmp_path: Path, library: Library) -> dict[str, Any]:
    return {
        "databases": library.settings.databases,
        "shards": library.settings.shards,
        "redis_url": "none",
        "reconcile": {"archive": str(tmp_path / "archive"), "page": 10},
    }


def archived_ids(tmp_path: Path, name: str) -> list[int]:
    """The job_ids in a table. Each job has one event."""
    table = find_table(str(tmp_path / "archive"), name)
    assert table is not None
    return sorted(table.to_pyarrow_table(columns=["job_id"]).column(0).to_pylist())


def first_mark(table: str) -> ArchiveStatus:
    """The row of a run that has come nowhere."""
    return ArchiveStatus(0, 0, 1, event_id=0 if table == "events" else None)


STEPS = (
    ("_commit", 0),
    ("run_work", 0),
    ("run_work", 1),
    ("run_work", 2),
    ("_commit", 1),
    ("advance_archived_until", 0),
)


@pytest.mark.parametrize(
    ("step", "call", "table"),
    [
        *((*step, "jobs") for step in STEPS),
        *(pytest.param(*step, "events", marks=deep) for step in STEPS[:-1]),
        (*STEPS[-1], "events"),
    ],
)
def test_killed_at_each_step(
    tmp_path: Path, step: str, call: int, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    jobs = many(library, 0)
    killed = run_forked(dying_archive.main, settings_of(tmp_path, library), "", step, call, table)
    assert killed == -signal.SIGKILL
    assert read_archive_status(library.databases[0], MARKS[table]) == first_mark(table)
    committed = sorted(jobs) if step == "advance_archived_until" else []
    assert archived_ids(tmp_path, table) == committed
    monkeypatch.setattr(
        archive, "ARCHIVES", [one for one in archive.ARCHIVES if one.spec.name == table]
    )
    settings = Settings(**settings_of(tmp_path, library))
    assert archive.archive_due_rows(None, settings, SystemClock(), print).is_good
    assert archived_ids(tmp_path, table) == sorted(jobs)
    status = read_archive_status(library.databases[0], MARKS[table])
    assert status is not None
    assert (status.run, status.begun) == (2, 2)
    library.close()


@deep
@pytest.mark.parametrize("table", MARKS)
def test_killed_while_executors_write(tmp_path: Path, table: str) -> None:
    pytest.importorskip("pyspark")
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    jobs = [job for n in range(JOBS // 100) for job in many(library, n)]
    given = json.dumps([settings_of(tmp_path, library), "local[2]", "", 0, table])
    run = [sys.executable, "-m", dying_archive.__name__, given]
    process = subprocess.Popen(run, start_new_session=True, cwd=ROOT)
    try:
        # The commit by which the run has begun; then it reads ten rows at a time: there is time to kill it.
        begun = tmp_path / f"archive/{table}/_delta_log/00000000000000000002.json"
        wait_until(begun.exists, "the run has begun", 60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert read_archive_status(library.databases[0], MARKS[table]) == first_mark(table)
    assert archived_ids(tmp_path, table) == []

    subprocess.run(run, check=True, timeout=280, cwd=ROOT)
    assert archived_ids(tmp_path, table) == sorted(jobs)
    library.close()


def many(library: Library, part: int) -> list[int]:
    """A hundred jobs that ended in January 2026, each with one event."""
    new = [library.new(biz_id=part * 100 + n) for n in range(100)]
    ids = [inserted.job_id for inserted in library.insert(*new)]
    library.claim(ids, "one")
    for shard in {library.shard(job_id) for job_id in ids}:
        mine = [job_id for job_id in ids if library.shard(job_id) == shard]
        outcomes = [Outcome(job_id, "one", OutcomeKind.BURY, error="it failed") for job_id in mine]
        assert len(library.settle(*outcomes)) == len(mine)
    return ids
