"""`toc reconcile --repair` in a process that is killed in a phase, or whose executors are."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from toc.cli.reconcile import open_session_unless_none, run_reconciliation
from toc.reconcile import reconciliation
from toc.reconcile.report import report
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings

WAITING = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"
)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class DyingClock(SystemClock):
    """Dies in the grace of the second wave, when there is one."""

    graces = 0

    def sleep_s(self, duration_s: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.graces += 1
            if self.graces == 2:
                die()
        super().sleep_s(duration_s)


class ExecutorKiller:
    """Locks a table until an executor waits for it, then kills all executors of the application."""

    def __init__(self, settings: Settings, application_id: str) -> None:
        self._settings, self._id, self.killed = settings, application_id, 0
        self.locked = threading.Event()

    def run(self) -> None:
        engine = create_engine(self._settings.databases[0], poolclass=NullPool)
        with engine.connect() as holder, engine.connect() as observer:
            holder.execute(text("LOCK TABLES toc_job_0003 WRITE"))
            self.locked.set()
            while not observer.execute(text(WAITING)).scalar():
                time.sleep(0.01)
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    line = (folder / "cmdline").read_bytes().replace(bytes(1), b" ").decode()
                    if "CoarseGrainedExecutorBackend" in line and f"--app-id {self._id} " in line:
                        os.kill(int(folder.name), signal.SIGKILL)
                        self.killed += 1
            holder.execute(text("UNLOCK TABLES"))


def main(
    variables: Mapping[str, str], answer_file: Path, phase: str, master: str, killed: str
) -> None:
    """Writes the answer into a file, unless it is killed.

    variables: the settings. phase: 'none' for no phase. master: Spark's, or 'none'. killed: 'driver' is this
    process; 'executors' are those of this process's application, while one of them waits for a lock.
    """
    for name in list(os.environ):
        if name.startswith(("PYSPARK", "SPARK")):
            del os.environ[name]
    os.environ.update(variables)
    reconciliation.REPAIRED_AT_ONCE = 10
    if master == "none":  # on Spark, each wave takes seconds
        reconciliation.WAVE_SHARDS = 2
    settings, calls = load_settings(), Counter[str]()
    killer: list[ExecutorKiller] = []

    def on_progress(text: str, done: int, of: int) -> None:
        name = text.partition(",")[0]
        calls[name] += done > 0 or master != "none"
        if name != phase:
            return
        if killed == "driver" and calls[name] == (5 if master == "none" else 1):
            die()
        if killed == "executors" and not killer:
            killer.append(ExecutorKiller(settings, session.sparkContext.applicationId))
            threading.Thread(target=killer[0].run).start()
            killer[0].locked.wait()

    if phase == "report":
        report._rename_draft = lambda *_: die()  # type: ignore[assignment]
    report.check_report_directory(settings)
    clock = DyingClock() if phase == "grace" else SystemClock()
    with open_session_unless_none(settings, master) as session:
        outcome, where = run_reconciliation(settings, session, clock, on_progress, repair=True)
    answer: dict[str, Any] = report.result_as_json(outcome, where)
    answer |= {"calls": calls, "killed": killer[0].killed if killer else 0}
    answer_file.write_text(json.dumps(answer))
