"""Events: which of them a run copies, and how it reads them (ADR 36).

The id of an event says whether it is in the archive, because the purger and a run of the archive can then
agree on a number. A run copies the events with the ids from the mark up to the first event that is young.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from toc.domain.argument_checks import REASON_CHARS_MAX
from toc.reconcile.archive_checksums import (
    NO_SHARD,
    WRONG_NAMES,
    DayChecksums,
    checksums_of_rows,
)
from toc.reconcile.archive_commits import CannotArchive
from toc.reconcile.archive_copy import (
    PartitionRows,
    RowCopy,
    TableArchive,
    day_number,
    day_text,
    values_as_batch,
)
from toc.reconcile.archive_files import Partition
from toc.reconcile.archive_jobs import PAGE_BYTES, ROWS_MAX, read_type_names
from toc.reconcile.archive_tables import BIZ_TYPE, EVENTS
from toc.reconcile.delta_tables import TableSpec
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import Days, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.archive_status import EVENTS_ARCHIVED
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS
from toc.store.event_reader import COLUMNS, EVENT_TABLE, EventRange, EventReader

TASKS_MAX = 64
"""Ranges of ids that tasks share."""

_JOB_ID = COLUMNS.index("job_id")
_ROWS_PER_READ = min(ROWS_MAX, PAGE_BYTES // (4 * REASON_CHARS_MAX))


@dataclass(frozen=True, slots=True)
class EventCopy(RowCopy[EventRange]):
    """The events of one database with the ids from `first` on and below `end`. An item is a range of ids."""

    spec: ClassVar[TableSpec] = EVENTS

    def read_rows(self, settings: Settings, items: Iterable[EventRange]) -> Iterator[PartitionRows]:
        """Reads the events of some ranges."""
        routing = settings.routing
        for reader, piece in self._split_ranges(settings, items, _ROWS_PER_READ):
            rows = reader.read_rows(piece)
            types = reader.read_type_numbers(routing, [int(row[_JOB_ID]) for row in rows])
            yield from self._split_by_day(rows, types)

    def sum_rows(self, partition: Partition, rows: pa.RecordBatch) -> DayChecksums:
        """The checksums of the day."""
        found, types = DayChecksums(), set(pc.unique(rows.column(BIZ_TYPE)).to_pylist())
        databases = pc.unique(rows.column("database")).to_pylist()
        right = databases == [self.database] and types <= {None, *self.type_names.values()}
        number = rows.num_rows if right else WRONG_NAMES
        found.add_rows(
            NO_SHARD, day_number(partition[0]), number, sum(checksums_of_rows(rows, COLUMNS))
        )
        return found

    def sum_database(self, settings: Settings, items: Iterable[EventRange]) -> DayChecksums:
        """The checksums by day. Waits for open transactions that have written events of the ranges."""
        found = DayChecksums()
        for reader, piece in self._split_ranges(settings, items, settings.reconcile.page):
            for one in reader.read_day_checksums(piece):
                found.add_rows(NO_SHARD, *one)
        return found

    def _split_ranges(
        self, settings: Settings, items: Iterable[EventRange], rows: int
    ) -> Iterator[tuple[EventReader, EventRange]]:
        """Splits ranges into ranges of few rows."""
        with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
            reader = EventReader(databases[self.database])
            for item in items:
                for piece in reader.split_range(item, min(rows, settings.reconcile.page)):
                    yield reader, piece

    def _split_by_day(
        self, rows: Sequence[Sequence[Any]], type_numbers: Mapping[int, int]
    ) -> Iterator[PartitionRows]:
        if not rows:
            return
        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        job_ids = [int(job_id) for job_id in columns["job_id"]]
        related = [None if one is None else int(one) for one in columns["related_job_id"]]
        added: dict[str, Sequence[Any]] = {
            "job_id": job_ids,
            "related_job_id": related,
            BIZ_TYPE: [self._type_name(type_numbers.get(job_id)) for job_id in job_ids],
            "database": [self.database] * len(rows),
        }
        batch = values_as_batch(EVENTS, columns | added)
        places = defaultdict[int, list[int]](list)
        for place, event_ms in enumerate(columns["event_time"]):
            places[event_ms // DAY_MS].append(place)
        for day, some in places.items():
            yield (day_text(day),), batch.take(pa.array(some))

    def _type_name(self, type_no: int | None) -> str | None:
        return None if type_no is None else self.type_names.get(type_no)


class EventArchive(TableArchive):
    """The table of events. A position is an event_id."""

    spec: ClassVar[TableSpec] = EVENTS

    def shortest_retention_days(self, retention: RetentionSettings) -> Days:
        """The shorter of the limit for events and of those for jobs.

        So the events of a job are in the archive before the job is purged: `forget` needs this.
        """
        every = (retention.event_days, retention.shortest_retention_days)
        return min((days for days in every if days != "none"), default="none")

    def find_end(self, database: Database, first: int, since_ms: int, until_ms: int) -> int:
        """The id of the first event that is not older than `until_ms`.

        Raises CannotArchive if new events have the ids of archived ones.
        """
        reader = EventReader(database)
        last = reader.read_last()
        if last is not None and last.event_id < first and last.event_ms >= since_ms:
            raise CannotArchive(
                f"the numbers of events began anew: the last event in {EVENT_TABLE}, of "
                f"{sql_time_of_ms(last.event_ms)}, has the event_id {last.event_id}, but {EVENTS_ARCHIVED} "
                f"in toc_meta says that events below {first} are archived. Was the table emptied? Add "
                f"{first} to the event_id of the new events, and set AUTO_INCREMENT of the table to a number "
                "above them (docs/how-to/archive.md)"
            )
        return reader.find_first_since(first, until_ms, database.now_ms())

    def event_id_at(self, end: int) -> int | None:
        """The position itself."""
        return end

    def make_copy(
        self, databases: Databases, database: Database, table: tuple[str, str], first: int, end: int
    ) -> tuple[EventCopy, Sequence[EventRange]]:
        """The copy, and at most TASKS_MAX ranges of its ids."""
        names = read_type_names(databases, database)
        step = -(-(end - first) // TASKS_MAX)
        items = [EventRange(one, min(one + step, end)) for one in range(first, end, step)]
        return EventCopy(*table, database.index, names, first, end), items
