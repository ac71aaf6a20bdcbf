"""`toc dev`: a process, a second process beside it, and all the ways it can end."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process, clean_environment, wait_until
from toc.node import dev_servers as dev
from toc.node.dev_servers import DevServersError, PrivateRedis, find_redis_server
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_errors import UNAVAILABLE

Start = Callable[..., Process]

CLIENT = """
import toc
from datetime import timedelta
print(toc.schedule(42, timedelta(milliseconds=100)))
far = toc.schedule(43, timedelta(minutes=5), biz_type="order.close")
print(toc.cancel(far))
"""


def redis_pid(directory: Path) -> int | None:
    """The process behind the socket; None where nobody answers."""
    with make_redis_client(f"unix://{directory}/redis.sock", 1) as client:
        try:
            return int(client.info("server")["process_id"])
        except UNAVAILABLE:
            return None


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def begin(start: Start, *arguments: str, forked: bool = True) -> Process:
    # Port 0: several tests run at a time.
    process = start({"TOC_WEB__PORT": "0"}, "dev", *arguments, forked=forked)
    process.says("Stop: Ctrl-C.")
    return process


def test_a_second_process_schedules_cancels_and_sees_it_fire(
    start: Start, tmp_path: Path, toc: Toc
) -> None:
    process = begin(start)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    job_id, answer = done.stdout.split()
    assert answer == "cancelled"
    process.says(f"fired job {job_id} default biz_id 42, ")
    wait_until(
        lambda: toc("job", "show", job_id, "--json").json["jobs"][0]["status"] == "done", "done"
    )
    assert "biz_id 43" not in process.out
    process.send(signal.SIGINT)
    assert process.ended() == 0
    (line,) = process.err.splitlines()
    assert "INFO toc.http.serve HTTP on http://127.0.0.1:" in line


def test_the_directory_is_for_its_owner_alone(start: Start, tmp_path: Path) -> None:
    process = begin(start)
    made = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / ".toc").iterdir()}
    process.send(signal.SIGTERM)
    process.ended()
    assert (tmp_path / ".toc").stat().st_mode & 0o777 == 0o700
    assert {"toc_0.db", "dev.lock", "redis.log"} <= made.keys()
    assert {name for name, mode in made.items() if mode & 0o077} <= {"redis.sock"}


def test_jobs_stay_and_redis_goes(start: Start, tmp_path: Path, toc: Toc) -> None:
    first = begin(start)
    pid = redis_pid(Path(".toc"))
    assert pid is not None
    assert toc("schedule", 7, "1s").code == 0
    first.send(signal.SIGTERM)
    assert first.ended() == 0
    assert not lives(pid)
    assert not (tmp_path / ".toc/redis.sock").exists()
    second = begin(start)
    second.says("biz_id 7")


def test_closing_the_terminal_ends_it_all(start: Start) -> None:
    process = begin(start)
    pid = redis_pid(Path(".toc"))
    assert pid is not None
    process.send(signal.SIGHUP)
    assert process.ended() == 0
    assert not lives(pid)


@pytest.mark.parametrize(("number", "is_ignored"), [(signal.SIGINT, False), (signal.SIGHUP, True)])
def test_in_the_background_of_a_script_ctrl_c_ends_it_and_nohup_keeps_it(
    start: Start, number: signal.Signals, is_ignored: bool
) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as the shell does it; it is inherited
    try:
        process = begin(start, forked=False)
    finally:
        signal.signal(number, before)
    process.send(number)
    if is_ignored:
        assert process.code is None
        process.send(signal.SIGTERM)
    assert process.ended() == 0


def test_a_second_one_in_the_same_directory_is_refused(start: Start, toc: Toc) -> None:
    process = begin(start)
    result = toc("dev")
    assert result.code == 1
    assert result.err == (
        f"toc: another `toc dev` (process {process.pid}) runs in .toc: "
        "stop it, or give another --dir\n"
    )
    assert process.code is None
    assert redis_pid(Path(".toc")) is not None


def test_what_a_killed_one_left_behind_is_cleared_away(start: Start) -> None:
    process = begin(start)
    left = redis_pid(Path(".toc"))
    assert left is not None
    process.kill()
    assert lives(left)
    begin(start)
    assert not lives(left)
    assert redis_pid(Path(".toc")) not in (None, left)


def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "redis.sock").touch()
    with PrivateRedis(tmp_path):
        assert redis_pid(tmp_path) is not None


def test_redis_is_private(tmp_path: Path) -> None:
    with PrivateRedis(tmp_path) as redis:
        assert stat.S_IMODE((tmp_path / "redis.sock").stat().st_mode) == 0o700
        opened = [link.readlink().name for link in Path(f"/proc/{redis.pid}/fd").iterdir()]
        sockets = {name[8:-1] for name in opened if name.startswith("socket:[")}
        tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        ports = {line.split()[9] for table in tables for line in table.splitlines()[1:]}
        assert sockets
        assert not sockets & ports


def test_redis_that_ends_is_started_again(start: Start, toc: Toc) -> None:
    process = begin(start)
    pid = redis_pid(Path(".toc"))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    process.says("redis-server has ended")
    wait_until(lambda: redis_pid(Path(".toc")) not in (None, pid), "a new redis-server")
    assert toc("schedule", 8, "10ms").code == 0
    # Its wake-up may find nobody subscribed yet: then a slow poll sees it, long before the scanner.
    process.says("biz_id 8", seconds=20)


def test_the_second_signal_ends_it_at_once(start: Start, tmp_path: Path, toc: Toc) -> None:
    (tmp_path / "slow.py").write_text(
        "import time, toc\n\n@toc.handler()\ndef run(job):\n    print('began', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = begin(start, "--app", "slow")
    pid = redis_pid(Path(".toc"))
    assert pid is not None
    assert toc("schedule", 1, "0s").code == 0
    process.says("began")
    process.send(signal.SIGINT)
    process.says("stopping")
    process.send(signal.SIGINT)
    assert process.ended(10) == 130
    assert not lives(pid)


def test_a_thread_that_never_ends_does_not_keep_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import threading, toc, toc.cli.dev\n\n@toc.handler()\ndef run(job): pass\n\n"
        "toc.cli.dev.STOP_S_MAX = 0.5\n"  # while the parts of the node have not ended yet
        "threading.Thread(target=threading.Event().wait, name='stuck').start()\n"
    )
    settings = {"TOC_WEB__PORT": "0", "TOC_WORKER__STOP_S": "1"}
    process = start(settings, "dev", "--app", "stuck")
    process.says("Stop: Ctrl-C.")
    pid = redis_pid(Path(".toc"))
    assert pid is not None
    process.send(signal.SIGTERM)
    assert process.ended(60) == 1
    assert "stuck" in process.err
    assert not lives(pid)


def test_another_directory_says_how_to_reach_it(
    start: Start, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(start, "--dir", "else/where")
    assert redis_pid(Path("else/where")) is not None
    assert toc("slots").code == 3
    for line in process.out.splitlines():
        if "export " in line:
            monkeypatch.setenv(*line.split("export ")[1].split("="))
    assert toc("schedule", 5, "0s").code == 0
    process.says("biz_id 5")
    assert toc("slots").code == 0


@pytest.mark.parametrize("name", ["a b", "a,b", "a?b"])
def test_a_directory_that_no_url_can_hold_is_refused(toc: Toc, name: str) -> None:
    result = toc("dev", "--dir", name)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert not Path(name).exists()


def test_without_any_redis_server_it_says_what_to_do(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev, "_redis_server_paths", lambda: iter(()))
    result = toc("dev")
    assert result.code == 1
    assert "redis-server 6.2 or later" in result.err
    assert result.err.count("\n") == 1


def test_an_old_redis_server_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=00000000:0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    try:
        assert find_redis_server() != str(old)
    except DevServersError as error:
        assert "5.0" in str(error)  # noqa: PT017 - where the wheel is not installed


def test_a_redis_server_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho 'no memory today'\nexit 3\n")
    bad.chmod(0o755)
    monkeypatch.setattr(dev, "find_redis_server", lambda: str(bad))
    with pytest.raises(DevServersError, match="status 3: no memory today"):
        PrivateRedis(tmp_path).start()
