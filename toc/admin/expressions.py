"""Expressions of `toc sql` as values: equal ones are equal, whatever their spelling was.

`reading` makes them from a person's text and takes nothing else in; `writing` makes SQL of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">=", "<=>"})
TESTS = frozenset({"IS NULL", "IS TRUE", "IS FALSE"})
AGGREGATES = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table that is asked, in small letters."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, as it was written."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Word:
    """NULL, TRUE or FALSE."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """OR, AND, NOT, a comparison, a test, IN (value, choices…), BETWEEN (value, low, high), LIKE,
    + - * / DIV %, and NEG for a minus sign."""

    operator: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `functions.FUNCTIONS`."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Shift:
    """`base` and so many of a unit: DATE_ADD, and + and - with an INTERVAL."""

    base: Expr
    amount: Expr
    unit: str


@dataclass(frozen=True, slots=True)
class Span:
    """TIMESTAMPDIFF: whole units from `start` to `end`."""

    unit: str
    start: Expr
    end: Expr


@dataclass(frozen=True, slots=True)
class Cast:
    """CAST(arg AS to(sizes))."""

    arg: Expr
    to: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """CASE, with or without a subject; IF too."""

    subject: Expr | None
    whens: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One of AGGREGATES. COUNT(*) has no arguments."""

    name: str
    args: tuple[Expr, ...]
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a merged group, by its place."""

    index: int


Expr = (
    Column | Number | Text | Word | Operation | Call | Shift | Span | Cast | Case | Aggregate | Ref
)


def parts_of(expr: Expr) -> Iterator[Expr]:
    """The expressions right below one."""
    match expr:
        case Operation(_, args) | Call(_, args) | Aggregate(_, args):
            yield from args
        case Shift(base, amount):
            yield base
            yield amount
        case Span(_, start, end):
            yield start
            yield end
        case Cast(arg):
            yield arg
        case Case(subject, whens, otherwise):
            if subject is not None:
                yield subject
            for when, then in whens:
                yield when
                yield then
            if otherwise is not None:
                yield otherwise


def all_of(expr: Expr) -> Iterator[Expr]:
    """An expression and everything below it."""
    yield expr
    for part in parts_of(expr):
        yield from all_of(part)


def replaced(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with each part for which `change` has another put in its place, from the top."""
    other = change(expr)
    if other is not None:
        return other

    def go(part: Expr) -> Expr:
        return replaced(part, change)

    made = expr
    match expr:
        case Operation(operator, args):
            made = Operation(operator, tuple(map(go, args)))
        case Call(name, args):
            made = Call(name, tuple(map(go, args)))
        case Aggregate(name, args, distinct):
            made = Aggregate(name, tuple(map(go, args)), distinct)
        case Shift(base, amount, unit):
            made = Shift(go(base), go(amount), unit)
        case Span(unit, start, end):
            made = Span(unit, go(start), go(end))
        case Cast(arg, to, sizes):
            made = Cast(go(arg), to, sizes)
        case Case(subject, whens, otherwise):
            made = Case(
                None if subject is None else go(subject),
                tuple((go(when), go(then)) for when, then in whens),
                None if otherwise is None else go(otherwise),
            )
    return made


def has_aggregate(expr: Expr) -> bool:
    return any(isinstance(part, Aggregate) for part in all_of(expr))
