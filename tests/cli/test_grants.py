"""`toc grants`: what it prints, for which databases, and what it refuses. tests/accounts runs it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Toc

URLS = "mysql+pymysql://root:secret@db0/toc_0,mysql+pymysql://root:secret@db1:3307/toc_1"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are not there: nothing is connected to."""
    monkeypatch.setenv("TOC_DATABASES", URLS)
    monkeypatch.setenv("TOC_SHARDS", "4")


def test_each_database_has_its_own_tables(toc: Toc) -> None:
    said = toc("grants", "client")
    assert said.code == 0
    first, second = said.out.split("-- database 1: db1:3307\n")
    assert "-- database 0: db0:3306\n" in first
    assert "GRANT INSERT, UPDATE ON `toc_0`.`toc_job_0001` TO 'toc_client'@'%';" in first
    assert "toc_job_0002" not in first
    assert "GRANT INSERT, UPDATE ON `toc_1`.`toc_job_0002` TO 'toc_client'@'%';" in second
    assert "toc_job_0001" not in second
    assert r"GRANT SELECT ON `toc\_1`.* TO" in second  # where a database is a pattern
    assert "secret" not in said.out


def test_one_database_and_another_account(toc: Toc) -> None:
    said = toc("grants", "worker", "--database", 1, "--user", "shop", "--host", "10.0.%")
    assert "toc_0" not in said.out
    assert "CREATE USER IF NOT EXISTS 'shop'@'10.0.%' REQUIRE SSL ACCOUNT LOCK;" in said.out
    assert "ALTER USER 'shop'@'10.0.%' IDENTIFIED BY '…' ACCOUNT UNLOCK;" in said.out


def test_the_mover_has_an_account_on_each_of_two_servers(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_MOVING__1", "mysql+pymysql://root:secret@db9/toc_1")
    found = toc("grants", "mover", "--database", 1, "--json").json
    assert found["account"] == "'toc_mover'@'%'"
    places = [(part["database"], part["server"], part["at"]) for part in found["parts"]]
    assert places == [(1, "old", "db1:3307"), (1, "new", "db9:3306")]
    for part in found["parts"]:
        assert part["statements"][0] == "SET SESSION sql_log_bin = 0"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("dba",), "'dba' is not one of"),
        (("client", "--database", 2), "there is no database 2: the settings have 2"),
        (("client", "--user", "a'b"), "user: must be 1 to 32 of the characters"),
        (("client", "--host", "a`b"), "host: must be"),
    ],
)
def test_what_it_refuses(toc: Toc, arguments: tuple[object, ...], word: str) -> None:
    said = toc("grants", *arguments)
    assert said.code == 2
    assert word in said.err
    assert said.out == ""


def test_sqlite_has_no_accounts(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///toc.db")
    said = toc("grants", "client")
    assert said.code == 2
    assert "SQLite has no accounts" in said.err
