"""The WHERE of `toc admin`: which jobs to change.

It is read like a WHERE of `toc sql`, by the same parser with the same checks. Then it becomes a condition
of `store.row_conditions`, which knows less: comparisons of a column with a value or another column, AND, OR,
NOT, IN, BETWEEN, LIKE and IS NULL. Values are literals, and times such as NOW() - INTERVAL 1 HOUR. Other
expressions are refused, and so are conditions that are true for all jobs or for none, as in
biz_id = '1' OR '' = ''.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlglot import exp

from toc.admin.query_reader import read_condition
from toc.admin.sqlite_functions import shift
from toc.admin.statement_parser import parse_condition, refused, shown, too_deep
from toc.admin.syntax_tree import is_text, kind_of, number, whole_number
from toc.admin.type_check import time_literal
from toc.domain.biz_ids import check_business_id
from toc.domain.job import Status
from toc.domain.routing import BIZ_ID_MAX
from toc.domain.times import MS_MAX
from toc.errors import InvalidInput
from toc.store.column_types import ms_of_sql_time, sql_time_of_ms
from toc.store.row_conditions import (
    KINDS,
    AllOf,
    AnyOf,
    Column,
    Comparison,
    Condition,
    InList,
    IsNull,
    Like,
    Negation,
    Operator,
    Scalar,
    TruthValue,
)

VALUES_MAX = 5000
_NUMBER_MAX = 2**63 - 1
_STATUSES = [status.name.lower() for status in Status]
_SOME_DAY_MS = 1_767_225_600_000  # NOW() while a text is only checked

_OPERATORS: Mapping[type[Any], Operator] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_TURNED: Mapping[Operator, Operator] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip


class Where:
    """A condition on jobs. Raises InvalidInput for a text that is none.

    `text` is the condition as it was understood.
    """

    def __init__(self, text: str) -> None:
        with _errors_of_where():
            tree = parse_condition(text).transform(_ask_for_texts)
            self.text = shown(tree)
            self._tree = read_condition(tree)
        self.condition(_SOME_DAY_MS)

    def condition(self, now_ms: int) -> Condition:
        """The condition, where NOW() is this moment. Raises InvalidInput."""
        tree = self._tree.unnest()
        if isinstance(tree, exp.Boolean):
            return TruthValue(bool(tree.this))
        with _errors_of_where():
            return _Translator(now_ms).condition(tree)

    def check_types(self, names: Mapping[int, str]) -> None:
        """Raises InvalidInput for a biz_type that no type has: it would match nothing."""
        for name in _type_names(self.condition(_SOME_DAY_MS)):
            if name not in names.values():
                with _errors_of_where():
                    raise refused(name, "there is no such biz_type", names.values())


@contextmanager
def _errors_of_where() -> Iterator[None]:
    """Lets errors name `where` as the argument that is wrong."""
    try:
        yield
    except RecursionError:
        error = too_deep()
    except InvalidInput as caught:
        error = caught
    else:
        return
    raise InvalidInput("where", error.value, error.rule)


def _ask_for_texts(node: exp.Expr) -> exp.Expr:
    """biz_id = 'A-42' becomes biz_id IN (NUMBER) AND biz_text IN ('A-42'): the index has only the number.

    So do <> and IN. Digits in quotes are an integer, because JSON has ids as texts.
    """
    if isinstance(node, exp.In):
        column, values = node.this.unnest(), [one.unnest() for one in node.expressions]
    elif isinstance(node, (exp.EQ, exp.NEQ)):
        column, value = node.this.unnest(), node.expression.unnest()
        if not isinstance(column, exp.Column):
            column, value = value, column
        values = [value]
    else:
        return node
    is_biz_id = isinstance(column, exp.Column) and column.name.lower() == "biz_id"
    if not is_biz_id or not any(is_text(one) and not one.name.isdigit() for one in values):
        return node
    if not all(map(is_text, values)):
        raise refused(shown(node), "a list of biz_ids has either texts or integers")
    numbers = [number(check_business_id(one.name).number) for one in values]
    biz_text = column.copy()
    biz_text.this.set("this", "biz_text")
    both = exp.and_(
        exp.In(this=column.copy(), expressions=numbers),
        exp.In(this=biz_text, expressions=[one.copy() for one in values]),
    )
    return exp.Not(this=exp.Paren(this=both)) if isinstance(node, exp.NEQ) else exp.Paren(this=both)


def _type_names(condition: Condition) -> Iterator[str]:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _type_names(part)
        case Negation(part):
            yield from _type_names(part)
        case Comparison(Column("biz_type"), "=", str(name)):
            yield name
        case InList(Column("biz_type"), names):
            yield from map(str, names)


class _Translator:
    """Makes a condition of a tree of `query_reader`."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    # ---- conditions

    def condition(self, node: exp.Expr) -> Condition:
        node = node.unnest()
        read = self._CONDITIONS.get(type(node))
        if read is not None:
            return read(self, node)
        if isinstance(node, exp.Boolean):
            raise refused(shown(node), "it must stand alone: TRUE means all jobs")
        if isinstance(node, (exp.Column, exp.Literal)):
            raise refused(shown(node), "this is no condition: compare it with something")
        raise _not_usable(node)

    def _parts(self, node: exp.Expr) -> tuple[Condition, ...]:
        return tuple(map(self.condition, node.flatten(unnest=False)))

    def _is(self, node: exp.Expr) -> Condition:
        if not isinstance(node.expression, exp.Null):
            raise refused(shown(node), "only IS NULL and IS NOT NULL are accepted here")
        return IsNull(self._column(node.this, "IS NULL"))

    def _between(self, node: exp.Expr) -> Condition:
        low, high = node.args["low"], node.args["high"]
        return AllOf((self._compared(node.this, ">=", low), self._compared(node.this, "<=", high)))

    def _in(self, node: exp.Expr) -> Condition:
        column = self._column(node.this, "IN")
        if not 1 <= len(node.expressions) <= VALUES_MAX:
            raise refused(shown(node.this), f"a list must have 1 to {VALUES_MAX} values")
        return InList(column, tuple(self._value(one, column, "IN") for one in node.expressions))

    def _like(self, node: exp.Expr) -> Condition:
        escape = "\\"
        if isinstance(node, exp.Escape):
            node, escape = node.this, node.expression.name
        column = self._column(node.this, "LIKE")
        pattern = self._value(node.expression, column, "LIKE")
        if KINDS[column.name] != "text":
            raise refused(column.name, "LIKE is for texts")
        return Like(column, str(pattern), escape)

    def _compared(self, left: exp.Expr, operator: Operator, right: exp.Expr) -> Condition:
        left, right = left.unnest(), right.unnest()
        text = f"{shown(left)} {operator} {shown(right)}"
        if not isinstance(left, exp.Column):
            left, operator, right = right, _TURNED[operator], left
        if not isinstance(left, exp.Column):
            for side in (left, right):
                self._operand(side)  # an expression that is refused anyway says why
            raise refused(text, "compares two values: one side must be a column (all jobs: TRUE)")
        column = Column(left.name)
        if not isinstance(right, exp.Column):
            return Comparison(column, operator, self._value(right, column, operator))
        if left.name == right.name:
            raise refused(text, "compares a column with itself (all jobs: TRUE)")
        return Comparison(column, operator, Column(right.name))

    _CONDITIONS: ClassVar[Mapping[type[Any], Callable[[_Translator, exp.Expr], Condition]]] = {
        exp.And: lambda self, node: AllOf(self._parts(node)),
        exp.Or: lambda self, node: AnyOf(self._parts(node)),
        exp.Not: lambda self, node: Negation(self.condition(node.this)),
        exp.In: _in, exp.Between: _between, exp.Like: _like, exp.Escape: _like, exp.Is: _is,
        **dict.fromkeys(
            _OPERATORS,
            lambda self, node: self._compared(node.this, _OPERATORS[type(node)], node.expression),
        ),
    }  # fmt: skip

    # ---- columns and values

    def _column(self, node: exp.Expr, word: str) -> Column:
        node = node.unnest()
        if not isinstance(node, exp.Column):
            raise refused(shown(node), f"a column must stand before {word}")
        return Column(node.name)

    def _value(self, node: exp.Expr, column: Column, operator: str) -> Scalar:
        """A value that the column can have. The types are checked already."""
        if isinstance(node.unnest(), exp.Column):
            raise refused(shown(node), f"a value must stand after {operator}, not a column")
        value, name = self._operand(node.unnest()), column.name
        if KINDS[name] == "number" and isinstance(value, int):
            low, high = (
                (0, BIZ_ID_MAX) if name in ("job_id", "biz_id") else (-_NUMBER_MAX, _NUMBER_MAX)
            )
            if not low <= value <= high:
                raise refused(str(value), f"{name} lies from {low} to {high}")
        if name == "status_name" and operator in ("=", "<>", "IN") and value not in _STATUSES:
            raise refused(str(value), f"status_name is one of: {', '.join(_STATUSES)}")
        return value

    def _operand(self, node: exp.Expr) -> Scalar:
        if isinstance(node, exp.Null):
            raise refused("NULL", "nothing equals NULL: write IS NULL or IS NOT NULL")
        if kind_of(node) in ("time", "date"):
            return self._ms(node)
        if is_text(node):
            return node.name
        is_negative = isinstance(node, exp.Neg)
        digits = node.this if is_negative else node
        if not isinstance(digits, exp.Literal):
            raise _not_usable(node)
        value = whole_number(digits)
        if value is None:
            raise refused(shown(node), "it must be a whole number")
        return -value if is_negative else value

    # ---- times

    def _ms(self, node: exp.Expr) -> int:
        moment = self._moment(node)
        ms = None if moment is None else ms_of_sql_time(moment)
        if ms is None or not 0 <= ms <= MS_MAX:
            raise refused(shown(node), "times must lie between 1970-01-01 and 9999-12-31 UTC")
        return ms

    def _moment(self, node: exp.Expr) -> str | None:
        """A time or date as text, by the clock of the whole run; None: beyond what a time can be."""
        node = node.unnest()
        now = sql_time_of_ms(self._now_ms)
        match node:
            case exp.Literal():
                return time_literal(node).name
            case exp.Cast() if is_text(node.this) or kind_of(node.this) == "date":
                moment = self._moment(node.this)
                is_date = node.args["to"].this == exp.DType.DATE
                return moment[:10] if moment is not None and is_date else moment
            case exp.Anonymous() if node.name in ("NOW", "UTC_TIMESTAMP"):
                return now
            case exp.Anonymous() if node.name in ("CURDATE", "UTC_DATE"):
                return now[:10]
            case exp.Anonymous() if node.name == "DATE_ADD":
                return self._shifted(*node.expressions)
        raise _not_usable(node)

    def _shifted(self, base: exp.Expr, interval: exp.Expr) -> str | None:
        start, count = self._moment(base), self._operand(interval.this.unnest())
        unit = interval.args["unit"].name
        if unit == "MICROSECOND":
            raise refused(unit, "times have milliseconds: the unit must be SECOND or longer")
        try:
            return None if start is None else shift(start, count, unit)
        except (OverflowError, ValueError):
            return None


def _not_usable(node: exp.Expr) -> InvalidInput:
    """The error for an expression that `toc sql` accepts, and a condition on jobs cannot have."""
    if isinstance(node, exp.Anonymous):
        return refused(node.name, "this function is not accepted here")
    return refused(
        shown(node), "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted"
    )
