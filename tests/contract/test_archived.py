"""The mark of the archive: moved forward by the run that began last, and by no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.contract.library import Library
from toc.domain.ids import lowest_id_at
from toc.errors import SchemaMismatch
from toc.store.archive_status import (
    AHEAD_MS,
    ARCHIVED,
    EVENTS_ARCHIVED,
    MARKS,
    ArchiveStatus,
    advance_archived_until,
    begin_archive_run,
    read_archive_status,
)
from toc.store.database_mover import MOVED_ROWS
from toc.store.databases import Database
from toc.store.recorded_meta import read_recorded_meta

DAY_MS = 86_400_000


@pytest.fixture
def database(library: Library) -> Iterator[Database]:
    database = library.databases[0]
    delete_marks(database)
    yield database
    delete_marks(database)


def delete_marks(database: Database) -> None:
    for mark in MARKS:
        delete = f"DELETE FROM toc_meta WHERE name = '{mark}'"
        database.run_read(lambda connection, sql=delete: connection.exec_driver_sql(sql))


def test_a_run_begins_moves_the_mark_and_the_next_one_goes_on(database: Database) -> None:
    assert read_archive_status(database) is None
    first = begin_archive_run(database)
    assert first == ArchiveStatus(0, 0, 1) == read_archive_status(database)
    then = advance_archived_until(database, first, 5 * DAY_MS)
    assert then == ArchiveStatus(5 * DAY_MS, 1, 1) == read_archive_status(database)
    assert begin_archive_run(database) == ArchiveStatus(5 * DAY_MS, 1, 2)
    third = begin_archive_run(database)
    assert third == ArchiveStatus(5 * DAY_MS, 1, 3)
    then = advance_archived_until(database, third, 6 * DAY_MS)
    assert then == ArchiveStatus(6 * DAY_MS, 3, 3) == read_archive_status(database)


def test_people_can_read_it(database: Database) -> None:
    begun = begin_archive_run(database)
    advance_archived_until(database, begun, 1_767_225_600_000)
    begin_archive_run(database)
    query = f"SELECT value FROM toc_meta WHERE name = '{ARCHIVED}'"
    found = database.run_read(lambda connection: connection.exec_driver_sql(query).scalar())
    assert found == "2026-01-01 00:00:00.000 run 1 of 2"


def test_files_of_the_first_release_that_were_not_moved_stop_the_archive(
    database: Database,
) -> None:
    """The purger may go on: the rows were verified."""
    value = "2026-01-01 00:00:00.000 run 1 of 2, not moved yet"
    sql = f"INSERT INTO toc_meta (name, value) VALUES ('{ARCHIVED}', '{value}')"
    database.run_read(lambda connection: connection.exec_driver_sql(sql))
    status = ArchiveStatus(1_767_225_600_000, 1, 2, files_moved=False)
    assert read_archive_status(database) == status
    with pytest.raises(SchemaMismatch, match="still in _staging"):
        begin_archive_run(database)
    assert read_archive_status(database) == status


def test_a_run_cannot_move_the_mark_once_another_has_begun(database: Database) -> None:
    first = begin_archive_run(database)
    second = begin_archive_run(database)
    assert advance_archived_until(database, first, 5 * DAY_MS) is None
    assert read_archive_status(database) == second
    assert advance_archived_until(database, second, 5 * DAY_MS) is not None
    assert advance_archived_until(database, first, 9 * DAY_MS) is None


def test_the_mark_never_goes_back(database: Database) -> None:
    first = begin_archive_run(database)
    advance_archived_until(database, first, 5 * DAY_MS)
    second = begin_archive_run(database)
    for until_ms in (5 * DAY_MS - 1, 5 * DAY_MS, 0):
        assert advance_archived_until(database, second, until_ms) is None
    assert read_archive_status(database) == second


def test_to_move_it_twice_is_to_move_it(database: Database) -> None:
    """The first answer may have been lost."""
    begun = begin_archive_run(database)
    then = advance_archived_until(database, begun, DAY_MS)
    assert advance_archived_until(database, begun, DAY_MS) == then


def test_of_many_that_begin_at_once_each_gets_a_number(database: Database) -> None:
    found: list[ArchiveStatus] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        found.append(begin_archive_run(database))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.begun for each in found) == [1, 2, 3, 4]
    able = [each for each in found if advance_archived_until(database, each, DAY_MS)]
    assert [each.begun for each in able] == [4]


@pytest.mark.parametrize(
    "value", ["", "2026-01-01", "2026-13-01 00:00:00.000 run 1 of 2", "x" * 255]
)
def test_a_mark_that_other_hands_have_written_is_refused(database: Database, value: str) -> None:
    sql = f"INSERT INTO toc_meta (name, value) VALUES ('{ARCHIVED}', '{value}')"
    database.run_read(lambda connection: connection.exec_driver_sql(sql))
    with pytest.raises(SchemaMismatch, match=ARCHIVED):
        read_archive_status(database)
    with pytest.raises(SchemaMismatch, match=ARCHIVED):
        begin_archive_run(database)


def test_events_have_a_mark_of_their_own_with_a_number(database: Database) -> None:
    jobs = begin_archive_run(database)
    first = begin_archive_run(database, EVENTS_ARCHIVED)
    assert first == ArchiveStatus(0, 0, 1, event_id=0)
    then = advance_archived_until(database, first, 1_767_225_600_000, 4711)
    assert then == read_archive_status(database, EVENTS_ARCHIVED)
    assert str(then) == "2026-01-01 00:00:00.000 event 4711 run 1 of 1"
    second = begin_archive_run(database, EVENTS_ARCHIVED)
    assert second == ArchiveStatus(1_767_225_600_000, 1, 2, event_id=4711)
    assert advance_archived_until(database, first, 1_767_312_000_000, 4712) is None
    assert read_archive_status(database) == jobs  # the other mark is as it was
    assert (jobs.position, second.position) == (0, 4711)


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        (EVENTS_ARCHIVED, "2026-01-01 00:00:00.000 run 1 of 2"),
        (ARCHIVED, "2026-01-01 00:00:00.000 event 4711 run 1 of 2"),
    ],
)
def test_the_value_of_the_other_mark_is_refused(database: Database, mark: str, value: str) -> None:
    sql = f"INSERT INTO toc_meta (name, value) VALUES ('{mark}', '{value}')"
    database.run_read(lambda connection: connection.exec_driver_sql(sql))
    with pytest.raises(SchemaMismatch, match=mark):
        read_archive_status(database, mark)


def test_marks_are_no_facts_of_the_routing_and_may_differ_while_a_database_moves(
    database: Database,
) -> None:
    before = read_recorded_meta(database)
    for mark in MARKS:
        begin_archive_run(database, mark)
    assert read_recorded_meta(database) == before
    assert MOVED_ROWS.issuperset(MARKS)


def test_which_events_are_covered() -> None:
    mark = ArchiveStatus(1000, 1, 1, event_id=50)
    assert mark.covers_event(49, 999)
    assert not mark.covers_event(50, 999)
    assert not mark.covers_event(49, 1000)
    assert not ArchiveStatus(1000, 1, 1).covers_event(49, 999)


def test_what_is_covered() -> None:
    mark = ArchiveStatus(10 * DAY_MS + (base := 1_767_225_600_000), 1, 1)
    assert mark.covers_ended_job(lowest_id_at(base), mark.until_ms - 1)
    assert not mark.covers_ended_job(lowest_id_at(base), mark.until_ms)
    # The id says that it was made long after it ended: the archive's walk did not come so far.
    assert mark.covers_ended_job(lowest_id_at(base + AHEAD_MS), base)
    assert not mark.covers_ended_job(lowest_id_at(base + AHEAD_MS + 1), base)
