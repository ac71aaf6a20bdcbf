"""The functions that `toc sql` takes: they have no side effects, and the same input gives the same answer.

What is not listed is refused: SLEEP, GET_LOCK, LOAD_FILE, RAND, UUID and what servers will think of next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "text", "time", "date", "any"]
"""Of an expression's value. any: NULL, or not known."""

Takes = Literal["number", "time", "any", "alike"]
"""Of a function's arguments; time: its first, which may be a date or a text; alike: all of one kind."""


@dataclass(frozen=True, slots=True)
class Function:
    """`least` to `most` arguments, what kinds, and the kind of the value (None: that of the arguments)."""

    least: int
    most: int
    takes: Takes
    gives: Kind | None


_MANY = 100

FUNCTIONS: dict[str, Function] = {
    # texts
    "CONCAT": Function(1, _MANY, "any", "text"),
    "LENGTH": Function(1, 1, "any", "number"),
    "CHAR_LENGTH": Function(1, 1, "any", "number"),
    "LOWER": Function(1, 1, "any", "text"),
    "UPPER": Function(1, 1, "any", "text"),
    "SUBSTRING": Function(2, 3, "any", "text"),
    "SUBSTRING_INDEX": Function(3, 3, "any", "text"),
    "LEFT": Function(2, 2, "any", "text"),
    "RIGHT": Function(2, 2, "any", "text"),
    "LOCATE": Function(2, 3, "any", "number"),
    "INSTR": Function(2, 2, "any", "number"),
    "REPLACE": Function(3, 3, "any", "text"),
    "TRIM": Function(1, 1, "any", "text"),
    "LTRIM": Function(1, 1, "any", "text"),
    "RTRIM": Function(1, 1, "any", "text"),
    # numbers
    "ABS": Function(1, 1, "number", "number"),
    "SIGN": Function(1, 1, "number", "number"),
    "ROUND": Function(1, 2, "number", "number"),
    "TRUNCATE": Function(2, 2, "number", "number"),
    "FLOOR": Function(1, 1, "number", "number"),
    "CEILING": Function(1, 1, "number", "number"),
    "MOD": Function(2, 2, "number", "number"),
    # choices
    "COALESCE": Function(1, _MANY, "alike", None),
    "NULLIF": Function(2, 2, "alike", None),
    "GREATEST": Function(2, _MANY, "alike", None),
    "LEAST": Function(2, _MANY, "alike", None),
    # times
    "NOW": Function(0, 1, "number", "time"),
    "UTC_TIMESTAMP": Function(0, 1, "number", "time"),
    "CURDATE": Function(0, 0, "any", "date"),
    "UTC_DATE": Function(0, 0, "any", "date"),
    "DATE": Function(1, 1, "time", "date"),
    "LAST_DAY": Function(1, 1, "time", "date"),
    "YEAR": Function(1, 1, "time", "number"),
    "QUARTER": Function(1, 1, "time", "number"),
    "MONTH": Function(1, 1, "time", "number"),
    "DAY": Function(1, 1, "time", "number"),
    "HOUR": Function(1, 1, "time", "number"),
    "MINUTE": Function(1, 1, "time", "number"),
    "SECOND": Function(1, 1, "time", "number"),
    "MICROSECOND": Function(1, 1, "time", "number"),
    "DAYOFWEEK": Function(1, 1, "time", "number"),
    "WEEKDAY": Function(1, 1, "time", "number"),
    "DAYOFYEAR": Function(1, 1, "time", "number"),
    "DATEDIFF": Function(2, 2, "time", "number"),
    "DATE_FORMAT": Function(2, 2, "time", "text"),
    "UNIX_TIMESTAMP": Function(0, 1, "time", "number"),
    "FROM_UNIXTIME": Function(1, 1, "number", "time"),
}

ALIASES = {
    "SUBSTR": "SUBSTRING", "MID": "SUBSTRING", "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH", "LCASE": "LOWER", "UCASE": "UPPER", "CEIL": "CEILING",
    "IFNULL": "COALESCE", "DAYOFMONTH": "DAY", "CURRENT_TIMESTAMP": "NOW", "LOCALTIME": "NOW",
    "LOCALTIMESTAMP": "NOW", "CURRENT_DATE": "CURDATE",
}  # fmt: skip

SPELLED = ("IF", "ISNULL", "DATE_ADD", "DATE_SUB", "TIMESTAMPADD",
           "TIMESTAMPDIFF", "CAST")  # fmt: skip
"""Taken too; they become something else than a Call."""

NOW_FUNCTIONS = frozenset({"NOW", "UTC_TIMESTAMP", "CURDATE", "UTC_DATE", "UNIX_TIMESTAMP"})
"""Those that may read the clock."""

UNITS = ("MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
DAY_UNITS = frozenset(UNITS[4:])
