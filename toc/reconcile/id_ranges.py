"""Splits the ids of ended jobs into ranges of few rows, on an executor or in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.ended_jobs import EndedJobReader, IdRange


def split_into_id_ranges(
    settings: Settings, shards: Iterable[int], ids: IdRange, rows: int
) -> Iterator[tuple[EndedJobReader, int, IdRange]]:
    """Splits `ids` in each shard into ranges of about `rows` rows; (reader, shard, range)."""
    with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
        ended = EndedJobReader(databases)
        for shard in shards:
            for piece in ended.split_id_range(shard, ids, rows):
                yield ended, shard, piece
