"""Counts overdue rows, up to a limit in each shard: reads only the index of due times."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Integer, Select, bindparam, literal_column, select

from toc.store.column_types import DatetimeAsMillis
from toc.store.compiled_statement import compile_once
from toc.store.databases import Database
from toc.store.due_pages import SHARDS_PER_QUERY_MAX
from toc.store.schema import JOB

_OVERDUE: Select[Any] = (
    select(literal_column("1"))
    .where(JOB.c.due_time <= bindparam("until_ms", type_=DatetimeAsMillis))
    .limit(bindparam("rows_max", type_=Integer))
)


class OverdueCount(NamedTuple):
    """rows: live jobs of any type whose time has passed, running ones too. is_at_least: there may be more."""

    rows: int
    is_at_least: bool


def count_overdue_rows(database: Database, until_ms: int, rows_max: int) -> OverdueCount:
    """The live rows of a database that are due until then, up to `rows_max` of each shard.

    Raises StoreUnavailable.
    """
    compiled, counts = compile_once(_OVERDUE, database.engine.dialect), list[int]()
    shards = list(database.shards)
    for at in range(0, len(shards), SHARDS_PER_QUERY_MAX):
        columns, arguments = list[str](), list[Any]()
        for shard in shards[at : at + SHARDS_PER_QUERY_MAX]:
            statement = compiled.bind(
                database.job_table_name(shard), until_ms=until_ms, rows_max=rows_max
            )
            columns.append(f"(SELECT COUNT(*) FROM ({statement.text}) AS overdue)")  # noqa: S608 - compiled
            arguments += statement.values
        text, values = f"SELECT {', '.join(columns)}", tuple(arguments)
        counts += database.run_read(
            lambda connection, text=text, values=values: connection.exec_driver_sql(  # type: ignore[misc]
                text, values
            ).one()
        )
    return OverdueCount(sum(counts), any(count >= rows_max for count in counts))
