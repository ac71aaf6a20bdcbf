"""Whether what is compared and chosen from is of one kind, in a statement of `toc sql`.

Where kinds differ a server guesses, and each in its own way: status = 'pending' is status = 0 for MySQL,
which is true of every pending job for the wrong reason. Here such things are refused, or written out
(a text beside a time becomes that time), so that all engines see the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from toc.admin.expressions import (
    COMPARISONS,
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
from toc.admin.functions import DAY_UNITS, FUNCTIONS, Kind
from toc.admin.refusals import refused

_TEXTS = frozenset(
    {"type_name", "status_name", "worker", "dedup_key", "attribute", "error", "what", "from_name",
     "to_name", "actor", "reason", "name"}
)  # fmt: skip
_TIME = re.compile(
    r"(\d{4}-\d\d?-\d\d?)(?:[ T](\d\d?:\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?)?Z?", re.ASCII
)
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)
_CAST_KINDS: dict[str, Kind] = {"CHAR": "text", "DATE": "date", "DATETIME": "time"}

Typed = tuple[Expr, Kind]


def kind_of_column(name: str) -> Kind:
    if name.endswith("_time") or name.startswith("gmt_"):
        return "time"
    return "text" if name in _TEXTS else "number"


def agreed(expr: Expr) -> Typed:
    """The expression with its kinds made equal where they must be, and its own kind. Raises InvalidInput."""
    made, kind = expr, _KINDS.get(type(expr), "any")
    match expr:
        case Column(name):
            kind = kind_of_column(name)
        case Operation(operator, args):
            made, kind = _operation(operator, [agreed(arg) for arg in args]), "number"
        case Call(name, args):
            made, kind = _call(name, [agreed(arg) for arg in args])
        case Shift(base, amount, unit):
            made, kind = _shift(agreed(base), agreed(amount), unit)
        case Span(unit, start, end):
            made = Span(unit, _moment(agreed(start)), _moment(agreed(end)))
        case Cast(arg, to, sizes):
            made, kind = Cast(agreed(arg)[0], to, sizes), _CAST_KINDS.get(to, "number")
        case Case():
            made, kind = _case(expr)
        case Aggregate(name, args, distinct):
            made, kind = _aggregate(name, [agreed(arg) for arg in args], distinct=distinct)
    return made, kind


_KINDS: dict[type[Expr], Kind] = {
    Number: "number", Text: "text", Word: "any", Span: "number", Ref: "any",
}  # fmt: skip


def _operation(operator: str, args: list[Typed]) -> Expr:
    if operator in COMPARISONS or operator in ("IN", "BETWEEN"):
        parts, _ = _alike(args, operator)
        return Operation(operator, tuple(parts))
    if operator == "LIKE":
        if any(kind == "number" for _, kind in args):
            raise refused("LIKE", "is for texts")
    elif operator != "IS NULL":
        _check_numbers(operator, args)
    return Operation(operator, tuple(part for part, _ in args))


def _call(name: str, args: list[Typed]) -> Typed:
    function = FUNCTIONS[name]
    parts, kind = [part for part, _ in args], function.gives
    if name == "DATE_FORMAT":
        _check_pattern(parts[1])
    match function.takes:
        case "number":
            _check_numbers(name, args)
        case "time":
            parts = [_moment(arg) if i == 0 or name == "DATEDIFF" else arg[0]
                     for i, arg in enumerate(args)]  # fmt: skip
        case "alike":
            strict = name in ("NULLIF", "GREATEST", "LEAST")
            parts, kind = _alike(args, name) if strict else _mixed(args, name)
            if strict and kind == "time":  # what is given back is a time, not a text
                parts = [Cast(p, "DATETIME", (3,)) if isinstance(p, Text) else p for p in parts]
    return Call(name, tuple(parts)), kind or "any"


def _check_pattern(pattern: Expr) -> None:
    if not isinstance(pattern, Text):
        raise refused("DATE_FORMAT", "takes its pattern as a text")
    codes = set(re.findall(r"%([UuVX])", pattern.value.replace("%%", "")))
    if codes:
        raise refused(f"%{min(codes)}", "for weeks there are %v and %x, those of ISO 8601")


def _shift(base: Typed, amount: Typed, unit: str) -> Typed:
    _check_numbers("INTERVAL", [amount])
    kind: Kind = "date" if base[1] == "date" and unit in DAY_UNITS else "time"
    if base[1] == "text" and isinstance(base[0], Text):
        base = _time(base[0]), "time"
    return Shift(_moment(base), amount[0], unit), kind


def _case(case: Case) -> Typed:
    whens = [agreed(when) for when, _ in case.whens]
    if case.subject is None:
        _check_numbers("WHEN", whens)
        subject, tests = None, [when for when, _ in whens]
    else:
        (subject, *tests), _ = _alike([agreed(case.subject), *whens], "CASE")
    results = [agreed(then) for _, then in case.whens]
    if case.otherwise is not None:
        results.append(agreed(case.otherwise))
    values, kind = _mixed(results, "CASE")
    otherwise = values.pop() if case.otherwise is not None else None
    return Case(subject, tuple(zip(tests, values, strict=True)), otherwise), kind


def _aggregate(name: str, args: list[Typed], *, distinct: bool) -> Typed:
    if name in ("SUM", "AVG"):
        _check_numbers(name, args)
    kind = args[0][1] if name in ("MIN", "MAX") else "number"
    return Aggregate(name, tuple(part for part, _ in args), distinct), kind


def _check_numbers(what: str, args: Iterable[Typed]) -> None:
    for part, kind in args:
        if kind not in ("number", "any"):
            shown = part.name if isinstance(part, Column) else what
            hint = "; TIMESTAMPDIFF and INTERVAL are for times" if kind in ("time", "date") else ""
            raise refused(shown, f"{what} is for numbers, and this is a {kind}{hint}")


def _alike(args: Sequence[Typed], what: str) -> tuple[list[Expr], Kind]:
    """What is compared, made one kind."""
    kinds: set[Kind] = {k for part, k in args if k != "any" and not isinstance(part, Text)}
    texts = {part.value for part, _ in args if isinstance(part, Text)}
    if kinds == {"time", "date"} or (kinds == {"date"} and any(map(_has_hours, texts))):
        kinds = {"time"}
    if not kinds:
        kinds = {"text"} if texts else {"any"}
    if len(kinds) > 1:
        names = [part.name for part, _ in args if isinstance(part, Column)]
        raise refused(
            " and ".join(names) or what, f"{what} meets a {' and a '.join(sorted(kinds))}"
        )
    (kind,) = kinds
    return [_as_kind(part, own, kind, args) for part, own in args], kind


def _as_kind(part: Expr, own: Kind, kind: Kind, args: Sequence[Typed]) -> Expr:
    if isinstance(part, Text) and kind in ("time", "date"):
        return _time(part) if kind == "time" else Text(_time(part).value[:10])
    if isinstance(part, Text) and kind == "number":
        if not _NUMBER.fullmatch(part.value):
            names = [other.name for other, _ in args if isinstance(other, Column)]
            hint = f"{names[0]} is a number" if names else "is compared with a number"
            if names and f"{names[0]}_name" in _TEXTS:
                hint += f": {names[0]}_name has the word"
            raise refused(part.value, hint)
        number = Number(part.value.lstrip("-"))
        return Operation("NEG", (number,)) if part.value.startswith("-") else number
    return Cast(part, "DATETIME", (3,)) if own == "date" and kind == "time" else part


def _mixed(args: Sequence[Typed], what: str) -> tuple[list[Expr], Kind]:
    """What is chosen from: numbers and times become texts where the others are."""
    kinds = {kind for _, kind in args if kind != "any"}
    if kinds == {"time", "date"}:
        return [
            Cast(part, "DATETIME", (3,)) if own == "date" else part for part, own in args
        ], "time"
    if len(kinds) <= 1:
        return [part for part, _ in args], next(iter(kinds), "any")
    if "text" not in kinds:
        raise refused(what, f"would answer a {' or a '.join(sorted(kinds))}")
    return [part if own in ("text", "any") else Cast(part, "CHAR") for part, own in args], "text"


def _moment(arg: Typed) -> Expr:
    """What a time is wanted of."""
    part, kind = arg
    if kind == "number":
        raise refused(part.name if isinstance(part, Column) else "a number", "is no time")
    return part


def _has_hours(text: str) -> bool:
    match = _TIME.fullmatch(text)
    return match is not None and match[2] is not None


def _time(text: Text) -> Text:
    """A literal as DATETIME(3) has it."""
    moment = _parsed(text.value)
    if moment is None:
        raise refused(text.value, "is no time like '2030-01-31 08:00:00'")
    if moment.microsecond % 1000:
        raise refused(text.value, "times are kept to the millisecond")
    return Text(moment.isoformat(sep=" ", timespec="milliseconds"))


def _parsed(text: str) -> datetime | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, seconds, fraction = match.groups()
    year, month, date = map(int, day.split("-"))
    hour, minute = map(int, (clock or "0:0").split(":"))
    micros = int((fraction or "").ljust(6, "0"))
    try:
        return datetime(year, month, date, hour, minute, int(seconds or 0), micros)  # noqa: DTZ001
    except ValueError:
        return None
