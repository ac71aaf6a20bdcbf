"""MySQL's functions in Python, for SQLite: a statement of `toc sql` has the same result on both.

Times are texts as DATETIME(3) is written; dates are the first ten characters. NULL as an argument gives NULL.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any

from toc.admin.allowed_functions import DAY_UNITS
from toc.domain.times import EPOCH

Value = int | float | str
_MS = timedelta(milliseconds=1)
_STEP_MS = {
    "SECOND": 1000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000, "WEEK": 604_800_000,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_LEADING_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)


def functions(now_ms: int) -> dict[str, Callable[..., Any]]:
    """The functions by name; classes are aggregates. `now_ms`: NOW() for the whole statement."""
    now = _text_of(EPOCH.replace(tzinfo=None) + timedelta(milliseconds=now_ms))

    def clock(digits: int = 0) -> str:
        return now[:19] + (now[19 : 20 + digits] if digits else ".").ljust(4, "0")

    moments: dict[str, Callable[..., Any]] = {
        "now": clock,
        "utc_timestamp": clock,
        "curdate": lambda: now[:10],
        "utc_date": lambda: now[:10],
        "unix_timestamp": lambda *given: _unix(*given) if given else _unix(now[:19]),
    }
    return {
        f"my_{name}": _null_in_null_out(call) for name, call in {**_FUNCTIONS, **moments}.items()
    } | {"my_concat_ws": _concat_ws, "my_sum": Sum, "my_group_concat": GroupConcat}


INTEGER_MAX = 2**63 - 1


class Sum:
    """SUM, exactly: of more than 64 bits as a text."""

    def __init__(self) -> None:
        self._total: Fraction | None = None
        self._is_whole = True

    def step(self, value: float | None) -> None:
        if value is not None:
            self._is_whole &= isinstance(value, int)
            self._total = (self._total or 0) + Fraction(value)

    def finalize(self) -> float | int | str | None:
        if self._total is None:
            return None
        if not self._is_whole:
            return float(self._total)
        total = int(self._total)
        return total if abs(total) <= INTEGER_MAX else str(total)


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


def _null_in_null_out(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        try:
            return None if None in args else call(*args)
        except (OverflowError, ValueError):  # beyond what a time or a number can be
            return None

    return called


# ---- texts and numbers


def _substring(value: Value, start: int, length: int | None = None) -> str:
    text = str(value)
    begin = start - 1 if start > 0 else len(text) + start
    if start == 0 or begin < 0 or (length is not None and length < 1):
        return ""
    return text[begin:] if length is None else text[begin : begin + length]


def _substring_index(value: Value, mark: Value, count: int) -> str:
    text, mark = str(value), str(mark)
    if not mark or not count:
        return ""
    if count > 0:
        return mark.join(text.split(mark)[:count])
    return mark.join(text.rsplit(mark)[count:])


def _locate(part: Value, value: Value, start: int = 1) -> int:
    return 0 if start < 1 else str(value).find(str(part), start - 1) + 1


def _rounding(how: str) -> Callable[..., Value]:
    def rounded(value: Value, digits: int = 0) -> Value:
        number = _number(value)
        if isinstance(number, int) and digits >= 0:
            return number
        if not math.isfinite(number):
            return number
        step = Decimal(1).scaleb(-digits)
        exact = (Decimal(repr(number)) / step).to_integral_value(how) * step
        return float(exact) if isinstance(number, float) else int(exact)

    return rounded


def _whole(how: str) -> Callable[[Value], Value]:
    def whole(value: Value) -> Value:
        number = _number(value)
        return (
            number if isinstance(number, int) else int(Decimal(repr(number)).to_integral_value(how))
        )

    return whole


def _number(value: Value) -> int | float:
    """A number, or the number at the start of a text, as MySQL reads it."""
    if not isinstance(value, str):
        return value
    match = _LEADING_NUMBER.match(value)
    if match is None:
        return 0
    return int(match[1]) if match[1].lstrip("+-").isdigit() else float(match[1])


def _mod(value: Value, by: Value) -> Value | None:
    left, right = _number(value), _number(by)
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return int(math.copysign(1, left)) * (abs(left) % abs(right))
    return math.fmod(left, right)


def _intdiv(value: Value, by: Value) -> int | None:
    left, right = (Decimal(repr(_number(one))) for one in (value, by))
    return int(left / right) if right else None


def _cast(value: Value, to: str, *sizes: int) -> Value | None:
    match to:
        case "BIGINT" | "UBIGINT":
            number = _number(value.split(".")[0] if isinstance(value, str) else value)
            return _whole(ROUND_HALF_UP)(number)
        case "DECIMAL":
            return _rounding(ROUND_HALF_UP)(_number(value), sizes[1] if len(sizes) > 1 else 0)
        case "DOUBLE":
            return float(_number(value))
        case "CHAR":
            return str(value)[: sizes[0]] if sizes else str(value)
    moment = _moment(value)
    if moment is None:
        return None
    return _text_of(moment)[:10] if to == "DATE" else _text_of(_to_digits(moment, *sizes))


def _concat_ws(separator: Value | None, *values: Value | None) -> str | None:
    if separator is None:
        return None
    return str(separator).join(str(value) for value in values if value is not None)


def _pad(value: Value, length: int, filling: Value, *, left: bool) -> str | None:
    text, more = str(value), str(filling)
    if length < 0:
        return None
    added = (more * length)[: max(length - len(text), 0)]
    return (added + text if left else text + added)[:length] if added else text[:length]


# ---- times


def _moment(value: Value) -> datetime | None:
    """The time that a text has; None if it has none."""
    try:
        return datetime.fromisoformat(str(value).strip()).replace(tzinfo=None)
    except ValueError:
        return None


def _text_of(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds")


def _to_digits(moment: datetime, digits: int = 0) -> datetime:
    step_us = 10 ** (6 - min(digits, 6))
    rest_us = moment.microsecond % step_us
    up = rest_us * 2 >= step_us > 1
    return moment - timedelta(microseconds=rest_us) + timedelta(microseconds=step_us * up)


def _of_time(read: Callable[[datetime], Value]) -> Callable[[Value], Value | None]:
    def of(value: Value) -> Value | None:
        moment = _moment(value)
        return None if moment is None else read(moment)

    return of


def _convert_tz(value: Value, from_zone: str, to_zone: str) -> str | None:
    moment = _moment(value)
    if moment is None:
        return None
    minutes = [
        int(f"{zone[0]}1") * (int(zone[1:3]) * 60 + int(zone[4:])) for zone in (to_zone, from_zone)
    ]
    return _text_of(moment + timedelta(minutes=minutes[0] - minutes[1]))


def shift(value: Value, amount: Value, unit: str) -> str | None:
    """A time or date plus so many units. Raises OverflowError or ValueError beyond the year 9999."""
    moment, count = _moment(value), int(_whole(ROUND_HALF_UP)(amount))
    if moment is None:
        return None
    if unit == "MICROSECOND":
        moved = moment + timedelta(microseconds=count)
    elif unit in _MONTHS:
        moved = _months_on(moment, count * _MONTHS[unit])
    else:
        moved = moment + timedelta(milliseconds=count * _STEP_MS[unit])
    text = _text_of(moved)
    return text[:10] if len(str(value)) == 10 and unit in DAY_UNITS else text


def _months_on(moment: datetime, months: int) -> datetime:
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _span(unit: str, first: Value, last: Value) -> int | None:
    start, end = _moment(first), _moment(last)
    if start is None or end is None:
        return None
    if start > end:
        return -_units(unit, end, start)
    return _units(unit, start, end)


def _units(unit: str, start: datetime, end: datetime) -> int:
    if unit == "MICROSECOND":
        return (end - start) // timedelta(microseconds=1)
    if unit in _STEP_MS:
        return (end - start) // timedelta(milliseconds=_STEP_MS[unit])
    months = (end.year - start.year) * 12 + end.month - start.month
    unfinished = (end.day, end.time()) < (start.day, start.time())
    return (months - unfinished) // _MONTHS[unit]


def _datediff(last: Value, first: Value) -> int | None:
    end, start = _moment(last), _moment(first)
    return None if end is None or start is None else (end.date() - start.date()).days


def _unix(value: Value) -> Value | None:
    moment = _moment(value)
    if moment is None:
        return None
    ms = (moment.replace(tzinfo=UTC) - EPOCH) // _MS
    return ms / 1000 if ms % 1000 else ms // 1000


def _from_unix(value: Value) -> str:
    seconds = timedelta(seconds=_number(value))
    return _text_of((EPOCH + seconds).replace(tzinfo=None))


def _last_day(moment: datetime) -> str:
    last = monthrange(moment.year, moment.month)[1]
    return date(moment.year, moment.month, last).isoformat()


_CODES = {
    "W": "%A", "c": "%m", "M": "%B", "e": "%d", "k": "%H", "h": "%I", "l": "%I", "i": "%M", "s": "%S",
    "T": "%H:%M:%S", "r": "%I:%M:%S %p", "v": "%V", "x": "%G",
}  # fmt: skip
"""MySQL's codes of DATE_FORMAT that Python writes otherwise."""
_SAME_CODES = "YymbdjHISfpaw"


