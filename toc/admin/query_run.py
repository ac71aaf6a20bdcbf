"""Runs a plan of `toc sql`: asks the tables in parallel, and merges their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from toc.admin.expression_parser import ResultColumn
from toc.admin.query_plan import QueryPlan, TableQuery
from toc.admin.row_merge import JsonTable, Row, RowMerge, make_sort_key_function
from toc.admin.sql_writer import make_final_sql, make_shard_queries
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.admin.syntax_tree import number_literal
from toc.domain.routing import Routing
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.query_fan_out import (
    DatabaseQuery,
    QueryFailure,
    QueryFanOut,
    QueryLimits,
    QueryRows,
    describe_size_limit,
    row_size_bytes,
)

GROUPS_MAX = 100_000
"""Groups (with those of COUNT(DISTINCT)) that one shard may send."""
ROWS_MAX = 2_000_000
"""Rows that all shards together may send to be grouped or joined: they are kept in memory."""
FILTER_IDS_MAX = 5000
"""Ids of other tables by which a query for jobs is filtered."""
MERGE_BYTES = 12_000_000
"""JSON that a server may get for the final query: MariaDB accepts 16 MB in one packet."""


def make_fan_out(settings: Settings, limits: QueryLimits) -> QueryFanOut:
    """The read-only connections of one run. Close it."""
    return QueryFanOut(
        settings.databases,
        settings.routing,
        SystemClock(),
        limits,
        mysql_functions_for_sqlite,
        settings.moving,
        settings.mysql,
    )


class QueryFailed(Exception):
    """A query that has no answer; `failures` say why."""

    def __init__(self, failures: Sequence[QueryFailure]) -> None:
        self.failures = failures
        super().__init__(failures[0].description)


@dataclass(slots=True)
class QueryResult:
    """The answer to a query. `more`: further rows were left out. `missing`: tables that did not answer."""

    columns: tuple[ResultColumn, ...]
    rows: list[Row]
    more: bool
    asked: int
    missing: list[QueryFailure] = field(default_factory=list)


def shard_row_limit(plan: QueryPlan, table: TableQuery, rows_max: int) -> int:
    """How many rows to ask a shard for. One row more than the limit shows that the limit is exceeded."""
    if plan.final is None:
        return plan.rows_needed_per_shard(rows_max)
    if table.is_groups:
        return GROUPS_MAX + 1
    return table.rows_max if table.rows_max is not None else ROWS_MAX + 1


@dataclass(slots=True)
class QueryRun:
    """One run of a plan, for at most `rows_max` rows.

    `database`: only this database is asked. `partial`: tables that fail are left out. `progress(done, all)`
    is called while tables answer.
    """

    plan: QueryPlan
    routing: Routing
    fan_out: QueryFanOut
    rows_max: int
    database: int | None = None
    partial: bool = False
    merge_bytes: int = MERGE_BYTES
    progress: Callable[[int, int], None] = lambda done, all_: None
    _failures: list[QueryFailure] = field(default_factory=list)
    _answered: set[int] = field(default_factory=set)
    _asked: int = 0
    _received: int = 0
    _chars: int = 0

    def run_query(self) -> QueryResult:
        """Asks the tables and merges their rows. Raises QueryFailed when a table fails; with `partial` only
        when all tables fail."""
        plan = self.plan
        if plan.uses_current_time:
            databases = [
                q.database for table in plan.tables for q in self._make_shard_queries(table)
            ]
            failure = self.fan_out.set_common_now(list(dict.fromkeys(databases)))
            if failure is not None:
                raise QueryFailed([failure])
        rows = self._merge_shard_rows() if plan.final is None else self._run_final_query(plan.final)
        width = len(plan.columns)
        return QueryResult(
            plan.columns,
            [row[:width] for row in rows[: self.rows_max]],
            len(rows) > self.rows_max,
            self._asked,
            sorted(self._failures, key=lambda failure: failure.query.place),
        )

    def _make_shard_queries(self, table: TableQuery) -> list[DatabaseQuery]:
        return make_shard_queries(
            table,
            self.routing,
            sqlite=self.fan_out.sqlite,
            rows_max=shard_row_limit(self.plan, table, self.rows_max),
            database=self.database,
        )

    # ---- rows

    def _merge_shard_rows(self) -> list[Row]:
        (table,) = self.plan.tables
        wanted = self.plan.rows_needed_per_shard(self.rows_max)
        merge = RowMerge(self.plan, wanted, make_sort_key_function(pads=not self.fan_out.sqlite))
        bytes_max, size = self.fan_out.bytes_max, 0
        for reply in self._receive_replies(table):
            merge.add_rows(reply.query.place, reply.rows)
            size += sum(map(row_size_bytes, reply.rows))
            if size > bytes_max:
                size = sum(map(row_size_bytes, merge.merged_rows()))
            if size > bytes_max:
                raise _query_failure(reply.query, describe_size_limit(bytes_max))
        return merge.merged_rows()[self.plan.offset :]

    def _receive_replies(self, table: TableQuery) -> Iterator[QueryRows]:
        """The replies of the shards, in the order in which they arrive."""
        questions = [
            replace(one, place=self._asked + one.place) for one in self._make_shard_queries(table)
        ]
        done, failed = self._asked, 0
        self._asked += len(questions)
        replies = self.fan_out.run_queries(questions, lambda: self.progress(done, self._asked))
        with closing(replies):
            for reply in replies:
                done += 1
                self.progress(done, self._asked)
                if isinstance(reply, QueryFailure):
                    self._failures.append(reply)
                    failed += 1
                    if not self.partial or failed == len(questions):
                        raise QueryFailed(self._failures)
                    continue
                self._answered.add(reply.query.database)
                yield reply

    # ---- the final query

    def _run_final_query(self, final: exp.Query) -> list[Row]:
        tables: dict[str, JsonTable] = {}
        ids: dict[tuple[str, int], set[Any]] = {
            (one.other, one.place): set() for table in self.plan.tables for one in table.id_filters
        }
        for table in sorted(self.plan.tables, key=lambda table: len(table.id_filters)):
            tables[table.name] = self._collect_json_table(_filter_by_ids(table, ids), ids)
        types = {name: table.column_types() for name, table in tables.items()}
        sqlite = self.fan_out.sqlite
        sql, values = make_final_sql(final, types, limit=self.rows_max + 1, sqlite=sqlite)
        values |= {name: table.as_json_array() for name, table in tables.items()}
        failures = []
        for database in sorted(self._answered):
            reply = self.fan_out.run_query(DatabaseQuery(0, database, "", sql, values))
            if not isinstance(reply, QueryFailure):
                return list(reply.rows)
            failures.append(reply)
        raise QueryFailed(failures)

    def _collect_json_table(
        self, table: TableQuery, ids: Mapping[tuple[str, int], set[Any]]
    ) -> JsonTable:
        """Asks the shards for the rows of a table, and adds to `ids` the values by which other tables
        are filtered."""
        made = JsonTable(len(table.select.expressions), table.ids, self.fan_out.sqlite)
        for reply in self._receive_replies(table):
            self._check_row_count(table, reply)
            for (name, place), values in ids.items():
                if name == table.name:
                    values.update(row[place] for row in reply.rows if row[place] is not None)
            self._chars += made.add_rows(reply.query.place, reply.rows, reply.digits)
            if self._chars > self.merge_bytes:
                text = (
                    f"the rows to be merged are more than {self.merge_bytes / 1e6:g} MB: "
                    f"narrow WHERE, select fewer columns, or allow more (--merge-mb)"
                )
                raise _query_failure(reply.query, text)
        return made

    def _check_row_count(self, table: TableQuery, reply: QueryRows) -> None:
        self._received += len(reply.rows)
        if table.is_groups and len(reply.rows) > GROUPS_MAX:
            raise _query_failure(reply.query, f"has more than {GROUPS_MAX} groups")
        if self._received > ROWS_MAX:
            word = "groups" if table.is_groups else "rows"
            text = f"brings the {word} of all shards to more than {ROWS_MAX}"
            raise _query_failure(reply.query, text)


def _query_failure(question: DatabaseQuery, text: str) -> QueryFailed:
    return QueryFailed([QueryFailure(question, "statement", text)])


def _filter_by_ids(table: TableQuery, ids: Mapping[tuple[str, int], set[Any]]) -> TableQuery:
    """The query for only those rows that can match rows of other tables."""
    conditions: list[exp.Expr] = []
    for one in table.id_filters:
        values = ids[one.other, one.place]
        if len(values) <= FILTER_IDS_MAX:
            choices = [number_literal(value) for value in sorted(values)] or [exp.Null()]
            conditions.append(exp.In(this=exp.column(one.column), expressions=choices))
    if not conditions:
        return table
    where = table.select.args.get("where")
    own = [] if where is None else [exp.Paren(this=where.this.copy())]
    select = table.select.copy()
    select.set("where", exp.Where(this=exp.and_(*own, *conditions, copy=False)))
    return replace(table, select=select)
