"""The nightly run as nodes see it: when, on whom, as what process, and what is told of it."""

from __future__ import annotations

import logging
import math
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.cluster.conftest import zookeeper
from tests.servers import Server
from tests.worker.waiting import wait_until
from toc.handlers.registry import Registry
from toc.node.health import health_of_last_night, health_of_nightly
from toc.node.nightly_gauges import NightlyGauges
from toc.node.node import Node
from toc.reconcile import nightly as module
from toc.reconcile.nightly import COMMAND, NightlyScheduler, describe_missing_software
from toc.runtime import metrics
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Databases
from toc.store.nightly_status import (
    NightlyStatus,
    read_nightly_status,
    record_nightly_status,
)
from toc.store.reconcile_status import read_last_reconcile_result, record_reconcile_result
from toc.store.recorded_meta import read_recorded_meta

__all__ = ["zookeeper"]

AT = "02:30"
ROOT = Path(module.__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without settings."""
    for name in os.environ:
        if name.startswith("TOC_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Make = Callable[..., NightlyScheduler]


@pytest.fixture
def make(directory: Path) -> Iterator[Make]:
    """make(code) runs that code in place of `toc nightly`."""
    made: list[NightlyScheduler] = []

    def make(
        code: str = "", leads: Callable[[], bool] = lambda: True, **settings: Any
    ) -> NightlyScheduler:
        settings = {"reconcile": {"nightly": AT}} | settings
        command = (sys.executable, "-c", code)
        made.append(NightlyScheduler(Settings(**settings), leads, SystemClock(), command))
        return made[-1]

    yield make
    for nightly in made:
        nightly.stop()


def begun(nightly: NightlyScheduler) -> threading.Thread:
    """Its run, in a thread as the scheduler has it, once it has begun."""
    thread = threading.Thread(target=nightly.run_if_leader, daemon=True)
    thread.start()
    wait_until(lambda: nightly.since_ms is not None, "the run to begin")
    return thread


def it_is_time(nightly: NightlyScheduler) -> None:
    """The scheduler's clock says so."""
    nightly._scheduler.modify_job("nightly", next_run_time=datetime.now(UTC))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("toc.")]


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for is a zombie, and does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# ---- when


def test_at_its_time_each_day(make: Make) -> None:
    nightly = make()
    nightly.start()
    (job,) = nightly._scheduler.get_jobs()
    first = job.next_run_time
    assert (first.hour, first.minute, first.utcoffset().total_seconds()) == (2, 30, 0)
    assert (job.trigger.get_next_fire_time(first, first) - first).total_seconds() == 86_400
    assert (job.max_instances, job.coalesce, job.misfire_grace_time) == (1, True, 3600)


def test_the_scheduler_runs_it(make: Make) -> None:
    nightly = make("open('ran', 'w')")
    nightly.start()
    it_is_time(nightly)
    wait_until(lambda: nightly.last is not None, "the run to end")
    assert nightly.last is not None
    assert nightly.last.is_good
    assert Path("ran").exists()


def test_it_is_toc_nightly() -> None:
    assert COMMAND[1:] == ("-m", "toc", "nightly")


def test_never_two_at_once(make: Make) -> None:
    nightly = make("import time; open('ran', 'a').write('x'); time.sleep(60)")
    thread = begun(nightly)
    wait_until(lambda: Path("ran").exists() and Path("ran").read_text())
    nightly.run_if_leader()  # returns at once
    assert nightly.stop()
    thread.join(10)
    assert Path("ran").read_text() == "x"


# ---- whose


def test_who_does_not_lead_does_nothing(make: Make) -> None:
    leading = [True]
    nightly = make("open('ran', 'a').write('x')", lambda: leading[0])
    nightly.run_if_leader()
    assert nightly.last is not None
    leading[0] = False
    nightly.run_if_leader()
    assert Path("ran").read_text() == "x"
    assert nightly.last is None  # another one's counts


