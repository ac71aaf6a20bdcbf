"""Checks by `toc_meta` and by the job tables that a database is the one that the settings mean.

A migration of a wrong database would make empty job tables and a view `toc_jobs` over them: no query would
see the existing jobs. So each run (`refuse_other_database`) and each script (`identity_guard_sql`) checks the
database first. Before the first start of a process `toc_meta` has no rows about the settings: then only the
job tables are checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from toc.errors import SchemaMismatch
from toc.store.driver_errors import is_missing_table
from toc.store.recorded_meta import differing_meta_facts
from toc.store.schema_steps import SchemaTarget

_RAW = {"no_parameters": True}
_GUARD = "toc_guard"

HAS_META = (
    "EXISTS (SELECT 1 FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'toc_meta')"
)
"""A condition in MySQL's SQL: the database has a table `toc_meta`."""


def refuse_other_database(
    target: SchemaTarget, connection: Connection, expected_meta: Mapping[str, str]
) -> None:
    """Raises SchemaMismatch for another database, and for one that was set up with other settings."""
    try:
        rows = connection.exec_driver_sql("SELECT name, value FROM toc_meta").all()
    except DBAPIError as error:
        if not is_missing_table(error):  # toc_meta does not exist before the first revision
            raise
        rows = []
    wrong = describe_meta_differences(
        target, expected_meta, {str(name): str(value) for name, value in rows}
    )
    if wrong:
        raise SchemaMismatch(f"database {target.index}: {wrong}; nothing was changed")
    table = connection.exec_driver_sql(
        _foreign_table_query(target), execution_options=_RAW
    ).scalar()
    if table is not None:
        raise SchemaMismatch(
            f"database {target.index} has table {table}, which is not one of its shards "
            f"{_describe_shard_range(target)}: the URLs may be in another order, or the number of shards may "
            "differ; nothing was changed"
        )


def describe_meta_differences(
    target: SchemaTarget, expected_meta: Mapping[str, str], recorded_meta: Mapping[str, str]
) -> str:
    """Describes how the settings differ from the rows of `toc_meta`; "": they agree."""
    return "; ".join(
        f"toc_meta says {name} = {recorded}, the settings say {value}"
        for name, recorded, value in differing_meta_facts(
            target.index, recorded_meta, expected_meta
        )
    )


def identity_guard_sql(target: SchemaTarget, expected_meta: Mapping[str, str]) -> tuple[str, str]:
    """For a script on MySQL: a query, and an expression whose value is NULL or describes the difference.

    The query sets the variable @toc_meta, and needs a database where `HAS_META` is true. The expression uses
    @toc_meta; its value has at most 64 characters, the longest name that MySQL allows.
    """
    says = " ".join(
        f"WHEN '{name}' THEN '{value}'"
        for name, value in _expected_meta_rows(target, expected_meta).items()
    )
    text = (
        "CONCAT('toc_meta says ', name, ' = ', LEFT(value, 8), "
        f"', the script says ', CASE name {says} END)"
    )
    stranger = f"LEFT(({_foreign_table_query(target)}), 12)"
    differs = _meta_differs_condition(target, expected_meta)
    return (
        f"SELECT MIN({text}) INTO @toc_meta FROM toc_meta WHERE {differs}",
        f"COALESCE(@toc_meta, CONCAT('it has tables of other shards than the script, as ', {stranger}))",
    )


def identity_guard_sqlite(target: SchemaTarget, expected_meta: Mapping[str, str]) -> list[str]:
    """For a script on SQLite: statements that fail if `toc_meta` or the tables are of another database."""
    differs = _meta_differs_condition(target, expected_meta)
    return [
        f"CREATE TEMP TABLE {_GUARD} (wrong TEXT CONSTRAINT toc_meta_fits_the_script CHECK (wrong IS NULL))",
        f"INSERT INTO {_GUARD} SELECT name FROM toc_meta WHERE {differs}",
        f"INSERT INTO {_GUARD} SELECT ({_foreign_table_query(target)})",
        f"DROP TABLE {_GUARD}",
    ]


def _expected_meta_rows(target: SchemaTarget, expected_meta: Mapping[str, str]) -> dict[str, str]:
    return {**expected_meta, "database": str(target.index)}


def _meta_differs_condition(target: SchemaTarget, expected_meta: Mapping[str, str]) -> str:
    wanted = _expected_meta_rows(target, expected_meta).items()
    return " OR ".join(f"(name = '{name}' AND value <> '{value}')" for name, value in wanted)


def _foreign_table_query(target: SchemaTarget) -> str:
    """A query: the first job table of a shard that is not this database's, or NULL."""
    outside = f"NOT BETWEEN {target.shards[0]} AND {target.shards[-1]}"
    if target.sqlite:
        where = f"name GLOB 'toc_job_[0-9]*' AND CAST(SUBSTR(name, 9) AS INTEGER) {outside}"
        return f"SELECT MIN(name) FROM sqlite_master WHERE type = 'table' AND {where}"
    where = f"TABLE_NAME REGEXP '^toc_job_[0-9]+$' AND CAST(SUBSTRING(TABLE_NAME, 9) AS UNSIGNED) {outside}"
    tables = "information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
    return f"SELECT MIN(TABLE_NAME) FROM {tables} AND {where}"


def _describe_shard_range(target: SchemaTarget) -> str:
    return f"{target.shards[0]} to {target.shards[-1]}"
