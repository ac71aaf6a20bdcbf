"""Numbers of types, the routing's fingerprint, and whose database a connection reaches."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from tests.contract.breaks import statements_of
from tests.contract.library import Library
from toc.errors import NotFound, SchemaMismatch, WrongDatabase
from toc.store.catalogue import Catalogue


@pytest.fixture
def name() -> str:
    """A type that nobody has named: the catalogue outlives a test."""
    return f"type.{secrets.token_hex(6)}"


@pytest.fixture
def clean_meta(library: Library) -> Iterator[None]:
    yield
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_meta")


def test_a_type_gets_one_number(library: Library, name: str) -> None:
    number = library.catalogue.number(name)
    assert library.catalogue.number(name) == number
    assert library.catalogue.name(number) == name
    assert library.catalogue.known(name) == number
    other = Catalogue(library.databases)
    assert (other.known(name), other.number(name), other.name(number)) == (number, number, name)


def test_types_are_told_apart_by_case(library: Library, name: str) -> None:
    assert library.catalogue.number(name) != library.catalogue.number(name.upper())


def test_a_look_writes_nothing(library: Library, name: str) -> None:
    assert library.catalogue.known(name) is None
    assert Catalogue(library.databases).known(name) is None
    with pytest.raises(NotFound, match="999999"):
        library.catalogue.name(999_999)


def test_a_number_that_another_process_made_first_counts(library: Library, name: str) -> None:
    slow, fast = Catalogue(library.databases), Catalogue(library.databases)
    load = slow._load

    def load_and_be_overtaken() -> None:
        load()
        slow._load = load  # type: ignore[method-assign]
        fast.number(name)

    slow._load = load_and_be_overtaken  # type: ignore[method-assign]
    assert slow.number(name) == fast.number(name)


def test_known_types_are_not_asked_for_again(library: Library, name: str) -> None:
    number = library.catalogue.number(name)
    with statements_of(library.databases[0]) as statements:
        library.catalogue.number(name)
        library.catalogue.known(name)
        library.catalogue.name(number)
    assert statements == []


@pytest.mark.usefixtures("clean_meta")
def test_another_routing_is_refused(library: Library) -> None:
    facts = library.settings.routing.facts()
    library.catalogue.check(facts)
    Catalogue(library.databases).check(facts)
    for fact, value in {"shards": "8", "databases": "2", "hash": "md5"}.items():
        with pytest.raises(SchemaMismatch, match=fact):
            Catalogue(library.databases).check(facts | {fact: value})
    Catalogue(library.databases).check(facts)  # a refused fact was not written


@pytest.mark.usefixtures("clean_meta")
def test_a_new_fact_is_kept(library: Library) -> None:
    facts = library.settings.routing.facts()
    library.catalogue.check(facts)
    library.catalogue.check(facts | {"topic.vip.slot_amount": "2"})
    with pytest.raises(SchemaMismatch, match=r"topic\.vip\.slot_amount = 2"):
        library.catalogue.check({"topic.vip.slot_amount": "4"})


@pytest.mark.usefixtures("clean_meta")
def test_a_database_at_another_place_is_refused(library: Library) -> None:
    library.catalogue.check({})
    library.catalogue.load(library.databases.all)
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("UPDATE toc_meta SET value = '1' WHERE name = 'database'")
    with pytest.raises(SchemaMismatch, match="database"):
        Catalogue(library.databases).check({})


@contextmanager
def callers_connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


@pytest.mark.usefixtures("clean_meta")
def test_a_connection_to_this_database_is_accepted(library: Library) -> None:
    library.catalogue.check({})
    library.catalogue.load(library.databases.all)
    with callers_connection(library.settings.databases[0]) as connection:
        library.catalogue.check_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_a_connection_without_the_tables_is_refused(library: Library, tmp_path: Path) -> None:
    library.catalogue.check({})
    library.catalogue.load(library.databases.all)
    with (
        callers_connection(f"sqlite:///{tmp_path}/other.db") as connection,
        pytest.raises(WrongDatabase, match="database 0"),
    ):
        library.catalogue.check_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_a_copy_of_the_database_is_another_database(library: Library) -> None:
    library.catalogue.check({})
    library.catalogue.load(library.databases.all)
    another = "UPDATE toc_meta SET value = 'another' WHERE name = 'database_id'"
    with callers_connection(library.settings.databases[0]) as connection:
        connection.exec_driver_sql(another)  # only he sees it
        with pytest.raises(WrongDatabase):
            library.catalogue.check_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_who_is_refused_leaves_nothing_behind(library: Library) -> None:
    facts = library.settings.routing.facts()
    library.catalogue.check(facts)
    with pytest.raises(SchemaMismatch, match="shards"):
        library.catalogue.check(facts | {"shards": "16", "topic.orders.slot_amount": "16"})
    library.catalogue.check(facts | {"topic.orders.slot_amount": "8"})
