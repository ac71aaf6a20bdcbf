"""Names and numbers of biz_types, in one database and in two."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tests.contract.breaks import statements_of
from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.biz_types import FIRST_NO, type_no_of
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.errors import InvalidInput, NotFound, SchemaMismatch, StoreUnavailable
from toc.store import biz_types
from toc.store.biz_types import REFRESH_S, BizTypeCache, read_known_types
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases

LATER = timedelta(days=1)


@pytest.fixture
def name() -> str:
    """A type that nobody has named: the tables outlive a test."""
    return f"type.{secrets.token_hex(6)}"


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


@pytest.fixture
def center(two: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(two.settings, clock=two.clock) as center:
        yield center


def biz_id_on(two: Library, database: int) -> int:
    """One whose jobs are in this database."""
    routing = two.settings.routing
    return next(
        n
        for n in range(100)
        if routing.database_index(routing.shard_of_hash(routing_hash_of(n))) == database
    )


def names_of_one_number() -> tuple[str, str]:
    """Two types whose numbers are the same: found after some 40,000 names."""
    names: dict[int, str] = {}
    while True:
        name = f"type.{secrets.token_hex(6)}"
        other = names.setdefault(type_no_of(name), name)
        if other != name:
            return name, other


def copy_of(database: Database) -> dict[int, str]:
    with database.engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT type_no, name FROM toc_biz_type")
        return {row[0]: row[1] for row in rows}


def write(database: Database, rows: Mapping[int, str]) -> None:
    with database.engine.begin() as connection:
        for number, name in rows.items():
            connection.exec_driver_sql(f"INSERT INTO toc_biz_type VALUES ({number}, '{name}')")


def lose(database: Database, name: str) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM toc_biz_type WHERE name = '{name}'")


def test_the_number_follows_from_the_name() -> None:
    """These numbers are in databases for ever."""
    assert type_no_of("default") == 1_667_104_991
    assert type_no_of("order.close") == 1_356_933_981
    assert FIRST_NO <= type_no_of("x" * 64) < 2**31


def test_sql_computes_the_same(library: Library) -> None:
    if library.sqlite:
        pytest.skip("SQLite has no CRC32")
    sql = "SELECT CRC32('order.close') & 1073741823 | 1073741824"
    with library.databases[0].engine.begin() as connection:
        assert connection.exec_driver_sql(sql).scalar_one() == type_no_of("order.close")


def test_a_type_gets_one_number(library: Library, name: str) -> None:
    here = library.databases[0]
    for types in (library.database_metadata.types, BizTypeCache(library.databases)):
        assert types.get_or_create_number(name, here) == type_no_of(name)
        assert types.find_name(type_no_of(name), here) == name
        assert types.find_number(name, here) == type_no_of(name)
    assert copy_of(here)[type_no_of(name)] == name


def test_types_are_told_apart_by_case(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    assert types.get_or_create_number(name, here) != types.get_or_create_number(name.upper(), here)


def test_a_look_writes_nothing(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    assert types.find_number(name, here) is None
    with pytest.raises(NotFound, match="999999"):
        types.find_name(999_999, here)
    assert name not in copy_of(here).values()


def test_what_another_process_has_made_since_is_found(library: Library, name: str) -> None:
    other, types, here = (
        BizTypeCache(library.databases),
        library.database_metadata.types,
        library.databases[0],
    )
    assert types.find_number(name, here) is None
    other.get_or_create_number(name, here)
    assert types.find_number(name, here) == type_no_of(name)
    other.get_or_create_number(name + ".2", here)
    assert types.find_name(type_no_of(name + ".2"), here) == name + ".2"


def test_known_types_are_not_asked_for_again(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    number = types.get_or_create_number(name, here)
    with statements_of(here) as statements:
        types.get_or_create_number(name, here)
        types.find_number(name, here)
        types.find_name(number, here)
    assert statements == []


def test_a_number_without_a_name_is_not_asked_for_again_at_once(library: Library) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    for number in range(999_000, 999_000 + biz_types.MISSED_MAX + 10):
        types._missing_until_s[0, number] = 0.0
    with pytest.raises(NotFound):
        types.find_name(999_999, here)
    assert len(types._missing_until_s) <= biz_types.MISSED_MAX
    with statements_of(here) as statements, pytest.raises(NotFound):
        types.find_name(999_999, here)
    assert statements == []
    library.clock.advance(biz_types.MISSED_S)
    with statements_of(here) as statements, pytest.raises(NotFound):
        types.find_name(999_999, here)
    assert len(statements) == 1


def test_many_new_types_cost_as_many_statements_as_one(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    with statements_of(here) as alone:
        types.get_or_create_number(name, here)
    with statements_of(here) as together:
        numbers = types.get_or_create_numbers([f"{name}.{n}" for n in range(500)], here)
    assert len(together) == len(alone)
    assert len(set(numbers.values())) == 500
    assert numbers.items() <= {v: k for k, v in copy_of(here).items()}.items()


def test_there_are_not_more_types_than_the_limit(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    there = len(copy_of(here))
    types.get_or_create_numbers([name], here, there + 2)
    with pytest.raises(InvalidInput, match=f"limits.biz_types. allows {there + 2}") as caught:
        types.get_or_create_numbers([f"{name}.{n}" for n in range(2)], here, there + 2)
    assert caught.value.value == f"{name}.1"
    assert len(copy_of(here)) == there + 1
    types.get_or_create_numbers([f"{name}.0"], here, there + 2)
    with pytest.raises(InvalidInput):
        types.get_or_create_numbers([f"{name}.1"], here, there + 2)
    # These types exist already.
    assert types.get_or_create_numbers([name, f"{name}.0"], here, there) is not None
    types.get_or_create_numbers([f"{name}.1"], here)  # a worker's handler


def test_what_a_fail_over_has_lost_is_written_again(library: Library, name: str) -> None:
    types, here = library.database_metadata.types, library.databases[0]
    number = types.get_or_create_number(name, here)
    lose(here, name)
    types.get_or_create_number(name, here)
    assert name not in copy_of(here).values()
    library.clock.advance(REFRESH_S)
    assert types.get_or_create_number(name, here) == number  # a client that schedules
    assert copy_of(here)[number] == name
    lose(here, name)
    types.read_and_complete_type_copy(here)  # a node
    assert copy_of(here)[number] == name


def test_the_target_alone_is_asked(two: Library, name: str) -> None:
    types = BizTypeCache(two.databases)
    with statements_of(two.databases[0]) as statements:
        number = types.get_or_create_number(name, two.databases[1])
        assert types.get_or_create_number(name, two.databases[1]) == number
        assert types.find_number(name + ".no", two.databases[1]) is None
        assert types.find_name(number, two.databases[1]) == name
    assert statements == []


def test_copies_are_made_alike_when_a_process_starts(two: Library, name: str) -> None:
    for database in two.databases:
        two.database_metadata.types.get_or_create_number(f"{name}.{database.index}", database)
    types = BizTypeCache(two.databases)
    for database in two.databases:
        types.read_and_complete_type_copy(database)
    types.copy_types_between_databases(two.databases)
    assert copy_of(two.databases[0]) == copy_of(two.databases[1])


def test_a_number_with_two_names_is_refused_and_told(
    two: Library, caplog: pytest.LogCaptureFixture
) -> None:
    """Both types were made at the same time, each in its own database."""
    name, other = names_of_one_number()
    number = type_no_of(name)
    write(two.databases[0], {number: other})
    write(two.databases[1], {number: name})
    types = DatabaseMetadata(two.databases).types
    with caplog.at_level(logging.ERROR):
        for database in two.databases:
            types.read_and_complete_type_copy(database)
        types.copy_types_between_databases(two.databases)
    told = f"the number {number} is '{other}' in database 0, '{name}' in database 1"
    assert [told in record.getMessage() for record in caplog.records] == [True]
    for database, own in ((0, other), (1, name)):
        with pytest.raises(SchemaMismatch, match=f"the number {number} is"):
            types.get_or_create_number(own, two.databases[database])
        assert types.find_name(number, two.databases[database]) == own  # for looking at
    assert number not in types.known.names
    names, conflicts, _ = read_known_types(two.databases)
    assert number not in names
    assert conflicts == {number: {0: other, 1: name}} == types.known.conflicts
    # A person has given one of the types another name, and so another number.
    with two.databases[0].engine.begin() as connection:
        sql = (
            f"UPDATE toc_biz_type SET type_no = {type_no_of(other + '.new')}, name = '{other}.new'"
        )
        connection.exec_driver_sql(f"{sql} WHERE type_no = {number}")
    types.read_and_complete_type_copy(two.databases[0])
    assert not types.known.conflicts
    assert types.get_or_create_number(name, two.databases[1]) == number
    assert copy_of(two.databases[0])[type_no_of(other + ".new")] == f"{other}.new"
    assert copy_of(two.databases[0])[number] == name  # it is written where it can be now


def test_the_second_name_of_a_number_is_refused(library: Library) -> None:
    """One name in a billion has a number that another has; here a pair of such names is searched for."""
    name, other = names_of_one_number()
    types, here = library.database_metadata.types, library.databases[0]
    number = types.get_or_create_number(name, here)
    for each in (types, BizTypeCache(library.databases)):
        with pytest.raises(InvalidInput, match=f"the type '{name}' has its number, {number}"):
            each.get_or_create_number(other, here)
        assert each.find_number(other, here) is None
    assert other not in copy_of(here).values()


def test_a_name_that_has_another_number_by_hand_is_refused(library: Library, name: str) -> None:
    write(library.databases[0], {77: name})
    with pytest.raises(InvalidInput, match="its row in toc_biz_type has another number"):
        library.database_metadata.types.get_or_create_number(name, library.databases[0])
    lose(library.databases[0], name)


def test_names_of_the_databases_that_answer(tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"])
    library.close()
    urls = [f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/away/1.db"]
    databases = Databases(urls, library.settings.routing, library.clock)
    assert set(read_known_types(databases).names.values()) == {"order.close", "report"}
    for asked, all_must_answer in ((databases.all, True), (databases.all[1:], False)):
        with pytest.raises(StoreUnavailable, match="database 1"):
            read_known_types(asked, all_must_answer=all_must_answer)
    databases.close()


def test_a_name_is_found_while_another_thread_reads(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that began before a type was made does not know it, and must not forget it."""
    types, here, rows = (
        library.database_metadata.types,
        library.databases[0],
        biz_types._select_types,
    )

    def made_meanwhile(database: Database) -> dict[int, str]:
        monkeypatch.setattr(biz_types, "_select_types", rows)
        there = rows(database)
        types.get_or_create_number(name, here)
        return there

    monkeypatch.setattr(biz_types, "_select_types", made_meanwhile)
    types.read_and_complete_type_copy(here)
    with statements_of(here) as statements:
        assert types.get_or_create_number(name, here) == type_no_of(name)
    assert statements == []


