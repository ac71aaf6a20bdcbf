"""`toc sql`, from a plan to an answer: asking, merging, and expressions of aggregates last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from toc.admin.computing import Answers
from toc.admin.merge import GroupMerge, Row, Rows, TooManyGroups, key_of
from toc.admin.pieces import Piece, statements
from toc.admin.query import BIZ_TYPES, Groups, Output, Plan
from toc.store.asking import Asking, Failure, Question
from toc.store.views import DEAD_JOBS, JOBS

NAMES_SHOWN = 5


class Unanswered(Exception):
    """There is no answer: `failures` says why."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = failures
        super().__init__(failures[0].line)


@dataclass(slots=True)
class Result:
    """`more`: there are more rows than were asked for. `missing`: what is not in the answer."""

    outputs: tuple[Output, ...]
    rows: list[Row]
    more: bool
    asked: int
    missing: list[Failure] = field(default_factory=list)


def ask(
    plan: Plan,
    pieces: Sequence[Piece],
    asking: Asking,
    *,
    rows_max: int,
    partial: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Result:
    """Asks and merges; at most `rows_max` rows. `progress` is told how many pieces have answered.

    Raises Unanswered when a piece fails; with `partial` only when all do.
    """
    return _Run(plan, pieces, asking, rows_max, partial, progress).result()


class _Run:
    def __init__(
        self,
        plan: Plan,
        pieces: Sequence[Piece],
        asking: Asking,
        rows_max: int,
        partial: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._plan, self._pieces, self._asking = plan, pieces, asking
        self._rows_max, self._partial, self._progress = rows_max, partial, progress
        self._key = key_of(pads=not asking.sqlite)
        self._failures: list[Failure] = []
        self._digits: tuple[int | None, ...] = (None,) * len(plan.pushed)
        self._answered: set[int] = set()

    def result(self) -> Result:
        plan = self._plan
        if plan.reads_the_clock and self._pieces:
            databases = list(dict.fromkeys(piece.database for piece in self._pieces))
            failure = self._asking.fix_now(databases)
            if failure is not None:
                raise Unanswered([failure])
        self._check_names()
        rows = self._rows() if plan.groups is None else self._groups(plan.groups)
        shown = rows[plan.offset :]
        if plan.limit is not None:
            shown = shown[: plan.limit]
        width = len(plan.outputs)
        return Result(
            plan.outputs,
            [row[:width] for row in shown[: self._rows_max]],
            len(shown) > self._rows_max,
            len(self._pieces),
            sorted(self._failures, key=lambda failure: failure.question.place),
        )

    def _check_names(self) -> None:
        """Each database joins with its own copy of the type names: one that lacks some would count wrong."""
        others = sorted({piece.database for piece in self._pieces} - {0})
        if self._plan.table not in (JOBS, DEAD_JOBS) or not others:
            return
        wanted = self._names_in(0)
        if isinstance(wanted, Failure):
            raise Unanswered([wanted])
        for database in others:
            copied = self._names_in(database)
            if isinstance(copied, Failure):  # its tables will say so, each for itself
                continue
            lacking = sorted(name for number, name in wanted - copied)
            if lacking:
                text = (
                    f"lacks {', '.join(lacking[:NAMES_SHOWN])}, which database 0 has: start any toc process "
                    f"while both answer (`toc doctor`), it copies them"
                )
                question = Question(0, database, BIZ_TYPES, "", {})
                raise Unanswered([Failure(question, "schema", text)])

    def _names_in(self, database: int) -> set[tuple[int, str]] | Failure:
        sql = "SELECT type_no, name FROM toc_biz_type"
        reply = self._asking.ask_one(Question(0, database, BIZ_TYPES, sql, {}))
        if isinstance(reply, Failure):
            return reply
        return {(int(number), str(name)) for number, name in reply.rows}

    def _sorted(self, rows: Iterable[tuple[int, Iterable[Row]]]) -> list[Row]:
        merge = Rows(self._plan, self._plan.rows_wanted(self._rows_max), self._key)
        for place, some in rows:
            merge.add(place, some)
        return merge.finish()

    def _rows(self) -> list[Row]:
        return self._sorted(self._replies())

    def _groups(self, groups: Groups) -> list[Row]:
        merge = GroupMerge(self._plan, groups, self._key)
        for place, rows in self._replies():
            try:
                merge.add(place, rows)
            except TooManyGroups as error:
                piece = self._pieces[place]
                question = Question(place, piece.database, piece.table, "", {})
                raise Unanswered([Failure(question, "statement", str(error))]) from None
        answers = Answers(groups, self._compute, sqlite=self._asking.sqlite)
        return self._sorted([(0, answers.rows(merge.finish(), self._digits_of(groups)))])

    def _replies(self) -> Iterator[tuple[int, list[Row]]]:
        """The rows of each piece that answers, as they come."""
        questions = [
            Question(place, piece.database, piece.table, sql, values)
            for place, (piece, sql, values) in enumerate(
                statements(self._plan, self._pieces, self._rows_max, sqlite=self._asking.sqlite)
            )
        ]
        done = 0
        with closing(self._asking.ask(questions, lambda: self._progress(done))) as replies:
            for reply in replies:
                done += 1
                self._progress(done)
                if isinstance(reply, Failure):
                    self._failures.append(reply)
                    if not self._partial or len(self._failures) == len(questions):
                        raise Unanswered(self._failures)
                    continue
                self._digits = reply.digits or self._digits
                self._answered.add(reply.question.database)
                yield reply.question.place, list(reply.rows)

    def _digits_of(self, groups: Groups) -> list[int | None]:
        """Of the seconds in each value of a merged group."""
        return [
            *self._digits[: groups.keys],
            *(self._digits[final.places[0]] for final in groups.finals),
        ]

    def _compute(self, sql: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        """Asks one of the databases that have answered."""
        failures = []
        for database in sorted(self._answered):
            reply = self._asking.ask_one(Question(0, database, "", sql, values))
            if not isinstance(reply, Failure):
                return reply.rows
            failures.append(reply)
        raise Unanswered(failures)
