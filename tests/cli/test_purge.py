"""`toc purge` on SQLite: one pass over all databases. tests/accounts runs it under the purger's account."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Toc


def cancel_one_of_each_database(toc: Toc) -> None:
    for biz_id in range(8):
        toc("schedule", biz_id, "1h")
        toc("cancel", "--biz-id", biz_id)


def test_what_is_young_stays(toc: Toc, servers: dict[str, str]) -> None:
    cancel_one_of_each_database(toc)
    said = toc("purge", "--json")
    assert said.code == 0, said
    none = {"jobs": 0, "events": 0, "held": 0, "events_held": 0, "audited": 0}
    assert said.json == {"databases": [{"database": 0, **none}, {"database": 1, **none}]}


def test_one_pass_deletes_all_that_is_old(
    toc: Toc, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel_one_of_each_database(toc)
    for name in ("DAYS", "EVENT_DAYS"):
        monkeypatch.setenv(f"TOC_RETENTION__{name}", "1e-9")
    monkeypatch.setenv("TOC_RETENTION__PAGE", "1")
    monkeypatch.setenv("TOC_RETENTION__SHARE", "1")
    found = toc("purge", "--json").json["databases"]
    assert sum(each["jobs"] for each in found) == 8
    assert sum(each["events"] for each in found) == 8
    assert all(each["jobs"] for each in found)
    assert toc("job", "show", "--biz-id", 1).code == 1


def test_a_database_that_is_away_keeps_no_other(
    toc: Toc, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = servers["TOC_DATABASES"].split(",")
    monkeypatch.setenv("TOC_DATABASES", f"{first},sqlite:////nowhere/toc.db")
    said = toc("purge", "--json")
    assert said.code == 3
    done, away = said.json["databases"]
    assert done == {
        "database": 0,
        "jobs": 0,
        "events": 0,
        "held": 0,
        "events_held": 0,
        "audited": 0,
    }
    assert "unable to open database file" in away["error"]
    assert "unable to open" in toc("purge").out


def test_a_database_that_is_not_migrated(
    toc: Toc, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "sqlite:///new.db")
    said = toc("purge")
    assert said.code == 4
    assert "toc migrate" in said.out