# ---- conflicts between databases, as clients meet them


def test_a_verb_does_not_use_a_number_that_its_type_has_no_more(
    two: Library, center: TimeoutCenter
) -> None:
    """A client that only cancels reads the types again as well."""
    name, other = names_of_one_number()
    here, number = biz_id_on(two, 0), type_no_of(name)
    write(two.databases[0], {number: name})
    assert center.cancel(biz_id=here, biz_type=name) == "unknown"
    lose(two.databases[0], name)
    write(two.databases[0], {number: other})
    job_id = two.pending(here, 86_400_000, type_no=number)
    two.clock.advance(REFRESH_S)
    assert center.cancel(biz_id=here, biz_type=name) == "unknown"
    assert two.row(job_id).status == Status.PENDING


def test_a_client_of_one_database_hears_of_conflicts_with_another(
    two: Library, center: TimeoutCenter
) -> None:
    """So that it writes nothing under a number in conflict, and goes on when that is over."""
    name, other = names_of_one_number()
    here = biz_id_on(two, 1)

    def refuses() -> bool:
        try:
            center.schedule(here, LATER, biz_type=name)
        except SchemaMismatch:
            return True
        return False

    assert not refuses()
    write(two.databases[0], {type_no_of(name): other})
    two.clock.advance(REFRESH_S)
    wait_until(refuses)
    lose(two.databases[0], other)
    two.clock.advance(REFRESH_S)
    wait_until(lambda: not refuses())


