"""The functions that `toc sql` takes: they have no side effects, and the same input gives the same answer.

What is not listed is refused: SLEEP, GET_LOCK, LOAD_FILE, RAND, UUID and what servers will think of next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "text", "time", "date", "json", "any"]
"""Of an expression's value. any: NULL, or not known. json: only JSON_UNQUOTE and IS NULL take it."""

Takes = Literal["number", "time", "any", "alike", "json"]
"""Of a function's arguments; time: its first, which may be a date or a text; alike: all of one kind."""


@dataclass(frozen=True, slots=True)
class Function:
    """`least` to `most` arguments, what kinds, and the kind of the value (None: that of the arguments)."""

    least: int
    most: int
    takes: Takes
    gives: Kind | None


_MANY = 100


def _functions(
    takes: Takes, gives: Kind | None, **arguments: tuple[int, int]
) -> dict[str, Function]:
    return {name: Function(least, most, takes, gives) for name, (least, most) in arguments.items()}


FUNCTIONS: dict[str, Function] = {
    **_functions(
        "any", "text", CONCAT=(1, _MANY), CONCAT_WS=(2, _MANY), LOWER=(1, 1), UPPER=(1, 1),
        SUBSTRING=(2, 3), SUBSTRING_INDEX=(3, 3), LEFT=(2, 2), RIGHT=(2, 2), REPLACE=(3, 3),
        TRIM=(1, 1), LTRIM=(1, 1), RTRIM=(1, 1), LPAD=(3, 3), RPAD=(3, 3), REVERSE=(1, 1),
    ),
    **_functions(
        "any", "number", LENGTH=(1, 1), CHAR_LENGTH=(1, 1), LOCATE=(2, 3), INSTR=(2, 2),
        JSON_VALID=(1, 1),
    ),
    **_functions("any", "json", JSON_EXTRACT=(2, 2)),
    **_functions("json", "text", JSON_UNQUOTE=(1, 1)),
    **_functions(
        "number", "number", ABS=(1, 1), SIGN=(1, 1), ROUND=(1, 2), TRUNCATE=(2, 2), FLOOR=(1, 1),
        CEILING=(1, 1), MOD=(2, 2),
    ),
    **_functions(
        "alike", None, COALESCE=(1, _MANY), NULLIF=(2, 2), GREATEST=(2, _MANY), LEAST=(2, _MANY)
    ),
    **_functions("number", "time", NOW=(0, 1), UTC_TIMESTAMP=(0, 1), FROM_UNIXTIME=(1, 1)),
    **_functions("any", "date", CURDATE=(0, 0), UTC_DATE=(0, 0)),
    **_functions("time", "date", DATE=(1, 1), LAST_DAY=(1, 1)),
    **_functions("time", "time", CONVERT_TZ=(3, 3)),
    **_functions("time", "text", DATE_FORMAT=(2, 2), DAYNAME=(1, 1), MONTHNAME=(1, 1)),
    **_functions(
        "time", "number", YEAR=(1, 1), QUARTER=(1, 1), MONTH=(1, 1), DAY=(1, 1), HOUR=(1, 1),
        MINUTE=(1, 1), SECOND=(1, 1), MICROSECOND=(1, 1), DAYOFWEEK=(1, 1), WEEKDAY=(1, 1),
        DAYOFYEAR=(1, 1), WEEK=(1, 2), DATEDIFF=(2, 2), UNIX_TIMESTAMP=(0, 1),
    ),
}  # fmt: skip

ALIASES = {
    "SUBSTR": "SUBSTRING", "MID": "SUBSTRING", "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH", "LCASE": "LOWER", "UCASE": "UPPER", "CEIL": "CEILING",
    "IFNULL": "COALESCE", "DAYOFMONTH": "DAY", "CURRENT_TIMESTAMP": "NOW", "LOCALTIME": "NOW",
    "LOCALTIMESTAMP": "NOW", "CURRENT_DATE": "CURDATE",
}  # fmt: skip

SPELLED = ("IF", "ISNULL", "DATE_ADD", "DATE_SUB", "TIMESTAMPADD", "TIMESTAMPDIFF", "CAST",
           "EXTRACT")  # fmt: skip
"""Taken too; their arguments are not all expressions."""

AGGREGATES = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "GROUP_CONCAT"})
WINDOWS = {
    "ROW_NUMBER": 0, "RANK": 0, "DENSE_RANK": 0, "PERCENT_RANK": 0, "CUME_DIST": 0, "NTILE": 1,
    "LAG": 3, "LEAD": 3, "FIRST_VALUE": 1, "LAST_VALUE": 1, "NTH_VALUE": 2,
}  # fmt: skip
"""Window functions, and how many arguments they take at most."""

NOW_FUNCTIONS = frozenset({"NOW", "UTC_TIMESTAMP", "CURDATE", "UTC_DATE", "UNIX_TIMESTAMP"})
"""Those that may read the clock."""

UNITS = ("MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
DAY_UNITS = frozenset(UNITS[4:])
