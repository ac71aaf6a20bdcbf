"""Events in the archive: what comes back, which events a night takes, and what it waits for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from tests.contract.engines import library_on
from tests.contract.event_rows import event_row, hostile_events, write_events
from tests.contract.library import Library
from tests.reconcile.archive_place import DAY_S, DAYS, Place, emptied
from toc.domain.times import datetime_of
from toc.reconcile import archive as archive_module
from toc.reconcile.archive import LEAD_DAYS, archive_cutoff_ms
from toc.reconcile.archive_events import EventArchive
from toc.reconcile.archive_tables import EVENTS
from toc.reconcile.delta_tables import append_rows, describe_table
from toc.runtime.setting_groups import RetentionSettings
from toc.store import databases as databases_module
from toc.store.archive_status import EVENTS_ARCHIVED
from toc.store.claims import OutcomeKind
from toc.store.column_types import sql_time_of_ms
from toc.store.event_reader import COLUMNS, EventRange, EventReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

RETENTION = RetentionSettings(days=DAYS, dead_days=DAYS, event_days=DAYS)


@pytest.fixture(scope="module", params=["sqlite", "mysql", "mariadb"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("archive")) as library:
        yield library


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('archive')}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def place(engines: Library, tmp_path: Path) -> Place:
    return Place(emptied(engines), None, tmp_path / "archive", "events", RETENTION)


@pytest.fixture
def small(lite: Library, tmp_path: Path) -> Place:
    return Place(emptied(lite), None, tmp_path / "archive", "events", RETENTION)


def as_archived(place: Place) -> list[tuple[Any, ...]]:
    """All events of the database as the archive should give them back."""
    found = []
    for row in EventReader(place.library.databases[0]).read_rows(EventRange(0, 2**62)):
        values = dict(zip(COLUMNS, row, strict=True))
        for name in ("event_time", "claim_time"):
            values[name] = None if values[name] is None else datetime_of(values[name])
        for name in ("job_id", "related_job_id"):
            values[name] = None if values[name] is None else int(values[name])
        found.append(tuple(values.values()))
    return found


def test_hostile_events_come_back_whole(place: Place, spark: SparkSession) -> None:
    library, rng = place.library, random.Random(5)  # noqa: S311 - a test
    place.spark = spark
    library.clock.advance(DAY_S / 2)
    write_events(library, list(hostile_events(library, 300, rng)))
    library.clock.advance(DAY_S)
    job_id = library.dead()
    assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    place.age()
    expected = as_archived(place)
    done = place.alone()
    assert (done.error, done.differing, done.rows) == ("", [], len(expected))
    rows = sorted(place.rows(), key=lambda row: int(row["event_id"]))
    assert [tuple(row[name] for name in COLUMNS) for row in rows] == expected
    for row in rows:
        assert str(row["day"]) == row["event_time"].date().isoformat()
        assert row["database"] == 0
        assert row["biz_type"] == ("order.close" if row["job_id"] == job_id else None)
    assert len({row["day"] for row in rows}) == 2
    place.purge()
    assert place.count() == 0
    assert place.alone().error == ""
    assert len(place.ids()) == len(expected)


def test_readers_without_spark_read_events(small: Place) -> None:
    import duckdb  # noqa: PLC0415 - only here
    import polars  # noqa: ICN001, PLC0415

    library = small.library
    rows = list(hostile_events(library, 200, random.Random(3)))  # noqa: S311 - a test
    rows.append(event_row(2**60 + 1, library.now_ms, job_id=2**63 - 1, related_job_id=2**53 + 1))
    write_events(library, rows)
    small.age()
    assert small.alone().rows == 201
    table = small.table()
    frame = table.to_pandas().set_index("event_id")
    for name in ("job_id", "from_status", "to_status", "attempts", "database"):
        assert str(frame[name].dtype) in {"int64", "int32"}
    assert str(frame["event_time"].dtype) == "datetime64[us, UTC]"
    assert frame.job_id[2**60 + 1] == 2**63 - 1
    assert int(frame.related_job_id[2**60 + 1]) == 2**53 + 1
    expected = sorted(map(plain, small.rows()), key=str)
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        source = connection.from_arrow(table.to_pyarrow_dataset())
        names = source.columns
        found = [dict(zip(names, row, strict=True)) for row in source.fetchall()]
    assert sorted(map(plain, found), key=str) == expected
    lazy = polars.scan_delta(str(small.directory / "events"))
    assert lazy.collect_schema()["related_job_id"] == polars.Decimal(20, 0)
    assert sorted(map(plain, lazy.collect().to_dicts()), key=str) == expected


def test_events_of_an_older_release_are_read_beside_new_ones(small: Place) -> None:
    """Version 1 of the table had no column claim_time."""
    columns = pa.schema([one for one in EVENTS.columns if one.name != "claim_time"])
    old = dataclasses.replace(EVENTS, version=1, columns=columns)
    values = {name: [None] for name in columns.names} | {
        "event_id": [1], "event_time": [datetime_of(0)], "job_id": [7], "what": ["retry"],
        "from_status": [1], "to_status": [0], "attempts": [1], "actor": ["h:1"], "database": [0],
        "day": [date(1970, 1, 1)],
    }  # fmt: skip
    append_rows(str(small.directory), old, pa.table(values, schema=columns))
    job_id = small.library.running("h:2")
    began = datetime_of(small.library.now_ms)
    small.library.clock.advance(2)
    assert small.library.settle_as(OutcomeKind.BURY, job_id, "h:2")
    small.age()
    assert small.alone().rows == 1
    found = {row["what"]: row["claim_time"] for row in small.rows()}
    assert found == {"retry": None, "bury": began}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Times as numbers, because each reader has its own time zone objects."""
    return {
        name: value.timestamp() if isinstance(value, datetime) else value
        for name, value in sorted(row.items())
    }


