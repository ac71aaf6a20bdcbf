"""Plain `alembic` in the checkout does what `toc migrate` does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.config import CommandLine, Config

from tests.cli.processes import clean_environment
from tests.migration.conftest import VIEWS, dump, engine_of, run, settings_of, tables, views
from toc.store import migrate

ROOT = Path(__file__).parents[2]

Alembic = Callable[..., "subprocess.CompletedProcess[str]"]


def settings(urls: str) -> dict[str, str]:
    return {"TOC_DATABASES": urls, "TOC_SHARDS": "2", "TOC_REDIS_URL": "none"}


@pytest.fixture
def alembic_process(url: str) -> Alembic:
    """`alembic` as a process in the checkout."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        # The checkout's code, and not one that is installed.
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=ROOT,
            env=clean_environment() | settings(url) | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return call


@pytest.fixture
def alembic(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Alembic:
    """Its command line in this process, in the checkout: it imports toc and its drivers only once."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])  # `alembic` adds to it
    for name in os.environ:
        if name.startswith("TOC_"):
            monkeypatch.delenv(name)

    def call(*arguments: str, urls: str = url) -> subprocess.CompletedProcess[str]:
        for name, value in settings(urls).items():
            monkeypatch.setenv(name, value)
        line, printed, code = CommandLine(), io.StringIO(), 0
        options = line.parser.parse_args(arguments)
        try:
            line.run_cmd(Config("alembic.ini", cmd_opts=options, stdout=printed), options)
        except SystemExit as refused:
            code = int(refused.code or 0)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.getvalue() + out, err)

    return call


def test_up_down_and_where(alembic: Alembic, url: str) -> None:
    history = alembic("history")
    assert [line.split(",")[0] for line in history.stdout.splitlines()] == ["<base> -> 0001 (head)"]
    assert alembic("upgrade", "head").returncode == 0
    assert alembic("current").stdout == "0001 (head)\n"
    with engine_of(url) as engine:
        found = dump(engine)
        assert views(engine) == VIEWS
        assert alembic("downgrade", "-1").returncode == 0
        assert alembic("current").stdout == ""
        assert tables(engine) == set()
        migrate.upgrade(settings_of(url))
        assert dump(engine) == found


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_its_sql_is_toc_s_script(alembic: Alembic, tmp_path: Path) -> None:
    shown = alembic("upgrade", "head", "--sql")
    assert shown.returncode == 0, shown.stderr
    assert "CREATE TABLE IF NOT EXISTS toc_job_0001" in shown.stdout
    assert "VIEW toc_jobs AS SELECT" in shown.stdout
    two = f"sqlite:///{tmp_path}/0.db,sqlite:///{tmp_path}/1.db"
    refused = alembic("upgrade", "head", "--sql", urls=two)
    assert refused.returncode != 0
    assert "--directory DIR writes a script for each" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    written = alembic("-x", f"directory={tmp_path}", "upgrade", "base:head", "--sql", urls=two)
    assert written.returncode == 0, written.stderr
    texts = [(tmp_path / f"toc_{index}_{index}.db.sql").read_text() for index in range(2)]
    assert ["toc_job_0000" in text for text in texts] == [True, False]
    assert ["toc_job_0001" in text for text in texts] == [False, True]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_as_a_process_what_it_refuses_is_one_line(alembic_process: Alembic, url: str) -> None:
    assert alembic_process("upgrade", "head").returncode == 0
    run(
        url,
        "INSERT INTO toc_job_0001 (job_id, biz_id, type_no, action_time) VALUES (1, 1, 1, '2030-01-01')",
    )
    refused = alembic_process("downgrade", "base")
    assert refused.returncode != 0
    assert "database 0, table toc_job_0001: the table holds jobs" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
