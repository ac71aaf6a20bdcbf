"""MySQL's functions in Python, for SQLite: a statement of `toc sql` has the same result on both.

Times are texts as DATETIME(3) is written; dates are the first ten characters. The functions here return
datetimes and dates, which are written as such texts. NULL as an argument gives NULL, and so does a value
that is no time, or that is beyond what a time or a number can be.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from typing import Any

from toc.admin.allowed_functions import DAY_UNITS, UNITS
from toc.domain import times

Value = int | float | str
_EPOCH = times.EPOCH.replace(tzinfo=None)
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_STEPS = {unit: timedelta(**{f"{unit.lower()}s": 1}) for unit in UNITS if unit not in _MONTHS}
_LEADING_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
INTEGER_MAX = 2**63 - 1


def mysql_functions_for_sqlite(now_ms: int) -> dict[str, Callable[..., Any]]:
    """SQLite functions with the names and results of MySQL's, by name; classes are aggregates.

    now_ms: NOW() for the whole statement.
    """
    now = _EPOCH + timedelta(milliseconds=now_ms)
    now_s = _truncate_fraction(now)
    moments: dict[str, Callable[..., Any]] = {
        "now": partial(_truncate_fraction, now),
        "utc_timestamp": partial(_truncate_fraction, now),
        "curdate": now.date,
        "utc_date": now.date,
        "unix_timestamp": lambda value=now_s: _seconds_since_1970(_parse_datetime(value)),
    }
    return {
        f"my_{name}": _return_null_for_null(call)
        for name, call in {**_FUNCTIONS, **moments}.items()
    } | {"my_concat_ws": _concat_ws, "my_sum": ExactSum, "my_group_concat": GroupConcat}


class ExactSum:
    """SUM without rounding; a sum of more than 64 bits is a text."""

    def __init__(self) -> None:
        self._values: list[Value] = []

    def step(self, value: Value | None) -> None:
        if value is not None:
            self._values.append(value)

    def finalize(self) -> Value | None:
        if not self._values:
            return None
        total = sum(map(Fraction, self._values), start=Fraction())
        if any(isinstance(value, float) for value in self._values):
            return float(total)
        return int(total) if abs(total) <= INTEGER_MAX else str(total)


class GroupConcat:
    """GROUP_CONCAT(DISTINCT value ORDER BY key DESC, … SEPARATOR separator)."""

    def __init__(self) -> None:
        self._found: list[tuple[str, tuple[Any, ...]]] = []
        self._separator, self._distinct = "", False

    def step(self, distinct: int, separator: str, value: Value | None, *keys: Any) -> None:
        self._separator, self._distinct = separator, bool(distinct)
        if value is not None:
            self._found.append((str(value), keys))

    def finalize(self) -> str | None:
        found = self._found
        for place in reversed(range(0, len(found[0][1]) if found else 0, 2)):
            down = bool(found[0][1][place + 1])
            found.sort(key=lambda one: (one[1][place] is not None, one[1][place]), reverse=down)
        texts = [text for text, _ in found]
        texts = list(dict.fromkeys(texts)) if self._distinct else texts
        return self._separator.join(texts) if texts else None


def _return_null_for_null(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_or_null(*args: Any) -> Any:
        try:
            return None if None in args else _sqlite_value(call(*args))
        except (OverflowError, ValueError):
            return None

    return call_or_null


def _sqlite_value(value: Any) -> Any:
    """A value as SQLite stores values: times and dates are texts."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return value.isoformat() if isinstance(value, date) else value


# ---- texts and numbers


def _substring(value: Value, start: int, length: int | None = None) -> str:
    text = str(value)
    begin = start - 1 if start > 0 else len(text) + start
    if start == 0 or begin < 0 or (length is not None and length < 1):
        return ""
    return text[begin:] if length is None else text[begin : begin + length]


def _substring_index(value: Value, mark: Value, count: int) -> str:
    mark = str(mark)
    if not mark or not count:
        return ""
    parts = str(value).split(mark)
    return mark.join(parts[:count] if count > 0 else parts[count:])


