"""Which tables a leaf asks, and what each of them gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from toc.admin.query_plan import Leaf, conjuncts
from toc.admin.query_reader import BIZ_TYPES
from toc.admin.sql_writer import sql_for_display, write
from toc.domain.ids import gene_of
from toc.domain.routing import Routing, hash_of
from toc.store.schema import job_table_name
from toc.store.views import (
    DEAD_JOBS,
    DEAD_JOBS_SELECT,
    EVENTS,
    EVENTS_SELECT,
    JOBS,
    PURGES,
    PURGES_SELECT,
    jobs_of_shard,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A table that is asked. `source` is what stands behind FROM."""

    database: int
    table: str
    source: str
    shard: int | None = None


def pieces_of(leaf: Leaf, routing: Routing, database: int | None, *, sqlite: bool) -> list[Piece]:
    """The tables to ask: those in which the WHERE can find something. `database`: only of this one."""
    if leaf.table == BIZ_TYPES:  # nodes keep the copies alike
        return [Piece(database or 0, BIZ_TYPES, BIZ_TYPES)]
    databases = range(routing.databases) if database is None else [database]
    if leaf.table == JOBS:
        there = _shards_of(leaf.select.args.get("where"), routing)
        found = [
            Piece(
                index,
                job_table_name(shard),
                f"({_needed(jobs_of_shard(shard, sqlite=sqlite), leaf)}) AS {JOBS}",
                shard,
            )
            for index in databases
            for shard in routing.shards_of_database(index)
        ]
        if there is None:
            return found
        return [piece for piece in found if piece.shard in there] or found[:1]
    table, select = _PER_DATABASE[leaf.table]
    return [
        Piece(index, table, f"({_needed(select, leaf)}) AS {leaf.table}") for index in databases
    ]


def _needed(select: str, leaf: Leaf) -> str:
    """Without the names of types where nobody asks for them: MySQL would look each one up all the same,
    which makes counting three times as long."""
    if any(column.name == "type_name" for column in leaf.select.find_all(exp.Column)):
        return select
    return _TYPES.sub("", select.replace(_TYPE_NAME, ""))


_TYPE_NAME = "t.name AS type_name, "
_TYPES = re.compile(r" LEFT JOIN toc_biz_type AS t ON t\.type_no = \w\.biz_type$")
_PER_DATABASE = {
    DEAD_JOBS: ("toc_dead_job", DEAD_JOBS_SELECT),
    EVENTS: ("toc_event", EVENTS_SELECT),
    PURGES: ("toc_purge", PURGES_SELECT),
}
_SOURCE = "toc_source"


def statements(
    leaf: Leaf, pieces: list[Piece], wanted: int, *, sqlite: bool, bind: bool = True
) -> Iterator[tuple[Piece, str, Mapping[str, object]]]:
    """Each piece with its statement, for at most `wanted` rows, and the values to bind.

    bind False: the values are written into the statement, for display.
    """
    select = leaf.select.copy()
    select.set("from_", exp.From(this=exp.to_table(_SOURCE)))
    select.set("limit", exp.Limit(expression=exp.Literal.number(wanted)))
    sql, values = write(select, sqlite=sqlite)
    before, _, after = sql.partition(_SOURCE)
    if not bind:
        before, after = (sql_for_display(part, values, sqlite=sqlite) for part in (before, after))
        values = {}
    for piece in pieces:
        yield piece, f"{before}{piece.source}{after}", values


def _shards_of(where: exp.Expr | None, routing: Routing) -> set[int] | None:
    """Those in which rows can be that match; None: all. A job's ids say its shard (design, §3)."""
    found: set[int] | None = None
    for one in conjuncts(where):
        sides: list[exp.Expr] = []
        if isinstance(one, exp.EQ):
            sides = [one.this, one.expression]
            sides = sides if isinstance(one.this, exp.Column) else sides[::-1]
        elif isinstance(one, exp.In) and one.expressions:
            sides = [one.this, *one.expressions]
        if not sides or not isinstance(sides[0], exp.Column) or sides[0].name not in _SHARD_OF:
            continue
        numbers = [_whole(choice) for choice in sides[1:]]
        known = {_SHARD_OF[sides[0].name](routing, one) for one in numbers if one is not None}
        if None not in numbers:
            found = known if found is None else found & known
    return found


_SHARD_OF: dict[str, Callable[[Routing, int], int]] = {
    "biz_id": lambda routing, number: routing.shard(hash_of(number)),
    "job_id": lambda routing, number: routing.shard(gene_of(number)),
    "shard": lambda routing, number: number,
}


def _whole(expr: exp.Expr) -> int | None:
    is_number = isinstance(expr, exp.Literal) and not expr.is_string and expr.name.isdigit()
    return int(expr.name) if is_number else None
