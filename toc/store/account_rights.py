"""Reads which rights the account of a MySQL session has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from toc.store.move_server_session import MoveServerSession

_EVERYWHERE = (
    "SELECT PRIVILEGE_TYPE AS name FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s"
)
# The schema name of a grant is a LIKE pattern, and case-sensitive.
_SCHEMA = (
    "SELECT PRIVILEGE_TYPE AS name FROM information_schema.SCHEMA_PRIVILEGES WHERE GRANTEE = %s "
    "AND %s LIKE CONVERT(TABLE_SCHEMA USING utf8mb4) COLLATE utf8mb4_bin"
)
_TABLES = """
SELECT TABLE_NAME AS table_name, PRIVILEGE_TYPE AS name
  FROM information_schema.TABLE_PRIVILEGES WHERE GRANTEE = %s AND TABLE_SCHEMA = %s
 UNION ALL
SELECT TABLE_NAME, CONCAT(
       PRIVILEGE_TYPE, ' (', GROUP_CONCAT(COLUMN_NAME ORDER BY COLUMN_NAME SEPARATOR ', '), ')')
  FROM information_schema.COLUMN_PRIVILEGES WHERE GRANTEE = %s AND TABLE_SCHEMA = %s
 GROUP BY TABLE_NAME, PRIVILEGE_TYPE"""

_INCLUDED_IN = {
    "SESSION_VARIABLES_ADMIN": {"SYSTEM_VARIABLES_ADMIN", "SUPER"},
    "SYSTEM_VARIABLES_ADMIN": {"SUPER"},
    "CONNECTION_ADMIN": {"SUPER"},
    "REPLICATION_SLAVE_ADMIN": {"SUPER"},
    "REPLICATION CLIENT": {"SUPER"},
}


@dataclass(frozen=True, slots=True)
class AccountRights:
    """The rights of an account: on the whole server, on the schema, on single tables of the schema.

    A right on some columns of a table is a separate right, with the names of the columns in parentheses.
    """

    everywhere: Set[str]
    schema: Set[str]
    tables: Mapping[str, Set[str]]

    def missing_rights(
        self,
        everywhere: Iterable[str],
        schema: Iterable[str],
        tables: Mapping[str, Iterable[str]],
    ) -> list[str]:
        """Those of the given rights that the account does not have."""
        return [
            *(name for name in everywhere if not _is_right_held(name, self.everywhere)),
            *(name for name in schema if not self._has_right_on(name)),
            *(
                f"{name} on {table}"
                for table, names in tables.items()
                for name in names
                if not self._has_right_on(name, table)
            ),
        ]

    def _has_right_on(self, name: str, table: str = "") -> bool:
        return _is_right_held(
            name, self.everywhere | self.schema | self.tables.get(table, frozenset())
        )


def read_account_rights(server: MoveServerSession) -> AccountRights:
    """The rights of the session's account, without the rights of the account's roles."""
    user, _, host = str(server.read_value("SELECT CURRENT_USER()")).rpartition("@")
    account = f"'{user}'@'{host}'"
    tables: dict[str, set[str]] = {}
    for row in server.read_rows(_TABLES, account, server.schema, account, server.schema):
        tables.setdefault(row["table_name"], set()).add(row["name"])
    return AccountRights(
        {row["name"] for row in server.read_rows(_EVERYWHERE, account)},
        {row["name"] for row in server.read_rows(_SCHEMA, account, server.schema)},
        tables,
    )


def _is_right_held(name: str, held: Set[str]) -> bool:
    whole = name.partition(" (")[0]  # the right on all columns
    return bool({name, whole, *_INCLUDED_IN.get(name, ())} & held)
