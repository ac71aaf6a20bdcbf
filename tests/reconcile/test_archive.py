"""The archive: what comes back from the table, what may be purged then, and how it bears disturbance."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update
from sqlalchemy.engine import make_url

from tests.contract.ended_rows import hostile, write
from tests.contract.engines import library_on
from tests.contract.library import SHARDS, Library
from tests.reconcile.archive_place import DAY_S, DAYS, RETENTION, Place, emptied
from toc.domain.ids import lowest_id_at
from toc.domain.times import datetime_of
from toc.errors import SettingsError
from toc.reconcile import archive as archive_module
from toc.reconcile import archive_files
from toc.reconcile.archive import (
    ARCHIVES,
    LEAD_DAYS,
    TRIES,
    TableArchiveResult,
    archive_cutoff_ms,
    archive_due_rows,
    begin_in_new_folder,
)
from toc.reconcile.archive_commits import ArchiveTable, CannotArchive
from toc.reconcile.archive_files import ArchiveFile
from toc.reconcile.archive_jobs import job_rows_per_read
from toc.reconcile.archive_tables import MARKS
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import LimitSettings, ReconcileSettings, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.archive_status import (
    ArchiveStatus,
    read_archive_status,
)
from toc.store.claims import OutcomeKind
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import COLUMNS, DAY_MS, TIMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
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
def place(engines: Library, spark: SparkSession, tmp_path: Path) -> Place:
    """On SQLite and on MySQL, by Spark."""
    return Place(emptied(engines), spark, tmp_path / "archive")


@pytest.fixture(params=[archive.spec.name for archive in ARCHIVES])
def either(request: pytest.FixtureRequest, lite: Library, tmp_path: Path) -> Iterator[Place]:
    """Like `small`, for each table: only this table is archived, and counts."""
    retention = RETENTION.model_copy(update={"event_days": DAYS})
    (archive,) = (one for one in ARCHIVES if one.spec.name == request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_module, "ARCHIVES", (archive,))
        yield Place(emptied(lite), None, tmp_path / "archive", request.param, retention)


@pytest.fixture
def small(lite: Library, tmp_path: Path) -> Place:
    """On SQLite and without Spark, for what is about neither."""
    return Place(emptied(lite), None, tmp_path / "archive")


# ---- what comes back


def as_read(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of the database as Parquet should give it back."""
    values = dict(zip(COLUMNS, row, strict=True))
    values["biz_id"] = int(values["biz_id"])
    for name in TIMES:
        if values[name] is not None:
            values[name] = datetime_of(values[name])
    return tuple(values.values())


@pytest.mark.parametrize("engines", ["sqlite", "mysql", "mariadb"], indirect=True)
def test_hostile_rows_come_back_whole(place: Place) -> None:
    library = place.library
    rng = random.Random(5)  # noqa: S311 - a test
    for shard in range(SHARDS):
        write(library, shard, list(hostile(library, 200, rng)))
        library.clock.advance(DAY_S / 2)
    letter = library.dead(attribute='{"a":1}')
    place.age()
    ended = place.ended()
    assert len(ended) == 4 * 200 + 1
    done = place.alone()
    assert (done.is_good, done.rows, done.differing) == (True, 801, [])
    rows = place.rows()
    found = {(row["shard"], row["job_id"]): row for row in rows}
    assert len(found) == len(rows) == 801
    for shard, *row in ended:
        read = found[shard, row[0]]
        assert tuple(read[name] for name in COLUMNS) == as_read(row)
        day = sql_time_of_ms(row[COLUMNS.index("gmt_modified")])[:10]
        assert (str(read["day"]), read["database"]) == (day, 0)
        names = {library.close_no: "order.close", library.report_no: "report", 99: None}
        assert read["biz_type"] == names[read["type_no"]]
        assert read["status_name"] == {2: "done", 3: "cancelled", 4: "dead"}[read["status"]]
    assert found[library.shard(letter), letter]["error"] == "it failed"
    assert len({row["day"] for row in rows}) == 3


