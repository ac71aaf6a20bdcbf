"""Searches the audit for people: a page of the newest entries that fit a filter, of all databases.

A page looks at a bounded number of entries. If few of them fit, the page is short, and the next one goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toc.access.audit_list import UNORDERED_MS
from toc.errors import StoreUnavailable
from toc.store.audit_rows import AuditRecord, AuditRow, find_audit_end, read_audit_page
from toc.store.databases import Database, Databases

READ_MAX = 2000
"""Entries that a page looks at, over all databases."""

ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What entries to show; None: any. owner, action, target: a part of the text, in any case.

    since_ms, until_ms: both included.
    """

    token_id: str | None = None
    owner: str | None = None
    action: str | None = None
    target: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, row: AuditRow) -> bool:
        """Whether to show an entry."""
        texts = ((self.owner, row.owner), (self.action, row.action), (self.target, row.target))
        return (
            (self.token_id is None or row.token_id == self.token_id)
            and (self.since_ms is None or row.time_ms >= self.since_ms)
            and (self.until_ms is None or row.time_ms <= self.until_ms)
            and all(part is None or part.lower() in (whole or "").lower() for part, whole in texts)
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """records: newest first. read: how many entries were looked at.

    ends: for each database, the id below which the next page begins; None: there is no next page. away: the
    databases that did not answer: their entries are missing.
    """

    records: Sequence[AuditRecord]
    read: int
    ends: Sequence[int] | None
    away: Sequence[int]


@dataclass(slots=True)
class _UnreadEntries:
    """The entries of one database that were read and not looked at yet. end: the id of the last looked at."""

    end: int
    entries: deque[AuditRecord] = field(default_factory=deque)
    has_more: bool = False


def search_audit(
    databases: Databases, wanted: AuditFilter, ends: Sequence[int] | None, limit: int
) -> AuditPage:
    """A page of at most `limit` entries. ends: those of the page before; None: the first page."""
    limit_of_part = max(1, READ_MAX // len(databases.all))
    parts: dict[int, _UnreadEntries] = {}
    away = []
    for database in databases:
        end = None if ends is None else ends[database.index]
        try:
            parts[database.index] = _read_part(database, wanted, end, limit_of_part)
        except StoreUnavailable:
            away.append(database.index)
    records, read = _merge_parts(parts, wanted, limit)
    is_over = not any(part.entries or part.has_more for part in parts.values())
    before = [ID_MAX] * len(databases.all) if ends is None else ends
    following = [parts[at].end if at in parts else end for at, end in enumerate(before)]
    return AuditPage(records, read, None if is_over else following, away)


def _read_part(
    database: Database, wanted: AuditFilter, end: int | None, limit: int
) -> _UnreadEntries:
    if end is None and wanted.until_ms is not None:
        end = find_audit_end(database, wanted.until_ms + UNORDERED_MS)
    if end == 0:  # the page before has looked at all of them
        return _UnreadEntries(0)
    found = read_audit_page(database, end, wanted.token_id, limit)
    has_more = len(found) == limit
    if wanted.since_ms is not None:
        oldest_ms = wanted.since_ms - UNORDERED_MS
        young = [each for each in found if each.row.time_ms >= oldest_ms]
        has_more = has_more and len(young) == len(found)
        found = young
    return _UnreadEntries(ID_MAX if end is None else end, deque(found), has_more)


def _merge_parts(
    parts: Mapping[int, _UnreadEntries], wanted: AuditFilter, limit: int
) -> tuple[list[AuditRecord], int]:
    """Looks at the entries by time, newest first, until `limit` fit, or one database must be read again."""
    records: list[AuditRecord] = []
    read = 0
    while len(records) < limit:
        filled = [part for part in parts.values() if part.entries]
        if not filled:
            break
        part = max(filled, key=lambda each: each.entries[0].row.time_ms)
        record = part.entries.popleft()
        part.end = record.audit_id
        read += 1
        if wanted.fits(record.row):
            records.append(record)
        if not part.entries and part.has_more:
            break
    for part in parts.values():
        if not part.entries and not part.has_more:
            part.end = 0
    return records, read
