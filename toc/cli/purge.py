"""`toc purge`: one pass of retention, where workers' accounts may not delete."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, error_text_and_code
from toc.cli.output import Output
from toc.cli.stop_request import StopRequest
from toc.retention.purger import Purger, PurgeResult
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases


class DatabasePurgeResult(NamedTuple):
    """The pass over one database. `purged` is None if the pass did not finish; then `error` says why."""

    database: int
    purged: PurgeResult | None
    error: str
    code: int

    def as_json(self) -> dict[str, object]:
        figures = self.purged._asdict() if self.purged else {"error": self.error}
        return {"database": self.database, **figures}


@answering_command
def purge_ended_jobs(output: Output) -> int:
    """Delete jobs that ended long ago: one pass over all databases, by retention.* of the settings.

    For cron, where retention.in_workers is false. The pass is as gentle as workers are (retention.share),
    waits for replicas, and keeps jobs and events that the archive lacks. SIGTERM ends the pass after the
    present page. Exits 0 when all is done, 1 when it was stopped, 3 when a database does not answer, 4 when
    the account may not delete.
    """
    settings, clock = load_settings(), SystemClock()
    databases = Databases.from_settings(settings, clock, pool_size=1)
    with closing(databases), StopRequest() as stop:
        results = _purge_databases(settings, databases, clock, stop.wait_for_stop)
    rows = [
        (
            result.database,
            *(result.purged or ("-",) * len(PurgeResult._fields)),
            result.error or "done",
        )
        for result in results
    ]
    not_archived = (">jobs not archived", ">events not archived")
    columns = (">database", ">jobs", ">events", *not_archived, ">audit", "")
    value = {"databases": [result.as_json() for result in results]}
    output.print_table(value, columns, rows, empty="")
    return max(result.code for result in results)


def _purge_databases(
    settings: Settings, databases: Databases, clock: Clock, stop_request: Callable[[float], bool]
) -> list[DatabasePurgeResult]:
    """Purges all databases in parallel: a pass mostly waits, and a hanging pass must not delay others."""
    database_metadata = DatabaseMetadata(databases)

    def purge_database(database: Database) -> DatabasePurgeResult:
        try:
            migrate.refuse_incompatible([database])
            database_metadata.verify_and_record_meta(settings.facts, [database])
            purger = Purger.from_settings(
                settings, databases, database, database_metadata.types, clock
            )
            purger.set_shards(database.shards, 1)
            purged = purger.run_pass(stop_request)
        except Exception as error:  # noqa: BLE001 - the other databases are still purged
            text, code = error_text_and_code(error)
            return DatabasePurgeResult(database.index, None, text, code)
        if purged is None:
            return DatabasePurgeResult(database.index, None, "stopped: the next run goes on", NO)
        return DatabasePurgeResult(database.index, purged, "", OK)

    with ThreadPoolExecutor(len(databases.all)) as pool:
        return list(pool.map(purge_database, databases))