def test_who_leads_no_longer_lets_it_end(make: Make) -> None:
    leading = [True]
    code = """
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
    nightly = make(code, lambda: leading[0])
    thread = begun(nightly)
    leading[0] = False
    nightly.run_if_leader()
    assert nightly.since_ms is not None
    Path("go").touch()
    thread.join(20)
    assert nightly.last is not None
    assert nightly.last.is_good


@pytest.fixture
def nodes(directory: Path, zookeeper: Server) -> Iterator[list[Node]]:
    """Two nodes that see each other, and run some code in place of `toc nightly`."""
    settings = Settings(
        databases=(f"sqlite:///{directory}/0.db",),
        shards=4,
        redis_url="none",
        namespace=f"t{secrets.token_hex(4)}",
        zookeeper_hosts=zookeeper.url,
        cluster={"session_timeout_s": 1},
        reconcile={"nightly": AT},
    )
    migrate.upgrade(settings)
    made = [Node(settings, handlers=Registry()) for _ in range(2)]
    code = "import pathlib, uuid; pathlib.Path(f'ran-{uuid.uuid4()}').touch()"
    try:
        for node in made:
            assert node.nightly is not None
            assert node.nightly._command == COMMAND
            node.nightly._command = (sys.executable, "-c", code)
            node.start()
        wait_until(lambda: all(len(n.membership.view.members) == 2 for n in made if n.membership))
        yield made
    finally:
        for node in made:
            node.stop()


def test_of_two_nodes_only_the_leader_runs_it(
    nodes: list[Node], directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, two = (node.nightly for node in nodes)
    assert one is not None
    assert two is not None
    for nightly in (two, one):
        it_is_time(nightly)
    wait_until(lambda: one.last is not None, "the leader's run to end")
    wait_until(lambda: any("this node is not the leader" in line for line in said(caplog)))
    assert len(list(directory.glob("ran-*"))) == 1
    assert two.last is None
    nodes[0].stop()
    wait_until(nodes[1]._is_leader, "the other one to lead")
    it_is_time(two)
    wait_until(lambda: two.last is not None, "its run to end")
    assert len(list(directory.glob("ran-*"))) == 2


def test_without_zookeeper_it_is_the_node_s_own(
    directory: Path, zookeeper: Server, nodes: list[Node]
) -> None:
    alone = Node(Settings(redis_url="none", reconcile={"nightly": AT}), handlers=Registry())
    assert alone._is_leader()
    alone.stop()
    zookeeper.stop()
    wait_until(lambda: not nodes[0]._is_leader(), "nobody to lead")
    assert not nodes[1]._is_leader()


def test_a_node_without_nights(directory: Path) -> None:
    node = Node(Settings(redis_url="none"), handlers=Registry())
    assert node.nightly is None
    assert "nightly" not in [part.part for part in node.health()]
    node.stop()


# ---- the process


def test_its_words_go_into_a_file_beside_the_reports(make: Make) -> None:
    code = "import os, sys; print('out'); print('err', file=sys.stderr); print(os.getcwd())"
    nightly = make(code, reconcile={"nightly": AT, "directory": "some/reports"})
    nightly.run_if_leader()
    lines = nightly.log_file.read_text().splitlines()
    assert nightly.log_file == Path("some/reports/nightly.log")
    assert sorted(lines) == sorted(["out", "err", str(Path.cwd())])
    nightly.run_if_leader()
    assert len(nightly.log_file.read_text().splitlines()) == 3
    before = nightly.log_file.with_name("nightly.log.1")
    assert sorted(before.read_text().splitlines()) == sorted(lines)
    assert len(list(nightly.log_file.parent.iterdir())) == 2


def test_it_has_the_environment_and_what_toc_dev_has_instead(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; [print(n, v) for n, v in sorted(os.environ.items()) if n[:4] == 'TOC_']"
    monkeypatch.setenv("TOC_SHARDS", "8")
    monkeypatch.setenv("TOC_REDIS_URL", "redis://here:1/0")
    nightly = make(code, redis_url="redis://here:1/0", databases="sqlite:///a,sqlite:///b")
    nightly.run_if_leader()
    assert nightly.log_file.read_text().splitlines() == [
        "TOC_DATABASES sqlite:///a,sqlite:///b",  # not what it would find by itself
        "TOC_REDIS_URL redis://here:1/0",
        "TOC_SHARDS 8",
    ]
    nightly = make(code, redis_url="redis://there:1/0")
    nightly.run_if_leader()
    assert "TOC_DATABASES" not in nightly.log_file.read_text()
    assert "TOC_REDIS_URL redis://there:1/0" in nightly.log_file.read_text()


def test_it_has_a_low_priority_and_what_it_starts_too(make: Make) -> None:
    code = """
import os, subprocess, time
while os.nice(0) < 10:  # set right after its start
    time.sleep(0.01)
