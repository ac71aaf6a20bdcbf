"""Checks each database before a process uses it: the revision, the routing, and for a node the tables.

A database that does not answer when the process starts is checked at its first answer, before any other
statement. So a process can start while one of several databases is down, or hangs, and the jobs of the
others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from queue import Empty, SimpleQueue

from toc.errors import StoreUnavailable
from toc.runtime.clock import SystemClock
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)

# For all databases together: without this limit a database that hangs would delay the start by a minute.
ANSWER_S_MAX = 5.0


TableInspection = Callable[[Database], None]


def check_databases(
    databases: Databases,
    database_metadata: DatabaseMetadata,
    expected_meta: Mapping[str, str],
    inspect: TableInspection | None = None,
    *,
    used: Collection[int] | None = None,
) -> None:
    """Raises SchemaMismatch if a database that answers does not fit; StoreUnavailable if none answers.

    used: the databases to check now (None: all); another one is checked before its first statement.

    `inspect(database)` checks the tables (`TableCheck`) and may raise SchemaMismatch; for processes that live
    long. If `inspect` is None, the tables are not checked: in a client these queries would take longer than
    the call that the client makes.
    """

    def check_at_first_answer(database: Database) -> None:
        migrate.refuse_incompatible([database])
        database_metadata.verify_and_record_meta(expected_meta, [database])
        if inspect is not None:
            inspect(database)
        database_metadata.types.read_and_complete_type_copy(database)
        log.info("database %d answers, and its schema and settings fit", database.index)

    away: dict[Database, StoreUnavailable] = {}
    now = [database for database in databases if used is None or database.index in used]
    for database, error in _check_in_parallel(now, database_metadata, inspect).items():
        if isinstance(error, StoreUnavailable) and not error.refused:
            away[database] = error
        elif error is not None:  # the database answers: its schema or the settings are wrong
            raise error
    answering = [database for database in now if database not in away]
    if not answering:
        raise next(iter(away.values()))
    for reason in away.values():
        log.warning("starting without a database: %s", reason)
    for database in databases:
        if database not in answering:
            database.require_check_before_use(check_at_first_answer)
    database_metadata.verify_and_record_meta(expected_meta, answering)
    database_metadata.types.copy_types_between_databases(answering)


def _check_in_parallel(
    databases: Iterable[Database],
    database_metadata: DatabaseMetadata,
    inspect: TableInspection | None,
) -> dict[Database, Exception | None]:
    """Checks all databases in parallel; returns the error of each check, None for a database that fits."""
    answers: SimpleQueue[tuple[Database, Exception | None]] = SimpleQueue()

    def check_and_answer(database: Database) -> None:
        try:
            migrate.refuse_incompatible([database])
            database_metadata.types.read_and_complete_type_copy(database)
            if inspect is not None:
                inspect(database)
            answers.put((database, None))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            answers.put((database, error))

    met: dict[Database, Exception | None] = {}
    for database in databases:
        late = TimeoutError(f"no answer within {ANSWER_S_MAX:g} s")
        met[database] = StoreUnavailable(database.index, late)
        # A thread, not a pool: the end of the process must not wait for a check that hangs.
        threading.Thread(
            target=check_and_answer, args=(database,), name="toc-admit", daemon=True
        ).start()
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + ANSWER_S_MAX
    for _ in list(met):
        try:
            database, error = answers.get(timeout=max(0.0, deadline_s - clock.monotonic_s()))
        except Empty:
            break
        met[database] = error
    return met
