"""The nightly run: at the set time the leader starts `toc nightly` as a process of its own.

The run is a separate process so that Java's memory and crashes do not harm the worker. The process inherits
environment and working directory, has a lower priority, and writes its output to a log file. A run that has
begun goes on when this node is no longer the leader. A run is ended when it takes longer than
`reconcile.nightly_s_max`, when this node stops, and when this node is killed. Every node has a scheduler,
since any node may become the leader; at the set time only the leader starts the run. If the machine slept at
that time, the run starts up to an hour late; later than that the run is skipped, because the run of the next
night compares everything again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import IO, Any

from toc.errors import SettingsError
from toc.reconcile.findings import RunVerdict
from toc.reconcile.last_result import store_failed_night, store_failed_run_result
from toc.reconcile.report.report import read_newest_figures
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.private_files import make_private_directory, open_private_file
from toc.runtime.settings import Settings, load_settings

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "toc", "nightly")
LOG_FILE = "nightly.log"
NICENESS = 10
MISSED_S_MAX = 3600
STOP_S = 10.0
POLL_S = 0.05  # the time between two checks whether the process has ended
PARENT_POLL_S = 1.0

MODULES = ("pyspark", "pyarrow", "deltalake", "pandas", "jinja2")
"""The packages of the extra `reconcile`."""

GOOD = (RunVerdict.AGREED, RunVerdict.REPAIRED)
WORDS = {
    RunVerdict.AGREED: "the databases and Redis agree",
    RunVerdict.LEFT: "disagreements are left",
    RunVerdict.UNABLE: "not everything could be done",
    RunVerdict.REPAIRED: "all disagreements are repaired",
    4: "the settings or the schema are wrong, or software is missing",
}


@dataclass(frozen=True, slots=True)
class LastNightlyRun:
    """The result of this node's last run. `ended_ms`: by this machine's wall clock."""

    ended_ms: int
    is_good: bool
    words: str


class NightlyScheduler:
    """Starts the nightly run of one node. `is_leader()`: whether this node has to run it now.

    `command`: run instead of `toc nightly` (tests).
    """

    def __init__(
        self,
        settings: Settings,
        is_leader: Callable[[], bool],
        clock: Clock,
        command: Sequence[str] = COMMAND,
    ) -> None:
        reconcile = settings.reconcile
        self.at, self._directory = reconcile.nightly, Path(reconcile.directory)
        self._s_max = None if reconcile.nightly_s_max == "none" else reconcile.nightly_s_max
        self._settings, self._is_leader, self._clock = settings, is_leader, clock
        self._command = tuple(command)
        self._variables = _child_environment_variables(settings)
        self._scheduler: Any = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self.lack = ""
        """The software that this node lacked at its start, and how to install it; "": none."""
        self.since_ms: int | None = None
        """When the present run began, by this machine's wall clock; None: there is none."""
        self.last: LastNightlyRun | None = None
        """None: this node has made no run, or a later run was another node's."""

    @property
    def log_file(self) -> Path:
        """The output of the last run. The file of the run before has ".1" behind its name."""
        return self._directory / LOG_FILE

    def start(self) -> None:
        """Starts the scheduler, with threads of its own. Logs what this node lacks."""
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415 - if set
        from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415

        self.lack = describe_missing_software()
        if self.lack:
            text = "the nightly run, at %s UTC, cannot be done on this node: %s"
            log.warning(text, self.at, self.lack)
        hour, minute = self.at.split(":")
        self._scheduler = BackgroundScheduler(timezone=UTC)
        self._scheduler.add_job(
            self.run_if_leader,
            CronTrigger(hour=int(hour), minute=int(minute), timezone=UTC),
            id="nightly",
            coalesce=True,
            max_instances=1,
            misfire_grace_time=MISSED_S_MAX,
        )
        self._scheduler.start()

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Ends the present run, and starts no more; True when its processes are gone."""
        with self._lock:
            self._stopping, process = True, self._process
        gone = True
        if process is not None:
            log.warning("the nightly run is ended, because this node stops")
            gone = _end_process_group(process, timeout_s, self._clock)
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=gone)
            self._scheduler = None
        return gone

    def run_if_leader(self) -> None:
        """Runs `toc nightly` to its end or its time limit, if this node leads; never two at once."""
        if not self._is_leader():
            self.last = None
            log.info("no nightly run is started here: this node is not the leader")
            return
        with self._lock:
            if self._stopping or self._process is not None:
                return
            began_s = self._clock.monotonic_s()
            try:
                self._process = process = self._start_process()
            except OSError as error:  # no room, no right to write there
                self.last = LastNightlyRun(
                    self._clock.wall_ms(), False, f"the run could not begin: {error}"
                )
                log.error("the nightly run could not begin: %s", error)  # noqa: TRY400 - no traceback
                return
            self.since_ms = since_ms = self._clock.wall_ms()
        log.info("the nightly run has begun: process %d, log %s", process.pid, self.log_file)
        words = self._wait_for_process_end(process, began_s)
        last = LastNightlyRun(self._clock.wall_ms(), process.returncode in GOOD, words)
        export_run_figures(self._settings, since_ms)
        with self._lock:
            self._process, self.since_ms, self.last = None, None, last
        level = logging.INFO if last.is_good else logging.WARNING
        log.log(level, "the nightly run has ended: %s; log %s", last.words, self.log_file)

    def _wait_for_process_end(self, process: subprocess.Popen[bytes], began_s: float) -> str:
        """Waits for the end of the process, or ends it at the time limit; returns in words how it ended."""
        words = ""
        try:
            process.wait(self._s_max)
        except subprocess.TimeoutExpired:
            words = f"the run was ended after {self._s_max:g} s (reconcile.nightly_s_max)"
            log.warning("the nightly run takes longer than reconcile.nightly_s_max, and is ended")
            _end_process_group(process, STOP_S, self._clock)
        code = process.returncode
        if code not in GOOD and not self._stopping:
            # A process that was killed, or that could not read its settings, has stored no result itself.
            store_failed_night(self._settings, self._clock, began_s, -1 if code is None else code)
        if (code is None or code < 0) and not self._stopping and self._settings.has_timer:
            store_failed_run_result(self._settings, self._clock, began_s)
        return words or describe_exit_code(code)

    def _start_process(self) -> subprocess.Popen[bytes]:
        with self._rotate_and_open_log() as output:
            process = subprocess.Popen(
                (*self._command, "--parent", str(os.getpid())),
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A process group of its own: Java and all children end with it; a Ctrl-C is for this process
                # only.
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # it is over already
            os.setpriority(os.PRIO_PGRP, process.pid, NICENESS)
        return process

    def _rotate_and_open_log(self) -> IO[bytes]:
        make_private_directory(self._directory)
        with contextlib.suppress(FileNotFoundError):
            self.log_file.replace(self.log_file.with_name(f"{LOG_FILE}.1"))
        return open_private_file(self.log_file, "wb")


def export_run_figures(settings: Settings, since_ms: int) -> None:
    """Sets the metrics to the figures of the newest report, if its run ended at `since_ms` or later."""
    figures = read_newest_figures(settings)
    if figures is None or figures.ended.timestamp() * 1000 < since_ms:
        return
    for gauge in (
        metrics.RECONCILE_END_TIME,
        metrics.RECONCILE_DURATION,
        metrics.RECONCILE_COUNT,
    ):
        gauge.clear()
    metrics.RECONCILE_END_TIME.labels(figures.verdict).set(figures.ended.timestamp())
    for phase, seconds in figures.seconds.items():
        metrics.RECONCILE_DURATION.labels(phase).set(seconds)
    for what, count in figures.counts.items():
        metrics.RECONCILE_COUNT.labels(what).set(count)


def kill_this_process_when_parent_ends(parent: int, clock: Clock) -> None:
    """From now on this process and its group are killed when `parent` is no longer its parent.

    If the parent is killed, no other process can stop this run. A thread polls, since only Linux has a
    signal for the death of a parent, and that signal depends on the thread that started the process.
    """

    def poll_parent() -> None:
        while os.getppid() == parent:
            clock.sleep_s(PARENT_POLL_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the run can be killed at any moment

    threading.Thread(target=poll_parent, daemon=True, name="toc-parent").start()


def describe_exit_code(code: int) -> str:
    """The meaning of an exit code of `toc nightly`."""
    if code < 0:
        return f"the run was ended by signal {-code}"
    return WORDS.get(code, f"the run failed with exit code {code}")


def describe_missing_software() -> str:
    """The software that the nightly run needs and this machine lacks, and how to install it; "": none.

    Imports none of this software: a worker should not load Spark.
    """
    parts = []
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        verb = "are" if missing[1:] else "is"
        parts.append(f"{', '.join(missing)} {verb} not installed: pip install 'toc[reconcile]'")
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin/java") if home else "java") is None:
        where = f"JAVA_HOME, {home}, has no bin/java" if home else "there is no java on PATH"
        parts.append(f"{where}: install Java 17 or later, as `apt install openjdk-17-jre-headless`")
    return "; ".join(parts)


def _child_environment_variables(settings: Settings) -> dict[str, str]:
    """Variables for databases and Redis that the environment does not name, as under `toc dev`."""
    try:
        found = load_settings()
    except SettingsError:
        return {}
    servers = {
        "TOC_DATABASES": (",".join(settings.databases), ",".join(found.databases)),
        "TOC_REDIS_URL": (settings.redis_url, found.redis_url),
    }
    return {name: ours for name, (ours, theirs) in servers.items() if ours != theirs}


def _end_process_group(process: subprocess.Popen[bytes], timeout_s: float, clock: Clock) -> bool:
    """Asks the process and its children to end; kills them after half the time. True: the process is gone.

    Children may outlive the process, as Java does when it hangs.
    """
    until_s = clock.monotonic_s() + timeout_s / 2
    _signal_process_group(process, signal.SIGTERM)
    while _signal_process_group(process, 0) and clock.monotonic_s() < until_s:
        clock.sleep_s(POLL_S)
        process.poll()
    _signal_process_group(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s / 2)
        return True
    return False


def _signal_process_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Sends a signal to the process and its group; False: none of them is left."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # the latter: on macOS, of zombies
        return False
    return True
