"""What `toc sql` does with a SELECT: what each shard is asked, and how one answer is made of theirs.

Without aggregates each shard sends the rows that may be in the answer, in order and limited; those are
sorted again, all together. With aggregates each shard sends its groups with partial aggregates (AVG as
a sum and a count; for COUNT(DISTINCT x) its values of x are keys too), which are added up; expressions
of aggregates come last. What cannot be merged exactly is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from toc.admin.expressions import (
    Aggregate,
    Call,
    Column,
    Expr,
    Number,
    Ref,
    all_of,
    has_aggregate,
    parts_of,
    replaced,
)
from toc.admin.functions import NOW_FUNCTIONS, Kind
from toc.admin.grammar import too_deep
from toc.admin.kinds import agreed
from toc.admin.reading import Item, Statement, read
from toc.admin.refusals import refused
from toc.store.views import COLUMNS

BIZ_TYPES = "toc_biz_type"
TABLES: Mapping[str, tuple[str, ...]] = {**COLUMNS, BIZ_TYPES: ("type_no", "name")}
"""The columns of each table that can be asked."""

WINDOW_MAX = 100_000
"""OFFSET and LIMIT together: each shard sends so many rows."""

_IDS = frozenset({"job_id", "biz_id"})


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the answer. `is_id`: a 64-bit number that names something."""

    name: str
    kind: Kind
    is_id: bool


How = Literal["add", "least", "most", "average", "mean", "distinct"]


