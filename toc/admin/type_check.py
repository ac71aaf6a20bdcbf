"""Checks the types of what is compared, computed or chosen in a statement of `toc sql`.

Where types differ a server converts them, and each kind of server in its own way: status = 'pending' is
status = 0 for MySQL, which is true for every pending job for the wrong reason. Such a statement is refused,
or the conversion is written out (a text beside a time becomes that time), so that all servers do the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlglot import exp

from toc.admin.allowed_functions import ALL_FUNCTIONS, Kind
from toc.admin.statement_parser import refusal_error
from toc.admin.syntax_tree import (
    column_name,
    is_text_literal,
    make_call,
    make_cast,
    number_literal,
    set_kind,
    text_literal,
    value_kind,
)

TEXT_COLUMNS = frozenset(
    {"biz_type", "status_name", "claim_token", "dedup_key", "attribute", "error", "what", "from_name",
     "to_name", "actor", "reason", "account", "name", "biz_text", "tenant",
     "result", "trace", "run_id"}
)  # fmt: skip
_TIME = re.compile(
    r"(\d{4}-\d\d?-\d\d?)(?:[ T](\d\d?:\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?)?(?:Z|([+-]\d\d):(\d\d))?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)
_CONDITIONS = {"WHERE", "HAVING", "ON", "AND", "OR", "NOT", "WHEN"}
_ZONE = re.compile(r"[+-](0\d|1[0-3]):[0-5]\d", re.ASCII)


def kind_of_column(name: str) -> Kind:
    if name.endswith("_time") or name.startswith("gmt_"):
        return "time"
    if name == "day":
        return "date"
    return "text" if name in TEXT_COLUMNS else "number"


def check_numbers(args: Sequence[exp.Expr], operator: str) -> list[exp.Expr]:
    """The arguments, which must be numbers (a condition is a number). Raises InvalidInput."""
    for arg in args:
        kind = value_kind(arg)
        if kind not in ("number", "any"):
            hint = "; use TIMESTAMPDIFF or INTERVAL" if kind in ("time", "date") else ""
            part = column_name(arg) or operator
            takes = "a condition" if operator in _CONDITIONS else "numbers"
            raise refusal_error(part, f"{operator} takes {takes}, and this is a {kind}{hint}")
    return list(args)


def convert_compared_values(args: Sequence[exp.Expr], operator: str) -> list[exp.Expr]:
    """The arguments of a comparison, converted to one type. Raises InvalidInput where the
    conversion would be a guess."""
    kinds = {value_kind(arg) for arg in args if not is_text_literal(arg)} - {"any"}
    texts = [arg.name for arg in args if is_text_literal(arg)]
    if kinds == {"time", "date"} or (kinds == {"date"} and any(map(_text_has_hours, texts))):
        kinds = {"time"}
    names = [column_name(arg) for arg in args if isinstance(arg, exp.Column)]
    if len(kinds) > 1:
        rule = f"{operator} compares a {' and a '.join(sorted(kinds))}"
        raise refusal_error(" and ".join(names) or operator, rule)
    kind: Kind = next(iter(kinds), "text" if texts else "any")
    return [_convert_to_kind(arg, kind, names) for arg in args]


def _convert_to_kind(arg: exp.Expr, kind: Kind, names: Sequence[str]) -> exp.Expr:
    if is_text_literal(arg) and kind == "time":
        return parse_time_literal(arg)
    if is_text_literal(arg) and kind == "date":
        return set_kind(text_literal(parse_time_literal(arg).name[:10]), "date")
    if is_text_literal(arg) and kind == "number":
        if not _NUMBER.fullmatch(arg.name):
            hint = f"{names[0]} is a number" if names else "this text is compared with a number"
            if names and f"{names[0]}_name" in TEXT_COLUMNS:
                hint += f"; {names[0]}_name has the word"
            raise refusal_error(arg.name, hint)
        return number_literal(int(arg.name))
    return convert_date_to_time(arg) if kind == "time" else arg


def convert_date_to_time(arg: exp.Expr) -> exp.Expr:
    """Converts a date to a time; returns other values unchanged."""
    return set_kind(make_cast(arg, "DATETIME", 3), "time") if value_kind(arg) == "date" else arg


def convert_choices(args: Sequence[exp.Expr], what: str) -> tuple[list[exp.Expr], Kind]:
    """The values that a CASE or COALESCE chooses from, and their type: all become texts if one is a text."""
    kinds: set[Kind] = {value_kind(arg) for arg in args} - {"any"}
    if kinds == {"time", "date"}:
        return [convert_date_to_time(arg) for arg in args], "time"
    if len(kinds) <= 1:
        return list(args), next(iter(kinds), "any")
    if "text" not in kinds or "json" in kinds:
        raise refusal_error(what, f"the result would be a {' or a '.join(sorted(kinds))}")
    return [
        arg if value_kind(arg) in ("text", "any") else make_cast(arg, "CHAR") for arg in args
    ], "text"


def check_time_argument(arg: exp.Expr) -> exp.Expr:
    """The argument, which must be a time, a date, or a text that contains a time."""
    if value_kind(arg) in ("number", "json"):
        raise refusal_error(column_name(arg) or f"a {value_kind(arg)}", "this is no time")
    return arg


def make_checked_call(name: str, args: list[exp.Expr]) -> exp.Expr:
    """A call of one of ALL_FUNCTIONS, with arguments of the types that it takes."""
    takes, kind = ALL_FUNCTIONS[name].takes, ALL_FUNCTIONS[name].gives
    if name == "CONVERT_TZ" and not all(
        is_text_literal(z) and _ZONE.fullmatch(z.name) for z in args[1:]
    ):
        raise refusal_error(
            name, "write zones like '+08:00': servers without tables of zones know no names"
        )
    if takes == "time":
        times = len(args) if name == "DATEDIFF" else 1
        args = [*map(check_time_argument, args[:times]), *args[times:]]
    elif takes == "number":
        args = check_numbers(args, name)
    elif takes == "json" and value_kind(args[0]) not in ("json", "any"):
        raise refusal_error(
            name, "its argument must be JSON, as in JSON_UNQUOTE(JSON_EXTRACT(attribute, '$.key'))"
        )
    elif takes == "same" and name == "COALESCE":
        args, kind = convert_choices(args, name)
    elif takes == "same":
        args = convert_compared_values(args, name)
        kind = next((value_kind(arg) for arg in args if value_kind(arg) != "any"), "any")
        if kind == "time":  # the result is a time, not a text
            args = [make_cast(arg, "DATETIME", 3) if is_text_literal(arg) else arg for arg in args]
    return set_kind(make_call(name, *args), kind or value_kind(args[0]))


# ---- times


def parse_time_literal(literal: exp.Expr) -> exp.Expr:
    """A literal text as DATETIME(3) in UTC. Raises InvalidInput.

    An offset like +08:00 is accepted only if `meta` says so, since MySQL compares such a text otherwise.
    """
    value = literal.name
    found = _parse_time_text(value, has_offset=bool(literal.meta.get("offsets")))
    if found is None:
        raise refusal_error(value, "this is no time; write it like '2030-01-31 08:00:00'")
    if found.microsecond % 1000:
        raise refusal_error(value, "times have milliseconds, not more")
    return set_kind(text_literal(found.isoformat(sep=" ", timespec="milliseconds")), "time")


def _text_has_hours(value: str) -> bool:
    match = _TIME.fullmatch(value)
    return match is not None and match[2] is not None


def _parse_time_text(value: str, *, has_offset: bool) -> datetime | None:
    match = _TIME.fullmatch(value)
    if match is None or (match[5] and not has_offset):
        return None
    day, clock, seconds, fraction, zone_hours, zone_minutes = match.groups()
    year, month, date = map(int, day.split("-"))
    hour, minute = map(int, (clock or "0:0").split(":"))
    micros = int((fraction or "").ljust(6, "0"))
    try:
        found = datetime(year, month, date, hour, minute, int(seconds or 0), micros)  # noqa: DTZ001
        east = timedelta(
            hours=int(zone_hours or 0), minutes=int(f"{(zone_hours or '+')[0]}{zone_minutes or 0}")
        )
        return found - east
    except (ValueError, OverflowError):
        return None
