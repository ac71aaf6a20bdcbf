"""The statements that databases get: written anew from expressions, for MySQL and MariaDB or for SQLite.

Names come from lists of ours, numbers are digits, and every text is a bound value. For people
(`--explain`) the texts are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toc.admin.expressions import (
    COMPARISONS,
    TESTS,
    Aggregate,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Number,
    Operation,
    Ref,
    Shift,
    Span,
    Text,
    Word,
)
from toc.admin.query import Plan
from toc.admin.refusals import refused

_NATIVE = {"COALESCE": "COALESCE", "NULLIF": "NULLIF", "GREATEST": "MAX", "LEAST": "MIN"}
"""Functions that SQLite has, with the same meaning. The others are given to it: `my_left` is LEFT."""

_MYSQL: Mapping[str, str] = {
    "NOT": "NOT {0}", "NEG": "-{0}", "BETWEEN": "{0} BETWEEN {1} AND {2}",
    **{test: f"{{0}} {test}" for test in TESTS},
    **{word: f"{{0}} {word} {{1}}" for word in [*COMPARISONS, "LIKE", "+", "-", "*", "/", "DIV", "%"]},
}  # fmt: skip
_SQLITE: Mapping[str, str] = {
    **_MYSQL,
    "<=>": "{0} IS {1}",
    "LIKE": "{0} LIKE {1} ESCAPE '\\'",
    "/": "CAST({0} AS REAL) / {1}",
    "DIV": "CAST({0} / {1} AS INTEGER)",
    "%": "my_mod({0}, {1})",
}
"""Operators, with the places of their operands."""

_INTEGER_MAX = 2**63 - 1


class Writer:
    """Writes SQL for one kind of server. `values` collects what is to be bound."""

    def __init__(self, *, sqlite: bool, bind: bool = True) -> None:
        self._sqlite, self._bind = sqlite, bind
        self.values: dict[str, object] = {}

    def select(self, plan: Plan, source: str, rows_max: int) -> str:
        """The statement for one shard or database: `source` is what it selects from."""
        columns = ", ".join(f"{self.write(e)} AS c{i}" for i, e in enumerate(plan.pushed))
        distinct = "DISTINCT " if plan.distinct and plan.groups is None else ""
        parts = [f"SELECT {distinct}{columns} FROM {source}"]  # noqa: S608 - see above
        if plan.where is not None:
            parts.append(f"WHERE {self.write(plan.where)}")
        if plan.groups is not None:
            keys = ", ".join(str(place + 1) for place in range(plan.groups.spread))
            parts += [f"GROUP BY {keys}"] if keys else []
        elif plan.order:
            parts.append("ORDER BY " + ", ".join(_ordered(*one) for one in plan.order))
        parts.append(f"LIMIT {rows_max}")
        return " ".join(parts)

    def of_groups(self, exprs: Sequence[Expr], types: Sequence[str]) -> str:
        """A statement that computes expressions of merged groups, which are bound as JSON to :groups.

        `types` are those of the groups' values. Each row begins with the group's place, from 1.
        """
        columns = "".join(f", {self.write(expr)} AS c{i}" for i, expr in enumerate(exprs))
        if self._sqlite:
            values = "".join(
                f", json_extract(value, '$[{i}]') AS r{i}" for i, _ in enumerate(types)
            )
            inner = f"SELECT key + 1 AS i{values} FROM json_each(:groups)"  # noqa: S608
            return f"SELECT i{columns} FROM ({inner})"  # noqa: S608
        values = "".join(f", r{i} {name} PATH '$[{i}]'" for i, name in enumerate(types))
        table = f"JSON_TABLE(:groups, '$[*]' COLUMNS (i FOR ORDINALITY{values}))"
        return f"SELECT i{columns} FROM {table} AS g"  # noqa: S608

    # ---- expressions

    def write(self, expr: Expr) -> str:
        match expr:
            case Column(name) | Word(name):
                written = name
            case Ref(index):
                written = f"r{index}"
            case Number(text):
                written = self._number(text)
            case Text(value):
                written = self._text(value)
            case Operation(operator, args):
                written = self._operation(operator, args)
            case Aggregate(name, args, distinct):
                written = f"{name}({'DISTINCT ' if distinct else ''}{self._list(args) or '*'})"
            case Case():
                written = self._case(expr)
            case _:
                written = self._lite(expr) if self._sqlite else self._called(expr)
        return written

    def _number(self, text: str) -> str:
        if self._sqlite and text.isdigit() and int(text) > _INTEGER_MAX:
            raise refused(text, "SQLite has whole numbers up to 2^63-1")
        return text

    def _text(self, value: str) -> str:
        if self._bind:
            name = next((n for n, v in self.values.items() if v == value), f"t{len(self.values)}")
            self.values[name] = value
            return f":{name}"
        quoted = value.replace("'", "''")
        return f"'{quoted}'" if self._sqlite else "'" + quoted.replace("\\", "\\\\") + "'"

    def _list(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(map(self.write, exprs))

    def _inner(self, expr: Expr) -> str:
        """An operand: in parentheses if it has operands itself."""
        written = self.write(expr)
        return f"({written})" if isinstance(expr, Operation) else written

    def _operation(self, operator: str, args: tuple[Expr, ...]) -> str:
        if operator in ("AND", "OR"):
            return f" {operator} ".join(self._chained(operator, arg) for arg in args)
        if operator == "IN":
            return f"{self._inner(args[0])} IN ({self._list(args[1:])})"
        return (_SQLITE if self._sqlite else _MYSQL)[operator].format(*map(self._inner, args))

    def _chained(self, operator: str, expr: Expr) -> str:
        same = isinstance(expr, Operation) and expr.operator == operator
        return self.write(expr) if same else self._inner(expr)

    def _case(self, case: Case) -> str:
        subject = "" if case.subject is None else f" {self._inner(case.subject)}"
        whens = "".join(f" WHEN {self.write(w)} THEN {self.write(t)}" for w, t in case.whens)
        otherwise = "" if case.otherwise is None else f" ELSE {self.write(case.otherwise)}"
        return f"CASE{subject}{whens}{otherwise} END"

    def _called(self, expr: Expr) -> str:
        match expr:
            case Call(name, args):
                return f"{name}({self._list(args)})"
            case Shift(base, amount, unit):
                return f"DATE_ADD({self.write(base)}, INTERVAL {self._inner(amount)} {unit})"
            case Span(unit, start, end):
                return f"TIMESTAMPDIFF({unit}, {self.write(start)}, {self.write(end)})"
            case Cast(arg, to, sizes):
                size = f"({', '.join(map(str, sizes))})" if sizes else ""
                return f"CAST({self.write(arg)} AS {to}{size})"
        raise AssertionError(expr)

    def _lite(self, expr: Expr) -> str:
        match expr:
            case Call("COALESCE", (only,)):
                return self.write(only)
            case Call(name, args):
                called = _NATIVE.get(name, f"my_{name.lower()}")
                return f"{called}({self._list(args)})"
            case Shift(base, amount, unit):
                return f"my_shift({self.write(base)}, {self.write(amount)}, '{unit}')"
            case Span(unit, start, end):
                return f"my_span('{unit}', {self.write(start)}, {self.write(end)})"
            case Cast(arg, to, sizes):
                size = "".join(f", {size}" for size in sizes)
                return f"my_cast({self.write(arg)}, '{to}'{size})"
        raise AssertionError(expr)


def _ordered(place: int, desc: bool) -> str:
    return f"{place + 1} DESC" if desc else str(place + 1)


def source_of(select: str, table: str) -> str:
    """A SELECT under the name of a table."""
    return f"({select}) AS {table}"
