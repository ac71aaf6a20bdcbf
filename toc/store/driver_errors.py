"""Finds what a driver's error means: the server is unavailable, a statement is refused, or a key is taken.

Drivers raise one class (OperationalError) for an unavailable server and for a refused statement, so the
number decides. A number that is not in `AWAY` concerns the statement: waiting for the server would not help.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from toc.errors import (
    MYSQL_REFUSALS,
    MYSQL_TABLE_FAULTS,
    SchemaMismatch,
    StatementFailed,
    StoreUnavailable,
    TocError,
)
from toc.store.database_home import FENCE_ERRORS
from toc.store.schema import LIVE_INDEX

NO_TABLE = 1146
DEADLOCK = 1213
LOCK_ERRORS = frozenset({1205, DEADLOCK})  # 1205: lock wait timeout
# server gone away, connection lost, shutdown, killed, ended because idle
LOST_ERRORS = frozenset({2006, 2013, 2055, 1053, 1927, 4031})
_DUPLICATE = 1062
_VALUE = re.compile(r"'|\bVALUES\b|(?<![\w`])\d")
# The name of one of toc's keys at the end of the error text.
_OWN_KEY = re.compile(rf"""['.](PRIMARY|{LIVE_INDEX}|uq_name)'["\]]*$""")

CLIENT_ERRORS = range(2000, 3000)  # numbers of the client library: about the connection
_PROXY_ERRORS = range(9000, 10000)  # numbers of ProxySQL
AWAY = frozenset({
    1021, 1026, 1030, 1037, 1038, 1041, 1114, 1180, 1598,  # no disk, no memory, no binary log
    1040, 1129, 1130, 1135, 1203, 1226,  # too many connections, or the server accepts none from this host
    1042, 1043, 1047, 1152, 1158, 1159, 1160, 1161, 1184,  # the network; a cluster's node that is not ready
    1053, 1077, 1078, 1079, 1080, 1317, 1927, 3032, 3168, 3169, 4031,  # shut down, offline, killed, idle
    1205, 1206, 1213, 3572,  # locks
    1412, 1615,  # the table has changed since the transaction began
    1792, 3098, 3100,  # a server that may not write now
    1820, 1862, 3118, 3159, 4151,  # the account: its password, a lock, TLS
    1969, 3024,  # the statement took too long
}) | FENCE_ERRORS  # fmt: skip
"""The error numbers of MySQL and MariaDB for a server that answers, but cannot serve now."""

# The beginnings of SQLite's OperationalErrors about a statement; all others are about the file.
_SQLITE_STATEMENT = (
    "no such", "table ", "near ", "ambiguous", "cannot ", "duplicate column", "incomplete input",
    "unrecognized token", "too many", "misuse", "wrong number", "foreign key mismatch", "error in ",
)  # fmt: skip


def is_unavailable_number(number: int) -> bool:
    """Whether an error number means that the server does not answer, or cannot serve now."""
    return number < 1000 or number in AWAY or number in CLIENT_ERRORS or number in _PROXY_ERRORS


def translate_error(database: int, error: DBAPIError) -> TocError | None:
    """Makes toc's error for a driver's error.

    None: a duplicate in one of toc's own unique keys, which the caller (schedule, redrive, …) handles.
    """
    if error.connection_invalidated:
        return StoreUnavailable(database, error)
    if isinstance(error, IntegrityError) and is_own_duplicate(error):
        return None
    number = error_number(error)
    if number is None:
        on_statement = str(error.orig).startswith(_SQLITE_STATEMENT)
        is_refused = isinstance(error, IntegrityError) or on_statement
    else:
        known = MYSQL_REFUSALS | MYSQL_TABLE_FAULTS
        is_refused = not is_unavailable_number(number) and number not in known
    if not is_refused:
        return StoreUnavailable(database, error)
    named = re.search(r"\btoc_\w+\b(?!`?\.)", error.statement or "")  # not a schema's name
    return StatementFailed(database, named[0] if named else None, number, error_text(error))


def hide_values(error: StatementError | None) -> None:
    """Takes the values out of the text of an error, which goes to logs and spans: they are payloads and ids.

    What is left of the statement ends before its first value.
    """
    if error is not None:
        statement = error.statement or ""
        value = _VALUE.search(statement)
        if value is not None:
            error.statement = f"{statement[: value.start()]}…"
        error.params = None


def error_number(error: SQLAlchemyError) -> int | None:
    """The error number that the server gave; None: SQLite, or not a driver's error."""
    arguments = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def error_text(error: BaseException) -> str:
    """The first line of the server's error text."""
    arguments = getattr(getattr(error, "orig", None), "args", ())
    lines = str(arguments[-1] if arguments else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_missing_table(error: DBAPIError) -> bool:
    """Whether the server says that a table does not exist."""
    return error_number(error) == NO_TABLE or "no such table" in str(error.orig)


@contextmanager
def explain_missing_table(database: int, table: str) -> Iterator[None]:
    """Turns errors about a dropped or altered table into SchemaMismatch with database and table."""
    try:
        yield
    except (StoreUnavailable, StatementFailed, DBAPIError) as error:
        cause = error if isinstance(error, DBAPIError) else error.__cause__
        if isinstance(cause, DBAPIError) and not cause.connection_invalidated:
            words = [str(word) for word in getattr(cause.orig, "args", ())]
            if words[:1] in (["1146"], ["1054"], ["1176"]) or words[0].startswith("no such"):
                text = f"database {database}, table {table}: {words[-1]}"
                raise SchemaMismatch(text) from error
        raise


# ---- duplicates: MySQL, MariaDB and SQLite report duplicates in different texts, always with the index


def is_own_duplicate(error: IntegrityError) -> bool:
    """Whether one of toc's own keys refused the row, and not a key or rule that somebody has added."""
    message = str(error.orig)
    if message.startswith("UNIQUE constraint failed"):
        return True  # SQLite names the columns only, so the key is unknown
    number, *texts = getattr(error.orig, "args", ()) or (None,)
    return number == _DUPLICATE and _OWN_KEY.search(str(texts[-1:])) is not None


def is_live_duplicate(error: IntegrityError) -> bool:
    """Whether the row was refused because a live job has the same (biz_id, type_no, dedup_key)."""
    # MySQL "… for key 'toc_job_0001.uq_live'", MariaDB "… for key 'uq_live'",
    # SQLite "UNIQUE constraint failed: toc_job_0001.biz_id, …, toc_job_0001.live_key" (or the index).
    return LIVE_INDEX in str(error.orig) or "live_key" in str(error.orig)


def is_primary_duplicate(error: IntegrityError) -> bool:
    """Whether the row was refused because its job_id exists already."""
    message = str(error.orig)
    return "PRIMARY" in message or message.endswith(".job_id")
