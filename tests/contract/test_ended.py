"""What has ended, read and summed up by every engine, against the same in Python."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.ended_rows import hostile, made_at, write
from tests.contract.library import Library
from toc.domain.ids import lowest_id_at
from toc.domain.job import Status
from toc.errors import SchemaMismatch
from toc.store.archive_status import AHEAD_MS, EndedJobWindow
from toc.store.claims import OutcomeKind
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import (
    COLUMNS,
    DAY_MS,
    TEXTS,
    DayChecksum,
    EndedJobReader,
    IdRange,
    possible_ids_of_ended,
)


@pytest.fixture
def ended(library: Library) -> EndedJobReader:
    return EndedJobReader(library.databases)


def crc_of(row: Sequence[Any]) -> int:
    """The checksum's text, spelled out once more."""
    parts = []
    for name, value in zip(COLUMNS, row, strict=True):
        if value is None:
            parts.append("-")
        elif name in TEXTS:
            parts.append(f"{len(value.encode())}={value}")
        else:
            parts.append(str(value))
    return zlib.crc32("|".join(parts).encode())


def test_pieces_cover_all_ids_once(library: Library, ended: EndedJobReader) -> None:
    jobs = [library.pending() for _ in range(10)]
    shard, ids = library.shard(jobs[0]), IdRange(0, jobs[-1])
    pieces = list(ended.split_id_range(shard, ids, 4))
    assert pieces == [IdRange(0, jobs[4]), IdRange(jobs[4], jobs[8]), IdRange(jobs[8], jobs[9])]
    assert list(ended.split_id_range(shard, IdRange(jobs[3], jobs[7]), 4)) == [
        IdRange(jobs[3], jobs[7])
    ]
    assert list(ended.split_id_range(shard, IdRange(jobs[3], jobs[8]), 4)) == [
        IdRange(jobs[3], jobs[7]),
        IdRange(jobs[7], jobs[8]),
    ]
    assert list(ended.split_id_range((shard + 1) % 4, ids, 4)) == [ids]


