"""Which handler runs a type number in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from toc.errors import NotFound, SchemaMismatch, StatementFailed, StoreUnavailable
from toc.handlers.registry import HandlerSpec, Registry
from toc.runtime import metrics
from toc.runtime.log_throttle import LogThrottle
from toc.store.biz_types import BizTypeCache, describe_type_conflict
from toc.store.claims import Claims
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)


class HandlerTable:
    """The handlers of a registry by type number; follows changes of the types in the databases."""

    def __init__(self, types: BizTypeCache, registry: Registry, claims: Claims) -> None:
        self._types, self._registry, self._claims = types, registry, claims
        self._specs: dict[int, HandlerSpec] = {}
        self._version = -1  # of the types, when `_specs` was made
        self._lock = threading.Lock()
        self._log_throttle = LogThrottle(log)

    def create_biz_types(self, databases: Databases) -> None:
        """Creates the handlers' types in each database that answers; in other databases at the first use.

        Raises StoreUnavailable when no database answers.
        """
        names = [spec.biz_type for spec in self._registry]
        failed: list[StoreUnavailable | StatementFailed] = []
        asked = [database for database in databases if not database.is_first_check_pending]
        for database in asked:
            try:
                self._types.get_or_create_numbers(names, database)
            except SchemaMismatch as error:  # one type's number is in conflict; the others exist
                log.error("%s", error)  # noqa: TRY400 - the text says all
            except (StoreUnavailable, StatementFailed) as error:
                failed.append(error)
        if failed and len(failed) == len(asked):
            raise failed[0]

    def refresh_handlers(self) -> None:
        """Updates which type numbers have a handler in this process, if the known types have changed."""
        if self._version == self._types.known.version:
            return
        with self._lock:
            known = self._types.known
            specs: dict[int, HandlerSpec] = {}
            for number, name in known.names.items():
                spec = self._registry.get(name)
                if spec is not None:
                    specs[number] = replace(spec, biz_type=name)  # the handler of "*" too
            # The handlers are set first: each job that is claimed from now on must find its handler.
            self._specs = specs
            self._claims.set_claimed_types(specs)
            self._version = known.version

    @property
    def handled_type_numbers(self) -> Sequence[int] | None:
        """The type numbers that this worker handles; None: all."""
        self.refresh_handlers()
        return None if self._registry.handler_of_every_type else list(self._specs)

    def handler_spec_of(self, type_no: int) -> HandlerSpec | None:
        return self._specs.get(type_no)

    def look_up_unknown_type(self, type_no: int, database: Database) -> bool:
        """Reads an unknown type number's type from the row's database; True: it has a handler here."""
        if type_no in self._types.known.names or type_no in self._types.known.conflicts:
            return False
        with suppress(NotFound):
            self._types.find_name(type_no, database)
        self.refresh_handlers()
        return type_no in self._specs

    def type_name(self, type_no: int, database: Database) -> str:
        try:
            return self._types.find_name(type_no, database)
        except NotFound:  # another program wrote the number
            return f"#{type_no}"

    def warn_no_handler(self, type_no: int, database: Database) -> None:
        """Logs that a job waits for another node, because this node has no handler of its type."""
        metrics.UNHANDLED.inc()
        conflicts = self._types.known.conflicts
        if type_no in conflicts:
            text = describe_type_conflict(type_no, conflicts)
            self._log_throttle.warning(type_no, "%s", text)
            return
        text = "no handler here for jobs of type %s: they wait for another node"
        self._log_throttle.warning(type_no, text, self.type_name(type_no, database))