def _locate(part: Value, value: Value, start: int = 1) -> int:
    return 0 if start < 1 else str(value).find(str(part), start - 1) + 1


def _concat_ws(separator: Value | None, *values: Value | None) -> str | None:
    if separator is None:
        return None
    return str(separator).join(str(value) for value in values if value is not None)


def _pad(value: Value, length: int, filling: Value, *, left: bool) -> str | None:
    text = str(value)
    if length < 0:
        return None
    added = (str(filling) * length)[: max(length - len(text), 0)]
    return (added + text if left else text + added)[:length]


def _parse_number(value: Value) -> int | float:
    """A number, or the number at the start of a text, as MySQL reads it."""
    if not isinstance(value, str):
        return value
    match = _LEADING_NUMBER.match(value)
    if match is None:
        return 0
    return int(match[1]) if match[1].lstrip("+-").isdigit() else float(match[1])


def _round_number(value: Value, digits: int = 0, *, how: str) -> int | float:
    number = _parse_number(value)
    if (isinstance(number, int) and digits >= 0) or not math.isfinite(number):
        return number
    step = Decimal(1).scaleb(-digits)
    return type(number)((Decimal(repr(number)) / step).to_integral_value(how) * step)


def _round_to_integer(value: Value, *, how: str) -> int:
    return int(_round_number(value, how=how))


_round_to_nearest = partial(_round_to_integer, how=ROUND_HALF_UP)


def _mod(value: Value, by: Value) -> Value | None:
    left, right = _parse_number(value), _parse_number(by)
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return int(math.copysign(1, left)) * (abs(left) % abs(right))
    return math.fmod(left, right)


def _intdiv(value: Value, by: Value) -> int | None:
    left, right = (Decimal(repr(_parse_number(one))) for one in (value, by))
    return int(left / right) if right else None


