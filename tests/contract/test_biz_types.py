"""Names and numbers of biz_types, in one database and in two."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.breaks import statements_of
from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.biz_types import FIRST_NO, type_no_of
from toc.errors import InvalidInput, NotFound, SchemaMismatch, StoreUnavailable
from toc.store import biz_types
from toc.store.biz_types import REFRESH_S, BizTypes, read_names_by_number
from toc.store.catalogue import Catalogue
from toc.store.databases import Database, Databases


@pytest.fixture
def name() -> str:
    """A type that nobody has named: the tables outlive a test."""
    return f"type.{secrets.token_hex(6)}"


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


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
    for types in (library.catalogue.types, BizTypes(library.databases)):
        assert types.number_or_create(name, here) == type_no_of(name)
        assert types.find_name(type_no_of(name), here) == name
        assert types.find_numbers(name, here) == (type_no_of(name),)
    assert copy_of(here)[type_no_of(name)] == name


def test_types_are_told_apart_by_case(library: Library, name: str) -> None:
    types, here = library.catalogue.types, library.databases[0]
    assert types.number_or_create(name, here) != types.number_or_create(name.upper(), here)


def test_a_look_writes_nothing(library: Library, name: str) -> None:
    types, here = library.catalogue.types, library.databases[0]
    assert types.find_numbers(name, here) == ()
    with pytest.raises(NotFound, match="999999"):
        types.find_name(999_999, here)
    assert name not in copy_of(here).values()


def test_what_another_process_has_made_since_is_found(library: Library, name: str) -> None:
    other, types, here = BizTypes(library.databases), library.catalogue.types, library.databases[0]
    assert types.find_numbers(name, here) == ()
    other.number_or_create(name, here)
    assert types.find_numbers(name, here) == (type_no_of(name),)
    other.number_or_create(name + ".2", here)
    assert types.find_name(type_no_of(name + ".2"), here) == name + ".2"


def test_a_type_of_a_release_before_keeps_its_number(library: Library, name: str) -> None:
    here = library.databases[0]
    number = max(no for no in [0, *copy_of(here)] if no < FIRST_NO) + 1
    write(here, {number: name})
    assert library.catalogue.types.number_or_create(name, here) == number
    assert library.catalogue.types.find_name(number, here) == name


def test_known_types_are_not_asked_for_again(library: Library, name: str) -> None:
    types, here = library.catalogue.types, library.databases[0]
    number = types.number_or_create(name, here)
    with statements_of(here) as statements:
        types.number_or_create(name, here)
        types.find_numbers(name, here)
        types.find_name(number, here)
    assert statements == []


def test_a_number_without_a_name_is_not_asked_for_again_at_once(library: Library) -> None:
    types, here = library.catalogue.types, library.databases[0]
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
    types, here = library.catalogue.types, library.databases[0]
    with statements_of(here) as alone:
        types.number_or_create(name, here)
    with statements_of(here) as together:
        numbers = types.numbers_or_create([f"{name}.{n}" for n in range(500)], here)
    assert len(together) == len(alone)
    assert len(set(numbers.values())) == 500
    assert numbers.items() <= {v: k for k, v in copy_of(here).items()}.items()


def test_there_are_not_more_types_than_the_limit(library: Library, name: str) -> None:
    types, here = library.catalogue.types, library.databases[0]
    there = len(copy_of(here))
    types.numbers_or_create([name], here, there + 2)
    with pytest.raises(InvalidInput, match=f"limits.biz_types. allows {there + 2}") as caught:
        types.numbers_or_create([f"{name}.{n}" for n in range(2)], here, there + 2)
    assert caught.value.value == f"{name}.1"
    assert len(copy_of(here)) == there + 1
    types.numbers_or_create([f"{name}.0"], here, there + 2)
    with pytest.raises(InvalidInput):
        types.numbers_or_create([f"{name}.1"], here, there + 2)
    assert types.numbers_or_create([name, f"{name}.0"], here, there) is not None  # those are there
    types.numbers_or_create([f"{name}.1"], here)  # a worker's handler


def test_what_a_fail_over_has_lost_is_written_again(library: Library, name: str) -> None:
    types, here = library.catalogue.types, library.databases[0]
    number = types.number_or_create(name, here)
    lose(here, name)
    types.number_or_create(name, here)
    assert name not in copy_of(here).values()
    library.clock.advance(REFRESH_S)
    assert types.number_or_create(name, here) == number  # a client that schedules
    assert copy_of(here)[number] == name
    lose(here, name)
    types.read_copy(here)  # a node
    assert copy_of(here)[number] == name


def test_a_name_whose_number_is_taken_is_refused(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in a billion; here always."""
    taken = library.catalogue.types.number_or_create(name, library.databases[0])
    monkeypatch.setattr(biz_types, "type_no_of", lambda name: taken)
    for types in (library.catalogue.types, BizTypes(library.databases)):
        with pytest.raises(InvalidInput, match=f"the type '{name}' has its number"):
            types.number_or_create(name + ".other", library.databases[0])
    assert name + ".other" not in copy_of(library.databases[0]).values()


