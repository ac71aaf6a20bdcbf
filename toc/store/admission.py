"""Before a database is used it must stand at our revision and have been set up with our routing.

One that does not answer when a process starts is checked at its first answer, before anything else is
asked of it: so a process can start while one of several databases is down, and the others' jobs go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from toc.errors import StoreUnavailable
from toc.store import migrate
from toc.store.catalogue import Catalogue
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)


def admit(databases: Databases, catalogue: Catalogue, facts: Mapping[str, str]) -> None:
    """Raises SchemaMismatch when one that answers does not fit; StoreUnavailable when none answers."""
    answering: list[Database] = []
    away: dict[Database, StoreUnavailable] = {}

    def check_late(database: Database) -> None:
        migrate.check([database])
        catalogue.check(facts, [database])
        log.info("database %d answers, and is what it must be", database.index)

    for database in databases:
        try:
            migrate.check([database])
            answering.append(database)
        except StoreUnavailable as error:
            if error.refused:  # it is there, and the settings are wrong: that is said at the start
                raise
            away[database] = error
    if not answering:
        raise next(iter(away.values()))
    for database, reason in away.items():
        log.warning("starting without one: %s", reason)
        database.check_first(check_late)
    catalogue.check(facts, answering)
