"""A child process with JSON lines on pipes in both directions."""

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


class ChildProcessFailed(TocError):
    """A child process ended or did not answer; the text has the last lines of its output."""

    code = "child_failed"


class ChildProcess:
    """Runs `python -m module` as a child process; `first` is the first message that is sent to the child."""

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
            start_new_session=True,  # Ctrl-C reaches only the parent, which then ends this process
        )
        self._reader = threading.Thread(
            target=self._read_answers, name=f"toc-read-{module}", daemon=True
        )
        self._reader.start()
        self.send_message(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_message(self, message: dict[str, Any]) -> None:
        """Sends a message to the child. Raises ChildProcessFailed if the process has ended."""
        assert self._process.stdin is not None  # noqa: S101 - made with a pipe
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._make_failure("ended") from error

    def receive_message(self, timeout_s: float) -> dict[str, Any]:
        """The next message of the child. Raises ChildProcessFailed if none comes in time."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise self._make_failure(f"did not answer within {timeout_s:g} s") from None
        if answer is None:
            self._answers.put(None)  # the next call raises, too
            raise self._make_failure("ended")
        return answer

    def has_answered(self) -> bool:
        """Whether `receive_message` would return (or raise) at once."""
        return not self._answers.empty()

    def close(self) -> int:
        """Ends the child by closing its input, and waits. Returns its exit code."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        with suppress(OSError):  # the process has ended already
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

    def _read_answers(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - made with a pipe
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _make_failure(self, what: str) -> ChildProcessFailed:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")[-STDERR_CHARS_MAX:].strip()
        return ChildProcessFailed(f"{self._module} {what}" + (f":\n{said}" if said else ""))


def read_parent_messages() -> Iterator[dict[str, Any]]:
    """In the child: the parent's lines, until it closes the pipe or dies."""
    for line in sys.stdin:
        yield json.loads(line)


def send_to_parent(message: dict[str, Any]) -> None:
    """In the child: sends one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise as Ctrl-C does, so that `with` blocks clean up. Main thread only."""

    def raise_keyboard_interrupt(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, raise_keyboard_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
