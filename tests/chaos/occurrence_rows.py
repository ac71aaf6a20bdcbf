"""The jobs of recurring schedules, by the databases' tables: who reads them needs no verb of toc."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.chaos.restricted import RECURRING
from tests.chaos.restricted_history import Occurrence
from toc.domain.job import Status
from toc.domain.occurrence_keys import KEY_PREFIX, nominal_ms_of_key
from toc.runtime.settings import Settings
from toc.testing import CancelAnswered, Journal, Scheduled

_MS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) DIV 1000"


def read_occurrences(settings: Settings) -> list[Occurrence]:
    """All records of nominal times that got a job."""
    columns = f"name, {_MS.format('nominal_time')}, job_id, {_MS.format('made_time')}"
    found = []
    for index in range(len(settings.databases)):
        for row in _read(settings, index, f"SELECT {columns} FROM toc_occurrence"):
            found.append(Occurrence(str(row[0]), int(row[1]), int(row[2]), float(row[3])))
    return found


def write_occurrences(settings: Settings, journal: Journal) -> None:
    """Writes down that the schedules asked for these jobs, as a client does for its own.

    A cancelled one was cancelled by a schedule, which tells nobody: its answer is unknown.
    """
    for index in range(len(settings.databases)):
        for shard in settings.routing.shards_of_database(index):
            query = (
                f"SELECT job_id, dedup_key, status FROM toc_job_{shard:04d}"
                f" WHERE dedup_key LIKE '{KEY_PREFIX}%'"
            )
            for job_id, dedup_key, status in _read(settings, index, query):
                nominal_ms = nominal_ms_of_key(dedup_key)
                assert nominal_ms is not None, f"job {job_id} has the key {dedup_key}"
                journal.write(Scheduled(job_id, RECURRING, nominal_ms, nominal_ms, nominal_ms))
                if status == Status.CANCELLED.value:
                    journal.write(CancelAnswered(job_id, "", nominal_ms, nominal_ms))


def _read(settings: Settings, index: int, query: str) -> Iterator[Any]:
    engine = create_engine(settings.databases[index], poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield from connection.execute(text(query))
    finally:
        engine.dispose()
