"""`toc settings`, docs/reference/settings.md, and names that are no setting."""

from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from toc.cli.settings import list_settings, make_settings_markdown
from toc.errors import SettingsError
from toc.runtime.settings import find_unknown_variables, load_settings

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"


def test_the_page_is_up_to_date(toc: Toc) -> None:
    page = PAGE.read_text()
    assert page == make_settings_markdown(), (
        "run `toc settings --markdown > docs/reference/settings.md`"
    )
    assert toc("settings", "--markdown").out == page


def test_every_setting_says_what_it_means() -> None:
    lines = list(list_settings())
    assert len(lines) > 30
    assert [line.name for line in lines if not line.description] == []


def test_those_in_force_are_shown_without_passwords(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://u:hidden@h/a mysql+pymysql://u:hidden@h/b")
    monkeypatch.setenv("TOC_REDIS_URL", "redis://:hidden@h/0?password=hidden")
    monkeypatch.setenv("TOC_TOPICS__ORDERS__SLOT_AMOUNT", "16")
    monkeypatch.setenv("TOC_RETENTION__REPLICAS", '{"1": ["mysql+pymysql://u:hidden@r/b"]}')
    keys = '{"spark.hadoop.fs.s3a.secret.key": "hidden", "spark.driver.memory": "2g"}'
    monkeypatch.setenv("TOC_RECONCILE__SPARK", keys)
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "s3a://id:hid/den@bucket/toc")
    table = toc("settings")
    assert table.code == 0
    assert "hid/den" not in table.out
    assert "spark.hadoop.fs.s3a.secret.key: ***, spark.driver.memory: 2g" in table.out
    assert "hidden" not in table.out
    assert "mysql+pymysql://u:***@h/a, mysql+pymysql://u:***@h/b" in table.out
    assert "1: mysql+pymysql://u:***@r/b" in table.out
    answer = toc("settings", "--json")
    assert "hidden" not in answer.out
    lines = {line["name"]: line for line in answer.json["settings"]}
    assert lines["redis_url"]["value"] == "redis://:***@h/0?password=***"
    assert lines["topics.ORDERS".lower() + ".slot_amount"]["value"] == 16
    concurrency = lines["worker.concurrency"]
    assert concurrency["variable"] == "TOC_WORKER__CONCURRENCY"
    assert (concurrency["value"], concurrency["default"]) == (32, 32)
    assert concurrency["allowed"] == "at least 1, at most 1000"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("TOC_SHARD", "TOC_SHARD: unknown setting; did you mean TOC_SHARDS?"),
        (
            "TOC_WORKER_CONCURRENCY",
            "TOC_WORKER_CONCURRENCY: unknown setting; did you mean TOC_WORKER__CONCURRENCY?",
        ),
        ("TOC_CONFG", "TOC_CONFG: unknown setting; did you mean TOC_CONFIG?"),
        ("TOC_TOPICS__A__SLOTS", "TOC_TOPICS__A__SLOTS: unknown setting"),
        ("TOC_", "TOC_: unknown setting"),
    ],
)
def test_a_name_that_is_no_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    monkeypatch.setenv(name, "hidden")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == line


@pytest.mark.parametrize("given", ["-1", "0", "x", "inf", "nan", "true"])
def test_days_are_a_number_or_none(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("TOC_RETENTION__DAYS", given)
    with pytest.raises(SettingsError, match=f"above 0, or 'none', got '{given}'"):
        load_settings()
    monkeypatch.setenv("TOC_RETENTION__DAYS", "none")
    assert load_settings().retention.days == "none"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('{"0": ["mysql://u:hidden@h:port/d"]}', "a URL of database 0 is not a SQLAlchemy URL"),
        ('{"0": ["sqlite:///hidden"]}', "a URL of database 0 must be mysql or mariadb"),
        ('{"1": ["mysql://u:hidden@h/d"]}', "there is no database 1"),
        ('["mysql://u:hidden@h/d"]', "valid dictionary"),
    ],
)
def test_a_replica_is_a_url_of_a_database(
    monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    monkeypatch.setenv("TOC_RETENTION__REPLICAS", given)
    with pytest.raises(SettingsError, match=says) as refused:
        load_settings()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["TOC_CONFIG", "TOC_TEST_MYSQL_URL", "TOC_SHARDS", "TOC_WORKER", "TOC_WORKER__STOP_S", "TOCX",
     "TOC_TOPICS", "TOC_TOPICS__ORDERS", "TOC_TOPICS__ORDERS__SLOT_AMOUNT"],
)  # fmt: skip
def test_names_that_are_known(name: str) -> None:
    assert find_unknown_variables([name]) == []
