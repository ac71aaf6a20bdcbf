"""`toc purge`: one pass of retention, where workers' accounts may not delete."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

from toc.cli.common_options import answers
from toc.cli.exit_codes import NO, OK, explain
from toc.cli.output import Output
from toc.cli.signals import StopRequest
from toc.retention.purger import Purger, PurgeResult
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases


class DatabaseResult(NamedTuple):
    """The pass over one database. `purged` is None if the pass did not finish; then `error` says why."""

    database: int
    purged: PurgeResult | None
    error: str
    code: int

    def as_json(self) -> dict[str, object]:
        figures = self.purged._asdict() if self.purged else {"error": self.error}
        return {"database": self.database, **figures}


@answers
def purge(output: Output) -> int:
    """Delete jobs that ended long ago: one pass over all databases, by retention.* of the settings.

    For cron, where retention.in_workers is false. It is as gentle as workers are (retention.share), waits
    for replicas, and keeps what the archive lacks. SIGTERM ends it after the present page. Exits 0 when all
    is done, 1 when it was stopped, 3 when a database does not answer, 4 when the account may not delete.
    """
    settings, clock = load_settings(), SystemClock()
    databases = Databases.from_settings(settings, clock, pool_size=1)
    with closing(databases), StopRequest() as stop:
        results = _purge_all(settings, databases, clock, stop.wait)
    rows = [
        (result.database, *(result.purged or ("-", "-", "-")), result.error or "done")
        for result in results
    ]
    columns = (">database", ">jobs", ">events", ">not archived", "")
    value = {"databases": [result.as_json() for result in results]}
    output.table(value, columns, rows, empty="")
    return max(result.code for result in results)


def _purge_all(
    settings: Settings, databases: Databases, clock: Clock, stop_request: Callable[[float], bool]
) -> list[DatabaseResult]:
    """In parallel: a pass mostly waits, and one that hangs must not delay the others."""
    database_metadata = DatabaseMetadata(databases)

    def purge_one(database: Database) -> DatabaseResult:
        try:
            migrate.refuse_incompatible([database])
            database_metadata.verify_and_record_meta(settings.facts, [database])
            purger = Purger.from_settings(
                settings, databases, database, database_metadata.types, clock
            )
            purger.set_shards(database.shards, 1)
            purged = purger.run_pass(stop_request)
        except Exception as error:  # noqa: BLE001 - the other databases are still purged
            text, code = explain(error)
            return DatabaseResult(database.index, None, text, code)
        if purged is None:
            return DatabaseResult(database.index, None, "stopped: the next run goes on", NO)
        return DatabaseResult(database.index, purged, "", OK)

    with ThreadPoolExecutor(len(databases.all)) as pool:
        return list(pool.map(purge_one, databases))