def test_a_read_that_failed_is_made_again_by_the_next_call(two: Library, name: str) -> None:
    """Else clients would use what they know for a minute more."""
    types, here = BizTypeCache(two.databases), two.databases[0]
    types.get_or_create_number(name, here)
    two.clock.advance(REFRESH_S)
    here.require_check_before_use(_refuse)
    with pytest.raises(SchemaMismatch):
        types.get_or_create_number(name, here)
    with pytest.raises(SchemaMismatch):
        types.get_or_create_number(name, here)
    here._first_check = None
    assert types.get_or_create_number(name, here) == type_no_of(name)
    types.close()


def _refuse(database: object) -> None:
    raise SchemaMismatch("not now")


def test_one_thread_at_a_time_reads_the_other_databases(two: Library, name: str) -> None:
    """However long one of them hangs."""
    types, released = BizTypeCache(two.databases), threading.Event()
    started: list[str] = []

    def read_copy(database: Database) -> None:
        if database.index:
            started.append(threading.current_thread().name)
            released.wait(30)

    types.read_and_complete_type_copy = read_copy  # type: ignore[method-assign]
    try:
        for _ in range(3):
            two.clock.advance(REFRESH_S)
            types.find_number(name, two.databases[0])
            wait_until(lambda: bool(started))
        assert started == ["toc-types"]
    finally:
        released.set()
    wait_until(types._others_done.is_set)
    two.clock.advance(REFRESH_S)
    types.find_number(name, two.databases[0])
    wait_until(lambda: len(started) == 2)
    types.close()


def test_where_no_thread_can_start_the_call_goes_on(
    two: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    types = BizTypeCache(two.databases)
    two.clock.advance(REFRESH_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert types.get_or_create_number(name, two.databases[0]) == type_no_of(name)
    other = f"{name}.other"
    write(two.databases[1], {type_no_of(other): other})
    two.clock.advance(REFRESH_S)
    types.find_number(name, two.databases[0])
    wait_until(lambda: type_no_of(other) in types.known.names)
    types.close()
