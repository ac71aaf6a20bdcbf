"""`toc move` at the keyboard: what it says, its exit codes, and no password anywhere."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Toc, no_settings, toc
from tests.growing.town import LATER, SHARDS, Town
from tests.servers.mysql import execute
from toc.errors import SettingsError
from toc.runtime.settings import load_settings

__all__ = ["no_settings", "toc"]


@pytest.fixture
def told(town: Town, monkeypatch: pytest.MonkeyPatch) -> Town:
    """The settings are in force here, and know of the move."""
    monkeypatch.setenv("TOC_DATABASES", town.urls["old"])
    monkeypatch.setenv("TOC_MOVING__0", town.urls["new"])
    monkeypatch.setenv("TOC_SHARDS", str(SHARDS))
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    return town


def test_from_the_first_look_to_the_last(
    told: Town, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = told.center().schedule(1, LATER)
    assert "next: `toc move 0 --check`" in toc("move", 0).out
    checked = toc("move", 0, "--check", "--json")
    assert (checked.code, checked.json["ready"]) == (0, True)
    assert "may be moved now" in toc("move", 0, "--check").out
    moved = toc("move", 0, "--go", "--json", "--pause-max", 5)
    assert moved.code == 0
    assert moved.json["answer"] == "moved"
    assert moved.json["pause_ms"] >= 0
    assert "fence: the old server takes no more writes" in moved.err
    assert told.is_home("new")
    assert "next: let databases[0] be the new URL" in toc("move", 0).out
    assert toc("job", "show", job_id).code == 0  # the settings lead there
    undone = toc("move", 0, "--undo")
    assert undone.code == 1
    assert "declared home" in undone.err
    again = toc("move", 0, "--go")
    assert again.code == 0
    assert "an earlier run made the switch" in again.out
    monkeypatch.delenv("TOC_MOVING__0")
    lost = toc("move", 0)
    assert lost.code == 1
    assert "these settings lack moving.0" in lost.out
    old = toc("schedule", 1, "1h")
    assert old.code == 3
    assert "the settings lack moving.0" in old.err
    monkeypatch.setenv("TOC_DATABASES", told.urls["new"])
    home = toc("move", 0, "--json")
    assert (home.code, home.json["declared"]) == (0, True)
    assert toc("schedule", 1, "1h").code == 0


def test_what_broke_off_is_taken_back(told: Town, toc: Toc) -> None:
    told.dies_after("wait")
    assert "`toc move 0 --go` again, or `toc move 0 --undo`" in toc("move", 0).out
    assert toc("move", 0, "--undo").code == 0
    assert told.takes_writes("old")


def test_a_check_that_fails(told: Town, toc: Toc) -> None:
    execute(told.pair.new, "STOP REPLICA")
    execute(told.pair.new, "RESET REPLICA ALL")
    checked = toc("move", 0, "--check")
    assert checked.code == 1
    assert "may not be moved now" in checked.out
    went = toc("move", 0, "--go")
    assert went.code == 1
    assert "database 0: the move was not started" in went.err
    assert "toc move" not in went.out
    assert told.takes_writes("old")


def test_wrong_usage(told: Town, toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toc("move", 0, "--go", "--undo").code == 2
    assert toc("move", 1).code == 2
    assert toc("move", 0, "--pause-max", 0).code == 2
    monkeypatch.setenv("TOC_MOVE_NEW_URL", "nonsense://u:hidden@h")
    wrong = toc("move", 0)
    assert wrong.code == 4
    assert "hidden" not in wrong.err
    monkeypatch.delenv("TOC_MOVING__0")
    for option in ("--check", "--go", "--undo"):
        assert toc("move", 0, option).code == 4
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///x.db")
    assert toc("move", 0).code == 4


def test_servers_that_do_not_answer(told: Town, toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_MOVE_NEW_URL", "mysql+pymysql://u:hidden@127.0.0.1:1/x")
    away = toc("move", 0)
    assert away.code == 3
    assert away.err.startswith("toc: database 0 does not answer: the new server, 127.0.0.1:1")
    monkeypatch.setenv("TOC_MOVE_NEW_URL", told.urls["new"].replace("root@", "root:hidden@"))
    denied = toc("move", 0)
    assert denied.code == 4
    assert denied.err.startswith("toc: database 0: the new server")
    assert "hidden" not in away.err + denied.err


def test_an_account_that_may_not_look(
    told: Town, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = f"w{told.schema}"
    execute(told.pair.old, f"CREATE USER {who}@'127.0.0.1'")
    execute(told.pair.old, f"GRANT SELECT ON {told.schema}.* TO {who}@'127.0.0.1'")
    told.catch_up()
    monkeypatch.setenv("TOC_MOVE_NEW_URL", told.urls["new"].replace("root@", f"{who}@"))
    shown = toc("move", 0)
    assert shown.code == 1
    assert "TOC_MOVE_NEW_URL may name another account" in shown.err


MYSQL = "mysql+pymysql://u:hidden@h/d"


@pytest.mark.parametrize(
    ("index", "url", "says"),
    [
        ("0", "mysql://u:hidden@h:port/d", "moving: the URL of database 0 is not a SQLAlchemy URL"),
        ("0", "mariadb+pymysql://u:hidden@n/d", "moving: the URL of database 0 must be mysql"),
        ("0", "sqlite:///hidden", "moving: the URL of database 0 must be mysql"),
        ("1", "mysql+pymysql://u:hidden@n/d", "moving: there is no database 1"),
        ("0", "mysql+pymysql://u:hidden@n/e", "the driver and the database name of databases[0]"),
        ("0", "mysql+mysqldb://u:hidden@n/d", "the driver and the database name of databases[0]"),
        ("0", "mysql+pymysql://v:hidden@h:3306/d", "moving.0 must name another server"),
        ("x", "mysql+pymysql://u:hidden@n/d", "moving.x"),
    ],
)
def test_where_it_moves_is_a_url_of_a_like_database(
    monkeypatch: pytest.MonkeyPatch, no_settings: None, index: str, url: str, says: str
) -> None:
    monkeypatch.setenv("TOC_DATABASES", MYSQL)
    monkeypatch.setenv(f"TOC_MOVING__{index}", url)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert says in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_settings_show_it_without_its_password(monkeypatch: pytest.MonkeyPatch, toc: Toc) -> None:
    monkeypatch.setenv("TOC_DATABASES", MYSQL)
    monkeypatch.setenv("TOC_MOVING__0", MYSQL.replace("@h", "@n"))
    monkeypatch.setenv("TOC_MOVE_OLD_URL", MYSQL)
    shown = toc("settings")
    assert shown.code == 0
    assert "0: mysql+pymysql://u:***@n/d" in shown.out
    assert "hidden" not in shown.out
