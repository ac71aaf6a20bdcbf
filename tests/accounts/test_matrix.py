"""Every role, every table, every kind of change: the servers allow what the code says, and no more."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from tests.accounts.conftest import Place
from tests.migration.conftest import VIEWS, run
from toc.store import declared_types, pauses
from toc.store.account_roles import EVENT_COLUMNS, JOBS, ROLES, WEBHOOK_DISABLING_COLUMNS
from toc.store.audit_rows import AUDIT_COLUMNS
from toc.store.driver_errors import error_number
from toc.store.schema import VERSION_TABLE
from toc.store.token_rows import TOKEN_COLUMNS

KEYS = {
    "toc_job_0000": "job_id", "toc_job_0001": "job_id", "toc_meta": "name", "toc_biz_type": "type_no",
    "toc_dead_job": "job_id", "toc_event": "event_id", "toc_purge": "day", "toc_declared_type": "name",
    "toc_pause": "target", "toc_token": "token_id", "toc_audit": "audit_id", "toc_webhook": "name",
    "toc_arrival": "job_id", "toc_recurring": "name", "toc_occurrence": "name",
    "toc_mass_change": "mass_change_id",
    VERSION_TABLE: "version_num",
}  # fmt: skip
COLUMNS = {
    "toc_event": EVENT_COLUMNS, "toc_declared_type": declared_types.COLUMNS,
    "toc_pause": pauses.COLUMNS, "toc_meta": ("name", "value"),
    "toc_token": TOKEN_COLUMNS, "toc_audit": AUDIT_COLUMNS,
}  # fmt: skip
SIGNED = {"toc_event": "event_id", "toc_audit": "audit_id", "toc_token": "revoked_time"}
"""Tables with a column `account`, which the server fills, and another column that no INSERT may name."""


COLUMN_LIST = f"({', '.join(WEBHOOK_DISABLING_COLUMNS)})"


def try_statements(table: str) -> dict[str, str]:
    """By the right that each needs. They change no row."""
    key = KEYS[table]
    columns = ", ".join(COLUMNS.get(table, (key,)))
    values = ", ".join("''" for _ in COLUMNS.get(table, (key,)))
    found = {
        "INSERT": f"INSERT INTO {table} ({columns}) SELECT {values} FROM toc_meta WHERE 1 = 0",
        "UPDATE": f"UPDATE {table} SET {key} = {key} WHERE 1 = 0",
        "DELETE": f"DELETE FROM {table} WHERE 1 = 0",
        "DROP": f"TRUNCATE TABLE {table}",
        "ALTER": f"ALTER TABLE {table} COMMENT = 'x'",
    }
    if table == "toc_meta":
        found["UPDATE (value)"] = "UPDATE toc_meta SET value = value WHERE 1 = 0"
    if table == "toc_token":
        both = "last_used_time = NULL, revoked_time = NULL"
        found["UPDATE (last_used_time, revoked_time)"] = f"UPDATE toc_token SET {both} WHERE 1 = 0"
        found["UPDATE (revoked_time)"] = "UPDATE toc_token SET revoked_time = NULL WHERE 1 = 0"
    if table == "toc_pause":
        found["UPDATE (peak_per_min)"] = f"UPDATE {table} SET peak_per_min = 0 WHERE 1 = 0"
    if table == "toc_webhook":
        columns = ", ".join(f"{column} = {column}" for column in WEBHOOK_DISABLING_COLUMNS)
        found["UPDATE " + COLUMN_LIST] = f"UPDATE {table} SET {columns} WHERE 1 = 0"
    return found


def is_allowed(url: str, statement: str) -> bool:
    """Whether it is not refused for the account's sake; another error comes after the look at rights."""
    try:
        run(url, statement)
    except DBAPIError as error:
        return error_number(error) not in (1142, 1143, 1044, 1227)
    return True


@pytest.mark.parametrize("role", [name for name, role in ROLES.items() if not role.server])
def test_an_account_may_do_what_its_role_says_and_no_more(place: Place, role: str) -> None:
    url = place.make(role)
    for table in KEYS:
        rights = {
            right.partition(" (")[0] if right.startswith("INSERT (") else right
            for right in ROLES[role].tables.get(JOBS if table.startswith("toc_job_") else table, ())
        } | set(ROLES[role].database)
        if "UPDATE (last_used_time, revoked_time)" in rights:
            rights.add("UPDATE (revoked_time)")
        for right, statement in try_statements(table).items():
            has_right = right in rights or right.partition(" (")[0] in rights
            assert is_allowed(url, statement) == has_right, (role, statement)
    makes = "CREATE" in ROLES[role].database
    assert is_allowed(url, "CREATE TABLE other (a INT)") == makes
    if makes:
        run(url, "DROP TABLE other")
    assert not is_allowed(url, "SELECT * FROM mysql.user")


@pytest.mark.parametrize("table", ["toc_event", "toc_audit"])
def test_nobody_changes_an_event_and_only_the_purger_deletes_one(table: str) -> None:
    deletes = set()
    for name, role in ROLES.items():
        rights = {*role.database, *role.tables.get(table, ())}
        assert not any(right.startswith("UPDATE") for right in rights), name
        if "DELETE" in rights:
            deletes.add(name)
    assert deletes == {"purger"}


@pytest.mark.parametrize("role", ["client", "worker", "operator", "web", "web_oidc", "tokens"])
def test_what_the_server_says_of_an_event_is_not_for_the_account_to_say(
    place: Place, role: str
) -> None:
    url = place.make(role)
    for table, number in SIGNED.items():
        for column in (number, "account"):
            assert not is_allowed(
                url, f"INSERT INTO {table} ({column}) SELECT 1 FROM toc_meta WHERE 1 = 0"
            )


def test_a_reader_sees_no_row_of_webhooks_and_everybody_else_only_encrypted_secrets(
    place: Place,
) -> None:
    url = place.make("reader")
    for column in ("name", "url", "secret", "old_secret", "*"):
        assert not is_allowed(url, f"SELECT {column} FROM toc_webhook")
    assert not is_allowed(url, "CREATE TABLE other (a VARCHAR(64) REFERENCES toc_webhook (name))")
    for view in VIEWS:
        assert is_allowed(url, f"SELECT * FROM {view} LIMIT 1")


def test_a_schema_with_a_similar_name_is_another_one(place: Place) -> None:
    other = place.schema.replace("_", "x")
    run(place.url, f"CREATE DATABASE {other}", f"CREATE TABLE {other}.a (b INT)")
    try:
        assert not is_allowed(place.make("reader"), f"SELECT * FROM {other}.a")
    finally:
        run(place.url, f"DROP DATABASE {other}")
