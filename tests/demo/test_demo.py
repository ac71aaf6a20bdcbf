"""`toc demo` itself, short: two real processes, a private Redis, an honest end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from toc.demo.view import HELD

TOC = [sys.executable, "-m", "toc", "demo"]
END_S_MAX = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The demo's temporary directory goes to tmp_path; settings of a user must not matter."""
    return os.environ | {"TMPDIR": str(tmp_path), "TOC_SHARDS": "1", "TOC_REDIS_URL": "none"}


def processes_in(directory: Path) -> list[str]:
    """Command lines of processes that work in the directory or have a file there open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "cwd", *(process / "fd").iterdir()]
            if any(link.readlink().is_relative_to(directory) for link in links):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # it has ended, or is not ours
    return found


def figure(name: str, said: str) -> int:
    match = re.search(rf"^  {name} +([\d,]+)  ", said, re.MULTILINE)
    assert match is not None, said
    return int(match[1].replace(",", ""))


@pytest.mark.slow
def test_a_short_demo(environment: Mapping[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TOC, "--orders", "300", "--seconds", "6"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        address = first.removeprefix("in a browser, while the demo runs: ").strip()
        now = httpx.get(address, timeout=END_S_MAX, trust_env=False)
        types = httpx.get(f"{address}types", timeout=END_S_MAX, trust_env=False)
        said = process.communicate(timeout=END_S_MAX)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, first + said
    assert now.status_code == 200
    assert "order.close" in types.text
    assert "/pause" not in types.text  # a change by a person would break the check
    assert figure("scheduled", said) == 300
    ends = {name: figure(name, said) for name in ("done", "cancelled", "dead")}
    assert sum(ends.values()) == 300
    assert all(ends.values())
    # Each dead one has failed three times, each done one has succeeded once.
    assert figure("handler starts", said) == ends["done"] + ends["dead"] + figure("retries", said)
    assert figure("rescheduled", said) > 0
    for name in ("lost", "early", "fired after cancel", "duplicates", "wrong endings"):
        assert figure(name, said) == 0
    assert re.search(r"p50 \d+\.\d ms, p99 \d+\.\d ms, max \d+\.\d ms, min \d+\.\d ms", said)
    assert "█" in said
    assert said.rstrip().endswith(HELD)
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


@pytest.mark.slow
def test_a_demo_that_is_stopped_leaves_nothing(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    demo = [*TOC, "--orders", "1000"]
    process = subprocess.Popen(demo, env=environment, stdout=subprocess.DEVNULL, stderr=-3)
    try:
        end_s = time.monotonic() + END_S_MAX
        while not list(tmp_path.glob("*/client.journal")):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert processes_in(tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S_MAX) != 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []
