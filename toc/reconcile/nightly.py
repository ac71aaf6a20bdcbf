"""The nightly run: at its time the leader starts `toc nightly`, a process of its own.

A process, so that the memory and the crashes of Java are not the worker's. It has this one's
environment and working directory, a lower priority, and says what it does into a log file. One that
has begun goes on when this node leads no longer; it is ended when it takes longer than
`reconcile.nightly_s_max`, when this node is stopped, and when that is killed. Every node has a
scheduler, since any may lead; when the time comes only the leader acts. A time that a machine has
slept through is made up for within an hour, and not later: the next night compares everything again.
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
from toc.reconcile.findings import Verdict
from toc.reconcile.remember import remember_unable
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings, load_settings

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "toc", "nightly")
LOG_FILE = "nightly.log"
NICE = 10
MISSED_S_MAX = 3600
STOP_S = 10.0
LOOK_S = 0.05  # whether it is gone
PARENT_LOOK_S = 1.0

MODULES = ("pyspark", "pyarrow", "pandas", "jinja2", "matplotlib")
"""What the extra brings."""

GOOD = (Verdict.AGREED, Verdict.REPAIRED)
WORDS = {
    Verdict.AGREED: "the databases and Redis agree",
    Verdict.LEFT: "disagreements are left",
    Verdict.UNABLE: "not everything could be done",
    Verdict.REPAIRED: "all disagreements are repaired",
    4: "settings, schema or what is installed are wrong",
}


@dataclass(frozen=True, slots=True)
class Last:
    """What the last run of this node came to. `ended_ms`: by this machine's wall clock."""

    ended_ms: int
    is_good: bool
    words: str


