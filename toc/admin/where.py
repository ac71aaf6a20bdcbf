"""A person's WHERE over `toc_jobs`, in MySQL's dialect: read, checked, and made a condition of our own.

Only what is listed here is taken: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, literals, and
moments such as NOW() - INTERVAL 1 HOUR. All else is refused by its name, so nothing that a server would
run ever comes from the text: it is read into a tree, and values are bound.

What MySQL would guess is refused too: status = 'pending' is status = 0 there, by the rules for texts
that are no numbers, and matches every pending job for the wrong reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from toc.admin.statement_parser import TocMySQL, shown
from toc.domain.job import Status
from toc.domain.routing import BIZ_ID_MAX
from toc.domain.times import EPOCH, MS_MAX, datetime_of
from toc.errors import InvalidInput
from toc.store.conditions import (
    KINDS,
    Column,
    Compare,
    Condition,
    Constant,
    Every,
    IsNull,
    Kind,
    Like,
    Negation,
    OneOf,
    Operator,
    Scalar,
    Some,
)
from toc.store.views import JOBS

CHARS_MAX = 65_536  # a list of some thousand ids
VALUES_MAX = 5000
DEPTH_MAX = 30
_NUMBER_MAX = 2**63 - 1
_STATUSES = [status.name.lower() for status in Status]
_SOME_DAY_MS = 1_767_225_600_000  # what NOW() is while a text is only checked

Node = Any
"""A node of sqlglot's tree. Which of its classes are Expressions to a type checker changes by release."""


class Where:
    """A WHERE that can be used. Raises InvalidInput for one that cannot."""

    def __init__(self, text: str) -> None:
        self._tree = _parsed(text)
        self.text: str = shown(self._tree)
        """As it was understood."""
        self._read(_SOME_DAY_MS)

    def condition(self, now_ms: int) -> Condition:
        """The condition, where NOW() is this moment."""
        return self._read(now_ms)

    def check_types(self, names: Mapping[int, str]) -> None:
        """Raises InvalidInput for a type_name = '…' that no type has: it would match nothing."""
        for name in _types_of(self._read(_SOME_DAY_MS)):
            if name not in names.values():
                raise _refused(name, "there is no such biz_type", names.values())

    def _read(self, now_ms: int) -> Condition:
        whole = self._tree.unnest()
        if type(whole) is exp.Boolean:
            return Constant(bool(whole.this))
        try:
            return _Reader(now_ms).condition(self._tree)
        except RecursionError:
            raise _too_deep() from None


def _parsed(text: str) -> Node:
    if len(text) > CHARS_MAX:
        raise InvalidInput("where", text, f"must be at most {CHARS_MAX} characters")
    if text.encode(errors="replace").decode() != text or "\0" in text:
        raise InvalidInput("where", text, "must be text")
    try:
        _check_tokens(TocMySQL().tokenize(text))
        tree = sqlglot.parse_one(text, read=TocMySQL, into=exp.Condition)
    except RecursionError:
        raise _too_deep() from None
    except SqlglotError as error:
        raise InvalidInput("where", text, f"is no expression of MySQL{_place(error)}") from None
    return tree


def _check_tokens(tokens: list[Any]) -> None:
    if not tokens:
        raise InvalidInput("where", "", "must say which jobs; all of them: TRUE")
    depth = 0
    for token in tokens:
        if token.comments:
            raise InvalidInput("where", token.comments[0], "must have no comments")
        kind = token.token_type.name
        if kind == "SEMICOLON":
            raise InvalidInput("where", ";", "must be one expression")
        depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        if depth > DEPTH_MAX:
            raise _too_deep()


def _too_deep() -> InvalidInput:
    return InvalidInput("where", "…", f"must not be nested deeper than {DEPTH_MAX}")


def _place(error: SqlglotError) -> str:
    for fault in getattr(error, "errors", ()):
        if fault.get("highlight"):
            return f": wrong at {fault['highlight']!r}, character {fault['col']}"
    return ""


def _refused(what: str, rule: str, near: object = ()) -> InvalidInput:
    found = get_close_matches(what, list(near), n=1, cutoff=0.5)  # type: ignore[call-overload]
    hint = f"; did you mean {found[0]}?" if found else ""
    return InvalidInput("where", what, f"{rule}{hint}")


def _types_of(condition: Condition) -> Iterator[str]:
    match condition:
        case Every(parts) | Some(parts):
            for part in parts:
                yield from _types_of(part)
        case Negation(part):
            yield from _types_of(part)
        case Compare(Column("type_name"), "=", str(name)):
            yield name
        case OneOf(Column("type_name"), names):
            yield from map(str, names)


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Scalar
    kind: Kind
    text: str  # as it was written


