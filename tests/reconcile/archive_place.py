"""A library and its archive, as tests of the archive use both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.contract.library import SHARDS, Library
from toc.reconcile.archive import ArchiveResult, TableArchiveResult, archive_due_rows
from toc.reconcile.archive_tables import EVENTS, JOBS, MARKS
from toc.reconcile.delta_tables import find_table
from toc.retention.purger import Purger
from toc.retention.replica_lag import ReplicaLag
from toc.runtime.setting_groups import ReconcileSettings, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.archive_status import ArchiveStatus, EndedJobWindow, read_archive_status
from toc.store.claims import OutcomeKind
from toc.store.ended_jobs import EndedJobReader, possible_ids_of_ended
from toc.store.purge_pages import PurgePages

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

DAY_S = 86_400
DAYS = 30  # of retention
RETENTION = RetentionSettings(days=DAYS, dead_days=DAYS + 60)


class KilledError(BaseException):
    """As if the process were gone."""


@dataclass
class Place:
    """A library, and a directory that its rows are archived in. `spark` None: in this process.

    about: the table of the archive that its methods are about.
    """

    library: Library
    spark: SparkSession | None
    directory: Path
    about: str = JOBS.name
    retention: RetentionSettings = RETENTION
    heard: list[str] = field(default_factory=list)

    def settings(self, **changes: Any) -> Settings:
        reconcile = ReconcileSettings(archive=str(self.directory), page=37)
        values = {"retention": self.retention, "reconcile": reconcile, **changes}
        return self.library.settings.model_copy(update=values)

    def archive(self, **changes: Any) -> ArchiveResult:
        return archive_due_rows(
            self.spark, self.settings(**changes), self.library.clock, self.heard.append
        )

    def alone(self, **changes: Any) -> TableArchiveResult:
        """What became of the only database."""
        (done,) = self.archive(**changes).of_table(self.about)
        return done

    def age(self, days: float = DAYS + 1) -> None:
        """By default so long that what has ended is old enough to go."""
        self.library.clock.advance(days * DAY_S)

    @property
    def mark(self) -> ArchiveStatus | None:
        return read_archive_status(self.library.databases[0], MARKS[self.about])

    def status(self, position: int, run: int, begun: int) -> ArchiveStatus:
        """A mark of the table."""
        event_id = position if self.about == EVENTS.name else None
        return ArchiveStatus(position, run, begun, event_id=event_id)

    def make(self, biz_id: int = 42) -> int:
        """The id of a new row that the table will get. An event is that of a job that died."""
        if self.about == JOBS.name:
            return self.library.ended(OutcomeKind.DONE, biz_id=biz_id)
        job_id = self.library.dead(biz_id=biz_id)
        return int(self.library.sql(job_id, "SELECT MAX(event_id) FROM toc_event")[0][0])

    def make_many(self, number: int) -> list[int]:
        """The ids of new rows, ascending."""
        return sorted(self.make(biz_id) for biz_id in range(number))

    def count(self) -> int:
        """The rows in the databases."""
        if self.about == JOBS.name:
            return self.library.count()
        total = 0
        for database in self.library.databases:
            with database.engine.begin() as connection:
                total += connection.exec_driver_sql("SELECT COUNT(*) FROM toc_event").scalar_one()
        return total

    def table(self) -> DeltaTable:
        found = find_table(str(self.directory), self.about)
        assert found is not None
        return found

    def files(self) -> dict[str, int]:
        """Of a table, as its readers see them, and when each was made."""
        if find_table(str(self.directory), self.about) is None:
            return {}
        paths = [Path(unquote(uri)) for uri in self.table().file_uris()]
        return {str(path.relative_to(self.directory)): path.stat().st_mtime_ns for path in paths}

    def unnamed(self) -> list[str]:
        """The data files that no commit names."""
        folder = self.directory / self.about
        every = {str(p.relative_to(self.directory)) for p in folder.rglob("*.parquet")}
        return sorted(p for p in every - set(self.files()) if "_delta_log" not in p)

    def rows(self) -> list[dict[str, Any]]:
        """All that is in a table."""
        return list(self.table().to_pyarrow_table().to_pylist())

    def ids(self) -> list[int]:
        key = "job_id" if self.about == JOBS.name else "event_id"
        return sorted(row[key] for row in self.rows())

    def ended(self) -> list[tuple[Any, ...]]:
        """The ended rows of the databases."""
        ended, window = (
            EndedJobReader(self.library.databases),
            EndedJobWindow(0, self.library.now_ms),
        )
        return [
            (shard, *row)
            for shard in range(SHARDS)
            for row in ended.read_ended_rows(shard, possible_ids_of_ended(window), window)
        ]

    def purge(self) -> None:
        for database in self.library.databases:
            purger = Purger(
                database,
                PurgePages(self.library.databases),
                self.retention,
                self.library.database_metadata.types.find_name,
                ReplicaLag([], self.library.clock),
                self.library.clock,
                archives=True,
            )
            purger.set_shards(database.shards, 1)
            purger.run_once()
            while purger._shards or purger._events_left:
                purger.run_once()


def emptied(library: Library) -> Library:
    library.reset()
    for database in library.databases:
        with database.engine.begin() as connection:
            for mark in MARKS.values():
                connection.exec_driver_sql(f"DELETE FROM toc_meta WHERE name = '{mark}'")
    return library