def _cast_value(value: Value, to: str, *sizes: int) -> Value | date:
    match to:
        case "BIGINT" | "UBIGINT":
            return _round_to_nearest(value.split(".")[0] if isinstance(value, str) else value)
        case "DECIMAL":
            return _round_number(value, sizes[1] if len(sizes) > 1 else 0, how=ROUND_HALF_UP)
        case "DOUBLE":
            return float(_parse_number(value))
        case "CHAR":
            return str(value)[: sizes[0]] if sizes else str(value)
        case "DATE":
            return _parse_datetime(value).date()
    digits = sizes[0] if sizes else 0
    return _truncate_fraction(
        _parse_datetime(value) + timedelta(microseconds=_microsecond_step(digits) // 2), digits
    )


# ---- times


def _parse_datetime(value: Value) -> datetime:
    """The time that a text contains. Raises ValueError for a text without a time."""
    return datetime.fromisoformat(str(value).strip()).replace(tzinfo=None)


def _microsecond_step(digits: int) -> int:
    return int(10 ** (6 - min(digits, 6)))


def _truncate_fraction(moment: datetime, digits: int = 0) -> datetime:
    """The time with `digits` digits after the second; the other digits are dropped."""
    return moment - timedelta(microseconds=moment.microsecond % _microsecond_step(digits))


def _function_of_datetime(read: Callable[[datetime], Any]) -> Callable[[Value], Any]:
    return lambda value: read(_parse_datetime(value))


def _convert_tz(value: Value, from_zone: str, to_zone: str) -> datetime:
    def zone_offset(zone: str) -> timedelta:
        minutes = int(zone[1:3]) * 60 + int(zone[4:])
        return timedelta(minutes=-minutes if zone[0] == "-" else minutes)

    return _parse_datetime(value) + zone_offset(to_zone) - zone_offset(from_zone)


def add_time_units(value: Value, amount: Value, unit: str) -> str:
    """A time or date plus `amount` units, as text. Raises OverflowError or ValueError after 9999."""
    moment, count = _parse_datetime(value), _round_to_nearest(amount)
    moved = _add_months(moment, count, unit) if unit in _MONTHS else moment + count * _STEPS[unit]
    is_date = len(str(value)) == len("2030-01-31") and unit in DAY_UNITS
    return str(_sqlite_value(moved.date() if is_date else moved))


def _add_months(moment: datetime, count: int, unit: str) -> datetime:
    months = moment.year * 12 + moment.month - 1 + count * _MONTHS[unit]
    year, month = divmod(months, 12)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _units_between(unit: str, first: Value, last: Value) -> int:
    start, end = _parse_datetime(first), _parse_datetime(last)
    if start > end:
        return -_units_between(unit, last, first)
    if unit in _STEPS:
        return (end - start) // _STEPS[unit]
    months = (end.year - start.year) * 12 + end.month - start.month
    unfinished = (end.day, end.time()) < (start.day, start.time())
    return (months - unfinished) // _MONTHS[unit]


def _seconds_since_1970(moment: datetime) -> int | float:
    seconds = (moment - _EPOCH).total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def _day_with_suffix(moment: datetime) -> str:
    day = moment.day
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


_CODES = {
    "W": "%A", "c": "%m", "M": "%B", "e": "%d", "k": "%H", "h": "%I", "l": "%I", "i": "%M", "s": "%S",
    "T": "%H:%M:%S", "r": "%I:%M:%S %p", "v": "%V", "x": "%G",
    **{letter: f"%{letter}" for letter in "YymbdjHISfpaw"},
}  # fmt: skip
"""Python's codes for those of DATE_FORMAT."""


def _date_format(value: Value, pattern: Value) -> str:
    moment = _parse_datetime(value)

    def format_code(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "D":
            return _day_with_suffix(moment)
        text = moment.strftime(_CODES[letter]) if letter in _CODES else letter
        return text.lstrip("0") or "0" if letter in "cekl" else text

    return re.sub(r"%(.)", format_code, str(pattern), flags=re.DOTALL)


_FIELDS = ("year", "month", "day", "hour", "minute", "second", "microsecond")

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "concat": lambda *values: "".join(map(str, values)),
    "length": lambda value: len(str(value).encode()),
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "substring": _substring,
    "substring_index": _substring_index,
    "left": lambda value, count: str(value)[: max(count, 0)],
    "right": lambda value, count: str(value)[-count:] if count > 0 else "",
    "locate": _locate,
    "lpad": partial(_pad, left=True),
    "rpad": partial(_pad, left=False),
    "reverse": lambda value: str(value)[::-1],
    "round": partial(_round_number, how=ROUND_HALF_UP),
    "truncate": partial(_round_number, how=ROUND_DOWN),
    "floor": partial(_round_to_integer, how=ROUND_FLOOR),
    "ceiling": partial(_round_to_integer, how=ROUND_CEILING),
    "mod": _mod,
    "float": lambda value: float(_parse_number(value)),
    "intdiv": _intdiv,
    "cast": _cast_value,
    "convert_tz": _convert_tz,
    "shift": add_time_units,
    "span": _units_between,
    "datediff": lambda last, first: (
        (_parse_datetime(last).date() - _parse_datetime(first).date()).days
    ),
    "date_format": _date_format,
    "from_unixtime": lambda seconds: _EPOCH + timedelta(seconds=_parse_number(seconds)),
    **{field: _function_of_datetime(attrgetter(field)) for field in _FIELDS},
    "date": _function_of_datetime(datetime.date),
    "last_day": _function_of_datetime(
        lambda t: t.date().replace(day=monthrange(t.year, t.month)[1])
    ),
    "quarter": _function_of_datetime(lambda t: (t.month + 2) // 3),
    "dayofweek": _function_of_datetime(lambda t: t.isoweekday() % 7 + 1),
    "weekday": _function_of_datetime(datetime.weekday),
    "dayofyear": _function_of_datetime(lambda t: t.timetuple().tm_yday),
}