def test_nothing_is_purged_before_and_everything_after(place: Place) -> None:
    library = place.library
    old = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(40)] + [
        library.ended(OutcomeKind.DROP)
    ]
    live = [library.pending(in_ms=1000 * DAY_S * 1000)]
    library.clock.advance(DAY_S)
    dead = library.dead()
    place.age()
    place.purge()
    assert library.count() == 43
    assert place.alone().rows == 42
    place.purge()
    left = [job_id for job_id in [*old, dead, *live] if library.jobs.get(job_id)]
    assert left == [dead, *live]  # the dead are kept longer
    assert place.ids() == sorted([*old, dead])


def test_readers_without_spark_read_it(small: Place) -> None:
    import duckdb  # noqa: PLC0415 - only here
    import polars  # noqa: ICN001, PLC0415
    import pyarrow as pa  # noqa: PLC0415 - an extra

    library = small.library
    write(library, 1, list(hostile(library, 300, random.Random(3))))  # noqa: S311 - a test
    library.ended(OutcomeKind.DONE, biz_id=2**64 - 1)
    small.age()
    assert small.alone().rows == 301
    table = small.table()
    frame = table.to_pandas()
    for name in ("job_id", "type_no", "status", "attempts", "priority", "shard", "database"):
        assert str(frame[name].dtype) in {"int64", "int32"}
    assert str(frame["claim_time"].dtype) == "datetime64[us, UTC]"
    assert {int(number) for number in frame.biz_id} == {row[2] % 2**64 for row in unsigned(small)}
    rows = by_id(small.rows())
    dataset = table.to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        found = connection.from_arrow(dataset).order("job_id").to_arrow_table()
    assert by_id(found.cast(pa.schema(dataset.schema)).to_pylist()) == rows
    lazy = polars.scan_delta(str(small.directory / "jobs"))
    assert lazy.collect_schema()["biz_id"] == polars.Decimal(20, 0)
    assert by_id(lazy.collect().to_dicts()) == rows
    big = lazy.filter(polars.col("job_id") == frame.job_id.max()).collect()
    assert big["biz_id"].to_list() == [2**64 - 1]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted; times as ms, because each reader has its own time zone objects."""
    plain = [
        {
            name: value.timestamp() if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return sorted(plain, key=lambda row: (row["shard"], row["job_id"]))


def unsigned(place: Place) -> list[tuple[Any, ...]]:
    return [(shard, job_id, int(biz_id)) for shard, job_id, biz_id, *_ in place.ended()]


def test_the_larger_attributes_may_be_the_fewer_rows_are_read_at_once() -> None:
    def rows(attribute_bytes: int, page: int = 50_000) -> int:
        limits, reconcile = LimitSettings(attribute_bytes=attribute_bytes), {"page": page}
        return job_rows_per_read(Settings(limits=limits, reconcile=reconcile))

    assert (rows(2), rows(4096), rows(65_535), rows(2, 7)) == (5000, 4096, 256, 7)


@pytest.mark.parametrize("engines", ["mysql"], indirect=True)
def test_a_job_comes_back_as_the_page_says(place: Place) -> None:
    library = place.library
    job_id = library.ended(OutcomeKind.DONE, biz_id=2**64 - 1, attribute='{"a":"é"}', key="k")
    before = library.row(job_id)
    place.age()
    place.archive()
    place.purge()
    assert library.jobs.get(job_id) is None
    page = (Path(__file__).parents[2] / "docs/how-to/archive.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    given = {
        "archive": place.directory, "job_id": job_id, "url": library.settings.databases[0],
    }  # fmt: skip
    exec(compile(code, "docs/how-to/archive.md", "exec"), given)  # noqa: S102 - it is ours
    after = library.row(job_id)
    assert after._replace(modified_ms=before.modified_ms) == before
    assert after.modified_ms > library.now_ms


def test_all_is_private(either: Place) -> None:
    either.make()
    either.age()
    before = os.umask(0o022)
    try:
        assert either.alone().rows == 1
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in either.directory.rglob("*")}
    assert modes == {0o600, 0o700}


# ---- night after night


def test_each_run_adds_days_and_touches_no_other(either: Place) -> None:
    first = either.make()
    either.library.clock.advance(DAY_S)
    second = either.make()
    either.age(DAYS - LEAD_DAYS)
    assert either.alone().rows == 1
    before = either.files()
    assert either.ids() == [first]
    assert either.alone().rows == 0  # nothing is due
    assert either.files() == before
    either.library.clock.advance(DAY_S)
    assert either.alone().rows == 1
    assert either.ids() == [first, second]
    assert before.items() <= either.files().items()
    either.library.clock.advance(DAY_S)
    done = either.alone()  # a day without jobs moves the mark all the same
    assert (done.rows, done.files, done.until_ms - done.since_ms) == (0, 0, DAY_MS)
    assert either.unnamed() == []


def test_a_dead_job_that_ends_again_is_archived_again(small: Place) -> None:
    library = small.library
    job_id = library.dead()
    small.age()
    small.archive()
    assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    library.claim([job_id], "again")
    assert library.settle_as(OutcomeKind.DONE, job_id, "again")
    small.age()
    assert small.alone().rows == 1
    rows = sorted(small.rows(), key=lambda row: row["gmt_modified"])
    assert [(row["job_id"], row["status_name"]) for row in rows] == [
        (job_id, "dead"),
        (job_id, "done"),
    ]


def test_a_dead_job_that_is_discarded_is_archived_again(small: Place) -> None:
    library = small.library
    job_id = library.dead()
    small.age()
    small.archive()
    assert library.jobs.discard(job_id) == "cancelled"
    small.age()
    assert small.alone().rows == 1
    rows = sorted(small.rows(), key=lambda row: row["gmt_modified"])
    assert [(row["status_name"], row["error"] is None) for row in rows] == [
        ("dead", False),
        ("cancelled", True),
    ]


def test_what_is_kept_for_good_is_not_archived(small: Place) -> None:
    small.library.ended(OutcomeKind.DONE)
    small.retention = RetentionSettings(days="none", dead_days="none", event_days="none")
    small.age(1000)
    assert small.alone() == TableArchiveResult("jobs", 0)
    assert "nothing is ever purged" in small.heard[-1]
    assert small.mark is None


@pytest.mark.parametrize("days", [0.01, 0.9, 1, 1.5, 3, 3.2, 7, 30])
@pytest.mark.parametrize("hour", [0, 1, 2, 13, 23.99])
def test_the_cutoff_is_a_midnight_in_time(days: float, hour: float) -> None:
    """Whatever the hour of the nightly run, what is purged by then was archived the nights before."""
    first_ms = 20_000 * DAY_MS + round(hour * 3_600_000)
    for night in range(3):
        now_ms = first_ms + night * DAY_MS
        cutoff = archive_cutoff_ms(now_ms, days)
        assert cutoff % DAY_MS == 0
        assert cutoff <= now_ms - 3_600_000
        if days >= LEAD_DAYS:  # until the night after the next one nothing is old enough to go
            assert cutoff >= now_ms + 2 * DAY_MS - days * DAY_MS
        else:  # held back, but never for long
            assert cutoff > now_ms - 2 * DAY_MS - 3_600_000


# ---- the check


Written = list[ArchiveFile]


def rewrite(change: Callable[[Any], Any]) -> Callable[[Path, Written], Written]:
    """Another hand's change of one written file."""

    def damage(folder: Path, written: Written) -> Written:
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        file = folder / max(written).path
        table = change(parquet.ParquetFile(file).read())
        parquet.write_table(table, file)
        return written

    return damage


