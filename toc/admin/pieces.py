"""Which tables a plan asks, and what each of them gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from toc.admin import merge
from toc.admin.expressions import Column, Expr, Number, Operation
from toc.admin.query import BIZ_TYPES, Plan
from toc.admin.writing import Writer
from toc.domain.ids import gene_of
from toc.domain.routing import Routing, hash_of
from toc.store.schema import job_table_name
from toc.store.views import (
    DEAD_JOBS,
    DEAD_JOBS_SELECT,
    EVENTS,
    EVENTS_SELECT,
    JOBS,
    jobs_of_shard,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A table that is asked. `source` is what stands behind FROM."""

    database: int
    table: str
    source: str
    shard: int | None = None


def pieces_of(plan: Plan, routing: Routing, database: int | None, *, sqlite: bool) -> list[Piece]:
    """The tables to ask: those in which the WHERE can find something. `database`: only of this one."""
    if plan.table == BIZ_TYPES:  # database 0 has the word; the others have copies
        return [Piece(database or 0, BIZ_TYPES, BIZ_TYPES)]
    databases = range(routing.databases) if database is None else [database]
    if plan.table == JOBS:
        there = _shards_of(plan.where, routing)
        found = [
            Piece(
                index,
                job_table_name(shard),
                f"({_needed(jobs_of_shard(shard, sqlite=sqlite), plan)}) AS {JOBS}",
                shard,
            )
            for index in databases
            for shard in routing.shards_of_database(index)
        ]
        if there is None:
            return found
        return [piece for piece in found if piece.shard in there] or found[:1]
    table, select = _PER_DATABASE[plan.table]
    return [
        Piece(index, table, f"({_needed(select, plan)}) AS {plan.table}") for index in databases
    ]


def _needed(select: str, plan: Plan) -> str:
    """Without the names of types where nobody asks for them: MySQL would look each one up all the same,
    which makes counting three times as long."""
    if "type_name" in plan.columns:
        return select
    return _TYPES.sub("", select.replace(_TYPE_NAME, ""))


_TYPE_NAME = "t.name AS type_name, "
_TYPES = re.compile(r" LEFT JOIN toc_biz_type AS t ON t\.type_no = \w\.biz_type$")
_PER_DATABASE = {
    DEAD_JOBS: ("toc_dead_job", DEAD_JOBS_SELECT),
    EVENTS: ("toc_event", EVENTS_SELECT),
}


def statements(
    plan: Plan, pieces: Iterable[Piece], rows_max: int, *, sqlite: bool, bind: bool = True
) -> Iterator[tuple[Piece, str, dict[str, object]]]:
    """What each piece is asked, and the values that are bound."""
    wanted = plan.rows_wanted(rows_max) if plan.groups is None else merge.GROUPS_MAX + 1
    for piece in pieces:
        writer = Writer(sqlite=sqlite, bind=bind)
        yield piece, writer.select(plan, piece.source, wanted), writer.values


def _shards_of(where: Expr | None, routing: Routing) -> set[int] | None:
    """Those in which rows can be that match; None: all. A job's ids say its shard (design, §3)."""
    found: set[int] | None = None
    for one in _conjuncts(where):
        match one:
            case Operation("=" | "IN", (Column(name), *choices)) if name in _SHARD_OF:
                numbers = [_whole(choice) for choice in choices]
            case Operation("=", (choice, Column(name))) if name in _SHARD_OF:
                numbers = [_whole(choice)]
            case _:
                continue
        known = {_SHARD_OF[name](routing, number) for number in numbers if number is not None}
        if None not in numbers:
            found = known if found is None else found & known
    return found


_SHARD_OF: dict[str, Callable[[Routing, int], int]] = {
    "biz_id": lambda routing, number: routing.shard(hash_of(number)),
    "job_id": lambda routing, number: routing.shard(gene_of(number)),
    "shard": lambda routing, number: number,
}


def _whole(expr: Expr) -> int | None:
    return int(expr.text) if isinstance(expr, Number) and expr.text.isdigit() else None


def _conjuncts(expr: Expr | None) -> list[Expr]:
    """The conditions that must all hold."""
    match expr:
        case None:
            return []
        case Operation("AND", args):
            return [one for arg in args for one in _conjuncts(arg)]
    return [expr]
