"""The units of deploy/systemd: systemd accepts them, they are confined, and they name what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.operations.alert_rules import ROOT
from tests.servers.process import ServerUnavailableError
from tests.servers.programs import find
from tests.tidy.page_blocks import shell_commands
from toc.cli import exit_codes
from toc.cli.main import main
from toc.runtime.settings import Settings, find_unknown_variables

UNITS = sorted((ROOT / "deploy/systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
PATHS = {"/opt/toc/bin/toc": "/bin/true", "/opt/toc/app": "/"}
"""Paths that the machine of a test does not have, and what stands for them."""
EXPOSURE_MAX = 15  # tenths: systemd's own word for 0 to 1.9 is OK


@pytest.fixture
def systemd_analyze() -> str:
    try:
        return find("systemd-analyze", "systemd")
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def test_systemd_accepts_all_units(systemd_analyze: str, tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for there, here in PATHS.items():
            text = text.replace(there, here)
        (tmp_path / unit.name.replace("@.", "@1.")).write_text(text)
    command = [systemd_analyze, "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A key that systemd does not know is only a line on stderr.
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_the_services_are_confined(systemd_analyze: str, unit: Path) -> None:
    command = [systemd_analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]
    done = subprocess.run(
        [*command, "--no-pager", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_variables_are_settings_and_secrets_are_credentials(unit: Path) -> None:
    pairs = [pair.split("=") for line in values(unit, "Environment") for pair in line.split()]
    assert find_unknown_variables([name for name, _ in pairs]) == []
    files = [value.removeprefix("%d/") for _, value in pairs if value.startswith("%d/")]
    credentials = [line.partition(":")[0] for line in values(unit, "LoadCredential")]
    assert sorted(files) == sorted(credentials)
    assert ["TOC_CONFIG", "%d/toc.toml"] in pairs


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_commands_and_their_options_exist(unit: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = values(unit, "ExecStart")
    program, command, *arguments = line.split()
    assert program == "/opt/toc/bin/toc"
    assert main([command, "--help"]) == 0
    shown = capfd.readouterr().out
    options = [argument for argument in arguments if argument.startswith("--")]
    assert [option for option in options if option not in shown] == []


NOT_RUN = {
    "useradd ": "changes the machine",
    "python3 -m venv ": "makes an environment",
    "/opt/toc/bin/pip ": "installs packages",
    "TOC_CONFIG=": "tests/cli runs `toc migrate`",
    "systemctl ": "needs a running systemd",
}
"""Beginnings of commands of the page that no test runs, and why."""


def test_the_commands_of_the_page_put_files_where_the_units_look(tmp_path: Path) -> None:
    for folder in ("shop", "opt/toc", "etc/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "toc.toml").write_text("shards = 16\n")
    shutil.copytree(ROOT / "deploy/systemd", tmp_path / "deploy/systemd")
    commands = shell_commands("how-to/systemd.md")
    for beginning in NOT_RUN:
        assert any(command.startswith(beginning) for command in commands), beginning
    for command in commands:
        if not command.startswith(tuple(NOT_RUN)):
            here = command.replace("/opt", "opt").replace("/etc", "etc")
            subprocess.run(here, shell=True, cwd=tmp_path, check=True)  # noqa: S602 - a line of ours
    (worker,) = (tmp_path / "etc/systemd/system").glob("toc-worker*")
    (where,) = values(worker, "WorkingDirectory")
    assert (tmp_path / where.lstrip("/") / "shop/__init__.py").exists()
    (environment,) = values(worker, "EnvironmentFile")
    assert (tmp_path / environment.lstrip("/")).read_text() == "APP=shop\n"
    (credential,) = values(worker, "LoadCredential")
    settings = tmp_path / credential.partition(":")[2].lstrip("/")
    assert (settings.read_text(), settings.stat().st_mode & 0o777) == ("shards = 16\n", 0o600)


def test_a_worker_and_toc_web_on_one_machine_have_different_ports() -> None:
    ports = [
        re.findall(r"--http-port (\S+)", line)
        for unit in SERVICES
        for line in values(unit, "ExecStart")
    ]
    ((web,), (worker,)) = (found for found in ports if found)
    assert web not in {worker.replace("%i", str(number)) for number in range(1, 10)}


def test_exit_codes_and_time_limits_fit_the_program() -> None:
    worker, web, nightly = (
        next(unit for unit in SERVICES if unit.name.startswith(name))
        for name in ("toc-worker", "toc-web", "toc-nightly")
    )
    for unit in (worker, web):
        assert values(unit, "Type") == ["notify"]
        assert int(values(unit, "WatchdogSec")[0]) >= 60
        assert values(unit, "RestartPreventExitStatus") == [
            f"{exit_codes.USAGE} {exit_codes.SETTINGS}"
        ]
    assert values(nightly, "SuccessExitStatus") == [str(exit_codes.REPAIRED)]
    stop_s = Settings.model_fields["worker"].get_default().stop_s
    assert int(values(worker, "TimeoutStopSec")[0]) >= stop_s + 60