class Nightly:
    """Starts the nightly run of one node. `leads()`: whether this node is to run it now.

    `command`: what is run in its place (tests).
    """

    def __init__(
        self,
        settings: Settings,
        leads: Callable[[], bool],
        clock: Clock,
        command: Sequence[str] = COMMAND,
    ) -> None:
        own = settings.reconcile
        self.at, self._directory = own.nightly, Path(own.directory)
        self._s_max = None if own.nightly_s_max == "none" else own.nightly_s_max
        self._settings, self._leads, self._clock = settings, leads, clock
        self._command = tuple(command)
        self._variables = _not_inherited(settings)
        self._scheduler: Any = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self.lack = ""
        """What this node lacked for it when it was started, and how to get it."""
        self.since_ms: int | None = None
        """When the run that goes on has begun, by this machine's wall clock; None: none does."""
        self.last: Last | None = None
        """None: this node has run none, or another one did since."""

    @property
    def log_file(self) -> Path:
        """What the last run said. The one before it has ".1" behind its name."""
        return self._directory / LOG_FILE

    def start(self) -> None:
        """Waits for the time of day, in threads of its own. Says at once what this node lacks."""
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415 - if set
        from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415

        self.lack = lacking()
        if self.lack:
            text = "the nightly run, at %s UTC, cannot be done on this node: %s"
            log.warning(text, self.at, self.lack)
        hour, minute = self.at.split(":")
        self._scheduler = BackgroundScheduler(timezone=UTC)
        self._scheduler.add_job(
            self.run,
            CronTrigger(hour=int(hour), minute=int(minute), timezone=UTC),
            id="nightly",
            coalesce=True,
            max_instances=1,
            misfire_grace_time=MISSED_S_MAX,
        )
        self._scheduler.start()

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Ends the run that goes on, and starts none; True when it is gone. Legal without a start."""
        with self._lock:
            self._stopping, process = True, self._process
        gone = True
        if process is not None:
            log.warning("the nightly run is ended with this node")
            gone = _end(process, timeout_s, self._clock)
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=gone)
            self._scheduler = None
        return gone

    def run(self) -> None:
        """The run, to its end or its time limit, if this node leads. Never two at once."""
        if not self._leads():
            self.last = None
            log.info("the nightly run is the leader's; this node does not lead")
            return
        with self._lock:
            if self._stopping or self._process is not None:
                return
            began_s = self._clock.monotonic_s()
            try:
                self._process = process = self._begin()
            except OSError as error:  # no room, no right to write there
                self.last = Last(self._clock.wall_ms(), False, f"it could not begin: {error}")
                log.error("the nightly run could not begin: %s", error)  # noqa: TRY400 - no traceback
                return
            self.since_ms = self._clock.wall_ms()
        log.info("the nightly run has begun: process %d, log %s", process.pid, self.log_file)
        words = self._ended(process, began_s)
        last = Last(self._clock.wall_ms(), process.returncode in GOOD, words)
        with self._lock:
            self._process, self.since_ms, self.last = None, None, last
        level = logging.INFO if last.is_good else logging.WARNING
        log.log(level, "the nightly run has ended: %s; log %s", last.words, self.log_file)

    def _ended(self, process: subprocess.Popen[bytes], began_s: float) -> str:
        """Waits for its end, or makes it end; how it did."""
        words = ""
        try:
            process.wait(self._s_max)
        except subprocess.TimeoutExpired:
            words = f"it was ended after {self._s_max:g} s (reconcile.nightly_s_max)"
            log.warning("the nightly run takes too long, and is ended")
            _end(process, STOP_S, self._clock)
        code = process.returncode
        if (code is None or code < 0) and not self._stopping and self._settings.has_timer:
            # It can have said nothing itself.
            remember_unable(self._settings, self._clock, began_s)
        return words or words_of(code)

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._open_log() as said:
            process = subprocess.Popen(
                (*self._command, "--parent", str(os.getpid())),
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                # A group of its own: Java and all else end with it; a Ctrl-C is for this process.
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # it is over already
            os.setpriority(os.PRIO_PGRP, process.pid, NICE)
        return process

    def _open_log(self) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.log_file.replace(self.log_file.with_name(f"{LOG_FILE}.1"))
        return self.log_file.open("wb")


def end_with(parent: int, clock: Clock) -> None:
    """From now on this process, with its whole group, ends when `parent` is no longer its parent.

    That was killed then, and nobody is left to stop what it has started. A poll, since Linux alone has
    a signal for it, and that one comes from the thread that started the process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            clock.sleep_s(PARENT_LOOK_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # it may be killed at any moment

    threading.Thread(target=watch, daemon=True, name="toc-parent").start()


def words_of(code: int) -> str:
    """What an exit code of `toc nightly` means."""
    if code < 0:
        return f"it was ended by signal {-code}"
    return WORDS.get(code, f"it failed, with exit code {code}")


def lacking() -> str:
    """What the nightly run needs and this machine lacks, and how to get it; empty: nothing.

    Imports none of it: a worker need not carry Spark around.
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


def _not_inherited(settings: Settings) -> dict[str, str]:
    """Variables for what the run would not find in environment and file: `toc dev` has servers of its own."""
    try:
        found = load_settings()
    except SettingsError:
        return {}
    servers = {
        "TOC_DATABASES": (",".join(settings.databases), ",".join(found.databases)),
        "TOC_REDIS_URL": (settings.redis_url, found.redis_url),
    }
    return {name: ours for name, (ours, theirs) in servers.items() if ours != theirs}


def _end(process: subprocess.Popen[bytes], timeout_s: float, clock: Clock) -> bool:
    """Asks it, and all that it has started, to end; then kills. True when it is gone.

    What it has started may outlive it: Java, when it hangs.
    """
    until_s = clock.monotonic_s() + timeout_s / 2
    _signal_all(process, signal.SIGTERM)
    while _signal_all(process, 0) and clock.monotonic_s() < until_s:
        clock.sleep_s(LOOK_S)
        process.poll()
    _signal_all(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s / 2)
        return True
    return False


def _signal_all(process: subprocess.Popen[bytes], number: int) -> bool:
    """To the process and its whole group; False: nobody is left of it."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # the latter: on macOS, of zombies
        return False
    return True
