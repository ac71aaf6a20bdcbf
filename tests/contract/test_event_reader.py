"""Events as the archive reads them, on every engine, against the same in Python."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import select, text

from tests.contract.event_rows import event_row, hostile_events, write_events
from tests.contract.library import Library
from toc.errors import SchemaMismatch
from toc.store import databases as databases_module
from toc.store.column_types import ms_of_sql_time
from toc.store.ended_jobs import DAY_MS
from toc.store.event_reader import (
    COLUMNS,
    TEXTS,
    EventRange,
    EventReader,
    EventsNotCommitted,
    LastEvent,
)
from toc.store.sql_expressions import DayChecksum

ALL = EventRange(0, 2**62)


@pytest.fixture
def reader(library: Library) -> Iterator[EventReader]:
    library.sql(1, "DELETE FROM toc_event")
    yield EventReader(library.databases[0])
    library.sql(1, "DELETE FROM toc_event")


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


def test_hostile_events_and_their_checksums(library: Library, reader: EventReader) -> None:
    rows = list(hostile_events(library, 400, random.Random(7)))  # noqa: S311 - a test
    write_events(library, rows)
    found = reader.read_rows(ALL)
    assert len(found) == 400
    for row, written in zip(found, rows, strict=True):
        for name, value in zip(COLUMNS, row, strict=True):
            expected = written[name]
            if name in ("event_time", "claim_time"):
                expected = None if expected is None else ms_of_sql_time(expected)
            elif name in ("job_id", "related_job_id") and expected is not None:
                assert int(value) == expected % 2**64
                continue
            assert value == expected
    day, total = library.now_ms // DAY_MS, sum(map(crc_of, found))
    assert reader.read_day_checksums(ALL) == [DayChecksum(day, 400, total)]
    middle = rows[200]["event_id"]
    halves = [
        reader.read_day_checksums(EventRange(a, b)) for a, b in ((0, middle), (middle, 2**62))
    ]
    assert [[one.rows for one in half] for half in halves] == [[200], [200]]
    assert sum(one.crc for half in halves for one in half) == total


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("event_id", [1, 2, 10]),
        ("event_time", ["2026-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
        ("job_id", [0, 1, 2**63 - 1]),
        ("claim_time", [None, "1970-01-01 00:00:00.000", "2026-01-01 00:00:00.001"]),
        *((name, [0, 1, -1]) for name in ("from_status", "to_status", "attempts")),
        ("what", ["", "-", "a"]),
        ("actor", ["", "-", "a", "A", "a ", "\u00e9", "e\u0301"]),
        ("reason", [None, "", "-", "0=", "a|0=", "a", "A", "a ", "ß", "ss"]),
        *((name, [None, "", "-", "a"]) for name in ("run_id", "account")),
        ("related_job_id", [None, 0, 1, 2**63 - 1]),
    ],
)
def test_no_change_of_an_event_leaves_its_checksum(
    library: Library, reader: EventReader, column: str, values: Sequence[Any]
) -> None:
    write_events(library, [event_row(5, library.now_ms)])
    seen = set()
    for value in values:
        library.sql(1, f"UPDATE toc_event SET {column} = :value", {"value": value})
        ((_, rows, crc),) = reader.read_day_checksums(ALL)
        assert rows == 1
        seen.add(crc)
    assert len(seen) == len(values)


def test_a_zero_date_is_of_the_first_day(library: Library, reader: EventReader) -> None:
    """A session without a strict sql_mode can write one."""
    write_events(library, [event_row(5, library.now_ms)])
    ignore = "UPDATE OR IGNORE" if library.sqlite else "UPDATE IGNORE"
    library.sql(1, f"{ignore} toc_event SET event_time = '0000-00-00 00:00:00.000'")
    (row,) = reader.read_rows(ALL)
    assert row[COLUMNS.index("event_time")] == 0
    assert reader.read_day_checksums(ALL) == [DayChecksum(0, 1, crc_of(row))]
    assert reader.find_first_since(0, library.now_ms, library.now_ms) == 6


def test_ranges_cover_all_ids_once(library: Library, reader: EventReader) -> None:
    write_events(library, [event_row(one, library.now_ms) for one in (3, 4, 5, 900, 901)])
    assert list(reader.split_range(EventRange(1, 1000), 2)) == [(1, 5), (5, 901), (901, 1000)]
    assert list(reader.split_range(EventRange(4, 900), 2)) == [(4, 900)]
    assert list(reader.split_range(EventRange(6, 900), 2)) == [(6, 900)]
    assert reader.read_last() == LastEvent(901, library.now_ms)
    assert [row[0] for row in reader.read_rows(EventRange(4, 901))] == [4, 5, 900]


def test_the_first_id_of_a_time_is_found(library: Library, reader: EventReader) -> None:
    now_ms = library.now_ms
    assert reader.find_first_since(0, now_ms, now_ms) == 0
    assert reader.find_first_since(5, now_ms, now_ms) == 5
    rng = random.Random(3)  # noqa: S311 - a test
    ids = sorted(rng.sample(range(10, 5000), 60))
    write_events(library, [event_row(one, now_ms - 60 + n) for n, one in enumerate(ids)])
    for n, event_id in enumerate(ids):
        found = reader.find_first_since(0, now_ms - 60 + n, now_ms)
        assert (ids[n - 1] if n else 0) <= found - bool(n) < event_id
        assert reader.find_first_since(event_id, now_ms - 60, now_ms) == event_id
    assert reader.find_first_since(0, now_ms, now_ms) == ids[-1] + 1
    assert reader.find_first_since(9000, now_ms, now_ms) == 9000


def test_an_event_of_a_clock_that_was_ahead_does_not_count(
    library: Library, reader: EventReader
) -> None:
    now_ms = library.now_ms
    times = [now_ms - 100] * 10 + [now_ms + DAY_MS] * 30 + [now_ms - 50] * 10
    write_events(library, [event_row(n + 1, ms) for n, ms in enumerate(times)])
    assert reader.find_first_since(0, now_ms - 20, now_ms) == 51
    assert 11 <= reader.find_first_since(0, now_ms - 60, now_ms) <= 41


def test_the_types_of_jobs_that_are_there(library: Library, reader: EventReader) -> None:
    jobs = {library.pending(biz_id=n): library.close_no for n in range(10)}
    report = library.pending(biz_id=99, type_no=library.report_no)
    found = reader.read_type_numbers(library.settings.routing, [*jobs, report, 5, 2**63 - 1])
    assert found == jobs | {report: library.report_no}
    assert reader.read_type_numbers(library.settings.routing, []) == {}


def test_a_job_with_a_later_event_is_found(library: Library, reader: EventReader) -> None:
    write_events(library, [event_row(n, library.now_ms, job_id=n * 10) for n in (1, 2, 3)])
    assert reader.find_job_with_event([10, 20], 3) is None
    assert reader.find_job_with_event([10, 20], 2) == 20
    assert reader.find_job_with_event([], 0) is None


def test_a_table_that_is_gone_is_named(library: Library, reader: EventReader) -> None:
    library.sql(1, "ALTER TABLE toc_event RENAME TO toc_event_away")
    try:
        for read in (reader.read_rows, reader.read_day_checksums):
            with pytest.raises(SchemaMismatch, match="toc_event"):
                read(ALL)
        with pytest.raises(SchemaMismatch, match="toc_event"):
            reader.read_last()
    finally:
        library.sql(1, "ALTER TABLE toc_event_away RENAME TO toc_event")


def test_checksums_wait_for_an_open_transaction(
    library: Library, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wait an event could appear below the mark after its range was archived."""
    if library.sqlite:
        pytest.skip("one transaction writes at a time, so numbers commit in order")
    write_events(library, [event_row(one, library.now_ms) for one in (3, 5)])
    monkeypatch.setattr(databases_module, "TRIES_MAX", 1)
    with library.databases[0].engine.connect() as late:
        late.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
        insert = (
            "INSERT INTO toc_event (event_id, event_time, job_id, what, from_status, to_status, "
        )
        late.execute(
            text(insert + "attempts, actor) VALUES (4, UTC_TIMESTAMP(3), 7, 'x', 0, 3, 0, 'late')")
        )
        assert [row[0] for row in reader.read_rows(ALL)] == [3, 5]
        monkeypatch.setattr(reader.database, "run_read", _with_short_wait(reader.database))
        with pytest.raises(EventsNotCommitted, match="End this transaction"):
            reader.read_day_checksums(ALL)
        # Another range is none of its business.
        assert [one.rows for one in reader.read_day_checksums(EventRange(5, 6))] == [1]
        late.commit()
    assert [one.rows for one in reader.read_day_checksums(ALL)] == [3]


def _with_short_wait(database: Any) -> Any:
    real = database.run_read

    def run_read(work: Any) -> Any:
        def set_and_work(connection: Any) -> Any:
            connection.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
            try:
                return work(connection)
            finally:
                connection.execute(text("SET SESSION innodb_lock_wait_timeout = 5"))

        return real(set_and_work)

    return run_read


def test_the_reader_locks_nothing_that_young_events_need(
    library: Library, reader: EventReader
) -> None:
    """The locks of the checksums end with the statement."""
    write_events(library, [event_row(3, library.now_ms)])
    reader.read_day_checksums(ALL)
    write_events(library, [event_row(4, library.now_ms)])
    library.sql(1, "DELETE FROM toc_event WHERE event_id = 3")
    event = library.databases[0].event.c
    assert library.databases[0].select(select(event.event_id)) == [(4,)]
