"""The routing's fingerprint, and whose database a connection reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from tests.contract.library import Library
from toc.errors import SchemaMismatch, WrongDatabase
from toc.store.database_metadata import DatabaseMetadata


@pytest.fixture
def clean_meta(library: Library) -> Iterator[None]:
    yield
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_meta")


@pytest.mark.usefixtures("clean_meta")
def test_another_routing_is_refused(library: Library) -> None:
    facts = library.settings.routing.meta_values()
    library.database_metadata.verify_and_record_meta(facts)
    DatabaseMetadata(library.databases).verify_and_record_meta(facts)
    for fact, value in {"shards": "8", "databases": "2", "hash": "md5"}.items():
        with pytest.raises(SchemaMismatch, match=fact):
            DatabaseMetadata(library.databases).verify_and_record_meta(facts | {fact: value})
    # A refused value was not written.
    DatabaseMetadata(library.databases).verify_and_record_meta(facts)


@pytest.mark.usefixtures("clean_meta")
def test_a_new_fact_is_kept(library: Library) -> None:
    facts = library.settings.routing.meta_values()
    library.database_metadata.verify_and_record_meta(facts)
    library.database_metadata.verify_and_record_meta(facts | {"topic.vip.slot_amount": "2"})
    with pytest.raises(SchemaMismatch, match=r"topic\.vip\.slot_amount = 2"):
        library.database_metadata.verify_and_record_meta({"topic.vip.slot_amount": "4"})


@pytest.mark.usefixtures("clean_meta")
def test_a_database_at_another_place_is_refused(library: Library) -> None:
    library.database_metadata.verify_and_record_meta({})
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql("UPDATE toc_meta SET value = '1' WHERE name = 'database'")
    with pytest.raises(SchemaMismatch, match="database"):
        DatabaseMetadata(library.databases).verify_and_record_meta({})


@contextmanager
def callers_connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


@pytest.mark.usefixtures("clean_meta")
def test_a_connection_to_this_database_is_accepted(library: Library) -> None:
    library.database_metadata.verify_and_record_meta({})
    with callers_connection(library.settings.databases[0]) as connection:
        library.database_metadata.check_caller_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_a_connection_without_the_tables_is_refused(library: Library, tmp_path: Path) -> None:
    library.database_metadata.verify_and_record_meta({})
    with (
        callers_connection(f"sqlite:///{tmp_path}/other.db") as connection,
        pytest.raises(WrongDatabase, match="database 0"),
    ):
        library.database_metadata.check_caller_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_a_copy_of_the_database_is_another_database(library: Library) -> None:
    library.database_metadata.verify_and_record_meta({})
    another = "UPDATE toc_meta SET value = 'another' WHERE name = 'database_id'"
    with callers_connection(library.settings.databases[0]) as connection:
        connection.exec_driver_sql(another)  # only he sees it
        with pytest.raises(WrongDatabase):
            library.database_metadata.check_caller_connection(connection, library.databases[0])


@pytest.mark.usefixtures("clean_meta")
def test_who_is_refused_leaves_nothing_behind(library: Library) -> None:
    facts = library.settings.routing.meta_values()
    library.database_metadata.verify_and_record_meta(facts)
    with pytest.raises(SchemaMismatch, match="shards"):
        library.database_metadata.verify_and_record_meta(
            facts | {"shards": "16", "topic.orders.slot_amount": "16"}
        )
    library.database_metadata.verify_and_record_meta(facts | {"topic.orders.slot_amount": "8"})