def test_one_run_archives_both_tables_and_one_error_does_not_stop_the_other(small: Place) -> None:
    job_id = small.library.dead()
    small.age()
    small.library.sql(job_id, "ALTER TABLE toc_event RENAME TO toc_event_away")
    try:
        jobs, events = small.archive().parts
    finally:
        small.library.sql(job_id, "ALTER TABLE toc_event_away RENAME TO toc_event")
    assert (jobs.table, jobs.rows, jobs.error) == ("jobs", 1, "")
    assert (events.table, events.rows) == ("events", 0)
    assert events.error == "database 0, table toc_event: no such table: toc_event"
    assert "archive, events of database 0: database 0, table toc_event" in small.heard[-1]
    jobs, events = small.archive().parts
    assert (jobs.rows, events.rows) == (0, 1)
    (row,) = small.rows()
    assert (row["job_id"], row["what"], row["biz_type"]) == (job_id, "bury", "order.close")
    shown = describe_table(str(small.directory), EventArchive.spec)
    assert shown is not None
    assert (shown["table"], shown["rows"], shown["first_day"]) == ("events", 1, "2026-01-01")


def test_a_night_takes_what_is_older_than_the_cutoff_and_the_next_one_goes_on(small: Place) -> None:
    library = small.library
    old, young = small.make(), 0
    library.clock.advance(2 * DAY_S)
    young = small.make()
    library.clock.advance((DAYS - LEAD_DAYS - 1) * DAY_S)
    assert (small.alone().rows, small.ids()) == (1, [old])
    mark = small.mark
    assert mark is not None
    assert old < mark.position <= young
    assert small.alone().rows == 0  # nothing is due
    library.clock.advance(DAY_S)
    done = small.alone()  # no event is of that day, and still the mark's time moves
    assert (done.rows, done.files, done.error) == (0, 0, "")
    assert small.mark is not None
    assert (small.mark.position, small.mark.until_ms > mark.until_ms) == (mark.position, True)
    library.clock.advance(DAY_S)
    assert (small.alone().rows, small.ids()) == (1, [old, young])


@pytest.mark.parametrize(
    ("retention", "days"),
    [
        ({"days": 30, "dead_days": 90, "event_days": 7}, 7),
        ({"days": 30, "dead_days": 90, "event_days": 90}, 30),
        ({"days": 30, "dead_days": 90, "event_days": "none"}, 30),
        ({"days": "none", "dead_days": "none", "event_days": 90}, 90),
        ({"days": "none", "dead_days": "none", "event_days": "none"}, "none"),
    ],
)
def test_events_are_archived_with_their_jobs_or_before(retention: Any, days: Any) -> None:
    found = EventArchive().shortest_retention_days(RetentionSettings(**retention))
    assert found == days


