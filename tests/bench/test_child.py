"""Processes on a pipe."""

import json
import os
import signal
import subprocess
import sys

import pytest

from toc.bench.child import Child, ChildFailed, unwind_on_signals
from toc.bench.child_node import settings_line, settings_of
from toc.runtime.settings import Settings


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


def test_a_child_gets_the_passwords() -> None:
    url = "mysql+pymysql://toc:s%40cret@db/toc_0"
    given = Settings(
        databases=(url,), shards=4, redis_url="redis://:hidden@cache:6379/0",
        zookeeper_hosts="zoo:2181", cluster={"auth": "toc:quiet"},
    )  # fmt: skip
    line = json.loads(json.dumps(settings_line(given)))
    found = settings_of(line)
    assert found == given
    assert (list(found.databases), found.redis_url) == ([url], "redis://:hidden@cache:6379/0")
    assert found.cluster.auth is not None
    assert found.cluster.auth.get_secret_value() == "toc:quiet"
