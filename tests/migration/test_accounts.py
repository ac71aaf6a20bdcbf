"""The accounts of docs/migrations.md: they can do what they are for, and no more."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tests.contract.library import Library
from tests.migration.conftest import VIEWS, run, scalar, settings_of
from toc.domain.job import Status
from toc.errors import TocError
from toc.store import migrate
from toc.store.claims import Kind
from toc.store.standings import standings

PAGE = (Path(__file__).parents[2] / "docs/migrations.md").read_text()
NAMES = ("toc_dba", "toc_app", "toc_reader")


@pytest.fixture
def accounts(server_url: str) -> Iterator[dict[str, str]]:
    """URLs for the accounts of the page, by name: its statements, for this database."""
    statements = [
        statement.strip()
        for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
        for statement in block.split(";")
        if statement.strip()
    ]
    database = str(make_url(server_url).database)
    own = {name: f"{name}_{secrets.token_hex(4)}" for name in NAMES}
    text = "; ".join(statements).replace("toc.*", f"{database}.*")
    for name, account in own.items():
        text = text.replace(f"'{name}'", f"'{account}'")
    made = text.split("; ")
    assert len(made) == 2 * len(NAMES)
    run(server_url, *made)
    yield {name: _as(server_url, account) for name, account in own.items()}
    run(server_url, *(f"DROP USER '{account}'@'%'" for account in own.values()))


def _as(url: str, account: str) -> str:
    made: URL = make_url(url).set(username=account, password="secret")
    return made.render_as_string(hide_password=False)


def test_the_migrating_account_can_migrate(accounts: dict[str, str]) -> None:
    settings = settings_of(accounts["toc_dba"])
    migrate.upgrade(settings)
    (found,) = standings(settings)
    assert found.is_well, found
    migrate.downgrade(settings, "0001")
    migrate.downgrade(settings, "base")
    migrate.upgrade(settings)
    script = scalar(accounts["toc_dba"], "SELECT COUNT(*) FROM toc_jobs")
    assert script == 0


def test_the_application_s_account_can_work(accounts: dict[str, str], server_url: str) -> None:
    migrate.upgrade(settings_of(accounts["toc_dba"], shards=4))
    library = Library([accounts["toc_app"]])  # nothing to migrate: it looks, and is done
    try:
        migrate.check(library.databases)
        done = library.ended(Kind.DONE)
        dead = library.dead(biz_id=7)
        assert library.row(done).status == Status.DONE
        assert library.jobs.redrive(dead, library.now_ms) == "redriven"
        assert library.jobs.cancel(dead) == "cancelled"
        library.reset()  # deletes from all of them, as retention does
    finally:
        library.close()
    assert scalar(server_url, "SELECT COUNT(*) FROM toc_jobs") == 0


def test_the_application_s_account_changes_no_table(accounts: dict[str, str]) -> None:
    settings = settings_of(accounts["toc_app"])
    with pytest.raises(migrate.MigrationFailed, match=r"database 0.*CREATE command denied") as met:
        migrate.upgrade(settings)
    assert "\n" not in str(met.value)
    assert "secret" not in str(met.value)
    migrate.upgrade(settings_of(accounts["toc_dba"]))
    with pytest.raises(migrate.MigrationFailed, match=r"database 0, table toc_.*denied"):
        migrate.downgrade(settings, "0001")


def test_a_reader_reads(accounts: dict[str, str]) -> None:
    migrate.upgrade(settings_of(accounts["toc_dba"]))
    reader = accounts["toc_reader"]
    for view in ("toc_jobs", "toc_dead_jobs", "toc_events"):
        assert scalar(reader, f"SELECT COUNT(*) FROM {view}") == 0
    (found,) = standings(settings_of(reader))
    assert found.is_well, found
    with pytest.raises(DBAPIError, match="denied"):
        run(reader, "DELETE FROM toc_job_0000")


def test_what_an_account_cannot_see_is_a_note(accounts: dict[str, str], server_url: str) -> None:
    """Of a view that another has made an account sees the text by SHOW VIEW only."""
    migrate.upgrade(settings_of(server_url))
    database = make_url(server_url).database
    for name in ("toc_dba", "toc_reader"):
        account = make_url(accounts[name]).username
        (found,) = standings(settings_of(accounts[name]))
        assert found.notes == ()
        run(server_url, f"REVOKE SHOW VIEW ON {database}.* FROM '{account}'@'%'")
        (found,) = standings(settings_of(accounts[name]))
        assert found.is_well
        assert {note.table for note in found.notes} == VIEWS
        assert {note.text for note in found.notes} == {
            "its SELECT cannot be seen: the account lacks SHOW VIEW"
        }


def test_every_grant_is_needed(accounts: dict[str, str], server_url: str, server: Any) -> None:
    """Of the migrating account: without any one of them something that it is for fails."""
    database = str(make_url(server_url).database)
    account = str(make_url(accounts["toc_dba"]).username)
    (granted,) = re.findall(r"GRANT ([^;]+?)\s+ON toc\.\* TO 'toc_dba'", PAGE)
    settings = settings_of(accounts["toc_dba"])
    for grant in [name.strip() for name in granted.split(",") if "SHOW VIEW" not in name]:
        run(server_url, f"REVOKE {grant} ON {database}.* FROM '{account}'@'%'")
        assert not _does_everything(settings, server_url), f"{grant} is not needed"
        run(server_url, f"GRANT {grant} ON {database}.* TO '{account}'@'%'")
        _clear(server_url)
    assert _does_everything(settings, server_url)


def _does_everything(settings: Any, url: str) -> bool:
    try:
        migrate.upgrade(settings)
        (found,) = standings(settings)
        migrate.downgrade(settings, "base")
    except (TocError, DBAPIError) as error:
        return "denied" not in str(error)  # another reason is no answer to the question
    return found.is_well


def _clear(url: str) -> None:
    settings = settings_of(url)
    migrate.upgrade(settings)
    migrate.downgrade(settings, "base")