subprocess.run(["nice"], check=True)
"""
    nightly = make(code)
    nightly.run_if_leader()
    assert int(nightly.log_file.read_text()) >= 10


ENDS_IN = [
    (0, True, "the databases and Redis agree"),
    (5, True, "all disagreements are repaired"),
    (1, False, "disagreements are left"),
    (3, False, "not everything could be done"),
    (4, False, "the settings or the schema are wrong, or software is missing"),
    (70, False, "the run failed with exit code 70"),
]


@pytest.mark.parametrize(("code", "good", "words"), ENDS_IN)
def test_how_it_ended_is_logged_in_words(
    make: Make, caplog: pytest.LogCaptureFixture, code: int, good: bool, words: str
) -> None:
    caplog.set_level(logging.INFO)
    nightly = make(f"raise SystemExit({code})")
    nightly.run_if_leader()
    (entry,) = [r for r in caplog.records if "has ended" in r.getMessage()]
    assert entry.getMessage() == f"the nightly run has ended: {words}; log {nightly.log_file}"
    assert entry.levelno == (logging.INFO if good else logging.WARNING)
    part = health_of_nightly(nightly)
    assert part.state == ("up" if good else "degraded")
    assert words in part.how
    assert part.since_ms is not None


def test_a_death_is_told_as_one(make: Make) -> None:
    nightly = make("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    nightly.run_if_leader()
    assert nightly.last is not None
    assert nightly.last.words == "the run was ended by signal 9"


def test_while_it_runs_health_says_so(make: Make) -> None:
    nightly = make("import time; time.sleep(60)")
    assert health_of_nightly(nightly).how == f"at {AT} UTC, on the node that leads"
    thread = begun(nightly)
    part = health_of_nightly(nightly)
    assert (part.state, part.how, part.since_ms) == (
        "up",
        "the nightly run is in progress",
        nightly.since_ms,
    )
    nightly.stop()
    thread.join(10)
    assert health_of_nightly(nightly).how == "the run was ended by signal 15"


def test_what_cannot_begin_is_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    Path("reports").write_text("a file, not a directory")
    nightly = make()
    nightly.run_if_leader()
    assert any("the nightly run could not begin: " in line for line in said(caplog))
    assert health_of_nightly(nightly).state == "degraded"
    Path("reports").unlink()
    nightly.run_if_leader()  # the next night
    assert health_of_nightly(nightly).state == "up"


# ---- its end

DEAF = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path("pids.new").write_text(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(60)
"""


def pids() -> list[int]:
    with suppress(FileNotFoundError):
        return [int(pid) for pid in Path("pids").read_text().split()]
    return []


@pytest.mark.parametrize("deaf", [False, True])
def test_a_stop_ends_it_with_all_that_it_has_started(make: Make, deaf: bool) -> None:
    nightly = make(DEAF if deaf else DEAF.replace("SIG_IGN", "SIG_DFL"))
    nightly.start()
    it_is_time(nightly)
    own, child = wait_until(pids, "the process to begin")
    assert alive(own)
    assert nightly.stop(1.0)
    wait_until(lambda: not alive(own) and not alive(child), "both to be gone")
    assert nightly.last is not None
    assert nightly.last.words == f"the run was ended by signal {9 if deaf else 15}"


def test_a_node_that_is_stopped_ends_it(directory: Path) -> None:
    settings = Settings(
        databases=f"sqlite:///{directory}/0.db", redis_url="none", reconcile={"nightly": AT}
    )
    migrate.upgrade(settings)
    node = Node(settings, handlers=Registry())
    assert node.nightly is not None
    node.nightly._command = (sys.executable, "-c", DEAF.replace("SIG_IGN", "SIG_DFL"))
    try:
        node.start()
        it_is_time(node.nightly)
        own, child = wait_until(pids, "the process to begin")
        assert "nightly" in [part.part for part in node.health()]
    finally:
        assert node.stop()
    wait_until(lambda: not alive(own) and not alive(child), "both to be gone")


STUBBORN = DEAF.replace('"import time; ', '"import signal, time; signal.signal(15, 1); ').replace(
    "SIG_IGN", "SIG_DFL"
)
"""It obeys; what it has started does not."""

ONCE = """
import os
if not os.path.exists("pids"):
    exec({code!r})
"""