def test_an_event_that_appears_late_below_the_mark_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction was open for weeks. Without the wait it would be purged, and in no archive."""
    library = place.library
    if library.sqlite:
        pytest.skip("one transaction writes at a time, so numbers commit in order")
    first = library.now_ms
    write_events(library, [event_row(one, first) for one in (3, 5)])
    place.age()
    monkeypatch.setattr(databases_module, "TRIES_MAX", 1)
    with library.databases[0].engine.connect() as late:
        columns = "event_id, event_time, job_id, what, from_status, to_status, attempts, actor"
        values = f"4, '{sql_time_of_ms(first)}', 7, 'cancel', 0, 3, 0, 'late'"
        late.execute(text(f"INSERT INTO toc_event ({columns}) VALUES ({values})"))
        assert "an open transaction has changed toc_event" in place.alone().error
        assert (place.ids(), place.files()) == ([], {})
        place.purge()
        assert place.count() == 2
        late.commit()
    assert place.alone().rows == 3
    assert place.ids() == [3, 4, 5]
    place.purge()
    assert place.count() == 0


def test_an_event_that_appears_while_the_night_copies_is_copied_too(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, real = small.library, archive_module.run_work
    write_events(library, [event_row(one, library.now_ms) for one in (3, 5)])
    late = [event_row(4, library.now_ms)]
    small.age()

    def run_work(spark: Any, settings: Any, work: Any, items: Any) -> Any:
        found = real(spark, settings, work, items)
        if work.func.__name__ == "write_files" and late and "EventCopy" in repr(work.args):
            write_events(library, [late.pop()])
        return found

    monkeypatch.setattr(archive_module, "run_work", run_work)
    assert small.alone().rows == 3
    assert small.ids() == [3, 4, 5]
    assert "trying again: 2026-01-01: the archive has 2 rows" in "".join(small.heard)


def test_numbers_that_began_anew_are_told_and_nothing_is_purged(small: Place) -> None:
    library = small.library
    write_events(library, [event_row(one, library.now_ms) for one in (30, 50)])
    small.age()
    assert small.alone().rows == 2
    library.sql(1, "DELETE FROM toc_event")
    write_events(library, [event_row(1, library.now_ms)])
    for _ in range(2):
        small.age()
        assert "the numbers of events began anew" in small.alone().error
        small.purge()
        assert small.count() == 1
    # What the message says.
    library.sql(1, "UPDATE toc_event SET event_id = event_id + 51")
    assert small.alone().rows == 1
    assert small.ids() == [30, 50, 52]


def test_the_row_says_until_which_event(small: Place) -> None:
    write_events(small.library, [event_row(41, small.library.now_ms)])
    small.age()
    assert small.alone().rows == 1
    query = f"SELECT value FROM toc_meta WHERE name = '{EVENTS_ARCHIVED}'"
    until = sql_time_of_ms(archive_cutoff_ms(small.library.now_ms, DAYS))
    assert small.library.sql(1, query) == [(f"{until} event 42 run 1 of 1",)]


def test_the_page_joins_events_with_their_jobs(small: Place) -> None:
    import duckdb  # noqa: PLC0415 - only here
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra

    small.library.dead(biz_id=2**64 - 1)
    small.age()
    assert small.archive().is_good
    page = (Path(__file__).parents[2] / "docs/reference/archive-files.md").read_text("utf-8")
    code = page.partition("# DuckDB, in Python: why jobs died")[2].partition("\n\n")[0]
    *reads, question = [line.strip() for line in code.splitlines()[1:]]
    given = {"DeltaTable": DeltaTable, "date": date, "duckdb": duckdb}
    for read in reads:
        exec(  # noqa: S102 - it is ours
            read.replace("/srv/toc/archive", str(small.directory)).replace("5)", "1)"), given
        )
    (row,) = eval(question, given).fetchall()  # noqa: S307 - it is ours
    assert (int(row[0]), row[2], row[4]) == (2**64 - 1, "bury", "it failed")