_Operand = Column | _Literal

_COMPARED: Mapping[type, Operator] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_TURNED: Mapping[Operator, Operator] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
_UNITS_MS = {
    "SECOND": 1000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000, "WEEK": 604_800_000,
}  # fmt: skip
_UNITS_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_NOW = {"now", "utc_timestamp", "current_timestamp", "localtime", "localtimestamp"}
_TODAY = {"curdate", "current_date", "utc_date"}
_TIME_TYPES = {"DATE", "DATETIME", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"}


class _Reader:
    """From sqlglot's tree to ours. What a method does not know it refuses."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    # ---- conditions

    def condition(self, node: Node) -> Condition:
        read = self._CONDITIONS.get(type(node))
        if read is None:
            if type(node) is exp.Column or type(node) is exp.Literal:
                raise _refused(_short(node), "is no condition: compare it with something")
            if type(node) is exp.Boolean:
                raise _refused(_short(node), "must stand alone: TRUE means all jobs")
            raise _not_allowed(node)
        return read(self, node)

    def _inner(self, node: Node) -> Condition:
        return self.condition(_args(node, "this")[0])

    def _every(self, node: Node) -> Condition:
        return Every(tuple(self.condition(part) for part in node.flatten(unnest=False)))

    def _some(self, node: Node) -> Condition:
        return Some(tuple(self.condition(part) for part in node.flatten(unnest=False)))

    def _not(self, node: Node) -> Condition:
        return Negation(self._inner(node))

    def _compare(self, node: Node) -> Condition:
        left, right = (self._operand(part) for part in _args(node, "this", "expression"))
        return _comparison(left, _COMPARED[type(node)], right)

    def _in(self, node: Node) -> Condition:
        (this,) = _args(node, "this", ignore=("expressions",))
        column = self._column(this, "IN")
        given = node.args.get("expressions") or []
        if not 1 <= len(given) <= VALUES_MAX:
            raise _refused(_short(node), f"a list must have 1 to {VALUES_MAX} values")
        literals = [self._literal(part, "IN") for part in given]
        return OneOf(column, tuple(_value_for(column, one, "=") for one in literals))

    def _between(self, node: Node) -> Condition:
        this, low, high = _args(node, "this", "low", "high")
        operand = self._operand(this)
        return Every(
            (
                _comparison(operand, ">=", self._operand(low)),
                _comparison(operand, "<=", self._operand(high)),
            )
        )

    def _like(self, node: Node, escape: str = "\\") -> Condition:
        this, expression = _args(node, "this", "expression", ignore=("negate",))
        column, pattern = self._column(this, "LIKE"), self._literal(expression, "LIKE")
        if KINDS[column.name] != "text" or not isinstance(pattern.value, str):
            raise _refused(_short(node), "LIKE is for texts")
        like = Like(column, pattern.value, escape)
        return Negation(like) if node.args.get("negate") else like

    def _escape(self, node: Node) -> Condition:
        this, expression = _args(node, "this", "expression")
        escape = self._literal(expression, "ESCAPE").value
        if type(this) is not exp.Like or not isinstance(escape, str) or len(escape) > 1:
            raise _refused(_short(node), "ESCAPE is one character, after LIKE")
        return self._like(this, escape)

    def _is(self, node: Node) -> Condition:
        this, expression = _args(node, "this", "expression")
        if type(expression) is not exp.Null:
            raise _refused(_short(node), "IS goes with NULL only")
        return IsNull(self._column(this, "IS NULL"))

    _CONDITIONS: Mapping[type, Callable[[_Reader, Node], Condition]] = {
        exp.And: _every, exp.Or: _some, exp.Not: _not, exp.Paren: _inner,
        exp.In: _in, exp.Between: _between, exp.Like: _like, exp.Escape: _escape, exp.Is: _is,
        **dict.fromkeys(_COMPARED, _compare),
    }  # fmt: skip

    # ---- what is compared

    def _column(self, node: Node, word: str) -> Column:
        operand = self._operand(node)
        if not isinstance(operand, Column):
            raise _refused(_short(node), f"a column must stand before {word}")
        return operand

    def _literal(self, node: Node, word: str) -> _Literal:
        operand = self._operand(node)
        if isinstance(operand, Column):
            raise _refused(_short(node), f"a value must stand after {word}, not a column")
        return operand

    def _operand(self, node: Node) -> _Operand:
        if type(node) is exp.Paren:
            return self._operand(_args(node, "this")[0])
        if type(node) is exp.Column:
            name = _column_name(node)
            if name in KINDS:
                return Column(name)
        elif type(node) is exp.Literal:
            value: Scalar = node.this if node.is_string else _integer(node.this)
            return _Literal(value, "text" if node.is_string else "number", node.this)
        elif type(node) is exp.Neg and type(node.this) is exp.Literal and not node.this.is_string:
            return _Literal(-_integer(node.this.this), "number", f"-{node.this.this}")
        elif type(node) is exp.Null:
            raise _refused("NULL", "nothing equals NULL: write IS NULL or IS NOT NULL")
        moment = self._moment(node)
        if moment is not None:
            return _Literal(_ms(moment), "time", _short(node))
        raise _not_allowed(node)

    def _moment(self, node: Node) -> datetime | None:
        """What a moment's expression means; None: it is none."""
        kind, name = type(node), _function_name(node)
        found: datetime | None = None
        if kind is exp.Paren:
            found = self._moment(_args(node, "this")[0])
        elif kind is exp.Cast:
            text = node.this
            if type(text) is exp.Literal and text.is_string and _type_name(node) in _TIME_TYPES:
                found = _time_of(text.this)
        elif kind in (exp.Add, exp.Sub):
            found = self._shifted(node)
        elif name in ("date_add", "date_sub") and len(node.expressions) == 2:
            found = self._moved(*node.expressions, back=name == "date_sub")
        elif name in _NOW | _TODAY and not _is_plain_call(node):
            found = None
        elif name in _NOW:
            found = datetime_of(self._now_ms)
        elif name in _TODAY:
            found = datetime_of(self._now_ms - self._now_ms % _UNITS_MS["DAY"])
        return found

    def _shifted(self, node: Node) -> datetime | None:
        left, right = _args(node, "this", "expression")
        if type(left) is exp.Interval and type(node) is exp.Add:
            left, right = right, left
        return self._moved(left, right, back=type(node) is exp.Sub)

    def _moved(self, start: Node, interval: Node, *, back: bool) -> datetime | None:
        moment = self._moment(start) if type(interval) is exp.Interval else None
        if moment is None:
            return None
        amount, unit = _args(interval, "this", "unit")
        return _moved(moment, amount, unit, back=back)


def _args(node: Node, *names: str, ignore: tuple[str, ...] = ()) -> list[Node]:
    """The named parts of a node, which must have these and no others."""
    extra = {name for name, value in node.args.items() if value} - {*names, *ignore}
    parts = [node.args.get(name) for name in names]
    if extra or not all(isinstance(part, exp.Expression) for part in parts):
        raise _not_allowed(node)
    return parts


def _not_allowed(node: Node) -> InvalidInput:
    """By its name, as a person would call it."""
    inner = node.find(exp.Query, exp.Subquery)
    if inner is not None:
        return _refused(_short(node), "a subquery is not allowed")
    functions = [f for f in node.find_all(exp.Func) if type(f) is not exp.Cast]
    function = next((f for f in functions if _function_name(f) not in _NOW), None)
    if function is not None:
        return _refused(
            _short(node), f"the function {_function_name(function).upper()} is not allowed"
        )
    if node.find(exp.Parameter, exp.Placeholder, exp.SessionParameter):
        return _refused(_short(node), "a variable or parameter is not allowed")
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
    return _refused(_short(node), f"this is not allowed here ({word})")


def _short(node: Node) -> str:
    return shown(node)


def _column_name(node: Node) -> str:
    """The column meant; '' for a moment that is written without parentheses."""
    name = node.name.lower()
    if not node.table and not node.this.quoted and name in _NOW | _TODAY:
        return ""
    if node.args.get("db") or node.table.lower() not in ("", JOBS):
        raise _refused(_short(node), f"the only table is {JOBS}")
    if name not in KINDS:
        raise _refused(name, f"there is no such column in {JOBS}", KINDS)
    return str(name)


def _function_name(node: Node) -> str:
    if type(node) is exp.Anonymous:
        return str(node.this).lower()
    if type(node) is exp.Column:
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _is_plain_call(node: Node) -> bool:
    """NOW(), or NOW(3)."""
    given = [*node.args.get("expressions", ()), *filter(None, [node.args.get("this")])]
    return type(node) is exp.Column or all(
        type(one) is exp.Literal and not one.is_string for one in given if not isinstance(one, str)
    )


def _type_name(cast: Node) -> str:
    """The type that a value is made, as in DATE '2030-01-31'."""
    return str(getattr(cast.args["to"].this, "name", ""))


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(BIZ_ID_MAX)):
        raise _refused(text, "must be a whole number, up to 2^64-1")
    return int(text)


