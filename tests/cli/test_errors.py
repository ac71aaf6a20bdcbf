"""Bad input and missing servers: one line, the right code, never a traceback or a secret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import clean_environment
from toc.cli import common_options
from toc.domain.secret_masking import mask_secrets

USAGE = [
    ("nope",),
    ("schedule",),
    ("schedule", "x ", "1s"),
    ("schedule", "1"),
    ("schedule", "1", "soon"),
    ("schedule", "1", "1x"),
    ("schedule", "1", ""),
    ("schedule", "1", "-5s"),
    ("schedule", "1", "2031-01-01T00:00:00"),
    ("schedule", "1", "999999999999d"),
    ("schedule", "1", "1s", "--attribute", "{"),
    ("schedule", "1", "1s", "--attribute", "[1]"),
    ("schedule", "1", "1s", "--attribute", "[" * 50_000),
    ("schedule", "1", "1s", "--on-duplicate", "nope"),
    ("schedule", "1", "1s", "2s"),
    ("cancel",),
    ("cancel", "x"),
    ("cancel", "1", "--biz-id", "1"),
    ("reschedule",),
    ("reschedule", "1"),
    ("reschedule", "x", "1h"),
    ("reschedule", "1", "1h", "--biz-id", "1"),
    ("job", "nope"),
    ("job", "show"),
    ("job", "show", "1", "--biz-id", "1"),
    ("dead", "list", "--limit", "0"),
    ("dead", "redrive"),
    ("dead", "redrive", "--all"),
    ("dead", "redrive", "1", "--all", "--type", "t"),
    ("dead", "discard"),
    ("dead", "discard", "--all"),
    ("slots", "--nope"),
    ("settings", "--markdown", "--json"),
    ("worker", "--http-port", "99999"),
]
SERVED = [  # what only the library finds wrong
    ("schedule", str(2**64), "1s"),
    ("schedule", "1", "1s", "--type", "a b"),
    ("schedule", "1", "1s", "--key", "a b"),
    ("schedule", "1", "3000000d"),
    ("schedule", "1", "1s", "--attribute", '{"a": "' + "x" * 5000 + '"}'),
    ("cancel", str(2**63)),
    ("cancel", "--biz-id", str(2**64)),
    ("job", "show", str(2**63)),
]


def is_one_line(text: str) -> bool:
    return text.startswith("toc: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_two(toc: Toc, arguments: tuple[str, ...]) -> None:
    result = toc(*arguments)
    assert (result.code, result.out) == (2, "")
    assert is_one_line(result.err), result.err


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("arguments", SERVED, ids=lambda arguments: " ".join(arguments)[:40])
def test_bad_input_is_two(toc: Toc, arguments: tuple[str, ...]) -> None:
    result = toc(*arguments, "--json")
    assert (result.code, result.out) == (2, "")
    assert is_one_line(result.err), result.err


ALL = [
    ("schedule", "1", "1s"),
    ("cancel", "1"),
    ("reschedule", "1", "1s"),
    ("job", "show", "1"),
    ("dead", "list"),
    ("dead", "redrive", "1"),
    ("dead", "discard", "1"),
    ("slots",),
    ("migrate",),
]


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_in_an_empty_directory_it_says_what_to_do(toc: Toc, arguments: tuple[str, ...]) -> None:
    result = toc(*arguments)
    assert (result.code, result.out) == (3, "")
    assert is_one_line(result.err), result.err
    assert "run `toc dev` in this directory, or set TOC_DATABASES and TOC_REDIS_URL" in result.err


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
def test_a_server_that_is_away_is_three(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://u:hidden@127.0.0.1:1/toc")
    monkeypatch.setenv("TOC_REDIS_URL", "redis://u:hidden@127.0.0.1:1/0")
    result = toc(*arguments)
    assert (result.code, result.out) == (3, "")
    assert is_one_line(result.err), result.err
    assert "hidden" not in result.err
    assert "hidden" not in toc(*arguments, "-v").err


@pytest.mark.parametrize("arguments", ALL, ids=" ".join)
@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("TOC_SHARD", "4", "TOC_SHARD: unknown setting; did you mean TOC_SHARDS?"),
        ("TOC_SHARDS", "5", "shards must be a power of two"),
        ("TOC_DATABASES", "mysql://u:hidden", "URL number 0 is not a SQLAlchemy URL"),
        ("TOC_DATABASES", "mysql://u:hidden@h", "URL number 0 must name a database"),
        ("TOC_DATABASES", "postgresql://u:hidden@h/d", "must be mysql, mariadb or sqlite"),
        ("TOC_REDIS_URL", "http://u:hidden@h", "redis_url: must be 'none' or begin with"),
        ("TOC_CONFIG", "nowhere.toml", "there is no file 'nowhere.toml'"),
    ],
)
def test_wrong_settings_are_four(
    toc: Toc,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    variable: str,
    value: str,
    complaint: str,
) -> None:
    monkeypatch.setenv(variable, value)
    result = toc(*arguments)
    assert (result.code, result.out) == (4, "")
    assert is_one_line(result.err), result.err
    assert complaint in result.err
    assert "hidden" not in result.err


@pytest.mark.parametrize("arguments", [a for a in ALL if a != ("slots",)], ids=" ".join)
def test_a_driver_that_is_not_there_is_four(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "mysql://u:hidden@h/d")
    result = toc(*arguments)
    assert result.code == 4
    assert result.err == (
        "toc: databases: URL number 0: write mysql+pymysql:// for mysql:// (which means the driver "
        "MySQLdb; it is not installed, PyMySQL comes with toc)\n"
    )


def test_several_faults_are_one_line(toc: Toc, tmp_path: Path) -> None:
    (tmp_path / "toc.toml").write_text(
        'shrads = 4\nredis_ulr = "redis://:hidden@h"\n[worker]\nconcurrency = 0\n'
    )
    result = toc("settings")
    assert result.code == 4
    assert is_one_line(result.err)
    assert "shrads: unknown setting; did you mean shards?" in result.err
    assert "redis_ulr: unknown setting; did you mean redis_url?" in result.err
    assert "worker.concurrency: " in result.err
    assert "hidden" not in result.err


def test_toml_that_is_none(toc: Toc, tmp_path: Path) -> None:
    (tmp_path / "toc.toml").write_text("shards = = 4\n")
    result = toc("settings")
    assert result.code == 4
    assert is_one_line(result.err)
    assert "toc.toml" in result.err


@pytest.mark.parametrize("arguments", ALL[:6], ids=" ".join)
def test_a_database_without_tables_is_four(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///new.db")
    result = toc(*arguments)
    assert result.code == 4
    assert is_one_line(result.err)
    assert "run `toc migrate`" in result.err


@pytest.mark.usefixtures("servers")
def test_another_routing_is_four(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toc("schedule", 1, "1h").code == 0
    monkeypatch.setenv("TOC_SHARDS", "8")
    result = toc("schedule", 1, "1h")
    assert result.code == 4
    assert "shards = 4" in result.err


@pytest.mark.usefixtures("servers")
def test_without_redis_a_job_is_scheduled_all_the_same(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "redis://u:hidden@127.0.0.1:1/0")
    result = toc("schedule", 1, "0s", "--json")
    assert result.code == 0
    assert result.json["status"] == "pending"
    assert "reminders are kept for a retry" in result.err
    assert "hidden" not in result.err


@pytest.mark.usefixtures("servers")
def test_where_there_is_no_timer_there_are_no_slots(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    assert toc("slots").code == 4
    assert toc("doctor").code == 0


def test_a_fault_of_ours_is_seventy(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("redis://u:hidden@h broke")

    monkeypatch.setattr("toc.cli.settings.load_settings", fail)
    result = toc("settings")
    assert result.code == 70
    assert is_one_line(result.err)
    assert "hidden" not in result.err
    loud = toc("-v", "settings")
    assert loud.code == 70
    assert "Traceback" in loud.err
    assert "hidden" not in loud.err


def test_a_reader_that_goes_away_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "toc", "settings"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_names_the_exit_codes(toc: Toc) -> None:
    assert "75  restart wanted" in toc("--help").out
    for group in ((), ("job",), ("dead",)):
        assert toc(*group).out.startswith("Usage: toc")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, toc.cli.main; print(*{'sqlalchemy', 'redis', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    code = (
        "import toc, sys; assert 'toc.center.center' not in sys.modules\n"
        "for name in toc.__all__: getattr(toc, name)\n"
        "assert toc.schedule.__self__ is toc.cancel.__self__ is toc.handler.__self__\n"
        "assert set(toc.__all__) <= set(dir(toc)) and not hasattr(toc, 'nope')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["demo", "bench"])
def test_commands_that_are_imported_late(toc: Toc, name: str) -> None:
    assert toc(name, "--help").out.startswith(f"Usage: toc {name}")
    result = toc(name, "--nope")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"toc: No such option: --nope (see `toc {name} --help`)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql+pymysql://u:p%40w@h:1/d", "mysql+pymysql://u:***@h:1/d"),
        ("redis://:pw@h", "redis://:***@h"),
        ("unix:///a.sock?db=1&password=pw", "unix:///a.sock?db=1&password=***"),
        ("a redis://u:1@h and mysql://v:2@i", "a redis://u:***@h and mysql://v:***@i"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("sqlite:///a@b:c.db", "sqlite:///a@b:c.db"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert mask_secrets(text) == shown


def test_only_the_parsers_errors_count_as_wrong_usage() -> None:
    assert not common_options.is_usage_error(ValueError("x"))
