"""A parsed and checked condition on the rows of `toc_jobs`, as a tree.

`toc.admin` parses the text that a person writes. `ConditionRenderer` renders the tree as SQL, with every
value bound. `bounds_of_condition` finds the bounds that determine the index of a read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    not_,
    null,
    or_,
    text,
    true,
    tuple_,
)

from toc.domain.job import Status
from toc.domain.times import MS_MAX
from toc.store.column_types import UInt64
from toc.store.schema import JOB

Kind = Literal["number", "time", "text"]
KINDS: Mapping[str, Kind] = {
    "shard": "number", "job_id": "number", "biz_id": "number", "biz_text": "text", "tenant": "text",
    "type_no": "number", "biz_type": "text", "status": "number", "status_name": "text",
    "action_time": "time", "due_time": "time", "claim_time": "time",
    "lease_end_time": "time", "late_ms": "number",
    "attempts": "number", "priority": "number", "claim_token": "text", "dedup_key": "text",
    "attribute": "text", "result": "text", "trace": "text", "gmt_create": "time", "gmt_modified": "time",
}  # fmt: skip
"""The columns of `toc_jobs` (see `views`). Times are milliseconds since 1970 UTC."""

Scalar = int | str
Operator = Literal["=", "<>", "<", "<=", ">", ">="]
OPERATORS: Mapping[Operator, Callable[[Any, Any], Any]] = {
    "=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a column with a value, or with another column, of the same kind."""

    column: Column
    operator: Operator
    other: Column | Scalar


@dataclass(frozen=True, slots=True)
class InList:
    column: Column
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A LIKE condition. escape: the character that makes the next character literal; '' for none."""

    column: Column
    pattern: str
    escape: str


@dataclass(frozen=True, slots=True)
class IsNull:
    column: Column


@dataclass(frozen=True, slots=True)
class AllOf:
    """All parts are true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    part: Condition


@dataclass(frozen=True, slots=True)
class TruthValue:
    truth: bool


Condition = Comparison | InList | Like | IsNull | AllOf | AnyOf | Negation | TruthValue


# ---- which index


@dataclass(frozen=True, slots=True)
class ConditionBounds:
    """Necessary conditions of a matching row; None: no condition on this column.

    is_due: the due_time of each matching row is not NULL, and lies from `due_from_ms` to `due_until_ms`.
    """

    job_ids: frozenset[int] | None = None
    biz_ids: frozenset[int] | None = None
    shards: frozenset[int] | None = None
    statuses: frozenset[int] | None = None
    is_due: bool = False
    due_from_ms: int = 0
    due_until_ms: int = MS_MAX

    @property
    def matches_only_live(self) -> bool:
        """Whether all matching rows are live (live rows have a due_time)."""
        return self.statuses is not None and all(
            number in (Status.PENDING, Status.RUNNING) for number in self.statuses
        )

    @property
    def matches_only_dead(self) -> bool:
        return self.statuses is not None and self.statuses <= {Status.DEAD}


def bounds_of_condition(condition: Condition) -> ConditionBounds:
    """The bounds of all matching rows, from those parts of the condition that must all be true."""
    sets: dict[str, frozenset[int]] = {}
    due: list[tuple[Operator, int]] = []
    is_due = False
    for part in _conjuncts(condition):
        match part:
            case Comparison(Column("due_time"), operator, int(value)):
                is_due = True
                due.append((operator, value))
            case Negation(IsNull(Column("due_time"))):
                is_due = True
            case Comparison(Column(name), "=", value) if not isinstance(value, Column):
                _intersect_allowed_values(sets, name, (value,))
            case InList(Column("due_time"), values):
                times = [value for value in values if isinstance(value, int)]
                is_due = True
                due += [(">=", min(times)), ("<=", max(times))]
            case InList(Column(name), values):
                _intersect_allowed_values(sets, name, values)
    return ConditionBounds(
        sets.get("job_id"),
        sets.get("biz_id"),
        sets.get("shard"),
        sets.get("status"),
        is_due,
        max((value for operator, value in due if operator in ("=", ">", ">=")), default=0),
        min((value for operator, value in due if operator in ("=", "<", "<=")), default=MS_MAX),
    )


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, AllOf):
        for part in condition.parts:
            yield from _conjuncts(part)
    else:
        yield condition


