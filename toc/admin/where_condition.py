"""The WHERE of `toc admin`: which jobs to change.

The text is read like a WHERE of `toc sql`, by the same parser with the same checks. Then the tree becomes a
condition of `store.row_conditions`, which accepts less: comparisons of a column with a value or another
column, AND, OR, NOT, IN, BETWEEN, LIKE and IS NULL. Values are literals, and times such as NOW() - INTERVAL
1 HOUR. Other expressions are refused, and so are conditions that are true for all jobs or for none, as in
biz_id = '1' OR '' = ''.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlglot import exp

from toc.admin.query_reader import read_condition
from toc.admin.sqlite_functions import add_time_units
from toc.admin.statement_parser import node_as_text, parse_condition, refusal_error, too_deep_error
from toc.admin.syntax_tree import is_text_literal, literal_whole_number, number_literal, value_kind
from toc.admin.type_check import parse_time_literal
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


class WhereCondition:
    """A condition on jobs. Raises InvalidInput for a text that is no condition.

    `text`: the condition as the parser understood it.
    """

    def __init__(self, text: str) -> None:
        with _name_where_in_errors():
            tree = parse_condition(text).transform(_add_biz_text_condition)
            self.text = node_as_text(tree)
            self._tree = read_condition(tree)
        self.make_condition(_SOME_DAY_MS)

    def make_condition(self, now_ms: int) -> Condition:
        """The condition, with `now_ms` as NOW(). Raises InvalidInput."""
        tree = self._tree.unnest()
        if isinstance(tree, exp.Boolean):
            return TruthValue(bool(tree.this))
        with _name_where_in_errors():
            return _ConditionTranslator(now_ms).make_condition(tree)

    def check_biz_types(self, names: Mapping[int, str]) -> None:
        """Raises InvalidInput for a biz_type that does not exist: the condition would match nothing."""
        for name in _biz_types_in(self.make_condition(_SOME_DAY_MS)):
            if name not in names.values():
                with _name_where_in_errors():
                    raise refusal_error(name, "there is no such biz_type", names.values())


@contextmanager
def _name_where_in_errors() -> Iterator[None]:
    """Errors that are raised inside name `where` as the wrong argument."""
    try:
        yield
    except RecursionError:
        error = too_deep_error()
    except InvalidInput as caught:
        error = caught
    else:
        return
    raise InvalidInput("where", error.value, error.rule)


def _add_biz_text_condition(node: exp.Expr) -> exp.Expr:
    """biz_id = 'A-42' becomes biz_id IN (NUMBER) AND biz_text IN ('A-42'): the index has only the number.

    The same holds for <> and IN. Digits in quotes are an integer, because JSON has ids as texts.
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
    if not is_biz_id or not any(is_text_literal(one) and not one.name.isdigit() for one in values):
        return node
    if not all(map(is_text_literal, values)):
        raise refusal_error(node_as_text(node), "a list of biz_ids has either texts or integers")
    numbers = [number_literal(check_business_id(one.name).number) for one in values]
    biz_text = column.copy()
    biz_text.this.set("this", "biz_text")
    both = exp.and_(
        exp.In(this=column.copy(), expressions=numbers),
        exp.In(this=biz_text, expressions=[one.copy() for one in values]),
    )
    return exp.Not(this=exp.Paren(this=both)) if isinstance(node, exp.NEQ) else exp.Paren(this=both)


def _biz_types_in(condition: Condition) -> Iterator[str]:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _biz_types_in(part)
        case Negation(part):
            yield from _biz_types_in(part)
        case Comparison(Column("biz_type"), "=", str(name)):
            yield name
        case InList(Column("biz_type"), names):
            yield from map(str, names)