def test_only_what_ended_within_is_read(library: Library, ended: EndedJobReader) -> None:
    before = library.ended(OutcomeKind.DONE)
    library.clock.advance(10)
    since_ms = library.now_ms
    within = [library.ended(OutcomeKind.DONE), library.ended(OutcomeKind.DROP), library.dead()]
    within += [library.running(), library.pending()]
    library.clock.advance(10)
    after = library.ended(OutcomeKind.DONE)
    window, shard = EndedJobWindow(since_ms, library.now_ms), library.shard(before)
    rows = ended.read_ended_rows(shard, possible_ids_of_ended(window), window)
    assert [row[0] for row in rows] == within[:3]
    assert ended.read_day_checksums(shard, possible_ids_of_ended(window), window) == [
        DayChecksum(since_ms // DAY_MS, 3, sum(map(crc_of, rows)))
    ]
    assert after not in {row[0] for row in rows}
    assert [
        row[0] for row in ended.read_ended_rows(shard, IdRange(within[1], within[2]), window)
    ] == within[1:2]


def test_rows_have_all_columns_and_the_letter(library: Library, ended: EndedJobReader) -> None:
    biz_id = 2**64 - 1
    job_id = library.pending(biz_id, attribute='{"a":"é"}', key="k")
    library.clock.advance(0.007)
    library.claim([job_id], "host:1:2:3")
    library.clock.advance(0.001)
    assert library.settle_as(OutcomeKind.BURY, job_id, "host:1:2:3", error="it broke: \N{FIRE}")
    made_at(library, job_id, library.now_ms - 8)
    window = EndedJobWindow(library.now_ms, library.now_ms + 1)
    ((*row,),) = ended.read_ended_rows(library.shard(job_id), possible_ids_of_ended(window), window)
    row[1] = int(row[1])
    now = library.now_ms
    assert row == [
        job_id, biz_id, library.close_no, Status.DEAD, now - 8, now, now - 8, None, now - 1, 1, 0,
        "host:1:2:3", "k", None, None, '{"a":"é"}', None, None, "it broke: \N{FIRE}", now,
    ]  # fmt: skip


def test_a_letter_is_only_of_the_dead(library: Library, ended: EndedJobReader) -> None:
    job_id = library.dead()
    shard = library.shard(job_id)
    table = f"toc_job_{shard:04d}"
    library.sql(job_id, f"UPDATE {table} SET status = 2 WHERE job_id = :id", {"id": job_id})
    window = EndedJobWindow(library.now_ms, library.now_ms + 1)
    ((*row,),) = ended.read_ended_rows(shard, possible_ids_of_ended(window), window)
    assert row[-2:] == [None, None]


def test_checksums_of_hostile_rows(library: Library, ended: EndedJobReader) -> None:
    rows = list(hostile(library, 400, random.Random(7)))  # noqa: S311 - a test
    write(library, 1, rows)
    window = EndedJobWindow(library.now_ms, library.now_ms + 400)
    found = ended.read_ended_rows(1, possible_ids_of_ended(window), window)
    assert len(found) == 400
    for row, written in zip(found, rows, strict=True):
        for name in (
            "job_id",
            "type_no",
            "status",
            "attempts",
            "priority",
            *TEXTS[:-1],
        ):
            assert row[COLUMNS.index(name)] == written[name]
        assert int(row[1]) == written["biz_id"] % 2**64
        for name in ("gmt_create", "gmt_modified", "action_time", "due_time", "claim_time"):
            value = row[COLUMNS.index(name)]
            assert (value if value is None else sql_time_of_ms(value)) == written[name]
    total = sum(map(crc_of, found))
    assert ended.read_day_checksums(1, possible_ids_of_ended(window), window) == [
        DayChecksum(window.since_ms // DAY_MS, 400, total)
    ]
    middle = rows[200]["job_id"]
    halves = [IdRange(0, middle), IdRange(middle, window.id_upper_bound)]
    sums = [one for ids in halves for one in ended.read_day_checksums(1, ids, window)]
    assert [one.rows for one in sums] == [200, 200]
    assert sum(one.crc for one in sums) == total


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("dedup_key", [None, "", "-", "0="]),
        *((name, [None, "", "-", "a"]) for name in ("tenant", "biz_text", "result", "trace")),
        ("priority", [-1, 0, 1]),
        ("claim_token", [None, "", "a|0=", "a"]),
        ("attribute", [None, "", "-", "a", "A", "a ", "\u00e9", "e\u0301", "ß", "ss"]),
        ("biz_id", [0, 1, 2**63 - 1]),
        ("attempts", [0, 1]),
        ("type_no", [1, 2]),
        ("due_time", [None, "2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
        ("claim_time", [None, "2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
        ("action_time", ["2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
        ("gmt_create", ["2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
    ],
)
def test_no_change_of_a_row_leaves_its_checksum(
    library: Library, ended: EndedJobReader, column: str, values: Sequence[Any]
) -> None:
    job_id = library.ended(OutcomeKind.DONE)
    shard, window = library.shard(job_id), EndedJobWindow(library.now_ms, library.now_ms + 1)
    seen = set()
    for value in values:
        table = f"toc_job_{shard:04d}"
        library.sql(job_id, f"UPDATE {table} SET {column} = :value", {"value": value})
        ((_, rows, crc),) = ended.read_day_checksums(shard, possible_ids_of_ended(window), window)
        assert rows == 1
        seen.add(crc)
    assert len(seen) == len(values)


def test_jobs_of_a_clock_too_far_ahead_are_out_of_reach(
    library: Library, ended: EndedJobReader
) -> None:
    until_ms = library.now_ms + 1000
    (row,) = hostile(library, 1, random.Random(1))  # noqa: S311 - a test
    near = {**row, "job_id": lowest_id_at(until_ms + AHEAD_MS) - 1}
    far = {**row, "job_id": lowest_id_at(until_ms + AHEAD_MS)}
    write(library, 0, [near, far])
    window = EndedJobWindow(until_ms - 1000, until_ms)
    assert [row[0] for row in ended.read_ended_rows(0, possible_ids_of_ended(window), window)] == [
        near["job_id"]
    ]


def test_a_table_that_is_gone_is_named(library: Library, ended: EndedJobReader) -> None:
    window = EndedJobWindow(0, library.now_ms)
    job_id = next(j for j in (library.pending(n) for n in range(100)) if library.shard(j) == 3)
    library.sql(job_id, "ALTER TABLE toc_job_0003 RENAME TO toc_job_away")
    try:
        with pytest.raises(SchemaMismatch, match="toc_job_0003"):
            ended.read_day_checksums(3, possible_ids_of_ended(window), window)
        with pytest.raises(SchemaMismatch, match="toc_job_0003"):
            list(ended.split_id_range(3, possible_ids_of_ended(window), 10))
    finally:
        library.sql(job_id, "ALTER TABLE toc_job_away RENAME TO toc_job_0003")
