"""Processes on a pipe."""

import json
import os
import signal
import subprocess
import sys

import pytest

from toc.bench.child_node import settings_from_message, settings_message
from toc.bench.child_process import ChildProcess, ChildProcessFailed, interrupt_on_signals
from toc.runtime.settings import Settings


def test_a_child_that_fails_says_why() -> None:
    with ChildProcess("toc.bench.worker", {"settings": {"shards": 3}}) as child:
        with pytest.raises(ChildProcessFailed, match="shards must be a power of two"):
            child.receive_message(30)
        assert child.has_answered()
        with pytest.raises(ChildProcessFailed, match="ended"):
            child.receive_message(30)


def test_a_child_that_says_nothing_is_not_waited_for() -> None:
    with (
        ChildProcess("toc.bench.worker", {}) as child,
        pytest.raises(ChildProcessFailed, match="within 0 s"),
    ):
        child.receive_message(0)


def test_a_child_ends_with_its_pipe() -> None:
    code = (
        "from toc.bench.child_process import read_parent_messages, send_to_parent\n"
        "for line in read_parent_messages(): send_to_parent(line)"
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
    with pytest.raises(KeyboardInterrupt), interrupt_on_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_child_gets_the_passwords() -> None:
    url = "mysql+pymysql://toc:s%40cret@db/toc_0"
    given = Settings(
        databases=(url,), shards=4, redis_url="redis://:hidden@cache:6379/0",
        zookeeper_hosts="zoo:2181", cluster={"auth": "toc:quiet"},
    )  # fmt: skip
    line = json.loads(json.dumps(settings_message(given)))
    found = settings_from_message(line)
    assert found == given
    assert (list(found.databases), found.redis_url) == ([url], "redis://:hidden@cache:6379/0")
    assert found.cluster.auth is not None
    assert found.cluster.auth.get_secret_value() == "toc:quiet"
