"""The facts about itself that a database keeps in `toc_meta`, compared with the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import select

from toc.errors import SchemaMismatch
from toc.store.archive_status import MARKS
from toc.store.databases import Database
from toc.store.nightly_status import NIGHTLY
from toc.store.reconcile_status import RECONCILED
from toc.store.schema import FITS_SINCE


def read_recorded_meta(database: Database) -> dict[str, str]:
    """Reads the facts of the routing, the database's index and its identity. Raises StoreUnavailable."""
    table = database.meta
    # Facts about the schema and about nightly runs.
    others = (FITS_SINCE, RECONCILED, NIGHTLY, *MARKS)
    query = select(table.c.name, table.c.value).where(table.c.name.not_in(others))
    return {str(name): str(value) for name, value in database.select(query)}


def refuse_differing_facts(
    database: Database, recorded: Mapping[str, str], facts: Mapping[str, str]
) -> None:
    """Raises SchemaMismatch if the database was set up with other facts than the settings say.

    With another routing a process would look for rows in the wrong tables, and not find them.
    """
    for name, recorded_value, value in differing_meta_facts(database.index, recorded, facts):
        raise SchemaMismatch(
            f"database {database.index} was set up with {name} = {recorded_value}, "
            f"the settings say {value}: this cannot be changed later"
        )


def differing_meta_facts(
    index: int, recorded: Mapping[str, str], facts: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """(name, recorded value, value by the settings) of each fact of database `index` that differs.

    A fact that is not recorded yet does not differ.
    """
    for name, value in sorted({**facts, "database": str(index)}.items()):
        if recorded.get(name, value) != value:
            yield name, recorded[name], value
