"""What people type wrong: one line that says what to write, and no internal error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process, clean_environment
from toc.runtime.urls import SOCKET_BYTES_MAX

FILE = "sqlite:///toc_0.db"
APP = """
import toc

@toc.handler("order.close")
def close(job: toc.Job) -> None:
    print("closed", job.biz_id, flush=True)
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_all(**values: str) -> None:
        for name, value in (
            {"DATABASES": FILE, "REDIS_URL": "none", "SHARDS": "4"} | values
        ).items():
            monkeypatch.setenv(f"TOC_{name}", value)

    return set_all


# ---- settings


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASES", "mysql://root@h/db", "write mysql+pymysql:// for mysql://"),
        ("DATABASES", "mariadb://root@h/db", "write mariadb+pymysql:// for mariadb://"),
        ("DATABASES", "sqlite://", "must name a database that is a file"),
        ("DATABASES", "sqlite:///:memory:", "must name a database that is a file"),
        ("DATABASES", "sqlite:///file:x", "must name a database that is a file"),
        ("DATABASES", "", "TOC_DATABASES: is empty"),
        ("DATABASES", "  ", "TOC_DATABASES: is empty"),
        ("SHARDS", "", "TOC_SHARDS: is empty"),
        ("WORKER__CONCURRENCY", "", "TOC_WORKER__CONCURRENCY: is empty"),
        ("REDIS_URL", "", "TOC_REDIS_URL: is empty"),
        ("REDIS_URL", f"unix:///{'d' * 120}/redis.sock", "the path of the socket has 132 bytes"),
        ("DATABASES", '["sqlite:///a.db"', "is not a JSON list"),
        ("DATABASES", "[1]", "must be a JSON list of texts"),
    ],
)
def test_a_setting_is_refused_with_what_to_write(
    toc: Toc, environment: Callable[..., None], name: str, value: str, said: str
) -> None:
    environment(**{name: value})
    for command in (("settings",), ("schedule", "1", "5s"), ("migrate",)):
        result = toc(*command)
        assert (result.code, result.out) == (4, "")
        assert said in result.err
        assert "internal" not in result.err


def test_databases_as_a_json_list(toc: Toc, environment: Callable[..., None]) -> None:
    environment(DATABASES=' ["sqlite:///a.db", "sqlite:///b.db"]')
    assert toc("migrate").code == 0
    assert Path("a.db").exists()
    assert Path("b.db").exists()


def test_a_settings_file_with_a_byte_order_mark(toc: Toc) -> None:
    text = f'shards = 4\nredis_url = "none"\ndatabases = ["{FILE}"]\n'
    Path("toc.toml").write_text(text, "utf-8-sig")
    assert toc("migrate").code == 0
    assert toc("schedule", 1, "1h").code == 0
    Path("toc.toml").write_text(text, "utf-16")
    result = toc("settings")
    assert result.code == 4
    assert result.err == "toc: toc.toml: is not UTF-8 text: save it as UTF-8\n"


def test_a_statement_with_a_byte_order_mark(toc: Toc, environment: Callable[..., None]) -> None:
    environment()
    assert toc("migrate").code == 0
    Path("ask.sql").write_text("SELECT COUNT(*) AS n FROM toc_jobs", "utf-8-sig")
    result = toc("sql", "--file", "ask.sql")
    assert (result.code, result.err) == (0, "")


# ---- modules


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("shop.py", "write --app shop"),
        ("./shop.py", "write --app shop"),
        ("pkg/shop.py", "write --app pkg.shop"),
        ("pkg/shop", "write --app pkg.shop"),
        ("/somewhere/shop.py", "run this in the directory of the file, with --app shop"),
        ("../shop.py", "run this in the directory of the file, with --app shop"),
        ("", "needs the name of a module"),
        (":handlers", "needs the name of a module"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "dev"])
def test_a_file_is_no_module(
    toc: Toc, environment: Callable[..., None], command: str, app: str, said: str
) -> None:
    environment()
    Path("shop.py").write_text(APP)
    result = toc(command, "--app", app)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


# ---- toc dev


def test_a_directory_whose_socket_has_too_long_a_path(toc: Toc) -> None:
    name = "d" * (SOCKET_BYTES_MAX - len("/redis.sock") + 1)
    result = toc("dev", "--dir", name)
    assert result.code == 1
    assert f"has {SOCKET_BYTES_MAX + 1} bytes" in result.err
    assert "--dir" in result.err
    assert not Path(name).exists()


def test_what_dev_prints_is_for_its_own_handlers(start: Callable[..., Process], toc: Toc) -> None:
    Path("shop.py").write_text(APP)
    process = start({}, "dev", "--app", "shop")
    process.says("Stop: Ctrl-C.")
    (line,) = (line for line in process.out.splitlines() if ">>> toc.schedule" in line)
    (command,) = (line for line in process.out.splitlines() if "or `toc schedule" in line)
    code = "import toc; from datetime import timedelta; " + line.partition(">>> ")[2]
    ran = [sys.executable, "-c", code.replace("seconds=5", "seconds=0")]
    assert subprocess.run(ran, env=clean_environment(), check=False, timeout=60).returncode == 0
    process.says("closed 42")
    words = command.partition("`toc ")[2].partition("`")[0].replace("42 5s", "43 0s").split()
    assert toc(*words).code == 0
    process.says("closed 43")


def test_dev_without_handlers_leaves_other_types_alone(
    start: Callable[..., Process], toc: Toc
) -> None:
    process = start({}, "dev")
    process.says("Stop: Ctrl-C.")
    other = toc("schedule", 7, "0s", "--type", "order.close", "--json").json["job_id"]
    assert toc("schedule", 8, "0s").code == 0
    process.says("biz_id 8")
    assert toc("job", "show", other, "--json").json["jobs"][0]["status"] == "pending"
    assert "biz_id 7" not in process.out


# ---- closed streams


@pytest.mark.parametrize(
    ("command", "code", "closed"),
    [
        ("migrate", 0, ">&-"),
        ("schedule 1 1h", 0, ">&-"),
        ("job show --biz-id 1", 0, ">&-"),
        ("job show --biz-id 1", 0, "<&- >&- 2>&-"),
        ("nope", 2, "2>&-"),
    ],
)
def test_a_closed_stream_is_no_fault(
    environment: Callable[..., None], toc: Toc, command: str, code: int, closed: str
) -> None:
    environment()
    assert toc("migrate").code == 0
    assert toc("schedule", 1, "1h").code == 0
    script = f"exec {sys.executable} -m toc {command} {closed}"
    ran = subprocess.run(
        ["/bin/sh", "-c", script], env=dict(os.environ), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "internal error" not in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.returncode == code
