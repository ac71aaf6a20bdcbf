"""Migrations of several databases side by side. Alembic's own environment is one for the whole process.

So each thread runs Alembic's `MigrationContext` by itself, over the same revisions and steps as `env.py`.
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


ContextFactory = Callable[[Connection, str, Callable[..., None]], Any]
"""Of a connection, the revision to reach, and what is called when a revision is reached."""


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
        """Raises what `migrate.upgrade` raises."""
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
        def applied(step: Any, **rest: object) -> None:
            reached = [r.module.fits_since for r in step.destination_revisions if r]
            if reached:
                write_fits_since(connection, reached[0])

        index = task.target.index
        with open_migration_connection(index, self._settings, self._lock_wait_s) as connection:
            refuse_other_database(task.target, connection, self._settings.routing.facts())
            if not task.target.sqlite:
                connection.commit()
            context = self._make_context(connection, task.goal, applied)
            steps = OnlineExecutor(
                task.target,
                connection,
                lock_wait_s=self._lock_wait_s,
                may_rebuild=self._may_rebuild,
                progress=self._report_progress,
                total=task.total,
            )
            with context.begin_transaction():
                context.run_migrations(migration=steps)

    def _report_progress(self, step: StepProgress) -> None:
        if self._progress is not None:
            with self._progress_lock:
                self._progress(step)
        if self._stop.is_set():
            text = (
                "stopped, because the run was ended at another database; a later run goes on here"
            )
            raise MigrationFailed(step.database, step.table, text)
