"""Processes on a pipe."""

import json
import os
import signal
import subprocess
import sys

import pytest

from toc.bench.child import Child, ChildFailed, unwind_on_signals


def test_a_child_that_fails_says_why() -> None:
    with Child("toc.bench.worker", {"settings": {"shards": 3}}) as child:
        with pytest.raises(ChildFailed, match="shards must be a power of two"):
            child.receive(30)
        assert child.has_answered()
        with pytest.raises(ChildFailed, match="ended"):
            child.receive(30)


def test_a_child_that_says_nothing_is_not_waited_for() -> None:
    with Child("toc.bench.worker", {}) as child, pytest.raises(ChildFailed, match="within 0 s"):
        child.receive(0)


def test_a_child_ends_with_its_pipe() -> None:
    code = (
        "from toc.bench.child import lines_from_parent, send_to_parent\n"
        "for line in lines_from_parent(): send_to_parent(line)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate(json.dumps({"a": 1}) + "\n", timeout=30)
    assert json.loads(said) == {"a": 1}
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_unwind(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), unwind_on_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
