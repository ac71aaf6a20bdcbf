"""`toc worker`: handlers of modules, and every way to stop."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process, wait_until

Start = Callable[..., Process]
Servers = dict[str, str]

SHOP = """
import time
from pathlib import Path
import toc

@toc.handler("quick")
def quick(job):
    print("quick", job.biz_id, flush=True)

@toc.handler("slow", timeout={timeout})
def slow(job):
    print("began", flush=True)
    while not Path("go").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/handlers.py").write_text(SHOP.format(timeout=30))
    (tmp_path / "stuck.py").write_text(SHOP.format(timeout=0.2))


def begin(start: Start, servers: Servers, *arguments: str) -> Process:
    process = start(servers, "worker", *arguments)
    process.says(" runs ")
    return process


@pytest.mark.usefixtures("shop")
def test_sigterm_lets_handlers_finish(start: Start, servers: Servers, toc: Toc) -> None:
    process = begin(start, servers, "--app", "shop.handlers")
    assert "runs quick, slow" in process.err
    job_id = toc("schedule", 1, "0s", "--type", "slow", "--json").json["job_id"]
    process.says("began")
    process.send(signal.SIGTERM)
    process.says("stopping")
    assert process.code is None
    Path("go").touch()
    assert process.ended() == 0
    job = toc("job", "show", job_id, "--json").json["jobs"][0]
    assert (job["status"], job["attempts"]) == ("done", 1)


@pytest.mark.usefixtures("shop")
def test_no_job_is_left_half_way(start: Start, servers: Servers, toc: Toc) -> None:
    one = servers | {"TOC_WORKER__CONCURRENCY": "1"}
    process = begin(start, one, "--app", "shop.handlers")
    assert toc("schedule", 1, "0s", "--type", "slow").code == 0
    process.says("began")
    ids = [
        toc("schedule", n, "0s", "--type", "quick", "--json").json["job_id"] for n in range(2, 5)
    ]
    process.send(signal.SIGINT)
    process.says("stopping")
    Path("go").touch()
    assert process.ended() == 0
    for job_id in ids:
        job = toc("job", "show", job_id, "--json").json["jobs"][0]
        # One may have begun in the moment between the signal and the end of the others.
        assert (job["status"], job["attempts"]) in [("pending", 0), ("done", 1)]


@pytest.mark.usefixtures("shop")
def test_a_second_signal_ends_it_at_once(start: Start, servers: Servers, toc: Toc) -> None:
    process = begin(start, servers, "--app", "shop.handlers")
    assert toc("schedule", 1, "0s", "--type", "slow").code == 0
    process.says("began")
    process.send(signal.SIGTERM)
    process.says("stopping")
    process.send(signal.SIGTERM)
    assert process.ended(5) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("shop")
def test_handlers_left_running_are_told_of(start: Start, servers: Servers, toc: Toc) -> None:
    hasty = servers | {"TOC_WORKER__STOP_S": "0.1"}
    process = begin(start, hasty, "--app", "shop.handlers")
    assert toc("schedule", 1, "0s", "--type", "slow").code == 0
    process.says("began")
    process.send(signal.SIGTERM)
    assert process.ended() == 1
    assert "left to their leases" in process.err


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("setting", "code"), [({}, 75), ({"TOC_WORKER__SHUTDOWN_EXIT_CODE": "9"}, 9)]
)
def test_too_many_stuck_handlers_want_a_restart(
    start: Start, servers: Servers, toc: Toc, setting: dict[str, str], code: int
) -> None:
    few = servers | {"TOC_WORKER__STUCK_MAX": "2", "TOC_WORKER__STOP_S": "0.1"} | setting
    process = begin(start, few, "--app", "stuck")
    for biz_id in range(2):
        assert toc("schedule", biz_id, "0s", "--type", "slow").code == 0
    assert process.ended() == code
    assert "too many handlers are stuck" in process.err


@pytest.mark.usefixtures("shop")
def test_metrics_are_served(start: Start, servers: Servers, toc: Toc) -> None:
    process = begin(start, servers, "--app", "shop.handlers", "--http-port", "0")
    assert toc("schedule", 9, "0s", "--type", "quick").code == 0
    process.says("quick 9")
    found = re.search(r"metrics and health on http://(127\.0\.0\.1:\d+)", process.err)
    assert found

    def is_counted() -> bool:
        with urllib.request.urlopen(f"http://{found[1]}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return 'toc_jobs_fired_total{biz_type="quick"} 1.0' in text

    wait_until(is_counted, "the fired job in the metrics")
    port = found[1].partition(":")[2]
    second = start(servers, "worker", "--app", "shop.handlers", "--http-port", port)
    assert second.ended() == 4
    assert f"cannot listen on {found[1]}: Address already in use" in second.err


@pytest.mark.usefixtures("shop")
def test_logs_can_be_json_lines(start: Start, servers: Servers) -> None:
    process = begin(start, servers, "--app", "shop.handlers", "--log-json")
    process.send(signal.SIGTERM)
    assert process.ended() == 0
    lines = [json.loads(line) for line in process.err.splitlines()]
    assert lines[-1]["message"] == "stopped"
    assert {"time", "level", "logger", "message"} == lines[-1].keys()


def test_a_registry_of_ones_own(start: Start, servers: Servers, toc: Toc, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from toc.handlers.registry import Registry\nmine = Registry()\n\n"
        "@mine.handler('own')\ndef run(job):\n    print('mine', job.biz_id, flush=True)\n"
    )
    process = begin(start, servers, "--app", "own:mine")
    assert toc("schedule", 3, "0s", "--type", "own").code == 0
    process.says("mine 3")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("x = 1\nraise ValueError('broken\\nin two')", "ValueError: broken"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
    ],
)
def test_a_failing_import_is_one_line(toc: Toc, tmp_path: Path, text: str, complaint: str) -> None:
    name = f"bad_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    result = toc("worker", "--app", name)
    assert result.code == 2
    assert result.err.startswith(f"toc: cannot import {name!r}: {complaint}")
    assert result.err.count("\n") == 1
    assert "Traceback" in toc("worker", "--app", name, "-v").err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no handlers: name their modules with --app"),
        (("--app", "colorsys"), "nothing in colorsys is decorated with @toc.handler"),
        (("--app", "colorsys:nope"), "'nope' is not a toc Registry"),
        (("--app", "no.such.module"), "cannot import 'no.such.module': ModuleNotFoundError"),
    ],
)
def test_no_handlers_is_an_error(toc: Toc, arguments: tuple[str, ...], complaint: str) -> None:
    result = toc("worker", *arguments)
    assert result.code == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1