def _intersect_allowed_values(
    sets: dict[str, frozenset[int]], name: str, values: tuple[Scalar, ...]
) -> None:
    if name == "status_name":
        name = "status"
        numbers = frozenset(int(s) for s in Status if s.name.lower() in values)
    else:
        numbers = frozenset(value for value in values if isinstance(value, int))
    if name in ("job_id", "biz_id", "shard", "status"):
        sets[name] = sets.get(name, numbers) & numbers


# ---- SQL

c = JOB.c
_GLOB = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


class ConditionRenderer:
    """Renders conditions as SQL on `schema.JOB`, for SQLite or MySQL. names: the biz_types by number."""

    def __init__(self, names: Mapping[int, str], *, sqlite: bool) -> None:
        self._sqlite = sqlite
        self._computed: dict[str, ColumnElement[Any]] = {
            "biz_type": self._render_number_as_word(dict(names), c.type_no),
            "status_name": self._render_number_as_word(
                {int(s): s.name.lower() for s in Status}, c.status
            ),
            "late_ms": self._render_late_ms(),
        }

    def render_condition(self, condition: Condition, shard: int) -> ColumnElement[bool]:
        """Renders the condition for the table of a shard."""
        found: ColumnElement[bool]
        match condition:
            case AllOf(parts):
                found = and_(true(), *(self.render_condition(part, shard) for part in parts))
            case AnyOf(parts):
                found = or_(false(), *(self.render_condition(part, shard) for part in parts))
            case Negation(part):
                found = not_(self.render_condition(part, shard))
            case TruthValue(truth):
                found = true() if truth else false()
            case IsNull(column):
                found = self._column_expression(column, shard).is_(null())
            case InList(column, values):
                found = self._column_expression(column, shard).in_(values)
            case Like(column, pattern, escape):
                found = self._render_like(self._column_expression(column, shard), pattern, escape)
            case Comparison(column, operator, Column() as other):
                found = self._render_comparison(
                    self._column_expression(column, shard),
                    operator,
                    self._column_expression(other, shard),
                )
            case Comparison(column, operator, value):
                left = self._column_expression(column, shard)
                found = self._render_comparison(left, operator, literal(value, left.type))
        return found

    def _column_expression(self, column: Column, shard: int) -> ColumnElement[Any]:
        if column.name == "shard":
            return literal(shard, Integer)
        found = self._computed.get(column.name)
        return c[column.name] if found is None else found

    def _render_comparison(self, left: Any, operator: Operator, right: Any) -> ColumnElement[bool]:
        if self._sqlite and operator not in ("=", "<>") and isinstance(left.type, UInt64):
            # SQLite stores numbers from 2^63 on as negative numbers, so negative numbers are the largest.
            left, right = tuple_(left < 0, left), tuple_(right < 0, right)
        return OPERATORS[operator](left, right)  # type: ignore[no-any-return]

    def _render_like(
        self, left: ColumnElement[Any], pattern: str, escape: str
    ) -> ColumnElement[bool]:
        if not self._sqlite:
            return left.like(_escape_like_pattern(pattern, escape), escape="|")
        # LIKE of SQLite ignores case; comparisons of these columns must not.
        return left.op("GLOB", is_comparison=True)(_to_glob_pattern(pattern, escape))

    def _render_number_as_word(
        self, words: Mapping[int, str], number: ColumnElement[Any]
    ) -> ColumnElement[Any]:
        if not words:
            return null()
        word: ColumnElement[Any] = case(dict(words), value=number)
        return word if self._sqlite else word.collate("utf8mb4_bin")

    def _render_late_ms(self) -> ColumnElement[Any]:
        if self._sqlite:
            days = func.julianday(c.claim_time) - func.julianday(c.action_time)
            return cast(func.round(days * 86_400_000), Integer)
        micros = func.timestampdiff(text("MICROSECOND"), c.action_time, c.claim_time)
        return micros.op("DIV", return_type=BigInteger())(1000)


def _pattern_characters(pattern: str, escape: str) -> Iterator[tuple[str, bool]]:
    """Yields each character of a LIKE pattern, and whether the character is literal."""
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            yield next(characters, character), True
        else:
            yield character, character not in "%_"


def _escape_like_pattern(pattern: str, escape: str) -> str:
    return "".join(
        f"|{character}" if itself and character in "%_|" else character
        for character, itself in _pattern_characters(pattern, escape)
    )


def _to_glob_pattern(pattern: str, escape: str) -> str:
    return "".join(
        character.translate(_GLOB) if itself else "*" if character == "%" else "?"
        for character, itself in _pattern_characters(pattern, escape)
    )