def unlink_one(folder: Path, written: Written) -> Written:
    (folder / max(written).path).unlink()
    return written


def truncate(folder: Path, written: Written) -> Written:
    file = folder / max(written).path
    file.write_bytes(file.read_bytes()[:-10])
    return written


def under_partition(place: int, value: str) -> Callable[[Path, Written], Written]:
    """The commit would say that the file is of another partition."""

    def damage(folder: Path, written: Written) -> Written:
        first, *others = written
        partition = list(first.partition)
        partition[place] = value
        return [ArchiveFile(first.path, tuple(partition)), *others]

    return damage


def changed(name: str, value: Any) -> Callable[[Path, Written], Written]:
    """The value of the first row."""

    def change(table: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - an extra

        column = table.column(name)
        values = pa.array([value, *column.to_pylist()[1:]], column.type)
        return table.set_column(table.schema.names.index(name), table.schema.field(name), values)

    return rewrite(change)


def twice(table: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return pa.concat_tables([table, table.slice(0, 1)])


DAMAGES: dict[str, Callable[[Path, Written], Written]] = {
    "an attribute": changed("attribute", "{}"),
    "'' for NULL": changed("dedup_key", ""),
    "a millisecond": changed("action_time", datetime_of(1_767_225_600_001)),
    "the begin of an attempt": changed("claim_time", None),
    "a name of a type": under_partition(1, "report"),
    "a name of a status": changed("status_name", "dead"),
    "a missing row": rewrite(lambda table: table.slice(1)),
    "a row twice": rewrite(twice),
    "another database": changed("database", 1),
    "a missing file": unlink_one,
    "a reason": changed("reason", "another one"),
    "an account": changed("account", "root@%"),
    "an event": changed("event_id", 2**62),
    "a related job": changed("related_job_id", 0),
    "a name of no type": changed("biz_type", "refund"),
    "a file that was not written": lambda folder, written: written[1:],
    "a file twice": lambda folder, written: [*written, written[0]],
    "another day": under_partition(0, "2026-01-02"),
}


OF_JOBS = {"an attribute", "'' for NULL", "a millisecond", "a name of a type", "a name of a status"}
OF_EVENTS = {"a reason", "an account", "an event", "a related job", "a name of no type"}
DAMAGED = [
    *(("jobs", name) for name in DAMAGES if name not in OF_EVENTS),
    *(("events", name) for name in DAMAGES if name not in OF_JOBS),
]


Works = dict[str, Callable[[list[Any]], Any]]


def after_work(monkeypatch: pytest.MonkeyPatch, works: Works) -> None:
    """Calls a function with the results of each work of that name, before the archive gets its results."""
    real = archive_module.run_work

    def run_work(spark: Any, settings: Settings, work: Any, items: Any) -> list[Any]:
        found = real(spark, settings, work, items)
        change = works.get(work.func.__name__)
        return found if change is None else change(found)

    monkeypatch.setattr(archive_module, "run_work", run_work)


def damaged(small: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """From now on what is written is damaged at once. The list gets longer each time."""
    times: list[str] = []

    def damage(written: Written) -> Written:
        times.append(name)
        return DAMAGES[name](small.directory / small.about, written)

    after_work(monkeypatch, {"write_files": damage})
    return times


@pytest.mark.parametrize(("either", "name"), DAMAGED, indirect=["either"])
def test_the_check_catches(either: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    either.make_many(20)
    either.age()
    monkeypatch.setattr(archive_module, "TRIES", 1)
    damaged(either, monkeypatch, name)
    result = either.archive()
    assert (result.is_good, result.has_differences, result.parts[0].rows) == (False, True, 0)
    assert "2026-01-01: the archive has" in result.parts[0].differing[0]
    assert either.mark == either.status(0, 0, 1)
    assert either.files() == {}
    either.purge()
    assert either.count() == 20
    monkeypatch.undo()
    assert either.alone().rows == 20
    assert len(either.ids()) == 20


def test_what_cannot_be_read_back_is_not_committed(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.library.ended(OutcomeKind.DONE)
    small.age()
    for damage, text in (
        (truncate, "Parquet"),
        (changed("action_time", datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)), "lose data"),
        (rewrite(lambda table: table.drop_columns("trace")), "other columns"),
    ):
        with monkeypatch.context() as patch:
            after_work(patch, {"write_files": partial(damage, small.directory / "jobs")})
            assert text in small.alone().error
            assert small.files() == {}
    assert small.alone().rows == 1


def test_what_differs_is_tried_again_and_the_next_night_too(
    either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [either.make(), either.make()]  # the jobs are of one shard
    either.age()
    with monkeypatch.context() as patch:
        times = damaged(either, patch, "a missing row")
        shard = f"shard {either.library.shard(rows[0])}, " if either.about == "jobs" else ""
        assert either.alone().differing[0].startswith(f"{shard}2026-01-01")
    assert len(times) == TRIES
    assert either.alone().rows == 2
    assert either.ids() == rows


def test_the_check_catches_a_row_that_the_database_got_meanwhile(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was open for days."""
    library = small.library
    library.ended(OutcomeKind.DONE)
    (late,) = hostile(library, 1, random.Random(1))  # noqa: S311 - a test
    small.age()
    numbers = iter(range(10))

    def overtaken(written: Written) -> Written:
        write(library, 2, [{**late, "job_id": late["job_id"] + next(numbers)}])
        return written

    after_work(monkeypatch, {"write_files": overtaken})
    (line,) = small.alone().differing
    assert line.startswith("shard 2, 2026-01-01: the archive has 1 rows")
    assert "the database 2 rows" in line


def test_a_job_that_is_redriven_meanwhile_is_no_trouble(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small.library
    done, dead = library.ended(OutcomeKind.DONE), library.dead()
    small.age()

    def overtaken(written: Written) -> Written:
        library.jobs.redrive(dead, library.now_ms)
        return written

    after_work(monkeypatch, {"write_files": overtaken})
    assert small.alone().is_good
    assert small.ids() == [done]
    assert "trying again" in "".join(small.heard)


# ---- killed, and run again


class KilledError(BaseException):
    """As if the process were gone."""


class Fault:
    """Lets the first few calls of a function through, and kills at the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._real, self._left = getattr(owner, name), 0
        # A function, so that a class binds it.
        monkeypatch.setattr(owner, name, lambda *args: self._call(*args))  # noqa: PLW0108

    def after(self, calls: int) -> None:
        self._left = calls

    def _call(self, *args: Any) -> Any:
        if self._left == 0:
            raise KilledError
        self._left -= 1
        return self._real(*args)


STEPS = [
    (ArchiveTable, "begin_run", 0),
    (archive_module, "run_work", 0),
    (archive_module, "run_work", 1),
    (archive_module, "run_work", 2),
    (archive_module, "describe_checksum_differences", 0),
    (ArchiveTable, "commit_files", 0),
    (archive_module.archive_status, "advance_archived_until", 0),
]
"""Where a run is killed: at which call of which function."""


@pytest.mark.parametrize(("owner", "name", "calls"), STEPS)
def test_killed_and_run_again(
    either: Place, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int
) -> None:
    library = either.library
    jobs = either.make_many(20)
    library.clock.advance(DAY_S)
    jobs += either.make_many(20)
    either.age()
    with monkeypatch.context() as patch:
        Fault(patch, owner, name).after(calls)
        with pytest.raises(KilledError):
            either.archive()
    assert either.mark == either.status(0, 0, 1)
    either.purge()
    assert either.count() == 40
    committed = sorted(jobs) if name == "advance_archived_until" else []
    assert either.ids() == committed
    done = either.alone()
    assert (done.is_good, done.rows) == (True, 0 if committed else 40)
    assert either.ids() == sorted(jobs)  # and each of them once
    either.purge()
    assert either.count() == 0


def test_killed_after_the_commit_and_run_again_days_later(
    either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the first days already, the run adds only the others."""
    jobs = [either.make()]
    either.age()
    with monkeypatch.context() as patch:
        Fault(patch, archive_module.archive_status, "advance_archived_until").after(0)
        with pytest.raises(KilledError):
            either.archive()
    jobs.append(either.make())
    either.age()
    assert either.alone().rows == 1
    assert either.ids() == sorted(jobs)
    either.purge()
    assert either.count() == 0


def test_a_shard_that_fails_half_way_leaves_nothing(small: Place) -> None:
    library = small.library
    jobs = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(40)]
    small.age()
    library.sql(jobs[0], "ALTER TABLE toc_job_0003 RENAME TO toc_job_away")
    try:
        done = small.alone()
    finally:
        library.sql(jobs[0], "ALTER TABLE toc_job_away RENAME TO toc_job_0003")
    assert done.error == "database 0, table toc_job_0003: no such table: toc_job_0003"
    assert small.files() == {}
    assert small.alone().rows == 40
    assert small.ids() == sorted(jobs)


# ---- two at once, two lives, two systems


@pytest.mark.parametrize("work", ["write_files", "verify_files", "read_database_checksums"])
def test_of_two_runs_at_once_the_later_one_counts(
    either: Place, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    jobs = either.make_many(20)
    either.age()
    inner: list[TableArchiveResult] = []

    def overtaken(found: list[Any]) -> list[Any]:
        if not inner:
            inner.append(TableArchiveResult("", -1))
            inner[0] = either.alone()
        return found

    after_work(monkeypatch, {work: overtaken})
    outer = either.alone()
    assert inner[0].rows == 20
    assert "another run of the archive has begun" in outer.error
    assert either.ids() == sorted(jobs)
    assert either.mark is not None
    assert (either.mark.run, either.mark.begun) == (2, 2)
    assert either.alone().is_good
    assert either.ids() == sorted(jobs)


@pytest.mark.parametrize("step", ["begin_run", "commit_files"])
@pytest.mark.parametrize("kill", [None, *("_try_to_begin", "_commit", "advance_archived_until")])
def test_a_frozen_run_that_wakes_up_doubles_nothing(
    either: Place, monkeypatch: pytest.MonkeyPatch, step: str, kill: str | None
) -> None:
    """The run is frozen just before `step`; another one runs to its end, or until it is killed."""
    jobs = either.make_many(20)
    either.age()
    real, calls = getattr(ArchiveTable, step), []

    def frozen(table: ArchiveTable, *args: Any) -> Any:
        calls.append(step)
        if len(calls) > 1:
            return real(table, *args)
        if kill is None:
            assert either.alone().rows == 20
        else:
            on_mark = kill == "advance_archived_until"
            with monkeypatch.context() as patch:
                owner = archive_module.archive_status if on_mark else ArchiveTable
                Fault(patch, owner, kill).after(1 if kill == "_commit" else 0)
                with pytest.raises(KilledError):
                    either.archive()
        return real(table, *args)

    monkeypatch.setattr(ArchiveTable, step, frozen)
    assert "another run of the archive has begun" in either.alone().error
    assert either.ids() in ([], sorted(jobs))
    either.purge()
    assert either.count() == (0 if kill is None else 20)
    assert either.alone().is_good
    assert either.ids() == sorted(jobs)
    either.purge()
    assert either.count() == 0


def test_a_frozen_run_that_wakes_up_while_the_next_night_commits_adds_nothing(
    either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two runs would set different times, so only the number of the run tells them apart."""
    jobs = either.make_many(20)
    either.age()
    real, held = ArchiveTable.commit_files, list[tuple[Any, ...]]()

    def commit(*args: Any) -> None:
        held.append(args)
        if len(held) == 1:  # of the first night: frozen here
            jobs.append(either.make())
            either.age()
            assert either.alone().is_good
        elif len(held) == 2:  # of the next night: now the first one wakes up
            with pytest.raises(CannotArchive, match="another run"):
                real(*held[0])
        real(*args)

    monkeypatch.setattr(ArchiveTable, "commit_files", commit)
    assert "another run of the archive has begun" in either.alone().error
    assert either.ids() == sorted(jobs)


def test_a_run_that_wakes_up_after_the_mark_moved_says_so(
    either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    either.make()
    either.age()
    real, calls = archive_module.archive_status.advance_archived_until, []

    def frozen(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            assert either.alone().rows == 0  # it finds the rows in the table
        return real(*args)

    monkeypatch.setattr(archive_module.archive_status, "advance_archived_until", frozen)
    assert "another run of the archive has begun" in either.alone().error
    assert len(either.ids()) == 1
    assert either.alone().is_good


def test_a_lost_answer_of_the_commit_is_no_failure(
    either: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = either.make_many(20)
    either.age()
    real, committed = ArchiveTable._commit, []

    def commit(self: ArchiveTable, table: Any, actions: Any, numbers: Any) -> None:
        real(self, table, actions, numbers)
        if actions:
            committed.append(actions)
            real(self, table, actions, numbers)  # as a client does that got no answer
            committed.append(actions)

    monkeypatch.setattr(ArchiveTable, "_commit", commit)
    done = either.alone()
    assert (done.rows, done.error, len(committed)) == (20, "", 1)
    assert either.ids() == sorted(jobs)


@pytest.fixture
def machines(either: Place, tmp_path: Path) -> tuple[Place, Place]:
    """Two that lead by turns. The archive's directory is each one's own."""
    return either, replace(either, directory=tmp_path / "other", heard=[])


def test_what_another_machine_archives_on_its_own_disk_is_refused_here(
    machines: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machines
    jobs = here.make_many(20)
    here.age()
    with monkeypatch.context() as patch:
        Fault(patch, ArchiveTable, "commit_files").after(0)
        with pytest.raises(KilledError):
            here.archive()
    done = there.alone()  # all of it, not what is left of it
    assert (done.is_good, done.rows, there.ids()) == (True, 20, sorted(jobs))
    here.make()
    here.library.clock.advance((DAYS + 1) * DAY_S)
    assert "Is the folder mounted, and is it the right one?" in here.alone().error
    assert here.ids() == []


@pytest.mark.parametrize("night", [0, 1])
def test_a_database_that_was_restored_writes_no_day_twice(either: Place, night: int) -> None:
    """To its state after the first night, or before."""
    library, row = either.library, MARKS[either.about]
    marks = [either.status(0, 0, 1)]
    for _ in range(2):
        either.make()
        either.age()
        assert either.archive().is_good
        assert either.mark is not None
        marks.append(either.mark)
    before, mark = either.files(), marks[2]
    about = library.databases[0]
    column = about.meta.c
    set_mark = update(about.meta).where(column.name == row)
    about.execute(set_mark.values(value=str(marks[night])))
    for _ in range(3):  # also when as many nights have passed as there were runs
        done = either.alone()
        assert "was it restored from a backup?" in done.error
        assert either.files() == before
    either.purge()
    assert either.count() == 2 - night
    (value,) = re.findall(r"to '(.*?)'", done.error)  # what the message tells to do
    about.execute(set_mark.values(value=value))
    assert either.mark == mark
    assert either.alone().is_good
    assert either.files() == before
    either.purge()
    assert either.count() == 0


def test_a_database_whose_row_is_gone_writes_no_day_twice(either: Place) -> None:
    job_id = either.make()
    either.age()
    assert either.archive().is_good
    either.library.sql(job_id, f"DELETE FROM toc_meta WHERE name = '{MARKS[either.about]}'")
    assert "the database says that run 0 was the last one" in either.alone().error
    assert either.ids() == [job_id]


def test_a_folder_that_lacks_what_was_archived_is_refused(either: Place, tmp_path: Path) -> None:
    """A share that is not mounted: its empty mount point must not become a second archive."""
    aside = tmp_path / "aside"
    first = either.make()
    either.age()
    assert either.alone().rows == 1
    either.purge()
    either.directory.rename(aside)
    second = either.make()
    either.age()
    for _ in range(2):
        assert "Is the folder mounted, and is it the right one?" in either.alone().error
    either.purge()
    assert either.count() == 1
    shutil.rmtree(either.directory)
    aside.rename(either.directory)
    assert either.alone().rows == 1
    assert either.ids() == sorted([first, second])


def test_the_archive_goes_on_in_a_new_folder_that_was_begun(either: Place, tmp_path: Path) -> None:
    library = either.library
    first = either.make()
    either.age()
    assert either.alone().rows == 1
    assert begin_in_new_folder(either.settings(), library.clock) == {}
    new = replace(either, directory=tmp_path / "new", heard=[])
    mark = either.mark
    assert mark is not None
    assert begin_in_new_folder(new.settings(), library.clock) == {
        either.about: {0: replace(mark, begun=mark.begun + 1)}
    }
    assert begin_in_new_folder(new.settings(), library.clock) == {}
    second = either.make()
    either.age()
    assert new.alone().rows == 1
    assert (either.ids(), new.ids()) == ([first], [second])
    either.make()
    either.age()
    assert "Is the folder mounted" in either.alone().error  # the old folder lacks the second job


def test_two_systems_cannot_share_a_folder(either: Place, tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/other.db"])
    other = replace(either, library=library, heard=[])
    for place in (either, other):
        place.make()
        place.age()
    assert either.alone().rows == 1
    for _ in range(2):
        assert "do two systems share the folder" in other.alone().error
    other.purge()
    assert other.count() == 1
    assert len(either.ids()) == 1
    library.close()


def test_other_shards_than_the_databases_are_refused(small: Place) -> None:
    """It would archive some of the tables, and declare archived all of them."""
    small.library.database_metadata.verify_and_record_meta(small.library.settings.facts)
    small.library.ended(OutcomeKind.DONE)
    small.age()
    done = small.alone(shards=SHARDS // 2)
    assert "was set up with shards = 4, the settings say 2" in done.error
    assert small.mark is None


def test_one_database_in_trouble_does_not_keep_the_others(tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/{n}.db" for n in range(2)])
    place = Place(library, None, tmp_path / "archive")
    jobs = [library.ended(OutcomeKind.DONE, biz_id=n) for n in range(20)]
    place.age()
    library.databases[1].run_read(lambda c: c.exec_driver_sql("DROP TABLE toc_job_0002"))
    first, second = place.archive().of_table("jobs")
    assert (first.is_good, first.rows > 0) == (True, True)
    assert "database 1, table toc_job_0002" in second.error
    assert place.ids() == sorted(j for j in jobs if library.shard(j) < 2)
    assert read_archive_status(library.databases[1]) == ArchiveStatus(0, 0, 1)
    library.close()


def test_one_that_does_not_answer_is_said_so_without_its_password(
    small: Place, tmp_path: Path
) -> None:
    url = make_url("mysql+pymysql://root:hunter2@127.0.0.1:9/toc")
    settings = small.settings(databases=(url.render_as_string(hide_password=False),))
    result = archive_due_rows(small.spark, settings, SystemClock(), small.heard.append)
    assert "database 0 does not answer" in result.parts[0].error
    assert "hunter2" not in repr(result) + "".join(small.heard)


def test_a_folder_that_cannot_be_written_is_said_so(small: Place) -> None:
    small.library.ended(OutcomeKind.DONE)
    small.age()
    small.directory.write_text("a file")
    done = small.alone()
    assert done.error
    assert "Traceback" not in done.error
    assert small.mark is None


def test_a_store_that_nobody_knows_is_said_so(small: Place) -> None:
    with pytest.raises(SettingsError, match="no URL that deltalake knows"):
        small.archive(reconcile=ReconcileSettings(archive="nowhere://bucket/toc"))


def test_a_folder_of_the_first_release_is_refused(small: Place) -> None:
    """Its rows would not be in the table, and the table's not in what reads that folder."""
    small.library.ended(OutcomeKind.DONE)
    small.age()
    old = small.directory / "jobs/day=2026-01-01/database=0/part-0.parquet"
    old.parent.mkdir(parents=True)
    old.touch()
    assert "has files, but is no Delta table" in small.alone().error
    assert [path for path in (small.directory / "jobs").rglob("*") if path.is_file()] == [old]


def test_a_job_whose_clock_was_days_ahead_stays_where_it_is(small: Place) -> None:
    library = small.library
    (row,) = hostile(library, 1, random.Random(1))  # noqa: S311 - a test
    small.age()
    write(library, 0, [{**row, "job_id": lowest_id_at(library.now_ms)}])
    for _ in range(2):
        assert small.alone().rows == 0
        small.age()
        small.purge()
    assert library.count() == 1


def test_many_days_at_once(small: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a task keeps open at a time, and in its memory."""
    monkeypatch.setattr(archive_files, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(archive_files, "BUFFER_BYTES_MAX", 500)
    jobs = []
    for n in range(12):
        jobs += [small.library.ended(OutcomeKind.DONE, biz_id=biz_id) for biz_id in (n, n + 1)]
        small.library.clock.advance(DAY_S)
    small.age()
    done = small.alone()
    assert done.rows == 24
    assert Counter(row["day"] for row in small.rows()) == {
        date(2026, 1, n): 2 for n in range(1, 13)
    }
    assert small.ids() == sorted(jobs)