@dataclass(frozen=True, slots=True)
class Final:
    """How a value of a merged group is made of pushed columns (`places`).

    add, least, most: of one. average: of a sum and a count; mean: the same, with all the digits that a
    server computes with. distinct: counts the different values of keys.
    """

    how: How
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The first `keys` pushed columns tell the groups apart; the first `spread` tell partials apart.

    A merged group's values are its keys, then `finals`. `answers` are expressions of them (`Ref`).
    `having` is one more, which must be true; None: all groups are answered.
    """

    keys: int
    spread: int
    finals: tuple[Final, ...]
    answers: tuple[Expr, ...]
    having: Expr | None
    is_one: bool
    """There is no GROUP BY: one group, even of no rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`pushed` is what each shard selects. The answer's columns come first, then more to sort by.

    `order`: the places of these columns, and whether each goes down.
    """

    table: str
    outputs: tuple[Output, ...]
    pushed: tuple[Expr, ...]
    where: Expr | None
    distinct: bool
    order: tuple[tuple[int, bool], ...]
    limit: int | None
    offset: int
    groups: Groups | None

    @property
    def reads_the_clock(self) -> bool:
        more: list[Expr] = []
        if self.groups is not None:
            more = [*self.groups.answers, *_given(self.groups.having)]
        return any(
            isinstance(part, Call) and part.name in NOW_FUNCTIONS
            for expr in [*self.pushed, *_given(self.where), *more]
            for part in all_of(expr)
        )

    @property
    def columns(self) -> frozenset[str]:
        """Those that the statement needs."""
        return frozenset(
            part.name
            for expr in [*self.pushed, *_given(self.where)]
            for part in all_of(expr)
            if isinstance(part, Column)
        )

    def rows_wanted(self, rows_max: int) -> int:
        """How many rows of a shard can matter: one more than are shown tells that there are more."""
        return self.offset + min(rows_max + 1, rows_max + 1 if self.limit is None else self.limit)


def plan(text: str, values: Mapping[str, str] | None = None) -> Plan:
    """Reads a SELECT and says how it is answered. `values` are those of its @names.

    Raises InvalidInput with the part that is wrong or cannot be merged.
    """
    statement = read(text, values or {})
    try:
        return _Planner(statement).plan()
    except RecursionError:
        raise too_deep(text) from None


class _Planner:
    def __init__(self, statement: Statement) -> None:
        if statement.table not in TABLES:
            rule = f"there is no such table: there are {', '.join(TABLES)}"
            raise refused(statement.table, rule, TABLES)
        self._statement = statement
        self._columns = TABLES[statement.table]
        items = [one for item in statement.items for one in self._starred(item)]
        self._names = [item.name for item in items]
        self._plain = [self._looked_up(item.expr, aliases={}) for item in items if item.expr]
        self._aliases = {
            item.name.lower(): expr
            for item, expr in zip(items, self._plain, strict=True)
            if item.has_alias
        }
        self._where = None if statement.where is None else self._filter(statement.where)
        self._select = [agreed(expr) for expr in self._plain]
        self._group = [self._grouped(expr) for expr in statement.group]
        self._having = None if statement.having is None else self._outer(statement.having, "HAVING")
        self._order = [(self._ordered(expr), desc) for expr, desc in statement.order]

    def plan(self) -> Plan:
        self._check()
        statement = self._statement
        exprs = [expr for expr, _ in self._select]
        answers = [*exprs, *(expr for expr, _ in self._order if expr not in exprs)]
        pushed, groups = tuple(answers), None
        if statement.group or any(map(has_aggregate, [*answers, *_given(self._having)])):
            pushed, groups = self._groups(answers)
        return Plan(
            statement.table,
            tuple(
                Output(name, kind, _is_id(expr))
                for name, (expr, kind) in zip(self._names, self._select, strict=True)
            ),
            pushed,
            self._where,
            statement.distinct,
            tuple((answers.index(expr), desc) for expr, desc in self._order),
            statement.limit,
            statement.offset,
            groups,
        )

    # ---- names

    def _starred(self, item: Item) -> list[Item]:
        if item.expr is not None:
            return [item]
        return [Item(Column(name), name) for name in self._columns]

    def _looked_up(self, expr: Expr, aliases: Mapping[str, Expr]) -> Expr:
        """The expression with aliases replaced, and its columns known to be there."""

        def look(part: Expr) -> Expr | None:
            if not isinstance(part, Column):
                return None
            alias = aliases.get(part.name)
            if part.name in self._columns:
                if alias not in (None, part):
                    raise refused(part.name, "is a column and another column's alias: name it anew")
                return part
            if alias is None:
                rule = f"{self._statement.table} has no such column"
                raise refused(part.name, rule, [*self._columns, *aliases])
            return alias

        return replaced(expr, look)

    def _filter(self, expr: Expr) -> Expr:
        for part in all_of(expr):
            if isinstance(part, Column) and part.name in self._aliases.keys() - {*self._columns}:
                raise refused(part.name, "is an alias, and WHERE knows columns only")
        if has_aggregate(expr):
            raise refused("WHERE", "comes before aggregates: put this in HAVING")
        return _truth(self._looked_up(expr, {}), "WHERE")

    def _grouped(self, expr: Expr) -> Expr:
        found = self._position(expr, "GROUP BY")
        if found is None:
            found = agreed(self._looked_up(expr, self._aliases))[0]
        if has_aggregate(found):
            raise refused("GROUP BY", "cannot be by an aggregate")
        return found

    def _ordered(self, expr: Expr) -> Expr:
        found = self._position(expr, "ORDER BY")
        return agreed(self._looked_up(expr, self._aliases))[0] if found is None else found

    def _outer(self, expr: Expr, clause: str) -> Expr:
        return _truth(self._looked_up(expr, self._aliases), clause)

    def _position(self, expr: Expr, clause: str) -> Expr | None:
        """The column of the answer that a whole number means."""
        if not isinstance(expr, Number):
            return None
        place = int(expr.text) if expr.text.isdigit() else 0
        if not 1 <= place <= len(self._select):
            raise refused(expr.text, f"{clause} a number from 1 to {len(self._select)} is a column")
        return self._select[place - 1][0]

    # ---- checks

    def _check(self) -> None:
        statement = self._statement
        twice = [name for name, n in Counter(map(str.lower, self._names)).items() if n > 1]
        if twice:
            raise refused(twice[0], "two columns have this name: give one another (AS)")
        window = statement.offset + (statement.limit or 0)
        if window > WINDOW_MAX:
            raise refused(str(window), f"LIMIT and OFFSET together may be {WINDOW_MAX} at most")
        exprs = [expr for expr, _ in self._select]
        if statement.distinct and any(expr not in exprs for expr, _ in self._order):
            raise refused("ORDER BY", "with DISTINCT it can be only by what is selected")
        all_exprs = [*exprs, *_given(self._having), *(expr for expr, _ in self._order)]
        if (
            self._having is not None
            and not statement.group
            and not any(map(has_aggregate, all_exprs))
        ):
            raise refused("HAVING", "needs GROUP BY or an aggregate: this belongs in WHERE")
        for expr in (part for one in all_exprs for part in all_of(one)):
            if isinstance(expr, Aggregate) and any(map(has_aggregate, parts_of(expr))):
                raise refused(expr.name, "an aggregate of an aggregate")

    # ---- groups

    def _groups(self, answers: list[Expr]) -> tuple[tuple[Expr, ...], Groups]:
        keys = list(dict.fromkeys(self._group))
        parts = _Parts(keys, self._aggregates(answers))
        given = _given(self._having)
        made = [parts.of(expr) for expr in [*answers, *given]]
        for expr in (part for one in made for part in all_of(one)):
            if isinstance(expr, Column):
                raise refused(expr.name, "is neither in GROUP BY nor in an aggregate")
        groups = Groups(
            len(keys),
            parts.spread,
            tuple(parts.finals),
            tuple(made[: len(answers)]),
            made[-1] if given else None,
            is_one=not self._statement.group,
        )
        return tuple(parts.pushed), groups

    def _aggregates(self, answers: list[Expr]) -> list[Aggregate]:
        exprs = [*answers, *_given(self._having)]
        found = (part for expr in exprs for part in all_of(expr) if isinstance(part, Aggregate))
        return list(dict.fromkeys(found))


_HOW: Mapping[str, How] = {"MIN": "least", "MAX": "most"}


class _Parts:
    """What is pushed for keys and aggregates, and where in a merged group each is found."""

    def __init__(self, keys: list[Expr], aggregates: Iterable[Aggregate]) -> None:
        self._keys = keys
        self.pushed: list[Expr] = list(keys)
        distinct = [arg for one in aggregates if one.distinct for arg in one.args]
        for arg in distinct:
            self._place(arg)
        self.spread = len(self.pushed)
        self.finals: list[Final] = []

    def of(self, expr: Expr) -> Expr:
        """The expression with keys and aggregates replaced by their places in a merged group."""
        if isinstance(expr, Aggregate) and expr.name == "AVG" and expr not in self._keys:
            return self._average("average", expr)
        return replaced(expr, self._found)

    def _found(self, part: Expr) -> Expr | None:
        if part in self._keys:
            return Ref(self._keys.index(part))
        if not isinstance(part, Aggregate):
            return None
        if part.distinct:
            return self._final(Final("distinct", tuple(map(self._place, part.args))))
        if part.name == "AVG":
            return self._average("mean", part)
        return self._final(Final(_HOW.get(part.name, "add"), (self._place(part),)))

    def _average(self, how: How, part: Aggregate) -> Ref:
        places = (
            self._place(Aggregate("SUM", part.args)),
            self._place(Aggregate("COUNT", part.args)),
        )
        return self._final(Final(how, places))

    def _place(self, expr: Expr) -> int:
        if expr not in self.pushed:
            self.pushed.append(expr)
        return self.pushed.index(expr)

    def _final(self, final: Final) -> Ref:
        if final not in self.finals:
            self.finals.append(final)
        return Ref(len(self._keys) + self.finals.index(final))


def _given(expr: Expr | None) -> list[Expr]:
    return [] if expr is None else [expr]


def _truth(expr: Expr, clause: str) -> Expr:
    """A condition."""
    condition, kind = agreed(expr)
    if kind not in ("number", "any"):
        raise refused(clause, f"is a condition, and this is a {kind}")
    return condition


def _is_id(expr: Expr) -> bool:
    match expr:
        case Column(name):
            return name in _IDS
        case Aggregate("MIN" | "MAX", (arg,)):
            return _is_id(arg)
    return False
