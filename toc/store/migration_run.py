"""Runs revisions on a database, and on several databases at a time.

Only one run at a time changes a database: on MySQL a run holds a lock by GET_LOCK, on SQLite a run is one
transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.errors import StoreUnavailable
from toc.runtime.private_files import on_sqlite_connect
from toc.runtime.settings import Settings
from toc.store.database_identity import refuse_other_database
from toc.store.driver_errors import error_number, error_text
from toc.store.schema_executor import (
    LOCK_NAME,
    LOCK_WAIT_S,
    CompletedStep,
    MigrationFailed,
    OnlineExecutor,
    Progress,
    lock_wait_assignments,
    record_fits_since_sql,
)
from toc.store.schema_steps import SchemaTarget
from toc.store.sessions import session_arguments

PARALLEL_MAX = 8

RevisionApplied = Callable[..., None]
ContextFactory = Callable[[Connection, RevisionApplied], Any]
"""Makes Alembic's context from a connection and a callback for each revision that is reached."""


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """A database whose revision is to change. `total`: the number of steps, for progress."""

    target: SchemaTarget
    make_context: ContextFactory
    total: int = 0


class MigrationRun:
    """Runs tasks. `may_rebuild` and `progress`: as for `OnlineExecutor`.

    At the first error all other tasks stop after their present step; that error is raised.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress | None = None,
        *,
        lock_wait_s: int = LOCK_WAIT_S,
        may_rebuild: bool = False,
    ) -> None:
        self._settings, self._progress = settings, progress
        self._lock_wait_s, self._may_rebuild = lock_wait_s, may_rebuild
        self._stop, self._progress_lock = threading.Event(), threading.Lock()

    def run_tasks(self, tasks: Sequence[MigrationTask], parallel: int = 1) -> None:
        """Runs `parallel` tasks at a time. Raises StoreUnavailable, SchemaMismatch, MigrationFailed."""
        if parallel == 1:  # in this thread: Ctrl-C ends the statement that runs
            for task in tasks:
                self.run_task(task)
            return
        with ThreadPoolExecutor(min(parallel, PARALLEL_MAX)) as pool:
            futures = [pool.submit(self.run_task, task) for task in tasks]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and future.exception() is None for future in futures):
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
        for future in done:
            future.result()

    def run_task(self, task: MigrationTask) -> None:
        """Runs the revisions that the context of the task chooses."""

        def record_fits_since(step: Any, **rest: object) -> None:
            for (
                revision
            ) in step.destination_revisions:  # none at the base, where there is no toc_meta
                connection.exec_driver_sql(record_fits_since_sql(revision.module.fits_since))

        target = task.target
        with open_migration_connection(
            target.index, self._settings, self._lock_wait_s
        ) as connection:
            refuse_other_database(target, connection, self._settings.routing.meta_values())
            if not target.sqlite:
                connection.commit()
            context = task.make_context(connection, record_fits_since)
            executor = OnlineExecutor(
                target,
                connection,
                lock_wait_s=self._lock_wait_s,
                may_rebuild=self._may_rebuild,
                progress=self._report_progress,
                total=task.total,
            )
            with context.begin_transaction():
                context.run_migrations(migration=executor)

    def _report_progress(self, step: CompletedStep) -> None:
        if self._progress is not None:
            with self._progress_lock:
                self._progress(step)
        if self._stop.is_set():
            text = "stopped, because the run failed at another database; a later run continues here"
            raise MigrationFailed(step.database, step.table, text)


@contextmanager
def open_migration_connection(
    index: int, settings: Settings, lock_wait_s: int
) -> Iterator[Connection]:
    """Opens a connection that holds the lock of migrations; on SQLite, in a write transaction."""
    url = make_url(settings.databases[index])
    sqlite = url.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {"timeout": lock_wait_s}
    if not sqlite:
        arguments = session_arguments(url, settings.mysql)
        arguments["connect_timeout"] = settings.connect_timeout_s
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    if sqlite:
        event.listen(engine, "do_connect", on_sqlite_connect)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise StoreUnavailable(index, error) from error
    alone = (
        _hold_sqlite_write_lock(index, connection)
        if sqlite
        else _hold_migration_lock(index, connection, lock_wait_s)
    )
    with connection:
        try:
            with alone:
                yield connection
        except DBAPIError as error:  # not of a step: errors of steps are MigrationFailed already
            raise MigrationFailed(index, None, error_text(error), error_number(error)) from error


@contextmanager
def _hold_sqlite_write_lock(index: int, connection: Connection) -> Iterator[None]:
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except DBAPIError as error:
        if "locked" not in str(error.orig):
            raise StoreUnavailable(index, error) from error
        text = (
            "another migration, or a long transaction, is writing; run it again when it has ended"
        )
        raise MigrationFailed(index, None, text) from error
    yield
    connection.commit()


@contextmanager
def _hold_migration_lock(index: int, connection: Connection, lock_wait_s: int) -> Iterator[None]:
    connection.exec_driver_sql(f"SET SESSION {lock_wait_assignments(lock_wait_s)}")
    if connection.exec_driver_sql(f"SELECT GET_LOCK({LOCK_NAME}, {lock_wait_s})").scalar() != 1:
        holder = connection.exec_driver_sql(f"SELECT IS_USED_LOCK({LOCK_NAME})").scalar()
        by = f" (the server's connection {holder})" if holder else ""
        raise MigrationFailed(index, None, f"another migration is running there{by}")
    connection.commit()
    try:
        yield
    finally:
        with suppress(DBAPIError):  # the server has released the lock of a lost connection
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({LOCK_NAME})")