@pytest.mark.parametrize("code", [DEAF, STUBBORN], ids=["deaf", "stubborn"])
def test_one_that_hangs_is_ended_and_the_next_night_runs(
    make: Make, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(module, "STOP_S", 1.0)
    nightly = make(ONCE.format(code=code), reconcile={"nightly": AT, "nightly_s_max": 3})
    nightly.run_if_leader()
    own, child = pids()
    wait_until(lambda: not alive(own) and not alive(child), "both to be gone")
    assert nightly.last is not None
    assert nightly.last.words == "the run was ended after 3 s (reconcile.nightly_s_max)"
    assert health_of_nightly(nightly).state == "degraded"
    nightly.run_if_leader()
    assert nightly.last.is_good


def test_without_a_limit_it_takes_its_time(make: Make) -> None:
    nightly = make(reconcile={"nightly": AT, "nightly_s_max": "none"})
    nightly.run_if_leader()
    assert nightly.last is not None
    assert nightly.last.is_good


@pytest.fixture
def kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Databases]:
    """What a node keeps, whose settings say `STORE`."""
    monkeypatch.setattr(module, "STOP_S", 1.0)
    settings = Settings(databases=STORE)
    migrate.upgrade(settings)
    databases = Databases.from_settings(settings, SystemClock())
    yield databases
    databases.close()


STORE = "sqlite:///0.db"


@pytest.mark.parametrize("code", [DEAF, "import os; os.kill(os.getpid(), 9)"])
def test_what_could_say_nothing_itself_is_kept_as_one_that_could_not_run(
    make: Make, kept: Databases, code: str
) -> None:
    before = record_reconcile_result(kept, "agreed", 0, 0, 1.0, is_whole=True)
    wait_until(lambda: kept.now_ms() > before.ended_ms)  # what follows begins later
    make(code, databases=STORE, reconcile={"nightly": AT, "nightly_s_max": 1}).run_if_leader()
    after = read_last_reconcile_result(kept)
    assert after is not None
    assert (after.verdict, after.whole_ms) == ("unable", before.whole_ms)
    make("raise SystemExit(3)", databases=STORE).run_if_leader()  # such a one keeps it itself
    assert read_last_reconcile_result(kept) == after


def test_a_reconciliation_that_ended_before_its_night_hung_counts(
    make: Make, kept: Databases
) -> None:
    nightly = make(DEAF, databases=STORE, reconcile={"nightly": AT, "nightly_s_max": 3})
    thread = begun(nightly)
    made = record_reconcile_result(kept, "repaired", 7, 7, 1.0, is_whole=True)
    thread.join(30)
    assert nightly.last is not None
    assert not nightly.last.is_good
    assert read_last_reconcile_result(kept) == made


@pytest.mark.parametrize(
    ("code", "failed"),
    [("import os; os.kill(os.getpid(), 9)", "killed"), ("raise SystemExit(4)", "exit-code-4")],
)
def test_a_night_that_stored_nothing_itself_is_in_the_status_and_the_metrics(
    make: Make, kept: Databases, code: str, failed: str
) -> None:
    gauges = NightlyGauges(kept)
    gauges.run_once()
    assert REGISTRY.get_sample_value("toc_nightly_age_seconds") == math.inf
    good = record_nightly_status(kept, seconds=2.0, code=0, failed="", findings=0, is_good=True)
    wait_until(lambda: kept.now_ms() > good.ended_ms)  # what follows begins later
    make(code, databases=STORE).run_if_leader()
    after = read_nightly_status(kept)
    assert after is not None
    assert (after.failed, after.good_ms) == (failed, good.ended_ms)
    gauges.run_once()
    assert REGISTRY.get_sample_value("toc_nightly_failed") == 1
    age_s = REGISTRY.get_sample_value("toc_nightly_age_seconds")
    assert age_s is not None
    assert 0 < age_s < 600
    settings = Settings(reconcile={"nightly": AT})
    part = health_of_last_night(settings, after, kept.now_ms())
    assert part is not None
    assert (part.state, failed in part.how) == ("degraded", True)


def test_the_result_of_a_night_is_no_fact_about_the_database(kept: Databases) -> None:
    before = read_recorded_meta(kept[0])
    record_nightly_status(kept, seconds=2.0, code=0, failed="", findings=0, is_good=True)
    assert read_recorded_meta(kept[0]) == before


def test_what_the_health_says_of_the_last_night() -> None:
    planned, unplanned = Settings(reconcile={"nightly": AT}), Settings()
    hour_ms = 3_600_000
    good = NightlyStatus(0, 2.0, 0, "", 0, 0)

    def state(settings: Settings, last: NightlyStatus | None, now_ms: int) -> tuple[str, str]:
        part = health_of_last_night(settings, last, now_ms)
        return ("", "") if part is None else (part.state, part.how)

    assert state(unplanned, None, 0) == ("", "")
    assert state(planned, None, 0) == ("up", "never")
    assert state(planned, good, 26 * hour_ms) == ("up", "26 h ago, after 2 s: good")
    assert state(planned, good, 26 * hour_ms + 1)[0] == "degraded"
    assert state(unplanned, good, 50 * hour_ms)[0] == "up"
    findings = replace(good, findings=3, failed="tables")
    assert state(planned, findings, 0) == (
        "degraded",
        "0 min ago, after 2 s: 3 checks of tables failed",
    )
    failed = replace(good, failed="tables archive", code=3)
    assert state(planned, failed, 0)[1] == "0 min ago, after 2 s: failed: tables, archive"


