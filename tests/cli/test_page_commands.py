"""Every shell command of the tutorial and the how-to pages is run, or the reason why not stands here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Toc
from tests.cli.processes import Process
from tests.servers.endpoint import Endpoint
from tests.tidy.page_blocks import PAGES, shell_commands

ROOT = Path(__file__).parents[2]
OWN_TESTS = {
    "tutorial.md": "tests/cli/test_tutorial.py",
    "how-to/encrypted-payloads.md": "tests/worker/test_payload_pages.py",
    "how-to/limits.md": "tests/cli/test_limits_page.py",
    "how-to/pause.md": "tests/cli/test_pauses.py",
    "how-to/priorities.md": "tests/cli/test_priorities_page.py",
    "how-to/testing.md": "tests/worker/test_page_code.py",
    "how-to/containers.md": "tests/deploy/test_containers.py",
    "how-to/backup.md": "tests/reliability/test_restore.py",
    "how-to/systemd.md": "tests/operations/test_systemd.py",
    "how-to/kubernetes.md": "tests/operations/test_kustomize.py",
    "how-to/for-data-engineers.md": "tests/cli/test_operations_pages.py",
    "how-to/for-dba.md": "tests/cli/test_operations_pages.py",
    "how-to/on-call.md": "tests/cli/test_operations_pages.py",
    "how-to/sizing.md": "tests/cli/test_operations_pages.py",
}
"""Pages whose commands another test runs."""

NOT_RUN = {
    "curl ": "tests/http/test_examples.py runs these lines",
    "pip install ": "installs packages",
    "toc dev": "runs until it is stopped: tests/http/test_examples.py starts it",
    "toc worker ": "runs until it is stopped: tests/cli/test_tutorial.py starts it",
    "TOC_TOKEN=toc_… ": "needs a server: tests/client runs remote workers",
    "TOC_HTTP__HOST=": "runs until it is stopped: tests/operations",
    "promtool ": "tests/operations/test_alerts.py runs it on the same files",
    "toc bench": "takes minutes: tests/bench",
    "toc reconcile": "starts Spark: tests/reconcile",
    "toc tables backfill ": "needs an archive of these days: tests/reconcile",
    "toc spark pack ": "packs 300 MB: tests/reconcile/test_spark_cluster.py",
    "PYSPARK_DRIVER_PYTHON=": "needs a Spark cluster: tests/reconcile/test_spark_cluster.py",
    "toc grants mover ": "needs a second database: tests/cli/test_grants.py",
    "toc move ": "needs two servers and a replica: tests/growing",
    "mysqldump ": "copies a database between two servers",
    "export TOC_MOVE_OLD_URL=": "names servers that are not there",
    "mysql ": "needs the client of MySQL, and a server called HOST",
    "toc alarms test": "sends a message to a chat: tests/cli/test_alarms.py",
    "toc sinks test ": "needs RabbitMQ: tests/cli/test_sinks.py",
    "toc webhooks test ": "sends a request to another host: tests/cli/test_webhooks.py",
    "toc migrate --sql --directory back/": "there is no revision 0002 yet",
    'toc admin postpone --where "…"': "leaves its condition out; the line before has it",
}
"""Beginnings of commands that no test runs as they stand, and why."""

VARIABLE = re.compile(r"[A-Z_]+=")
APP = "import toc\n\n@toc.handler('order.close')\ndef close_order(job): ...\n"
FILES = {"shop.py": APP, "order.json": '{"type": "object"}'}
BEFORE = {
    "how-to/business-ids.md": ["toc schedule '\"42\"' 30m --type order.close"],
}
"""What the text of a page presupposes."""


def is_run(page: str, command: str) -> bool:
    return page not in OWN_TESTS and not command.startswith(tuple(NOT_RUN))


def test_the_lists_name_only_what_is_there() -> None:
    commands = [(page, command) for page in PAGES for command in shell_commands(page)]
    assert len(commands) > 80
    for beginning in NOT_RUN:
        assert any(command.startswith(beginning) for _, command in commands), beginning
    for page, test in OWN_TESTS.items():
        assert Path(page).name in (ROOT / test).read_text("utf-8"), test


def test_the_commands_that_are_not_run_have_their_options(toc: Toc) -> None:
    checked = 0
    for page in PAGES:
        for command in shell_commands(page):
            words = [word for word in shlex.split(command) if not VARIABLE.match(word)]
            if is_run(page, command) or words[0] != "toc":
                continue
            options = [word for word in words if word.startswith("--")]
            before = words[1 : words.index(options[0])] if options else words[1:]
            shown = toc(*before, "--help")
            assert shown.code == 0, (page, command, shown.err)
            assert [option for option in options if f" {option} " not in shown.out] == [], command
            checked += len(options)
    assert checked > 20


@pytest.mark.timeout(600)
def test_the_other_commands_run(
    toc: Toc, mysql_database: str, redis_server: Endpoint, redis_namespace: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Process],
) -> None:  # fmt: skip
    settings = {
        "DATABASES": mysql_database, "SHARDS": "2", "MYSQL__TLS": "off",
        "REDIS_URL": redis_server.url, "NAMESPACE": redis_namespace,
        "RECONCILE__ARCHIVE": str(tmp_path / "archive"), "WEBHOOKS__KEY_FILE": "webhooks.key",
    }  # fmt: skip
    settings = {f"TOC_{name}": value for name, value in settings.items()}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert toc("migrate").code == 0
    job_id = toc("schedule", 42, "30m", "--type", "order.close", "--json").json["job_id"]
    assert toc("token", "create", "--owner", "a", "--scope", "read", "--type", "*").code == 0
    (token,) = toc("token", "list", "--json").json["tokens"]
    here = {"382427067006332780": job_id, "4kq0x1v9w2tz": token["token_id"]}
    count = 0
    failed = []
    for page in PAGES:
        run = [command for command in shell_commands(page) if is_run(page, command)]
        for command in BEFORE.get(page, []) + run:
            line = command
            for shown, real in here.items():
                line = line.replace(shown, real)
            words = shlex.split(line.partition(" && ")[0])
            assert words[0] == "toc", f"{page}: {command}: run it, or say why not in NOT_RUN"
            target = words[words.index(">") + 1] if ">" in words else None
            words = words[1 : -2 if target else None]
            if "--app" in words:  # it imports shop.py: not into this process
                process = start(settings, *words)
                answer = Result(process.ended(), process.out, process.err)
            else:
                answer = toc(*words)
            count += 1
            if target:
                (tmp_path / target).write_text(answer.out)
                (tmp_path / target).chmod(0o600)
            if answer.code != 0:
                failed.append(f"{page}: {command}: {answer.code}: {answer.err or answer.out}")
    assert failed == []
    assert count > 40
