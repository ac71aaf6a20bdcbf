"""Column types and expressions in which MySQL, MariaDB and SQLite differ."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from sqlalchemy import BigInteger, Dialect, SmallInteger, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from toc.domain.times import EPOCH, datetime_of

T = TypeVar("T", bound=TypeEngine[Any])
_TWO_63, _TWO_64 = 2**63, 2**64
_EPOCH = EPOCH.replace(tzinfo=None)
_MS = timedelta(milliseconds=1)
_UTF8: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_ZERO_DATE = re.compile(r"0000-|\d{4}-00-|\d{4}-\d\d-00")


def sql_time_of_ms(ms: int) -> str:
    """Milliseconds since 1970 as DATETIME(3) text, UTC: exact on every engine; the text sorts by time."""
    seconds, rest = divmod(ms, 1000)
    return f"{_format_second(seconds)}.{rest:03d}"


@lru_cache(maxsize=1024)  # jobs that are scheduled together are due together
def _format_second(seconds: int) -> str:
    return datetime_of(seconds * 1000).replace(tzinfo=None).isoformat(sep=" ")


@lru_cache(maxsize=4096)  # jobs that are claimed together have mostly the same times
def ms_of_sql_time(value: datetime | str) -> int:
    """Converts a time that a driver returns (naive datetime or text) to milliseconds since 1970.

    MySQL's zero dates, which a session without a strict `sql_mode` can write, become 0: MySQL sorts zero
    dates first too, and one such row must not make the read of a whole page fail.
    """
    if isinstance(value, str):
        if _ZERO_DATE.match(value):
            return 0
        value = datetime.fromisoformat(value)
    return (value - _EPOCH) // _MS


def _with_mysql_type(sqlite: T, mysql_type: TypeEngine[Any]) -> T:
    """A column type that is `sqlite` on SQLite, and `mysql_type` on MySQL and MariaDB."""
    return sqlite.with_variant(mysql_type, "mysql", "mariadb")


class DatetimeAsMillis(TypeDecorator[int]):
    """A DATETIME(3) column in UTC that Python reads and writes as integer milliseconds since 1970."""

    impl = _with_mysql_type(String(23), mysql.DATETIME(fsp=3))
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else sql_time_of_ms(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        # An int: the driver has already converted the value.
        if value is None or isinstance(value, int):
            return value
        return ms_of_sql_time(value)


class DateAsText(TypeDecorator[str]):
    """A DATE column that Python reads as text, "2026-10-03"."""

    impl = _with_mysql_type(String(10), mysql.DATE())
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else str(value)


class UInt64(TypeDecorator[int]):
    """A BIGINT UNSIGNED column; SQLite has only signed integers, and stores the same 64 bits."""

    impl = _with_mysql_type(BigInteger(), mysql.BIGINT(unsigned=True))
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        return to_signed64(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        return value + _TWO_64 if value is not None and value < 0 else value


def to_signed64(value: int) -> int:
    """The signed 64-bit integer with the same bits as an unsigned one."""
    return value - _TWO_64 if value >= _TWO_63 else value


def tiny_integer() -> TypeEngine[int]:
    """TINYINT: -128 to 127."""
    return _with_mysql_type(SmallInteger(), mysql.TINYINT())


def ascii_varchar(length: int) -> String:
    """A VARCHAR of at most `length` ASCII characters, compared byte by byte."""
    return _with_mysql_type(
        String(length), mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    )


def utf8_text() -> TypeEngine[str]:
    """A TEXT column for every Unicode character (utf8mb4), compared byte by byte."""
    return _with_mysql_type(Text(), mysql.TEXT(**_UTF8))


def utf8_varchar(length: int) -> String:
    """A VARCHAR of at most `length` Unicode characters, compared byte by byte."""
    return _with_mysql_type(String(length), mysql.VARCHAR(length, **_UTF8))


class _PerServerExpression(FunctionElement[int]):
    """An SQL expression with one text for MySQL and one for SQLite. {0}, {1}: the arguments."""

    mysql: ClassVar[str]  # for MySQL and MariaDB
    sqlite: ClassVar[str]  # the functions toc_… are Python functions: see `databases`


@compiles(_PerServerExpression)
def _compile_per_server(element: _PerServerExpression, compiler: SQLCompiler, **kw: Any) -> str:
    text = element.sqlite if compiler.dialect.name == "sqlite" else element.mysql
    return text.format(*(compiler.process(clause, **kw) for clause in element.clauses))


# The classes below have lower-case names, like SQL functions.


class millis_of_column(_PerServerExpression):  # noqa: N801
    """A time column as milliseconds since 1970, a number."""

    inherit_cache = True
    type = BigInteger()
    mysql = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0}) DIV 1000)"
    sqlite = "(strftime('%s', {0}) * 1000 + substr({0}, 21, 3))"


class routing_hash_of_column(_PerServerExpression):  # noqa: N801
    """The routing hash of a biz_id column (see `domain.routing`)."""

    inherit_cache = True
    type = BigInteger()
    mysql = "CRC32({0})"
    sqlite = "toc_hash({0})"


class db_now(_PerServerExpression):  # noqa: N801
    """The time of the database's clock in UTC, to the millisecond. Leases use this clock."""

    inherit_cache = True
    type = DatetimeAsMillis()
    mysql = "UTC_TIMESTAMP(3)"
    sqlite = "toc_now(0)"


class db_now_plus(_PerServerExpression):  # noqa: N801
    """The time of the database's clock plus milliseconds (an SQL expression)."""

    inherit_cache = True
    type = DatetimeAsMillis()
    mysql = "TIMESTAMPADD(MICROSECOND, 1000 * ({0}), UTC_TIMESTAMP(3))"
    sqlite = "toc_now({0})"


class later_of_db_now_plus(_PerServerExpression):  # noqa: N801
    """The later of the database's clock and a given time, plus milliseconds. Arguments: ms, time."""

    inherit_cache = True
    type = DatetimeAsMillis()
    mysql = (
        "TIMESTAMPADD(MICROSECOND, 1000 * ({0}), "
        "GREATEST(UTC_TIMESTAMP(3), CAST({1} AS DATETIME(3))))"
    )
    sqlite = "toc_now({0}, {1})"
