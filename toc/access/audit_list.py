"""Reads the audit of all databases, newest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice, takewhile

from toc.store.audit_rows import AuditRecord, read_audit_page
from toc.store.databases import Database, Databases

PAGE = 500
UNORDERED_MS = 60_000
"""Processes write entries in batches: an entry with a larger id may be older by about so much."""


def list_audit(
    databases: Databases, limit: int, *, since_ms: int | None = None, token_id: str | None = None
) -> list[AuditRecord]:
    """The newest `limit` entries of all databases. Raises StoreUnavailable if one does not answer."""
    parts = [_newest_of(database, since_ms, token_id) for database in databases]
    merged = heapq.merge(*parts, key=_time_of, reverse=True)
    found = (each for each in merged if since_ms is None or each.row.time_ms >= since_ms)
    return sorted(islice(found, limit), key=_time_of, reverse=True)


def _newest_of(
    database: Database, since_ms: int | None, token_id: str | None
) -> Iterator[AuditRecord]:
    """The entries of one database by id, newest first, until all are older than `since_ms`."""

    def is_wanted(record: AuditRecord) -> bool:
        return since_ms is None or record.row.time_ms >= since_ms - UNORDERED_MS

    yield from takewhile(is_wanted, _pages_of(database, token_id))


def _pages_of(database: Database, token_id: str | None) -> Iterator[AuditRecord]:
    before: int | None = None
    while True:
        page = read_audit_page(database, before, token_id, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        before = page[-1].audit_id


def _time_of(record: AuditRecord) -> int:
    return record.row.time_ms
