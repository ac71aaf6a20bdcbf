"""The functions that `toc sql` accepts: they have no side effects, and equal arguments give equal results.

A function that is not listed is refused: SLEEP, GET_LOCK, LOAD_FILE, RAND, UUID, and any that a later
release of MySQL adds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["number", "text", "time", "date", "json", "any"]
"""The type of a value. any: NULL, or a type that is not known. A JSON value can only be selected or
converted to a text."""

Takes = Literal["number", "time", "any", "same", "json", "special"]
"""The type of a function's arguments. time: the first is a time, date or text. same: all are of one type.
special: `FunctionCallParser` has a method for this function."""


class SqlFunction(NamedTuple):
    """A SQL function with `least` to `most` arguments. `gives`: the type of the result; None: the type of
    the first argument."""

    least: int
    most: int
    takes: Takes
    gives: Kind | None


_MANY = 100


def _make_function_table(
    takes: Takes, gives: Kind | None, **arguments: tuple[int, int]
) -> dict[str, SqlFunction]:
    return {
        name: SqlFunction(least, most, takes, gives) for name, (least, most) in arguments.items()
    }


FUNCTIONS: dict[str, SqlFunction] = {
    **_make_function_table(
        "any", "text", CONCAT=(1, _MANY), CONCAT_WS=(2, _MANY), LOWER=(1, 1), UPPER=(1, 1),
        SUBSTRING=(2, 3), SUBSTRING_INDEX=(3, 3), LEFT=(2, 2), RIGHT=(2, 2), REPLACE=(3, 3),
        TRIM=(1, 1), LTRIM=(1, 1), RTRIM=(1, 1), LPAD=(3, 3), RPAD=(3, 3), REVERSE=(1, 1),
    ),
    **_make_function_table(
        "any", "number", LENGTH=(1, 1), CHAR_LENGTH=(1, 1), LOCATE=(2, 3), INSTR=(2, 2),
        JSON_VALID=(1, 1),
    ),
    **_make_function_table("any", "json", JSON_EXTRACT=(2, 2)),
    **_make_function_table("json", "text", JSON_UNQUOTE=(1, 1)),
    **_make_function_table(
        "number", "number", ABS=(1, 1), SIGN=(1, 1), ROUND=(1, 2), TRUNCATE=(2, 2), FLOOR=(1, 1),
        CEILING=(1, 1),
    ),
    **_make_function_table(
        "same", None, COALESCE=(1, _MANY), NULLIF=(2, 2), GREATEST=(2, _MANY), LEAST=(2, _MANY)
    ),
    **_make_function_table("number", "time", NOW=(0, 1), UTC_TIMESTAMP=(0, 1), FROM_UNIXTIME=(1, 1)),
    **_make_function_table("any", "date", CURDATE=(0, 0), UTC_DATE=(0, 0)),
    **_make_function_table("time", "date", DATE=(1, 1), LAST_DAY=(1, 1)),
    **_make_function_table("time", "time", CONVERT_TZ=(3, 3)),
    **_make_function_table("time", "text", DATE_FORMAT=(2, 2), DAYNAME=(1, 1), MONTHNAME=(1, 1)),
    **_make_function_table(
        "time", "number", YEAR=(1, 1), QUARTER=(1, 1), MONTH=(1, 1), DAY=(1, 1), HOUR=(1, 1),
        MINUTE=(1, 1), SECOND=(1, 1), MICROSECOND=(1, 1), DAYOFWEEK=(1, 1), WEEKDAY=(1, 1),
        DAYOFYEAR=(1, 1), WEEK=(1, 2), DATEDIFF=(2, 2), UNIX_TIMESTAMP=(0, 1),
    ),
    **_make_function_table(
        "special", None, IF=(3, 3), ISNULL=(1, 1), MOD=(2, 2), DATE_ADD=(2, 2), DATE_SUB=(2, 2),
        TIMESTAMPADD=(3, 3), TIMESTAMPDIFF=(3, 3),
    ),
}  # fmt: skip

ALIASES = {
    "SUBSTR": "SUBSTRING", "MID": "SUBSTRING", "CHARACTER_LENGTH": "CHAR_LENGTH",
    "OCTET_LENGTH": "LENGTH", "LCASE": "LOWER", "UCASE": "UPPER", "CEIL": "CEILING",
    "IFNULL": "COALESCE", "DAYOFMONTH": "DAY", "CURRENT_TIMESTAMP": "NOW", "LOCALTIME": "NOW",
    "LOCALTIMESTAMP": "NOW", "CURRENT_DATE": "CURDATE",
}  # fmt: skip

AGGREGATES: dict[str, SqlFunction] = {
    **_make_function_table(
        "any", "number", COUNT=(1, _MANY)
    ),  # more than one argument only with DISTINCT
    **_make_function_table("number", "number", SUM=(1, 1), AVG=(1, 1)),
    **_make_function_table("any", None, MIN=(1, 1), MAX=(1, 1)),
    **_make_function_table("special", "text", GROUP_CONCAT=(1, 1)),
}

_WINDOW_NUMBERS = ("ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST")
WINDOW_FUNCTIONS: dict[str, SqlFunction] = {
    **_make_function_table("any", "number", **dict.fromkeys(_WINDOW_NUMBERS, (0, 0)), NTILE=(1, 1)),
    **_make_function_table(
        "any", None, LAG=(1, 3), LEAD=(1, 3), FIRST_VALUE=(1, 1), LAST_VALUE=(1, 1), NTH_VALUE=(2, 2)
    ),
}  # fmt: skip

ALL_FUNCTIONS = FUNCTIONS | AGGREGATES | WINDOW_FUNCTIONS

NOW_FUNCTIONS = frozenset({"NOW", "UTC_TIMESTAMP", "CURDATE", "UTC_DATE", "UNIX_TIMESTAMP"})
"""Functions that may read the clock."""

UNITS = ("MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
DAY_UNITS = frozenset(UNITS[4:])
