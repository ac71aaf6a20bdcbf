"""Runs revisions on a database, and on several databases at a time.

Alembic's environment (`migrations/env.py`) is one for the whole process. So `toc migrate` runs Alembic's
`MigrationContext` itself, one in each thread; plain `alembic` and downgrades run the environment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toc.runtime.settings import Settings
from toc.store.identity import refuse_other_database
from toc.store.migration_connections import open_migration_connection
from toc.store.schema_executor import (
    MigrationFailed,
    OnlineExecutor,
    Progress,
    StepProgress,
    write_fits_since,
)
from toc.store.schema_steps import SchemaTarget

PARALLEL_MAX = 8


RevisionApplied = Callable[..., None]
ContextFactory = Callable[[Connection, str, RevisionApplied], Any]
"""Makes Alembic's context from a connection, the revision to reach, and a callback for each reached one."""


def fits_since_of(step: Any) -> str | None:
    """`fits_since` of the revision that an Alembic step reaches; None at the base."""
    reached = [revision.module.fits_since for revision in step.destination_revisions if revision]
    return reached[0] if reached else None


def run_revisions(
    target: SchemaTarget,
    settings: Settings,
    make_context: Callable[[Connection, RevisionApplied], Any],
    *,
    lock_wait_s: int,
    may_rebuild: bool = False,
    progress: Progress | None = None,
    total: int = 0,
) -> None:
    """Runs on one database the revisions that the context chooses, alone on that database."""

    def applied(step: Any, **rest: object) -> None:
        fits_since = fits_since_of(step)
        if fits_since is not None:  # at the base there is no toc_meta
            write_fits_since(connection, fits_since)

    with open_migration_connection(target.index, settings, lock_wait_s) as connection:
        refuse_other_database(target, connection, settings.routing.facts())
        if not target.sqlite:
            connection.commit()
        context = make_context(connection, applied)
        executor = OnlineExecutor(
            target,
            connection,
            lock_wait_s=lock_wait_s,
            may_rebuild=may_rebuild,
            progress=progress,
            total=total,
        )
        with context.begin_transaction():
            context.run_migrations(migration=executor)


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """A database that is to be brought to a revision, in `total` steps."""

    target: SchemaTarget
    goal: str
    total: int


class ParallelUpgrade:
    """Runs tasks, `parallel` at a time. `begin` makes Alembic's MigrationContext.

    At the first error all others stop after the step that they are in; that error is raised.
    """

    def __init__(
        self,
        settings: Settings,
        make_context: ContextFactory,
        progress: Progress | None,
        *,
        lock_wait_s: int,
        may_rebuild: bool,
    ) -> None:
        self._settings, self._make_context, self._progress = settings, make_context, progress
        self._lock_wait_s, self._may_rebuild = lock_wait_s, may_rebuild
        self._stop, self._progress_lock = threading.Event(), threading.Lock()

    def run(self, tasks: Sequence[MigrationTask], parallel: int) -> None:
        """Raises as `migrate.upgrade` does."""
        if parallel == 1:  # in this thread: Ctrl-C ends the statement that runs
            for task in tasks:
                self._upgrade_database(task)
            return
        with ThreadPoolExecutor(min(parallel, PARALLEL_MAX)) as pool:
            futures = [pool.submit(self._upgrade_database, task) for task in tasks]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and future.exception() is None for future in futures):
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
        errors = [future.exception() for future in done]
        for error in errors:
            if error is not None:
                raise error

    def _upgrade_database(self, task: MigrationTask) -> None:
        run_revisions(
            task.target,
            self._settings,
            lambda connection, applied: self._make_context(connection, task.goal, applied),
            lock_wait_s=self._lock_wait_s,
            may_rebuild=self._may_rebuild,
            progress=self._report_progress,
            total=task.total,
        )

    def _report_progress(self, step: StepProgress) -> None:
        if self._progress is not None:
            with self._progress_lock:
                self._progress(step)
        if self._stop.is_set():
            text = (
                "stopped, because the run was ended at another database; a later run goes on here"
            )
            raise MigrationFailed(step.database, step.table, text)
