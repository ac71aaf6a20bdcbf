"""Reads a database's copy of the biz_types periodically, and adds the types that it lacks.

So a node notices when one number has two names, a type that a fail-over lost is written again, and all
databases get all types. There is a service per database: one that hangs delays only its own.
"""

from __future__ import annotations

from toc.runtime.service import Service
from toc.store.biz_types import REFRESH_S, BizTypeCache
from toc.store.databases import Database


class BizTypeRefresher(Service):
    """Reads the biz_types of one database regularly, and adds the known types that it lacks."""

    def __init__(self, database: Database, types: BizTypeCache) -> None:
        super().__init__(f"toc-types-{database.index}")
        self._database, self._types = database, types

    def run_once(self) -> float:
        """Raises StoreUnavailable."""
        self._types.read_and_complete_type_copy(self._database)
        return REFRESH_S
