"""The result of the last reconciliation: one row of `toc_meta` in database 0, for people and `toc doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select

from toc.store.databases import Database, Databases
from toc.store.meta_values import write_meta_value

RECONCILED = "reconciled"
"""The row's name. Its value is JSON, ASCII, of at most 255 bytes."""

VERDICT_CHARS_MAX = 32


@dataclass(frozen=True, slots=True)
class LastReconcileResult:
    """The result of one run. Times in ms since 1970 by the database's clock.

    verdict: "agreed", "repaired", "left" (disagreements are left) or "unable" (not everything was compared).
    disagreements: the number found, with those repaired. whole_ms: the end of the last run that
    could compare everything, which may be an earlier run; None: no such run. unclaimable: live jobs that no
    worker will claim, or not in time, and that were not repaired (`domain.disagreements.UNCLAIMABLE`).
    """

    ended_ms: int
    verdict: str
    disagreements: int
    repaired: int
    seconds: float
    whole_ms: int | None
    unclaimable: int = 0


def record_reconcile_result(
    databases: Databases,
    verdict: str,
    disagreements: int,
    repaired: int,
    seconds: float,
    *,
    is_whole: bool,
    unclaimable: int = 0,
) -> LastReconcileResult:
    """Writes the result of a run that ends now. `is_whole`: the run could compare everything.

    Raises StoreUnavailable.
    """
    if not verdict.isascii() or len(verdict) > VERDICT_CHARS_MAX:
        raise ValueError(f"not a verdict: {verdict!r}")
    database = databases[0]
    now_ms = database.now_ms()

    def replace_result(connection: Connection) -> LastReconcileResult:
        before = _read_result(connection, database)
        whole_ms = before.whole_ms if before is not None else None
        whole_ms = now_ms if is_whole else whole_ms
        # A run that could not look everywhere does not say that they are gone.
        left = unclaimable if is_whole or before is None else max(unclaimable, before.unclaimable)
        made = LastReconcileResult(
            now_ms, verdict, disagreements, repaired, round(seconds, 1), whole_ms, left
        )
        value = json.dumps(asdict(made), separators=(",", ":"))
        write_meta_value(connection, database, RECONCILED, value)
        return made

    return database.run_transaction(replace_result)


def read_last_reconcile_result(databases: Databases) -> LastReconcileResult | None:
    """Reads the result of the last reconciliation; None: none has run. Raises StoreUnavailable."""
    database = databases[0]
    return database.run_read(lambda connection: _read_result(connection, database))


def _read_result(connection: Connection, database: Database) -> LastReconcileResult | None:
    query = select(database.meta.c.value).where(database.meta.c.name == RECONCILED)
    value = connection.scalar(query)
    if value is None:
        return None
    try:
        found = json.loads(value)
        whole_ms = found["whole_ms"]
        return LastReconcileResult(
            int(found["ended_ms"]),
            str(found["verdict"])[:VERDICT_CHARS_MAX],
            int(found["disagreements"]),
            int(found["repaired"]),
            float(found["seconds"]),
            None if whole_ms is None else int(whole_ms),
            int(found.get("unclaimable", 0)),
        )
    except (ValueError, KeyError, TypeError):  # a person or another release has written the row
        return None