def _date_format(value: Value, pattern: Value) -> str | None:
    moment = _moment(value)
    if moment is None:
        return None

    def code(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "D":
            day = moment.day
            return f"{day}{'th' if 10 < day < 14 else _ENDINGS.get(day % 10, 'th')}"
        if letter not in _CODES and letter not in _SAME_CODES:
            return letter
        text = moment.strftime(_CODES.get(letter, f"%{letter}"))
        return text.lstrip("0") or "0" if letter in "cekl" else text

    return re.sub(r"%(.)", code, str(pattern), flags=re.DOTALL)


_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
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
    "round": _rounding(ROUND_HALF_UP),
    "truncate": _rounding(ROUND_DOWN),
    "floor": _whole(ROUND_FLOOR),
    "ceiling": _whole(ROUND_CEILING),
    "mod": _mod,
    "float": lambda value: float(_number(value)),
    "intdiv": _intdiv,
    "lpad": lambda value, length, filling: _pad(value, length, filling, left=True),
    "rpad": lambda value, length, filling: _pad(value, length, filling, left=False),
    "reverse": lambda value: str(value)[::-1],
    "convert_tz": _convert_tz,
    "cast": _cast,
    "shift": shift,
    "span": _span,
    "date": _of_time(lambda t: _text_of(t)[:10]),
    "last_day": _of_time(_last_day),
    **{field: _of_time(attrgetter(field)) for field in _FIELDS},
    "quarter": _of_time(lambda t: (t.month + 2) // 3),
    "dayofweek": _of_time(lambda t: (t.weekday() + 1) % 7 + 1),
    "weekday": _of_time(lambda t: t.weekday()),
    "dayofyear": _of_time(lambda t: t.timetuple().tm_yday),
    "datediff": _datediff,
    "date_format": _date_format,
    "from_unixtime": _from_unix,
}