class _ConditionTranslator:
    """Makes a condition of a tree of `query_reader`."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    # ---- conditions

    def make_condition(self, node: exp.Expr) -> Condition:
        node = node.unnest()
        read = self._CONDITIONS.get(type(node))
        if read is not None:
            return read(self, node)
        if isinstance(node, exp.Boolean):
            raise refusal_error(
                node_as_text(node), "TRUE and FALSE must stand alone: TRUE means all jobs"
            )
        if isinstance(node, (exp.Column, exp.Literal)):
            raise refusal_error(
                node_as_text(node), "this is no condition: compare it with something"
            )
        raise _not_usable_error(node)

    def _translate_operands(self, node: exp.Expr) -> tuple[Condition, ...]:
        return tuple(map(self.make_condition, node.flatten(unnest=False)))

    def _translate_is_null(self, node: exp.Expr) -> Condition:
        if not isinstance(node.expression, exp.Null):
            raise refusal_error(
                node_as_text(node), "only IS NULL and IS NOT NULL are accepted here"
            )
        return IsNull(self._expect_column(node.this, "IS NULL"))

    def _translate_between(self, node: exp.Expr) -> Condition:
        low, high = node.args["low"], node.args["high"]
        return AllOf(
            (
                self._translate_comparison(node.this, ">=", low),
                self._translate_comparison(node.this, "<=", high),
            )
        )

    def _translate_in(self, node: exp.Expr) -> Condition:
        column = self._expect_column(node.this, "IN")
        if not 1 <= len(node.expressions) <= VALUES_MAX:
            raise refusal_error(
                node_as_text(node.this), f"a list must have 1 to {VALUES_MAX} values"
            )
        return InList(
            column,
            tuple(self._translate_column_value(one, column, "IN") for one in node.expressions),
        )

    def _translate_like(self, node: exp.Expr) -> Condition:
        escape = "\\"
        if isinstance(node, exp.Escape):
            node, escape = node.this, node.expression.name
        column = self._expect_column(node.this, "LIKE")
        pattern = self._translate_column_value(node.expression, column, "LIKE")
        if KINDS[column.name] != "text":
            raise refusal_error(column.name, "LIKE is for texts")
        return Like(column, str(pattern), escape)

    def _translate_comparison(
        self, left: exp.Expr, operator: Operator, right: exp.Expr
    ) -> Condition:
        left, right = left.unnest(), right.unnest()
        text = f"{node_as_text(left)} {operator} {node_as_text(right)}"
        if not isinstance(left, exp.Column):
            left, operator, right = right, _TURNED[operator], left
        if not isinstance(left, exp.Column):
            for side in (left, right):
                # Raises the more exact error of an expression that is never accepted.
                self._translate_value(side)
            raise refusal_error(
                text, "compares two values: one side must be a column (all jobs: TRUE)"
            )
        column = Column(left.name)
        if not isinstance(right, exp.Column):
            return Comparison(
                column, operator, self._translate_column_value(right, column, operator)
            )
        if left.name == right.name:
            raise refusal_error(text, "compares a column with itself (all jobs: TRUE)")
        return Comparison(column, operator, Column(right.name))

    _CONDITIONS: ClassVar[
        Mapping[type[Any], Callable[[_ConditionTranslator, exp.Expr], Condition]]
    ] = {
        exp.And: lambda self, node: AllOf(self._translate_operands(node)),
        exp.Or: lambda self, node: AnyOf(self._translate_operands(node)),
        exp.Not: lambda self, node: Negation(self.make_condition(node.this)),
        exp.In: _translate_in,
        exp.Between: _translate_between,
        exp.Like: _translate_like,
        exp.Escape: _translate_like,
        exp.Is: _translate_is_null,
        **dict.fromkeys(
            _OPERATORS,
            lambda self, node: self._translate_comparison(
                node.this, _OPERATORS[type(node)], node.expression
            ),
        ),
    }

    # ---- columns and values

    def _expect_column(self, node: exp.Expr, word: str) -> Column:
        node = node.unnest()
        if not isinstance(node, exp.Column):
            raise refusal_error(node_as_text(node), f"a column must stand before {word}")
        return Column(node.name)

    def _translate_column_value(self, node: exp.Expr, column: Column, operator: str) -> Scalar:
        """A value that the column can have. The types are checked already."""
        if isinstance(node.unnest(), exp.Column):
            raise refusal_error(
                node_as_text(node), f"a value must stand after {operator}, not a column"
            )
        value, name = self._translate_value(node.unnest()), column.name
        if KINDS[name] == "number" and isinstance(value, int):
            low, high = (
                (0, BIZ_ID_MAX) if name in ("job_id", "biz_id") else (-_NUMBER_MAX, _NUMBER_MAX)
            )
            if not low <= value <= high:
                raise refusal_error(str(value), f"{name} lies from {low} to {high}")
        if name == "status_name" and operator in ("=", "<>", "IN") and value not in _STATUSES:
            raise refusal_error(str(value), f"status_name is one of: {', '.join(_STATUSES)}")
        return value

    def _translate_value(self, node: exp.Expr) -> Scalar:
        if isinstance(node, exp.Null):
            raise refusal_error("NULL", "nothing equals NULL: write IS NULL or IS NOT NULL")
        if value_kind(node) in ("time", "date"):
            return self._time_as_ms(node)
        if is_text_literal(node):
            return node.name
        is_negative = isinstance(node, exp.Neg)
        digits = node.this if is_negative else node
        if not isinstance(digits, exp.Literal):
            raise _not_usable_error(node)
        value = literal_whole_number(digits)
        if value is None:
            raise refusal_error(node_as_text(node), "this value must be a whole number")
        return -value if is_negative else value

    # ---- times

    def _time_as_ms(self, node: exp.Expr) -> int:
        moment = self._evaluate_time(node)
        ms = None if moment is None else ms_of_sql_time(moment)
        if ms is None or not 0 <= ms <= MS_MAX:
            raise refusal_error(
                node_as_text(node), "times must lie between 1970-01-01 and 9999-12-31 UTC"
            )
        return ms

    def _evaluate_time(self, node: exp.Expr) -> str | None:
        """The value of a time expression as text, with the run's moment as NOW(); None: out of range."""
        node = node.unnest()
        now = sql_time_of_ms(self._now_ms)
        match node:
            case exp.Literal():
                return parse_time_literal(node).name
            case exp.Cast() if is_text_literal(node.this) or value_kind(node.this) == "date":
                moment = self._evaluate_time(node.this)
                is_date = node.args["to"].this == exp.DType.DATE
                return moment[:10] if moment is not None and is_date else moment
            case exp.Anonymous() if node.name in ("NOW", "UTC_TIMESTAMP"):
                return now
            case exp.Anonymous() if node.name in ("CURDATE", "UTC_DATE"):
                return now[:10]
            case exp.Anonymous() if node.name == "DATE_ADD":
                return self._evaluate_date_add(*node.expressions)
        raise _not_usable_error(node)

    def _evaluate_date_add(self, base: exp.Expr, interval: exp.Expr) -> str | None:
        start, count = self._evaluate_time(base), self._translate_value(interval.this.unnest())
        unit = interval.args["unit"].name
        if unit == "MICROSECOND":
            raise refusal_error(unit, "times have milliseconds: the unit must be SECOND or longer")
        try:
            return None if start is None else add_time_units(start, count, unit)
        except (OverflowError, ValueError):
            return None


def _not_usable_error(node: exp.Expr) -> InvalidInput:
    """The error for an expression that `toc sql` accepts, and a condition on jobs cannot have."""
    if isinstance(node, exp.Anonymous):
        return refusal_error(node.name, "this function is not accepted here")
    return refusal_error(
        node_as_text(node),
        "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted",
    )