def _ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _time_of(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        rule = "is no time: write '2030-01-31', '2030-01-31 08:00:00' (UTC) or one with its zone"
        raise _refused(text, rule) from None
    return _checked(moment.replace(tzinfo=moment.tzinfo or UTC), text)


def _checked(moment: datetime, text: str) -> datetime:
    if not timedelta() <= moment - EPOCH <= timedelta(milliseconds=MS_MAX):
        raise _refused(text, "must lie between 1970-01-01 and 9999-12-31 UTC")
    if moment.microsecond % 1000:
        raise _refused(text, "times are kept to the millisecond")
    return moment


def _moved(moment: datetime, amount: Node, unit: Node, *, back: bool) -> datetime:
    sign = -1 if back else 1
    if type(amount) is exp.Neg:
        amount, sign = amount.this, -sign
    digits, name = amount.name, unit.name.upper()
    if digits.startswith("-"):
        digits, sign = digits[1:], -sign
    text = f"INTERVAL {amount.name} {name}"
    if type(amount) is not exp.Literal or not re.fullmatch(r"\d{1,12}", digits, re.ASCII):
        raise _refused(text, "an interval must be a whole number")
    steps = sign * int(digits)
    try:
        if name in _UNITS_MS:
            return _checked(moment + steps * timedelta(milliseconds=_UNITS_MS[name]), text)
        if name in _UNITS_MONTHS:
            return _checked(_months_on(moment, steps * _UNITS_MONTHS[name]), text)
    except (OverflowError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _refused(text, "must lie between 1970-01-01 and 9999-12-31 UTC") from None
    raise _refused(text, f"the unit must be one of: {', '.join([*_UNITS_MS, *_UNITS_MONTHS])}")


def _months_on(moment: datetime, months: int) -> datetime:
    """As in MySQL: a day that the month does not have becomes its last."""
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    for day in range(moment.day, moment.day - 4, -1):
        try:
            return moment.replace(year=year, month=month + 1, day=day)
        except ValueError:
            continue
    raise OverflowError


def _comparison(left: _Operand, operator: Operator, right: _Operand) -> Condition:
    if isinstance(left, _Literal):
        if isinstance(right, _Literal):
            # It would be true of all jobs or of none, as in a WHERE whose value was forged:
            # biz_id = '1' OR '' = ''.
            text = f"{left.text} {operator} {right.text}"
            raise _refused(text, "compares two values: one side must be a column (all jobs: TRUE)")
        left, operator, right = right, _TURNED[operator], left
    if isinstance(right, Column):
        if left == right:
            text = f"{left.name} {operator} {right.name}"
            raise _refused(text, "compares a column with itself (all jobs: TRUE)")
        if KINDS[left.name] != KINDS[right.name]:
            text = f"{left.name} {operator} {right.name}"
            raise _refused(text, f"one is a {KINDS[left.name]}, the other a {KINDS[right.name]}")
        return Compare(left, operator, right)
    return Compare(left, operator, _value_for(left, right, operator))


def _value_for(column: Column, given: _Literal, operator: Operator) -> Scalar:
    """A literal as a value of the column's kind; MySQL would guess."""
    value, kind, name = given.value, KINDS[column.name], column.name
    if kind == "number":
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = _integer(value)  # ids come as texts from JSON
        if given.kind == "time" or not isinstance(value, int):
            hint = ": status_name has the word" if name == "status" else ""
            raise _refused(given.text, f"{name} is a number{hint}")
        low, high = (0, BIZ_ID_MAX) if name in ("job_id", "biz_id") else (-_NUMBER_MAX, _NUMBER_MAX)
        if not low <= value <= high:
            raise _refused(given.text, f"{name} lies from {low} to {high}")
        return value
    if kind == "time":
        if isinstance(value, str):
            return _ms(_time_of(value))
        if given.kind == "number":
            raise _refused(given.text, f"{name} is a time, like '2030-01-31 08:00:00'")
        return value
    if not isinstance(value, str):
        raise _refused(given.text, f"{name} is a text")
    if name == "status_name" and operator in ("=", "<>") and value not in _STATUSES:
        raise _refused(value, f"status_name is one of: {', '.join(_STATUSES)}")
    return value
