"""What systemd is told by `toc worker` and `toc web`, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import SECONDS_MAX, running
from toc.cli.service_manager import ServiceManager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(SECONDS_MAX)
        yield listening


@pytest.mark.parametrize("command", [("worker", "--sinks-only"), ("web",)], ids=["worker", "web"])
def test_systemd_hears_of_the_start_the_health_and_the_stop(
    command: tuple[str, ...], systemd: socket.socket, servers: dict[str, str], tmp_path: Path
) -> None:
    settings = servers | {"TOC_WEB__PORT": "0"}
    watched = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with running(tmp_path, settings | watched, *command) as process:
        assert systemd.recv(100) == b"READY=1"
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.send(signal.SIGTERM)
        while (heard := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert heard == b"STOPPING=1"
        assert process.ended() == 0
        assert "watchdog" not in process.err


def test_the_watchdog_hears_nothing_while_there_are_faults(
    systemd: socket.socket, tmp_path: Path
) -> None:
    faults = ["the thread toc-scanner has ended"]
    asked = []

    def find_faults() -> list[str]:
        asked.append(1)
        return faults if len(asked) < 3 else []

    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
    with ServiceManager(find_faults, environ) as manager:
        manager.say_ready()
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        assert len(asked) >= 3


def test_a_watchdog_of_another_process_is_not_ours(systemd: socket.socket, tmp_path: Path) -> None:
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "20000",
        "WATCHDOG_PID": str(os.getpid() + 1),
    }
    manager = ServiceManager(lambda: pytest.fail("nobody watches"), environ)
    manager.say_ready()
    manager.say_stopping()
    assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0toc-test-{os.getpid()}")
        listening.settimeout(SECONDS_MAX)
        environ = {"NOTIFY_SOCKET": f"@toc-test-{os.getpid()}"}
        ServiceManager(list, environ).say_ready()
        assert listening.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager(list, {}).say_ready()
    assert caplog.text == ""
    ServiceManager(list, {"NOTIFY_SOCKET": "/nonexistent/notify"}).say_ready()
    assert "systemd cannot be told READY=1" in caplog.text
