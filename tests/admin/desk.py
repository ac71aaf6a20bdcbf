"""A person at the admin's desk: orders, runs, and everything that a run could have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text

from tests.integration.world import World
from toc.admin.bulk_changes import BulkChanges, DryRunResult, open_bulk_changes
from toc.admin.bulk_request import BulkRequest, BulkVerb
from toc.admin.bulk_run import BulkRunProgress
from toc.admin.where_condition import WhereCondition
from toc.domain.job import Event
from toc.store.events import read_events

ANN, WHY, RUN = "ann@desk", "nobody wants it", "0123abcd"


def order(verb: str, where: str = "TRUE", **fields: Any) -> BulkRequest:
    signed = {"actor": ANN, "reason": WHY, "run": RUN}
    return BulkRequest(BulkVerb(verb), WhereCondition(where), **signed | fields)


class Desk:
    """A world (databases, Redis, one clock for all), and runs in it."""

    def __init__(self, world: World) -> None:
        self.world, self.library = world, world.library

    @contextmanager
    def changes(self, stop: Callable[[], bool] = lambda: False) -> Iterator[BulkChanges]:
        with open_bulk_changes(self.world.settings, self.world.clock, stop) as changes:
            yield changes

    def count(self, wanted: BulkRequest, database: int | None = None) -> DryRunResult:
        with self.changes() as changes:
            return changes.count_jobs(wanted, changes.select_databases(database), lambda: None)

    def run(
        self,
        wanted: BulkRequest,
        *,
        per_second: int = 500,
        limit: int = 1000,
        database: int | None = None,
        progress: BulkRunProgress | None = None,
        stop: Callable[[], bool] = lambda: False,
        chosen: Callable[[], object] = lambda: None,
        page: Callable[[int], object] = lambda jobs: None,
    ) -> BulkRunProgress:
        """A whole run. `chosen()` is called when the ids are known, `page(jobs)` after each page."""
        progress = BulkRunProgress() if progress is None else progress
        with self.changes(stop) as changes:
            ids = changes.choose_jobs(
                wanted, changes.select_databases(database), limit, lambda: None
            )
            chosen()
            changes.change_jobs(wanted, ids, per_second, progress, lambda jobs: page(jobs) and None)
        return progress

    # ---- looking

    def events(self, job_id: int) -> list[Event]:
        return read_events(self.library.home(job_id), job_id, 100)

    def everything(self) -> list[Any]:
        """All rows of all tables, and all of Redis."""
        found: list[Any] = []
        for database in self.library.databases:
            tables = [f"toc_job_{shard:04d}" for shard in database.shards]
            for table in [*tables, "toc_dead_job", "toc_event", "toc_meta", "toc_biz_type"]:
                with database.engine.begin() as connection:
                    rows = connection.execute(text(f"SELECT * FROM {table} ORDER BY 1"))
                    found += [(table, *row) for row in rows]
        if self.world.settings.has_timer:
            client = self.world.slots.connected_client()
            for key in sorted(client.scan_iter(match=f"*{self.world.settings.namespace}*")):
                if not key.startswith(b"activity_"):  # any process may add to it at any time
                    found.append((key, client.dump(key)))
        return found

    def statuses(self, ids: Sequence[int]) -> list[int]:
        return [self.library.row(job_id).status for job_id in ids]


def totals(progress: BulkRunProgress) -> tuple[int, int, int, int]:
    """Changed, before, superseded, meanwhile: of all databases."""
    parts = progress.databases.values()
    return (
        sum(part.changed for part in parts),
        sum(part.before for part in parts),
        sum(part.superseded for part in parts),
        sum(part.meanwhile for part in parts),
    )
