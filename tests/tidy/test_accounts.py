"""The pages and files about accounts say what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import typer.testing
from sqlalchemy import MetaData

from toc.cli.grants import RoleName
from toc.cli.main import app
from toc.store import declared_types, pauses
from toc.store.account_roles import EVENT_COLUMNS, JOBS, ROLES, VIEWS
from toc.store.audit_rows import AUDIT_COLUMNS
from toc.store.events import _EVENT_COLUMNS
from toc.store.schema import (
    VERSION_TABLE,
    audit_table,
    declared_type_table,
    event_table,
    pause_table,
    token_table,
)
from toc.store.token_rows import TOKEN_COLUMNS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/accounts.md").read_text("utf-8")
PLACES = (
    "the database", "job tables", "`toc_meta`", "`toc_biz_type`", "`toc_dead_job`", "`toc_event`",
    "`toc_purge`", "`toc_declared_type`", "`toc_pause`", "`toc_token`", "`toc_audit`", "`toc_webhook`",
    "`toc_arrival`", "`toc_recurring`", "`toc_occurrence`", "`toc_mass_change`",
    f"`{VERSION_TABLE}`", "views",
)  # fmt: skip


def rows(first: str) -> dict[str, list[str]]:
    """A table of the page, by its first column. `first`: how its head begins."""
    lines = PAGE[PAGE.index(f"| {first}") :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells if not name.startswith("-")}


def shown(right: str) -> str:
    """A right as the page has it."""
    name, _, columns = right.partition(" (")
    sign = {"": "", "value)": " ²", "last_used_time, revoked_time)": " ³", "revoked_time)": " ⁴"}
    sign["version, disabled_time, disabled_reason, gmt_modified)"] = " ⁵"
    sign["peak_per_min)"] = " ⁷"
    if name == "REFERENCES":
        return f"{name} ⁶"
    return name + sign.get(columns, " ¹")


def test_the_matrix_is_that_of_the_code() -> None:
    matrix = rows("role | the database")
    assert matrix.pop("role") == list(PLACES)
    for name, role in ROLES.items():
        tables = {
            {JOBS: "job tables", VIEWS: "views"}.get(table, f"`{table}`"): rights
            for table, rights in role.tables.items()
        }
        rights = {"the database": role.database, **tables}
        assert set(rights) <= set(PLACES)
        expected = [", ".join(map(shown, rights.get(place, ()))) for place in PLACES]
        assert matrix.pop(name) == expected, name
    assert matrix == {}


def test_the_page_says_what_each_role_is_for() -> None:
    found = rows("role | for")
    assert list(found) == ["role", *ROLES]
    for name, role in ROLES.items():
        assert found[name][0].startswith(role.purpose), name
        for server, rights in role.server.items():
            assert f"on the {server} server also {', '.join(rights)}" in found[name][0]


def test_the_command_knows_every_role() -> None:
    literal, *_ = get_args(RoleName)
    assert get_args(literal) == tuple(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_the_files_are_what_the_command_prints(
    role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://db0/toc")
    monkeypatch.setenv("TOC_SHARDS", "2")
    made = typer.testing.CliRunner().invoke(app, ["grants", role])
    assert made.exit_code == 0, made.output
    assert (ROOT / f"deploy/sql/accounts/{role}.sql").read_text("utf-8") == made.output


def test_there_is_no_file_without_a_role() -> None:
    assert {path.stem for path in (ROOT / "deploy/sql/accounts").iterdir()} == set(ROLES)


def test_the_columns_of_an_event_are_those_that_are_inserted() -> None:
    assert (*_EVENT_COLUMNS, "run_id", "related_job_id") == EVENT_COLUMNS
    event = event_table(MetaData())
    assert {column.name for column in event.c} - set(EVENT_COLUMNS) == {"event_id", "account"}
    declared = declared_type_table(MetaData())
    assert {column.name for column in declared.c} - set(declared_types.COLUMNS) == {"account"}
    pause = pause_table(MetaData())
    assert {column.name for column in pause.c} - set(pauses.COLUMNS) == {"account"}


def test_the_columns_of_tokens_and_audit_are_those_that_are_inserted() -> None:
    audit, token = audit_table(MetaData()), token_table(MetaData())
    assert {column.name for column in audit.c} - set(AUDIT_COLUMNS) == {"audit_id", "account"}
    assert {column.name for column in token.c} - set(TOKEN_COLUMNS) == {
        "last_used_time", "revoked_time", "account",
    }  # fmt: skip


def test_no_file_has_a_password() -> None:
    for path in (ROOT / "deploy/sql/accounts").iterdir():
        statements = re.sub(r"^--.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
        assert "IDENTIFIED" not in statements
        assert statements.count("CREATE USER") == statements.count("ACCOUNT LOCK")
