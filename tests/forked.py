"""Python processes that are forked from one that has imported toc: each saves the time of the imports.

For tests of what a process does, not of how Python starts it. `start_forked` is like `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "alembic.command", "alembic.context", "greenlet", "kazoo.client", "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "toc.cli.dev", "toc.cli.worker", "toc.http.serve",
)  # fmt: skip
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
POLL_S = 0.02


class ForkedProcess:
    """A process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until then the number is this process'
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks. It ends when its standard input does."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(self.close)

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@functools.cache
def fork_server() -> ForkServer:
    return ForkServer()


def start_forked(
    module: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: IO[Any],
    stderr: IO[Any],
) -> ForkedProcess:
    """Runs `python -m module arguments`. Its standard input is empty. The files have names."""
    server = fork_server()
    pid = server.ask(
        module=module,
        arguments=arguments,
        cwd=str(cwd),
        env=dict(env),
        files=[str(stdout.name), str(stderr.name)],
        ignored=[number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
    )
    return ForkedProcess(server, pid)


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                gc.unfreeze()
                become(**order)
                return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def become(
    module: str,
    arguments: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    files: Sequence[str],
    ignored: Sequence[int],
) -> None:
    """What a new Python does, from the environment to the end of the module."""
    for at, name in enumerate([os.devnull, *files]):
        opened = os.open(name, os.O_RDONLY if at == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, at)
        os.close(opened)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