CHILD = f"""
import sys
from toc.reconcile.nightly import kill_this_process_when_parent_ends
from toc.runtime.clock import SystemClock
kill_this_process_when_parent_ends(int(sys.argv[sys.argv.index("--parent") + 1]), SystemClock())
{DEAF}
"""
NODE = f"""
import sys
from toc.reconcile.nightly import NightlyScheduler
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
NightlyScheduler(Settings(), lambda: True, SystemClock(), (sys.executable, "-c", {CHILD!r})).run_if_leader()
"""


def test_a_node_that_is_killed_leaves_none_behind(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    node = subprocess.Popen([sys.executable, "-c", NODE])
    try:
        own, child = wait_until(pids, "the process to begin", 30)
        assert alive(own)
    finally:
        node.kill()
        node.wait()
    wait_until(lambda: not alive(own) and not alive(child), "both to be gone", 30)


def test_the_command_ends_with_its_node(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here that is gone before it has even begun."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = [*COMMAND, "--parent", "1"]
    assert subprocess.run(run, start_new_session=True, check=False, timeout=60).returncode == -9


def test_after_a_stop_none_begins(make: Make) -> None:
    nightly = make("open('ran', 'w')")
    assert nightly.stop()
    assert nightly.stop()
    nightly.run_if_leader()
    assert not Path("ran").exists()


# ---- what it needs


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """A machine without the extra and without Java."""
    monkeypatch.setattr(module, "MODULES", ("json", "no_such_spark", "no_such_arrow"))
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.usefixtures("bare")
def test_what_is_lacking_is_said_at_the_start(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    nightly = make()
    nightly.start()
    (line,) = said(caplog)
    assert line == (
        f"the nightly run, at {AT} UTC, cannot be done on this node: no_such_spark, no_such_arrow "
        "are not installed: pip install 'toc[reconcile]'; there is no java on PATH: install Java 17 "
        "or later, as `apt install openjdk-17-jre-headless`"
    )
    part = health_of_nightly(nightly)
    assert (part.state, "toc[reconcile]" in part.how) == ("degraded", True)


def test_java_is_looked_for_where_it_will_be(
    monkeypatch: pytest.MonkeyPatch, bare: None, directory: Path
) -> None:
    monkeypatch.setattr(module, "MODULES", ("json",))
    (directory / "bin").mkdir()
    java = directory / "bin/java"
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory / "bin"))
    assert describe_missing_software() == ""
    monkeypatch.setenv("JAVA_HOME", str(directory / "elsewhere"))
    assert describe_missing_software().startswith(
        f"JAVA_HOME, {directory}/elsewhere, has no bin/java: install"
    )
    monkeypatch.setenv("JAVA_HOME", str(directory))
    monkeypatch.setenv("PATH", "")
    assert describe_missing_software() == ""


def test_a_node_imports_nothing_of_the_extra(directory: Path) -> None:
    """A worker must start without it, and must not carry it around with it."""
    code = f"import sys, toc.node.node; print({set(module.MODULES)} & {{*sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


REPORT = """
import sys
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.report.report import write_report
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings

now_ms = SystemClock().wall_ms() + {later_ms}
outcome = ReconcileResult(now_ms, "toc", 1, 64, "none", False, ended_ms=now_ms + 5000, compared=64)
outcome.seconds.update(compare=3.5, grace=1.0)
outcome.counts.update(rows=42)
write_report(outcome, Settings())
"""


def test_the_figures_of_a_run_are_metrics(make: Make) -> None:
    def value(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"toc_reconcile_{name}", labels)

    metrics.RECONCILE_END_TIME.clear()
    make(REPORT.format(later_ms=-60_000)).run_if_leader()
    assert (
        value("end_time_seconds", verdict="agreed") is None
    )  # the report is that of an earlier run
    make(REPORT.format(later_ms=0)).run_if_leader()
    ended_s = value("end_time_seconds", verdict="agreed")
    assert ended_s is not None
    assert abs(ended_s - SystemClock().wall_ms() / 1000) < 60
    assert value("seconds", phase="compare") == 3.5
    assert value("count", what="rows") == 42
