"""The catalogue of declared types in one process: reads every database's copy, and completes the copies.

There is a service per database: a database that hangs delays only its own copy, and one that answers is
enough, because each copy has all declarations. A change is in force after `catalogue.refresh_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from toc.domain.declared_type import DeclaredType
from toc.domain.type_fields import TypeInfo
from toc.errors import StatementFailed, StoreUnavailable
from toc.runtime.service import Service, stop_services
from toc.store.databases import Database, Databases
from toc.store.declared_types import DeclaredTypeCache

log = logging.getLogger(__name__)

STOP_S = 5.0


class TypeCatalogue:
    """The declared types, refreshed every `refresh_s` seconds while it is started. Thread-safe.

    `cache`: shared with the parts below this layer (the worker, a center). `completes`: whether this process
    also writes declarations into copies that lack them; its account needs the right (roles worker, operator).
    """

    def __init__(
        self, databases: Databases, cache: DeclaredTypeCache, refresh_s: float, *, completes: bool
    ) -> None:
        self._databases, self._cache = databases, cache
        self.services: Sequence[Service] = [
            _CopyReader(database, cache, refresh_s, completes=completes) for database in databases
        ]

    def start(self) -> None:
        """Reads the copies of the databases that answer, then starts the services."""
        with suppress(StoreUnavailable, StatementFailed):  # the services try again
            self.read_now()
        for service in self.services:
            service.start()

    def stop(self, timeout_s: float = STOP_S) -> bool:
        return stop_services(self.services, timeout_s)

    def read_now(self) -> None:
        """Reads the copies of all databases that have passed their first check.

        Raises StoreUnavailable or StatementFailed if no copy was ever read, and no database answers.
        """
        failed: StoreUnavailable | StatementFailed | None = None
        for database in self._databases:
            if not database.is_first_check_pending:
                try:
                    self._cache.read_copy(database)
                except (StoreUnavailable, StatementFailed) as error:
                    failed = error
        if failed is not None and not self._cache.was_read:
            raise failed

    @property
    def was_read(self) -> bool:
        """Whether any database has answered: before, it is not known which types are declared."""
        return self._cache.was_read

    def get(self, name: str) -> DeclaredType | None:
        """The declaration of a type; None: it is not declared."""
        return self._cache.get(name)

    def all(self) -> Mapping[str, DeclaredType]:
        """All declared types, by name."""
        return self._cache.all()

    def infos(self) -> list[TypeInfo]:
        """All declared types with their last changes, by name."""
        return self._cache.infos()

    def pull_types(self) -> Mapping[str, DeclaredType]:
        """The declared types whose jobs remote consumers lease, by name."""
        return {name: each for name, each in self._cache.all().items() if each.mode == "pull"}

    @property
    def version(self) -> int:
        """Grows with each change of the declarations."""
        return self._cache.version

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` after each change, in the thread that has read it. It must be quick."""
        self._cache.add_listener(listener)


class _CopyReader(Service):
    """Reads one database's copy regularly, and completes it."""

    def __init__(
        self, database: Database, cache: DeclaredTypeCache, refresh_s: float, *, completes: bool
    ) -> None:
        super().__init__(f"toc-declared-{database.index}")
        self._database, self._cache = database, cache
        self._refresh_s, self._completes = refresh_s, completes
        self._denial_was_logged = False

    def run_once(self) -> float:
        """Raises StoreUnavailable."""
        self._cache.read_copy(self._database)
        if self._completes:
            self._complete_copy()
        return self._refresh_s

    def _complete_copy(self) -> None:
        try:
            written = self._cache.complete_copy(self._database)
        except StoreUnavailable as error:
            if not error.denied:
                raise
            if not self._denial_was_logged:
                self._denial_was_logged = True
                log.warning(
                    "database %d lacks declarations of types, and this account may not write them: %s",
                    self._database.index, error,
                )  # fmt: skip
            return
        if written:
            log.info("wrote %d declarations of types to database %d", written, self._database.index)
