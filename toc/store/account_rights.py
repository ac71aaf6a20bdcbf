"""The rights of a session's account on MySQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from toc.store.move_server import MoveServer

_EVERYWHERE = (
    "SELECT PRIVILEGE_TYPE AS name FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s"
)
# The schema of a grant is a pattern of LIKE, and case-sensitive.
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
class Rights:
    """The rights of an account: on the whole server, on the schema, on single tables of the schema.

    A right on some columns of a table is a right of its own, with their names in parentheses.
    """

    everywhere: Set[str]
    schema: Set[str]
    tables: Mapping[str, Set[str]]

    def missing(
        self,
        everywhere: Iterable[str],
        schema: Iterable[str],
        tables: Mapping[str, Iterable[str]],
    ) -> list[str]:
        """The rights of these that the account does not have."""
        return [
            *(name for name in everywhere if not _has_right(name, self.everywhere)),
            *(name for name in schema if not self._has(name)),
            *(
                f"{name} on {table}"
                for table, names in tables.items()
                for name in names
                if not self._has(name, table)
            ),
        ]

    def _has(self, name: str, table: str = "") -> bool:
        return _has_right(name, self.everywhere | self.schema | self.tables.get(table, frozenset()))


def read_rights(server: MoveServer) -> Rights:
    """The rights of the session's account, without those of its roles."""
    user, _, host = str(server.value("SELECT CURRENT_USER()")).rpartition("@")
    account = f"'{user}'@'{host}'"
    tables: dict[str, set[str]] = {}
    for row in server.rows(_TABLES, account, server.schema, account, server.schema):
        tables.setdefault(row["table_name"], set()).add(row["name"])
    return Rights(
        {row["name"] for row in server.rows(_EVERYWHERE, account)},
        {row["name"] for row in server.rows(_SCHEMA, account, server.schema)},
        tables,
    )


def _has_right(name: str, held: Set[str]) -> bool:
    whole = name.partition(" (")[0]  # of all columns
    return bool({name, whole, *_INCLUDED_IN.get(name, ())} & held)
