"""MySQL is restored to a moment, or a replica in another region takes over; Redis is empty, nodes start.

By the commands of docs/how-to/backup.md and the statements of docs/how-to/disaster-recovery.md.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.deep import deep
from tests.invariants.conftest import MakeStack, _started
from tests.invariants.harness import ROOT, TYPE, Stack
from tests.reliability.test_mysql import SMALL, database_on, pair
from tests.servers import Server, programs, start_mysql_source, start_redis
from tests.servers.mysql import execute, wait_for_replica
from tests.worker.waiting import remains, wait_until
from toc.domain.job import Status

__all__ = ["pair"]

PAGE = (ROOT / "docs/how-to/backup.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OTHER_REGION = (ROOT / "docs/how-to/disaster-recovery.md").read_text("utf-8")
PROMOTE = re.findall(r"^ {7}([A-Z].*);$", OTHER_REGION, re.MULTILINE)
NOW, LATER = timedelta(), timedelta(hours=1)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Server]:
    """A MySQL with GTIDs."""
    yield from _started(lambda: start_mysql_source(tmp_path / "source", SMALL))


class Page:
    """The shell blocks of the page, with the variables that it names."""

    def __init__(self, directory: Path, stack: Stack, server: Server, redis: Server) -> None:
        self._programs = directory / "bin"
        self._programs.mkdir()
        self._write("mysql", [programs.find("mysql", "mariadb"), "--no-defaults"])
        self._write("mysqlbinlog", [*programs.sid_command("bin/mysqlbinlog"), "--no-defaults"])
        self._write("redis-cli", [programs.find("redis-cli", "redis")])
        self._write("toc", [sys.executable, "-m", "toc"])
        port, settings = make_url(server.url).port, stack.settings
        self.variables = {
            "DB": f"--host=127.0.0.1 --port={port} --user=root",
            "BACKUP": str(directory / "backup"),
            "NIGHT": str(directory / "backup/2026-11-27"),
            "DATA": str(directory / "restored/data"),
            "REDIS": redis.url,
            "TOC_DATABASES": settings.databases[0],
            "TOC_SHARDS": str(settings.shards),
            "TOC_REDIS_URL": redis.url,
            "PYTHONPATH": str(ROOT),
        }
        for name in ("backup", "restored"):
            (directory / name).mkdir()

    def _write(self, name: str, command: list[str]) -> None:
        file = self._programs / name
        file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        file.chmod(0o755)

    def start(self, word: str) -> subprocess.Popen[str]:
        """Starts the only block that has this word."""
        (block,) = (block for block in BLOCKS if word in block)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOC_")}
        environment |= self.variables
        environment["PATH"] = f"{self._programs}:{environment['PATH']}"
        return subprocess.Popen(
            ["/bin/bash", "-euo", "pipefail", "-c", block],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, word: str) -> str:
        process = self.start(word)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, f"{word}: {said}"
        return said


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("binlog.0*"))


class Drill:
    """What became of the jobs by the moment, and after it."""

    def __init__(self, stack: Stack, gate: Path) -> None:
        self.stack, self._gate = stack, gate
        self.done: list[int] = []
        self.future = stack.schedule(20, LATER, first=100)

    def run_some(self, first: int) -> None:
        """Jobs that are done before the moment."""
        self.done += self.stack.schedule(40, NOW, first=first)
        self.wait_done(self.done)

    def hold_some(self) -> None:
        """At the moment eight handlers run, and thirty jobs wait behind them."""
        gates = [str(self._gate)]
        self.again = self.stack.schedule(8, NOW, first=300, gates=gates)
        started = len(self.done) + 8
        wait_until(lambda: len(self.stack.starts) == started, "the handlers to run")
        self.again += self.stack.schedule(30, NOW, first=400)

    def go_on(self) -> None:
        """What the restore takes back."""
        stack = self.stack
        self.gone = stack.schedule(10, NOW, first=500) + stack.schedule(5, LATER, first=600)
        self._gate.touch()
        self.wait_done(self.again + self.gone[:10])
        assert all(stack.center.cancel(job) for job in self.future[:5])
        assert all(stack.center.reschedule(job, LATER * 2) for job in self.future[5:10])

    def wait_done(self, jobs: list[int]) -> None:
        done = Status.DONE
        wait_until(lambda: all(self.stack.row(j).status is done for j in jobs), "jobs to be done")

    def check_restored(self) -> None:
        """The rows are those of the moment."""
        stack = self.stack
        status = {job: stack.row(job).status for job in self.done + self.again + self.future}
        assert {status[job] for job in self.done} == {Status.DONE}
        assert {status[job] for job in self.again} <= {Status.RUNNING, Status.PENDING}
        assert {status[job] for job in self.again[:8]} == {Status.RUNNING}
        self.check_future()
        assert sum(stack.statuses().values()) == len(status)
        assert {str(stack.center.cancel(job)) for job in self.gone} == {"unknown"}

    def check_future(self) -> None:
        """No cancel, no other time."""
        assert {self.stack.row(job).status for job in self.future} == {Status.PENDING}
        due_s = [
            datetime.fromisoformat(str(self.stack.row(j).due)).timestamp() for j in self.future
        ]
        assert max(due_s) - min(due_s) < 60


@deep
@pytest.mark.timeout(240)
def test_a_server_is_restored_to_a_moment(
    make_stack: MakeStack, source: Server, own_redis: Server, tmp_path: Path
) -> None:
    stack = make_stack(database=database_on(source))
    page, types = Page(tmp_path, stack, source, own_redis), {TYPE: {"timeout": 60, "retry": [0]}}
    worker = stack.worker(types=types).wait_ready()
    drill = Drill(stack, tmp_path / "gate")
    drill.run_some(first=0)
    page.run("INSTALL PLUGIN")
    page.run("CLONE LOCAL")
    binlogs = page.start("--stop-never")
    drill.run_some(first=200)
    drill.hold_some()
    page.variables["MOMENT"] = str(next_second(source))
    drill.go_on()
    copied, written = tmp_path / "backup/binlogs", tmp_path / "source/data"
    wait_until(lambda: size(copied) >= size(written), "the copy of the binary logs")
    worker.stop()
    source.kill()
    os.killpg(binlogs.pid, signal.SIGKILL)
    binlogs.communicate()
    began = len(stack.starts)

    (tmp_path / "restored/data").mkdir()  # the data that the restore replaces
    page.run("cp -a")
    port = make_url(source.url).port or 0
    with start_mysql_source(tmp_path / "restored", SMALL, port=port) as restored:
        page.run("--stop-datetime")
        page.run("FLUSHALL")
        assert "pending" in page.run("toc pause --all")
        drill.check_restored()
        stack.worker(types=types).wait_ready()
        assert remains(lambda: len(stack.starts) == began, 1.0)
        page.run("toc resume --all")
        drill.wait_done(drill.again)
        assert Counter(line.job_id for line in stack.starts[began:]) == Counter(drill.again)
        drill.check_future()
        stack.close()
        restored.kill()


@deep
@pytest.mark.timeout(240)
def test_another_region_takes_over(
    make_stack: MakeStack, pair: tuple[Server, Server], own_redis: Server, tmp_path: Path
) -> None:
    """Replication ends before the region is lost: its last jobs do not arrive."""
    source, replica = pair
    url, types = database_on(source), {TYPE: {"timeout": 60, "retry": [0]}}
    lost = make_stack(database=url)
    worker = lost.worker(types=types).wait_ready()
    drill = Drill(lost, tmp_path / "gate")
    drill.run_some(first=0)
    drill.hold_some()
    wait_for_replica(source, replica)
    execute(replica, "STOP REPLICA IO_THREAD")
    drill.go_on()
    worker.kill()
    source.kill()
    own_redis.kill()
    began = len(lost.starts)

    assert len(PROMOTE) == 4
    for statement in PROMOTE:
        execute(replica, statement)
    for redis in _started(lambda: start_redis(tmp_path / "redis-there")):
        there = make_stack(database=url.replace(source.url, replica.url), redis_url=redis.url)
        drill.stack = there
        drill.check_restored()
        there.worker(types=types).wait_ready()
        drill.wait_done(drill.again)
        assert Counter(line.job_id for line in there.starts[began:]) == Counter(drill.again)
        drill.check_future()
        there.close()
        replica.kill()


def next_second(server: Server) -> datetime:
    """The beginning of a second, in UTC: what was committed before the call is before it."""

    def now() -> datetime:
        ((text,),) = execute(server, "SELECT CAST(UTC_TIMESTAMP(0) AS CHAR)")
        return datetime.fromisoformat(str(text))

    began = now()
    wait_until(lambda: now() > began, "the next second")
    return began + timedelta(seconds=1)
