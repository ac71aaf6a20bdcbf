"""What kind of server a database is and how it is set up: for `toc doctor`. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from toc.store.archived import ARCHIVED
from toc.store.databases import Database
from toc.store.reconciled import RECONCILED
from toc.store.schema import FITS_SINCE

_DURABILITY = ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`kind`: mysql, mariadb or sqlite. `durability`: the variables behind a COMMIT's worth."""

    kind: str
    version: str
    durability: Mapping[str, str]


def server_facts(database: Database) -> ServerFacts:
    """Asks the server. Raises StoreUnavailable."""

    def read(connection: Connection) -> ServerFacts:
        if database.sqlite:
            version = str(connection.scalar(text("SELECT sqlite_version()")))
            return ServerFacts("sqlite", version, {})
        version = str(connection.scalar(text("SELECT VERSION()")))
        names = ", ".join(f"'{name}'" for name in _DURABILITY)
        rows = connection.execute(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
        kind = "mariadb" if "mariadb" in version.lower() else "mysql"
        return ServerFacts(kind, version, {row[0]: str(row[1]) for row in rows})

    return database.run(read)


def recorded_facts(database: Database) -> dict[str, str]:
    """What the catalogue keeps: the routing's fingerprint and the database's own index."""
    table = database.meta
    # What the schema says of itself is none of them, nor what the nights came to.
    others = FITS_SINCE, RECONCILED, ARCHIVED
    query = select(table.c.name, table.c.value).where(table.c.name.not_in(others))
    return database.run(lambda c: {row.name: row.value for row in c.execute(query)})


def type_names(database: Database) -> list[str]:
    """The biz_types that have a number, sorted."""
    table = database.biz_type
    return database.run(lambda c: sorted(c.scalars(select(table.c.name))))
