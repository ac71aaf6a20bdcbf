"""The result of the last nightly run: one row of `toc_meta` in database 0, for people, alarms and metrics."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select

from toc.store.databases import Database, Databases
from toc.store.meta_values import write_meta_value

NIGHTLY = "nightly"
"""The row's name. Its value is JSON, ASCII, of at most 255 bytes."""

FAILED_CHARS_MAX = 80

KILLED = "killed"
"""Stands in `failed` for all parts of a run that was killed."""


@dataclass(frozen=True, slots=True)
class NightlyStatus:
    """The result of one nightly run. Times in ms since 1970 by the database's clock.

    code: its exit code; negative: it was killed. failed: its parts that failed, separated by spaces.
    findings: checks of the analysts' tables that failed. good_ms: when the last good run ended, which may be
    an earlier one; None: none has.
    """

    ended_ms: int
    seconds: float
    code: int
    failed: str
    findings: int
    good_ms: int | None


def record_nightly_status(
    databases: Databases,
    *,
    seconds: float,
    code: int,
    failed: str,
    findings: int,
    is_good: bool,
) -> NightlyStatus:
    """Writes the result of a nightly run that ends now. Raises StoreUnavailable."""
    if not failed.isascii():
        raise ValueError(f"not names of parts: {failed!r}")
    database = databases[0]
    now_ms = database.now_ms()

    def replace_status(connection: Connection) -> NightlyStatus:
        before = _read_status(connection, database)
        good_ms = now_ms if is_good else before.good_ms if before is not None else None
        made = NightlyStatus(
            now_ms, round(seconds, 1), code, failed[:FAILED_CHARS_MAX], findings, good_ms
        )
        value = json.dumps(asdict(made), separators=(",", ":"))
        write_meta_value(connection, database, NIGHTLY, value)
        return made

    return database.run_transaction(replace_status)


def read_nightly_status(databases: Databases) -> NightlyStatus | None:
    """Reads the result of the last nightly run; None: none has ended. Raises StoreUnavailable."""
    database = databases[0]
    return database.run_read(lambda connection: _read_status(connection, database))


def _read_status(connection: Connection, database: Database) -> NightlyStatus | None:
    query = select(database.meta.c.value).where(database.meta.c.name == NIGHTLY)
    value = connection.scalar(query)
    if value is None:
        return None
    try:
        found = json.loads(value)
        good_ms = found["good_ms"]
        return NightlyStatus(
            int(found["ended_ms"]),
            float(found["seconds"]),
            int(found["code"]),
            str(found["failed"])[:FAILED_CHARS_MAX],
            int(found["findings"]),
            None if good_ms is None else int(good_ms),
        )
    except (ValueError, KeyError, TypeError):  # a person or another release has written the row
        return None