def test_the_target_alone_is_asked(two: Library, name: str) -> None:
    """Database 0 gets a new type as well (`test_two_numbers`)."""
    types = BizTypes(two.databases)
    number = types.number_or_create(name, two.databases[1])
    with statements_of(two.databases[0]) as statements:
        assert types.number_or_create(name, two.databases[1]) == number
        assert types.find_numbers(name + ".no", two.databases[1]) == ()
        assert types.find_name(number, two.databases[1]) == name
    assert statements == []


def test_copies_are_made_alike_when_a_process_starts(two: Library, name: str) -> None:
    for database in two.databases:
        two.catalogue.types.number_or_create(f"{name}.{database.index}", database)
    types = BizTypes(two.databases)
    for database in two.databases:
        types.read_copy(database)
    types.write_missing_types(two.databases)
    assert copy_of(two.databases[0]) == copy_of(two.databases[1])


def test_a_known_number_of_another_copy_is_used(two: Library, name: str) -> None:
    write(two.databases[0], {77: name})
    types = BizTypes(two.databases)
    types.read_copy(two.databases[0])
    assert types.number_or_create(name, two.databases[1]) == 77


def test_a_type_with_two_numbers_is_one_type(two: Library, name: str) -> None:
    """Of a release before, and made again while that database was away."""
    number = BizTypes(two.databases).number_or_create(name, two.databases[1])
    lose(two.databases[0], name)
    write(two.databases[0], {77: name})
    types = BizTypes(two.databases)
    for database in two.databases:
        types.read_copy(database)
    types.write_missing_types(two.databases)
    assert [types.number_or_create(name, database) for database in two.databases] == [77, number]
    assert {types.find_name(no, database) for no in (77, number) for database in two.databases} == {
        name
    }
    assert not types.known.conflicts


def test_a_number_with_two_names_is_refused_and_told(
    two: Library, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a release before has left it after a fail-over of database 0."""
    write(two.databases[0], {77: f"{name}.other"})
    write(two.databases[1], {77: name})
    types = Catalogue(two.databases).types
    with caplog.at_level(logging.ERROR):
        for database in two.databases:
            types.read_copy(database)
        types.write_missing_types(two.databases)
    told = f"the number 77 is '{name}.other' in database 0, '{name}' in database 1"
    assert [told in record.getMessage() for record in caplog.records] == [True]
    for database, lost in ((0, f"{name}.other"), (1, name)):
        with pytest.raises(SchemaMismatch, match="the number 77 is"):
            types.number_or_create(lost, two.databases[database])
        assert types.find_name(77, two.databases[database]) == lost  # for looking at
    assert 77 not in types.known.names
    names, conflicts = read_names_by_number(two.databases)
    assert 77 not in names
    assert conflicts == {77: {0: f"{name}.other", 1: name}} == types.known.conflicts
    # A person has given one of them the number of its name.
    with two.databases[0].engine.begin() as connection:
        sql = f"UPDATE toc_biz_type SET type_no = {type_no_of(name + '.other')} WHERE type_no = 77"
        connection.exec_driver_sql(sql)
    types.read_copy(two.databases[0])
    assert not types.known.conflicts
    assert types.number_or_create(name, two.databases[1]) == 77
    assert copy_of(two.databases[0])[type_no_of(name + ".other")] == f"{name}.other"


def test_names_of_the_databases_that_answer(tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"])
    library.close()
    urls = [f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/away/1.db"]
    databases = Databases(urls, library.settings.routing, library.clock)
    assert set(read_names_by_number(databases)[0].values()) == {"order.close", "report"}
    for asked, all_must_answer in ((databases.all, True), (databases.all[1:], False)):
        with pytest.raises(StoreUnavailable, match="database 1"):
            read_names_by_number(asked, all_must_answer=all_must_answer)
    databases.close()


def test_a_name_is_found_while_another_thread_reads(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that began before a type was made does not know it, and must not forget it."""
    types, here, rows = library.catalogue.types, library.databases[0], biz_types._fetch_types

    def made_meanwhile(database: Database, query: object) -> dict[int, str]:
        monkeypatch.setattr(biz_types, "_fetch_types", rows)
        there = rows(database, query)  # type: ignore[arg-type]
        types.number_or_create(name, here)
        return there

    monkeypatch.setattr(biz_types, "_fetch_types", made_meanwhile)
    types.read_copy(here)
    with statements_of(here) as statements:
        assert types.number_or_create(name, here) == type_no_of(name)
    assert statements == []


def test_a_type_of_the_call_that_is_forgotten_meanwhile_is_no_error(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types, here, add = library.catalogue.types, library.databases[0], BizTypes._create_types
    types.number_or_create(name, here)

    def lost_meanwhile(*asked: object) -> object:
        types._copies[0] = types._copies[0]._replace(names={}, numbers={})
        return add(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(BizTypes, "_create_types", lost_meanwhile)
    found = types.numbers_or_create([name, f"{name}.new"], here)
    assert found == {each: type_no_of(each) for each in (name, f"{name}.new")}
