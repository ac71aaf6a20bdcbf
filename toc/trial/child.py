"""A process of ours on a pipe: JSON lines in, JSON lines out.

It ends when its standard input does, so also when its parent was killed: nothing is left behind.
Settings travel through the pipe and not through arguments, which everybody on the machine can read.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from toc.errors import TocError

END_S = 40.0  # a node gives its running handlers 30 s
STDERR_CHARS_MAX = 4000


class ChildFailed(TocError):
    """A process of ours ended or did not answer; the text has the last of what it said."""

    code = "child_failed"


class Child:
    """`python -m module`, with `first` as its first line."""

    def __init__(self, module: str, first: dict[str, Any]) -> None:
        self._module = module
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's: it ends us in good order
        )
        self._reader = threading.Thread(target=self._read, name=f"toc-read-{module}", daemon=True)
        self._reader.start()
        self.send(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Raises ChildFailed when the process is gone."""
        assert self._process.stdin is not None  # noqa: S101 - made with a pipe
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure("ended") from error

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next line it says. Raises ChildFailed when it says none in time."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise self._failure(f"did not answer within {timeout_s:g} s") from None
        if answer is None:
            self._answers.put(None)  # it stays ended, however often one asks
            raise self._failure("ended")
        return answer

    def answered(self) -> bool:
        """Whether `receive` would return (or raise) at once."""
        return not self._answers.empty()

    def ask(self, message: dict[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """Sends one line and waits for the next one."""
        self.send(message)
        return self.receive(timeout_s)

    def close(self) -> int:
        """Asks it to end by closing its input, and waits. Returns its exit code."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        with suppress(OSError):  # it is gone already
            process.stdin.close()
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._reader.join(1.0)
        process.stdout.close()
        self._stderr.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - made with a pipe
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _failure(self, what: str) -> ChildFailed:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")[-STDERR_CHARS_MAX:].strip()
        return ChildFailed(f"{self._module} {what}" + (f":\n{said}" if said else ""))


def heard() -> Iterator[dict[str, Any]]:
    """Inside the child: the parent's lines, until it closes the pipe or dies."""
    for line in sys.stdin:
        yield json.loads(line)


def say(message: dict[str, Any]) -> None:
    """Inside the child: one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


@contextmanager
def ends_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that `with` blocks clean up. Main thread only."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
