"""Whether what is compared and chosen from is of one kind, in a statement of `toc sql`.

Where kinds differ a server guesses, and each in its own way: status = 'pending' is status = 0 for MySQL,
which is true of every pending job for the wrong reason. Here such things are refused, or written out
(a text beside a time becomes that time), so that all engines see the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlglot import exp

from toc.admin.allowed_functions import FUNCTIONS, Kind
from toc.admin.statement_parser import refused
from toc.admin.syntax_tree import call, cast, is_text, name_of, number

TEXTS = frozenset(
    {"type_name", "status_name", "worker", "dedup_key", "attribute", "error", "what", "from_name",
     "to_name", "actor", "reason", "account", "name"}
)  # fmt: skip
_TIME = re.compile(
    r"(\d{4}-\d\d?-\d\d?)(?:[ T](\d\d?:\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?)?Z?", re.ASCII
)
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)

Typed = tuple[exp.Expr, Kind]


def kind_of_column(name: str) -> Kind:
    if name.endswith("_time") or name.startswith("gmt_"):
        return "time"
    if name == "day":
        return "date"
    return "text" if name in TEXTS else "number"


def check_numbers(what: str, args: Iterable[Typed]) -> None:
    for part, kind in args:
        if kind not in ("number", "any"):
            hint = "; TIMESTAMPDIFF and INTERVAL are for times" if kind in ("time", "date") else ""
            raise refused(
                name_of(part) or what, f"{what} is for numbers, and this is a {kind}{hint}"
            )


def truth(typed: Typed, clause: str) -> exp.Expr:
    """A condition."""
    condition, kind = typed
    if kind not in ("number", "any"):
        raise refused(clause, f"is a condition, and this is a {kind}")
    return condition


def alike(args: Sequence[Typed], what: str) -> tuple[list[exp.Expr], Kind]:
    """What is compared, made one kind."""
    kinds: set[Kind] = {k for part, k in args if k != "any" and not is_text(part)}
    texts = {part.name for part, _ in args if is_text(part)}
    if kinds == {"time", "date"} or (kinds == {"date"} and any(map(_has_hours, texts))):
        kinds = {"time"}
    if not kinds:
        kinds = {"text"} if texts else {"any"}
    names = [name_of(part) for part, _ in args if isinstance(part, exp.Column)]
    if len(kinds) > 1:
        rule = f"{what} meets a {' and a '.join(sorted(kinds))}"
        raise refused(" and ".join(names) or what, rule)
    if kinds == {"json"}:
        raise refused(what, "compares no JSON: ->> and JSON_UNQUOTE make a text of it")
    (kind,) = kinds
    return [_as_kind(part, own, kind, names) for part, own in args], kind


def _as_kind(part: exp.Expr, own: Kind, kind: Kind, names: Sequence[str]) -> exp.Expr:
    if is_text(part) and kind in ("time", "date"):
        return time_literal(part.name) if kind == "time" else _text(_moment(part.name)[:10])
    if is_text(part) and kind == "number":
        if not _NUMBER.fullmatch(part.name):
            hint = f"{names[0]} is a number" if names else "is compared with a number"
            if names and f"{names[0]}_name" in TEXTS:
                hint += f": {names[0]}_name has the word"
            raise refused(part.name, hint)
        return number(part.name)
    return cast(part, "DATETIME", 3) if own == "date" and kind == "time" else part


def mixed(args: Sequence[Typed], what: str) -> tuple[list[exp.Expr], Kind]:
    """What is chosen from: numbers and times become texts where the others are."""
    kinds: set[Kind] = {kind for _, kind in args if kind != "any"}
    if kinds == {"time", "date"}:
        parts = [cast(part, "DATETIME", 3) if own == "date" else part for part, own in args]
        return parts, "time"
    if len(kinds) <= 1:
        return [part for part, _ in args], next(iter(kinds), "any")
    if "text" not in kinds or "json" in kinds:
        raise refused(what, f"would answer a {' or a '.join(sorted(kinds))}")
    return [part if own in ("text", "any") else cast(part, "CHAR") for part, own in args], "text"


def moment(arg: Typed) -> exp.Expr:
    """What a time is wanted of."""
    part, kind = arg
    if kind in ("number", "json"):
        raise refused(name_of(part) or f"a {kind}", "is no time")
    return part


def called(name: str, args: list[Typed]) -> Typed:
    """A function of FUNCTIONS."""
    function = FUNCTIONS[name]
    parts, kind = [part for part, _ in args], function.gives
    if name == "DATE_FORMAT":
        _check_pattern(parts[1])
    if name == "CONVERT_TZ":
        _check_zones(parts[1:])
    if function.takes == "time":
        parts = [moment(arg) if i == 0 or name == "DATEDIFF" else arg[0]
                 for i, arg in enumerate(args)]  # fmt: skip
        check_numbers(name, args[1:] if name == "WEEK" else [])
    elif function.takes == "alike":
        parts, kind = _chosen(name, args)
    elif function.takes == "number":
        check_numbers(name, args)
    elif function.takes == "json":
        if args[0][1] not in ("json", "any"):
            raise refused(name, "is for JSON: JSON_UNQUOTE(JSON_EXTRACT(attribute, '$.key'))")
    elif any(kind == "json" for _, kind in args):
        raise refused(name, "takes no JSON: ->> and JSON_UNQUOTE make a text of it")
    return call(name, *parts), kind or "any"


def _chosen(name: str, args: list[Typed]) -> tuple[list[exp.Expr], Kind]:
    if name not in ("NULLIF", "GREATEST", "LEAST"):
        return mixed(args, name)
    parts, kind = alike(args, name)
    if kind == "time":  # what is given back is a time, not a text
        parts = [cast(p, "DATETIME", 3) if is_text(p) else p for p in parts]
    return parts, kind


def _check_pattern(pattern: exp.Expr) -> None:
    if not is_text(pattern):
        raise refused("DATE_FORMAT", "takes its pattern as a text")
    codes = set(re.findall(r"%([UuVX])", pattern.name.replace("%%", "")))
    if codes:
        raise refused(f"%{min(codes)}", "for weeks there are %v and %x, those of ISO 8601")


def _check_zones(zones: Iterable[exp.Expr]) -> None:
    for zone in zones:
        if not (is_text(zone) and re.fullmatch(r"[+-](0\d|1[0-3]):[0-5]\d", zone.name, re.ASCII)):
            rule = (
                "CONVERT_TZ takes '+08:00': names of zones are NULL on servers without their tables"
            )
            raise refused(zone.name or "a zone", rule)


def _has_hours(text: str) -> bool:
    match = _TIME.fullmatch(text)
    return match is not None and match[2] is not None


def time_literal(text: str) -> exp.Expr:
    """A literal as DATETIME(3) has it."""
    return _text(_moment(text))


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)


def _moment(text: str) -> str:
    found = _parsed(text)
    if found is None:
        raise refused(text, "is no time like '2030-01-31 08:00:00'")
    if found.microsecond % 1000:
        raise refused(text, "times are kept to the millisecond")
    return found.isoformat(sep=" ", timespec="milliseconds")


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
