"""The table `toc_audit`: calls over HTTP, and changes of tokens. Any database may hold an entry.

toc writes what it knows of the caller; the server writes `account`, by the column's default: the account
of the connection. No statement of toc names `account`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import delete, insert, select

from toc.errors import StatementFailed, StoreUnavailable, TocError
from toc.store.databases import Database, Databases

AUDIT_COLUMNS = (
    "audit_time", "token_id", "owner", "address", "action", "target", "calls", "rows_changed", "outcome",
    "request_id",
)  # fmt: skip
"""The columns of an INSERT. The server itself writes each entry's number and account."""

TARGET_CHARS_MAX = 512


class AuditRow(NamedTuple):
    """An entry as it is written. time_ms: when the call ended, in ms since 1970, by its process' clock.

    calls: how many calls the entry stands for (more than one: a summary). rows_changed: None: it changes
    none.
    """

    time_ms: int
    token_id: str | None
    owner: str | None
    address: str | None
    action: str
    target: str | None
    calls: int
    rows_changed: int | None
    outcome: str
    request_id: str | None


class AuditRecord(NamedTuple):
    """An entry as it was read."""

    database: int
    audit_id: int
    row: AuditRow
    account: str | None


def insert_audit_rows(database: Database, rows: Sequence[AuditRow]) -> None:
    """Writes entries to one database in one transaction. Raises StoreUnavailable."""
    values = [dict(zip(AUDIT_COLUMNS, row, strict=True)) for row in rows]
    database.run_transaction(lambda connection: connection.execute(insert(database.audit), values))


def insert_into_any_database(databases: Databases, rows: Sequence[AuditRow], first: int = 0) -> int:
    """Writes entries to the database `first`, or to the next one that accepts them; returns its index.

    Raises StoreUnavailable or StatementFailed, of the last one, if none accepts them.
    """
    failed: TocError | None = None
    for database in (*databases.all[first:], *databases.all[:first]):
        try:
            insert_audit_rows(database, rows)
        except (StoreUnavailable, StatementFailed) as error:
            failed = error
        else:
            return database.index
    assert failed is not None  # noqa: S101 - there is at least one database
    raise failed


def read_audit_page(
    database: Database, before_id: int | None, token_id: str | None, limit: int
) -> list[AuditRecord]:
    """Reads entries of one database, newest first, with ids below `before_id`. Raises StoreUnavailable."""
    its = database.audit.c
    query = select(its.audit_id, its.account, *(its[name] for name in AUDIT_COLUMNS))
    if before_id is not None:
        query = query.where(its.audit_id < before_id)
    if token_id is not None:
        query = query.where(its.token_id == token_id)
    rows = database.select(query.order_by(its.audit_id.desc()).limit(limit))
    return [
        AuditRecord(database.index, audit_id, AuditRow._make(rest), account)
        for audit_id, account, *rest in rows
    ]


def find_audit_end(database: Database, until_ms: int) -> int:
    """An id above those of the entries up to `until_ms`, if times ascend with ids; by bisection.

    Each step reads one row by its id. Raises StoreUnavailable.
    """
    its = database.audit.c
    older, end = (
        0,
        (database.scalar(select(its.audit_id).order_by(its.audit_id.desc()).limit(1)) or 0) + 1,
    )
    while end - older > 1:
        middle = (older + end) // 2
        query = select(its.audit_id, its.audit_time).where(its.audit_id >= middle)
        rows = database.select(query.order_by(its.audit_id).limit(1))
        if not rows or rows[0][0] >= end or rows[0][1] > until_ms:
            end = middle
        else:
            older = rows[0][0]
    return int(end)


def delete_old_audit_rows(
    database: Database, after: int, before_ms: int, limit: int
) -> tuple[int, int | None]:
    """Reads the next `limit` entries by id, above `after`, and deletes those older than `before_ms`.

    Returns the number of deleted entries, and the `after` of the next call; None: the pass is over,
    because all entries of a page are younger, or there are no more.
    """
    its = database.audit.c
    query = select(its.audit_id, its.audit_time).where(its.audit_id > after)
    rows = database.select(query.order_by(its.audit_id).limit(limit))
    old = [audit_id for audit_id, at_ms in rows if at_ms < before_ms]
    if old:
        database.execute(delete(database.audit).where(its.audit_id.in_(old)))
    more = len(rows) == limit and bool(old)
    return len(old), rows[-1][0] if more else None
