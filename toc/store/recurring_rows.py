"""The statements on `toc_recurring` and `toc_occurrence`, each within a caller's transaction.

A schedule's row lies in the database of its jobs, which its name decides: one transaction changes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from toc.domain.recurring import RecurringSchedule
from toc.store.column_types import db_now
from toc.store.databases import Database

_KEYS_AT_ONCE = 500  # nominal times that one statement reads


class RecurringRow(NamedTuple):
    """A row of `toc_recurring`. Times in ms since 1970 UTC.

    cursor_ms: all nominal times up to this one are decided. job_id, nominal_ms: the newest occurrence of
    the chain; None: there was none yet. made, skipped: nominal times that got a job, and that were left
    out.
    """

    tenant: str | None
    name: str
    version: int
    definition: str
    type_no: int
    cursor_ms: int
    job_id: int | None
    nominal_ms: int | None
    made: int
    skipped: int
    paused_ms: int | None
    actor: str
    reason: str | None

    @property
    def schedule(self) -> RecurringSchedule:
        """The definition. Raises InvalidInput if this release cannot read it."""
        return _parse_definition(self.name, self.tenant, self.definition)


@lru_cache(maxsize=1024)
def _parse_definition(name: str, tenant: str | None, text: str) -> RecurringSchedule:
    return RecurringSchedule.from_json(name, tenant, text)


def select_rows(
    database: Database, connection: Connection | None = None, *, tenant: str | None = None,
    name: str | None = None, owner: str | None = None, lock: bool = False, limit: int | None = None,
) -> list[RecurringRow]:  # fmt: skip
    """Rows of one database, ordered by tenant and name; `name` given: the one row of tenant and name.

    owner: only the rows of this tenant, "" for those without one; None: all rows.
    """
    c = database.recurring.c
    query = select(
        c.tenant, c.name, c.version, c.definition, c.type_no, c.cursor_time, c.job_id, c.nominal_time,
        c.made, c.skipped, c.paused_time, c.actor, c.reason,
    ).order_by(c.tenant, c.name).limit(limit)  # fmt: skip
    if name is not None:
        query = query.where(c.tenant == (tenant or ""), c.name == name)
    if owner is not None:
        query = query.where(c.tenant == owner)
    if lock:
        query = query.with_for_update()
    found = database.select(query) if connection is None else connection.execute(query).all()
    return [RecurringRow(row[0] or None, *row[1:]) for row in found]


def count_rows(database: Database, connection: Connection, owner: str | None = None) -> int:
    """How many schedules a database has; `owner`: those of this tenant."""
    query = select(func.count()).select_from(database.recurring)
    if owner is not None:
        query = query.where(database.recurring.c.tenant == owner)
    found: int = connection.execute(query).scalar_one()
    return found


def insert_row(database: Database, connection: Connection, row: RecurringRow) -> None:
    """Inserts a new schedule. Raises the driver's IntegrityError if tenant and name are taken."""
    connection.execute(insert(database.recurring).values(_values_of(row)))


def update_row(database: Database, connection: Connection, row: RecurringRow) -> None:
    """Writes a schedule's row, which the caller's transaction has locked."""
    table = database.recurring
    change = update(table).where(_is_row(table.c, row.tenant, row.name))
    connection.execute(change.values(_values_of(row) | {"gmt_modified": db_now()}))


def delete_row(database: Database, connection: Connection, row: RecurringRow) -> None:
    """Deletes a schedule. Its occurrences stay: they say which nominal times had a job."""
    table = database.recurring
    connection.execute(delete(table).where(_is_row(table.c, row.tenant, row.name)))


def _values_of(row: RecurringRow) -> dict[str, Any]:
    values = row._asdict()
    for field in ("cursor", "nominal", "paused"):
        values[f"{field}_time"] = values.pop(f"{field}_ms")
    return values | {"tenant": row.tenant or ""}


def _is_row(columns: Any, tenant: str | None, name: str) -> Any:
    return and_(columns.tenant == (tenant or ""), columns.name == name)


# ---- occurrences


def select_made_times(
    database: Database, connection: Connection, row: RecurringRow, times_ms: Sequence[int]
) -> set[int]:
    """Those of the nominal times that have a job, or had one."""
    c, found = database.occurrence.c, set[int]()
    for start in range(0, len(times_ms), _KEYS_AT_ONCE):
        some = times_ms[start : start + _KEYS_AT_ONCE]
        query = select(c.nominal_time).where(
            _is_row(c, row.tenant, row.name), c.nominal_time.in_(some)
        )
        found.update(connection.execute(query).scalars())
    return found


def insert_occurrences(
    database: Database,
    connection: Connection,
    row: RecurringRow,
    made: Iterable[tuple[int, int]],
    now_ms: int,
) -> None:
    """Records which job a nominal time got, as (nominal_ms, job_id) pairs.

    The primary key is the promise of one job for each nominal time: a second one raises IntegrityError.
    """
    values = [
        {
            "tenant": row.tenant or "", "name": row.name, "nominal_time": nominal_ms, "job_id": job_id,
            "made_time": now_ms,
        }
        for nominal_ms, job_id in made
    ]  # fmt: skip
    connection.execute(insert(database.occurrence), values)


def delete_occurrence(
    database: Database, connection: Connection, row: RecurringRow, nominal_ms: int
) -> None:
    """Forgets the job of a nominal time: it was cancelled before it began."""
    table = database.occurrence
    its = _is_row(table.c, row.tenant, row.name)
    connection.execute(delete(table).where(its, table.c.nominal_time == nominal_ms))


def delete_old_occurrences(database: Database, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` occurrences that were made before `before_ms`; returns how many."""
    table = database.occurrence
    c = table.c
    query = select(c.tenant, c.name, c.nominal_time).where(c.made_time < before_ms).limit(limit)
    rows = database.select(query)
    for tenant, name, nominal_ms in rows:
        database.execute(
            delete(table).where(_is_row(c, tenant, name), c.nominal_time == nominal_ms)
        )
    return len(rows)
