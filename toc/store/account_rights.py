"""The rights of a session's account on MySQL, read from SHOW GRANTS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from toc.store.move_server import MoveServer

_NAME = r"(?:`(?:[^`]|``)*`|\*)"
_GRANT = re.compile(rf"GRANT (?P<rights>.+?) ON (?P<schema>{_NAME})\.(?P<table>{_NAME}) TO ")
_RIGHT = re.compile(r"([A-Z][A-Z_ ]*[A-Z])(?: \(([^)]*)\))?")
_STANDS_FOR = {
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
    everywhere: set[str] = set()
    schema: set[str] = set()
    tables: dict[str, set[str]] = {}
    for row in server.rows("SHOW GRANTS"):
        match = _GRANT.match(str(*row.values()))
        if match is None:
            continue
        rights = {_normalised(*right) for right in _RIGHT.findall(match["rights"])}
        if match["schema"] == "*":
            everywhere |= rights
        elif match["table"] == "*" and _pattern_matches(server.schema, match["schema"]):
            schema |= rights
        elif _unquoted(match["schema"]) == server.schema:
            tables.setdefault(_unquoted(match["table"]), set()).update(rights)
    return Rights(everywhere, schema, tables)


def _has_right(name: str, held: Set[str]) -> bool:
    whole = name.partition(" (")[0]  # of all columns
    return bool({name, whole, "ALL PRIVILEGES", *_STANDS_FOR.get(name, ())} & held)


def _normalised(right: str, columns: str) -> str:
    names = sorted(map(_unquoted, columns.split(", "))) if columns else []
    return f"{right} ({', '.join(names)})" if names else right


def _unquoted(name: str) -> str:
    return name.removeprefix("`").removesuffix("`").replace("``", "`")


def _pattern_matches(schema: str, pattern: str) -> bool:
    """Whether a grant's database, a pattern of LIKE in backticks, matches the schema."""
    text = ""
    for escaped, character in re.findall(r"(\\)?(.)", pattern.strip("`")):
        wild = {"_": ".", "%": ".*"}.get(character)
        text += wild if wild and not escaped else re.escape(character)
    return re.fullmatch(text, schema) is not None
