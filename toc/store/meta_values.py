"""Writes single values of `toc_meta`."""

from __future__ import annotations

from sqlalchemy import Connection, insert, update

from toc.store.databases import Database


def write_meta_value(connection: Connection, database: Database, name: str, value: str) -> None:
    """Updates the value of `name`, or inserts the row, in the caller's transaction."""
    change = update(database.meta).where(database.meta.c.name == name).values(value=value)
    # Not REPLACE, which needs the right to delete from toc_meta: no other statement needs that right.
    if not connection.execute(change).rowcount:
        connection.execute(insert(database.meta), {"name": name, "value": value})
