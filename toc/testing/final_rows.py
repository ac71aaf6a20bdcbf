"""The last entries of a history: the jobs' final rows in the databases."""

from __future__ import annotations

from collections.abc import Iterator

from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.databases import Databases
from toc.store.table_scan import read_final_rows
from toc.testing.history import Row


def rows(settings: Settings | None = None) -> Iterator[Row]:
    """Yields each job as a Row, with one page of rows in memory. `settings`: default: by the environment.

    Call it when all clients and nodes have stopped, and before a purge deletes jobs that have ended. Raises
    StoreUnavailable and SettingsError.
    """
    databases = Databases.from_settings(settings or load_settings(), SystemClock())
    try:
        for row in read_final_rows(databases):
            yield Row(
                row.job_id,
                row.status.name.lower(),
                row.attempts,
                row.action_ms,
                row.token or "",
                row.dead_letter,
            )
    finally:
        databases.close()
