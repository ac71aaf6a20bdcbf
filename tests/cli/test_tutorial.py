"""docs/tutorial.md, step by step, on MySQL and Redis: its files and commands, and what they print."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process, clean_environment, wait_until
from tests.servers.endpoint import Endpoint
from tests.servers.process import free_port
from tests.tidy.page_blocks import python_blocks, shell_commands, text_of

PAGE = "tutorial.md"
OF_THE_TEST = ("make setup", "python -m tests.servers", "export TOC_TEST_", "mysql ")
"""The commands of steps 1 and 2: the test has servers and an empty schema already."""


class Reader:
    """A reader who runs the commands of the page in order, with the ids and the port that are real here."""

    def __init__(self, toc: Toc, start: Callable[..., Process]) -> None:
        commands = shell_commands(PAGE)
        self._left = [command for command in commands if not command.startswith(OF_THE_TEST)]
        self._toc, self._start = toc, start
        self.real = {"9109": str(free_port())}

    def next_words(self, beginning: str) -> list[str]:
        command = self._left.pop(0)
        assert command.startswith(beginning)
        for shown, real in self.real.items():
            command = command.replace(shown, real)
        return shlex.split(command)[1:]

    def runs(self, beginning: str, *, code: int = 0) -> str:
        answer = self._toc(*self.next_words(beginning))
        assert answer.code == code, f"{beginning}: {answer.err}{answer.out}"
        return answer.out

    def starts(self, words: list[str]) -> Process:
        process = self._start({}, *words, forked=False)
        process.says("metrics and health on")
        return process

    def is_finished(self) -> bool:
        return self._left == []


def settings_of_the_page(addresses: dict[str, str]) -> str:
    (settings,) = re.findall(r"```toml\n(.*?)```", text_of(PAGE), re.DOTALL)
    for shown, real in addresses.items():
        settings = re.sub(f'"{shown}"', f'"{real}"', settings)
    return str(settings)


@pytest.mark.timeout(600)
def test_the_tutorial(
    toc: Toc, start: Callable[..., Process], mysql_database: str, redis_server: Endpoint,
    redis_namespace: str, tmp_path: Path,
) -> None:  # fmt: skip
    text = text_of(PAGE)
    handlers, first, repaired = python_blocks(PAGE)
    settings = settings_of_the_page({"mysql.*?": mysql_database, "redis:.*?": redis_server.url})
    (tmp_path / "toc.toml").write_text(f'{settings}namespace = "{redis_namespace}"\n')
    (tmp_path / "shop.py").write_text(handlers)
    (tmp_path / "first.py").write_text(first)
    shown_first, shown_second, shown_third = dict.fromkeys(re.findall(r"\b\d{18}\b", text))
    reader = Reader(toc, start)

    assert f"    {reader.runs('toc migrate')}" in text
    doctor = start(
        {}, *reader.next_words("toc doctor --app shop"), forked=False
    )  # it imports shop.py
    assert doctor.ended() == 0, doctor.err
    assert re.search(r"ok +handlers +registered +invoice.send, order.close", doctor.out)
    assert f"    {doctor.out.splitlines()[-1]}\n" in text
    worker_words = reader.next_words("toc worker --app shop")
    worker = reader.starts(worker_words)
    assert "as seen by 1 node" in reader.runs("toc status --node ")

    done = subprocess.run(
        [sys.executable, *reader.next_words("python first.py")], cwd=tmp_path,
        env=clean_environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    reader.real[shown_first] = done.stdout.strip()
    worker.says("order 42 closed: unpaid")
    job = ("job", "show", done.stdout.strip())
    wait_until(lambda: re.search(r"order.close\s+done", toc(*job).out), "the job is done")
    assert '{"reason": "unpaid"}' in reader.runs("toc job show ")

    scheduled = reader.runs("toc schedule 43 30m ")
    (reader.real[shown_second],) = re.findall(r'"job_id": "(\d+)"', scheduled)
    assert "not in Redis yet: beyond the horizon of 15m 0s" in reader.runs("toc explain ")
    assert reader.runs("toc reschedule ").endswith(": rescheduled\n")
    assert reader.runs("toc cancel ").endswith(": cancelled\n")
    assert reader.runs("toc cancel ", code=1).endswith(": already_cancelled\n")
    explained = reader.runs("toc explain ")
    assert "reschedule (pending -> pending)" in explained
    assert re.search(r"cancel \(pending -> cancelled\) .*: paid after all", explained)

    scheduled = reader.runs("toc schedule 44 1s ")
    (reader.real[shown_third],) = re.findall(r'"job_id": "(\d+)"', scheduled)
    for attempt in (1, 2, 3):
        worker.says(f"(biz_id 44) failed in attempt {attempt} of 3: RuntimeError: the mail server")
    worker.says("no attempt is left, the job is dead")
    wait_until(lambda: "invoice.send" in toc("dead", "list").out, "the job is dead")
    assert "RuntimeError: the mail server refuses connections" in reader.runs("toc dead list")

    (line,) = re.findall(r"^    raise .*\n", handlers, re.MULTILINE)
    (tmp_path / "shop.py").write_text(handlers.replace(line, repaired))
    stop(worker)
    worker = reader.starts(worker_words)
    assert reader.runs("toc dead redrive ").endswith("1 redriven\n")
    worker.says("invoice 44 sent")
    job = ("job", "show", reader.real[shown_third])
    wait_until(lambda: re.search(r"invoice.send\s+done", toc(*job).out), "the job is done")
    counted = reader.runs("toc sql ")
    for row in (
        r"order.close\s+done\s+1",
        r"invoice.send\s+done\s+1",
        r"order.close\s+cancelled\s+1",
    ):
        assert re.search(row, counted)
    stop(worker)
    assert reader.is_finished()


def stop(worker: Process) -> None:
    worker.send(signal.SIGINT)  # Ctrl-C
    assert worker.ended() == 0
    assert "stopping: handlers that run have 30 s" in worker.err
    assert worker.err.rstrip().endswith("stopped")
