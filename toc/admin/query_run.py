"""`toc sql`, from a plan to an answer: tables are asked in parallel, and their rows merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from toc.admin.expression_parser import Output
from toc.admin.query_plan import Leaf, Plan
from toc.admin.row_merge import Row, Rows, Types, json_of, key_of
from toc.admin.shard_queries import Piece, pieces_of, statements
from toc.admin.sql_writer import rest_of
from toc.admin.syntax_tree import number
from toc.domain.routing import Routing
from toc.store.fan_out import FanOut, Question, QuestionFailure, bytes_of, too_large

GROUPS_MAX = 100_000
"""Groups (with those of COUNT(DISTINCT)) that one shard may send."""
PARTIALS_MAX = 2_000_000
"""Rows that all shards together may send to be grouped or joined: they are kept in memory."""
LINKED_MAX = 5000
"""Values of a column that others are asked for."""
MERGE_BYTES = 12_000_000
"""What a server gets for the rest of a statement: MariaDB takes 16 MB in one."""


class Unanswered(Exception):
    """There is no answer: `failures` says why."""

    def __init__(self, failures: Sequence[QuestionFailure]) -> None:
        self.failures = failures
        super().__init__(failures[0].line)


@dataclass(slots=True)
class Result:
    """`more`: there are more rows than were asked for. `missing`: what is not in the answer."""

    outputs: tuple[Output, ...]
    rows: list[Row]
    more: bool
    asked: int
    missing: list[QuestionFailure] = field(default_factory=list)


def ask(
    plan: Plan,
    routing: Routing,
    asking: FanOut,
    *,
    rows_max: int,
    database: int | None = None,
    partial: bool = False,
    merge_bytes: int = MERGE_BYTES,
    progress: Callable[[int, int], None] = lambda done, all_: None,
) -> Result:
    """Asks and merges; at most `rows_max` rows. `progress` is told how many tables of how many have answered.

    `database`: only this one is asked. Raises Unanswered when a table fails; with `partial` only when all do.
    """
    return _Run(plan, routing, asking, rows_max, database, partial, merge_bytes, progress).result()


def wanted_of(plan: Plan, leaf: Leaf, rows_max: int) -> int:
    """How many rows of each table are enough; one more than may be, where there is no telling."""
    if plan.rest is None:
        return plan.rows_wanted(rows_max)
    if leaf.is_groups:
        return GROUPS_MAX + 1
    return leaf.wanted if leaf.wanted is not None else PARTIALS_MAX + 1


@dataclass(slots=True)
class _Table:
    """What a leaf has become: JSON of its rows, types of its columns, values that others are asked for."""

    texts: list[str]
    types: list[str]
    linked: dict[int, set[Any]]


class _Run:
    def __init__(
        self,
        plan: Plan,
        routing: Routing,
        asking: FanOut,
        rows_max: int,
        database: int | None,
        partial: bool,
        merge_bytes: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self._plan, self._routing, self._asking = plan, routing, asking
        self._rows_max, self._database, self._partial = rows_max, database, partial
        self._merge_bytes, self._progress = merge_bytes, progress
        self._failures: list[QuestionFailure] = []
        self._answered: set[int] = set()
        self._asked = self._size = self._received = 0
        self._digits: Sequence[int | None] = ()

    def result(self) -> Result:
        plan = self._plan
        pieces = [piece for leaf in plan.leaves for piece in self._pieces(leaf)]
        if plan.reads_the_clock:
            failure = self._asking.fix_now(list(dict.fromkeys(piece.database for piece in pieces)))
            if failure is not None:
                raise Unanswered([failure])
        rows = self._merged() if plan.rest is None else self._rest(plan.rest)
        return Result(
            plan.outputs,
            [row[: len(plan.outputs)] for row in rows[: self._rows_max]],
            len(rows) > self._rows_max,
            self._asked,
            sorted(self._failures, key=lambda failure: failure.question.place),
        )

    def _pieces(self, leaf: Leaf) -> list[Piece]:
        return pieces_of(leaf, self._routing, self._database, sqlite=self._asking.sqlite)

    # ---- rows as they come

    def _merged(self) -> list[Row]:
        plan, (leaf,) = self._plan, self._plan.leaves
        wanted = plan.rows_wanted(self._rows_max)
        merge = Rows(plan, wanted, key_of(pads=not self._asking.sqlite))
        bytes_max, size = self._asking.bytes_max, 0
        for question, rows in self._replies(leaf):
            merge.add(question.place, rows)
            size += sum(map(bytes_of, rows))
            if size > bytes_max:
                size = sum(map(bytes_of, merge.finish()))
            if size > bytes_max:
                raise Unanswered([QuestionFailure(question, "statement", too_large(bytes_max))])
        return merge.finish()[plan.offset :]

    def _replies(self, leaf: Leaf) -> Iterator[tuple[Question, list[Row]]]:
        """The rows of each table that answers, as they come."""
        wanted = wanted_of(self._plan, leaf, self._rows_max)
        questions = [
            Question(self._asked + place, piece.database, piece.table, sql, values)
            for place, (piece, sql, values) in enumerate(
                statements(leaf, self._pieces(leaf), wanted, sqlite=self._asking.sqlite)
            )
        ]
        done, failed = self._asked, 0
        self._asked += len(questions)
        with closing(
            self._asking.ask(questions, lambda: self._progress(done, self._asked))
        ) as replies:
            for reply in replies:
                done += 1
                self._progress(done, self._asked)
                if isinstance(reply, QuestionFailure):
                    self._failures.append(reply)
                    failed += 1
                    if not self._partial or failed == len(questions):
                        raise Unanswered(self._failures)
                    continue
                self._digits = reply.digits or self._digits
                self._answered.add(reply.question.database)
                yield reply.question, list(reply.rows)

    # ---- the rest, by a server

    def _rest(self, rest: exp.Query) -> list[Row]:
        tables: dict[str, _Table] = {}
        for leaf in sorted(self._plan.leaves, key=lambda leaf: len(leaf.links)):
            tables[leaf.name] = self._table(self._narrowed(leaf, tables))
        types = {name: table.types for name, table in tables.items()}
        sqlite = self._asking.sqlite
        sql, values = rest_of(rest, types, limit=self._rows_max + 1, sqlite=sqlite)
        given = {name: f"[{','.join(table.texts)}]" for name, table in tables.items()}
        failures = []
        for database in sorted(self._answered):
            reply = self._asking.ask_one(Question(0, database, "", sql, {**values, **given}))
            if not isinstance(reply, QuestionFailure):
                return list(reply.rows)
            failures.append(reply)
        raise Unanswered(failures)

    def _narrowed(self, leaf: Leaf, tables: dict[str, _Table]) -> Leaf:
        """Only for the rows that can have a match among those that are there already."""
        conditions = []
        for link in leaf.links:
            values = tables[link.leaf].linked.get(link.place)
            if values is not None and len(values) <= LINKED_MAX:
                choices = [number(value) for value in sorted(values)] or [exp.Null()]
                conditions.append(exp.In(this=exp.column(link.column), expressions=choices))
        if not conditions:
            return leaf
        where = leaf.select.args.get("where")
        own = [] if where is None else [exp.Paren(this=where.this.copy())]
        select = leaf.select.copy()
        select.set("where", exp.Where(this=exp.and_(*own, *conditions, copy=False)))
        return replace(leaf, select=select)

    def _table(self, leaf: Leaf) -> _Table:
        width = len(leaf.select.expressions)
        types, found = Types(width, leaf.ids), list[tuple[int, list[str]]]()
        linked: dict[int, set[Any]] = {
            link.place: set()
            for other in self._plan.leaves
            for link in other.links
            if link.leaf == leaf.name
        }
        for question, rows in self._replies(leaf):
            self._check(leaf, question, len(rows))
            for row in rows:
                types.note(row)
                for place, values in linked.items():
                    values.update(() if row[place] is None else (row[place],))
            texts = [json_of(row, sqlite=self._asking.sqlite) for row in rows]
            self._size += sum(map(len, texts))
            if self._size > self._merge_bytes:
                text = (
                    f"what is to be merged is more than {self._merge_bytes / 1e6:g} MB: "
                    f"narrow it in WHERE, name fewer columns, or allow more (--merge-mb)"
                )
                raise Unanswered([QuestionFailure(question, "statement", text)])
            found.append((question.place, texts))
        texts = [text for _, texts in sorted(found) for text in texts]
        return _Table(texts, types.names(self._digits if found else ()), linked)

    def _check(self, leaf: Leaf, question: Question, count: int) -> None:
        self._received += count
        word = "groups" if leaf.is_groups else "rows"
        if leaf.is_groups and count > GROUPS_MAX:
            text = f"has more than {GROUPS_MAX} groups"
        elif self._received > PARTIALS_MAX:
            text = f"brings the {word} of all shards to more than {PARTIALS_MAX}"
        else:
            return
        raise Unanswered([QuestionFailure(question, "statement", text)])
