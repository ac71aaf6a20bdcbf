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


def sql_time(ms: int) -> str:
    """Milliseconds since 1970 as DATETIME(3) text, UTC: exact on every engine, sorts as text in SQLite."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}"


@lru_cache(maxsize=1024)  # jobs that are scheduled together are due together
def _second(seconds: int) -> str:
    return datetime_of(seconds * 1000).replace(tzinfo=None).isoformat(sep=" ")


@lru_cache(maxsize=4096)  # jobs that are claimed together have the same times, but for one
def ms_of_sql_time(value: datetime | str) -> int:
    """The inverse of `sql_time`, for the values that drivers return (naive datetimes or text).

    MySQL's zero dates, which a session without a strict `sql_mode` can write, are 0: they sort first in MySQL
    too, and one such row must not stop the reader of a page of rows.
    """
    if isinstance(value, str):
        if _ZERO_DATE.match(value):
            return 0
        value = datetime.fromisoformat(value)
    return (value - _EPOCH) // _MS


def _in_mysql(sqlite: T, mysql_type: TypeEngine[Any]) -> T:
    """A type of SQLite, and the type that MySQL and MariaDB use in its place."""
    return sqlite.with_variant(mysql_type, "mysql", "mariadb")


class Millis(TypeDecorator[int]):
    """DATETIME(3) in UTC that Python sees as integer milliseconds since 1970."""

    impl = _in_mysql(String(23), mysql.DATETIME(fsp=3))
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else sql_time(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or isinstance(value, int):  # an int: the driver has converted it already
            return value
        return ms_of_sql_time(value)


class Day(TypeDecorator[str]):
    """DATE that Python sees as text, "2026-10-03"."""

    impl = _in_mysql(String(10), mysql.DATE())
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else str(value)


class UInt64(TypeDecorator[int]):
    """BIGINT UNSIGNED; SQLite has signed integers only and keeps the same 64 bits."""

    impl = _in_mysql(BigInteger(), mysql.BIGINT(unsigned=True))
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        return signed64(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        return value + _TWO_64 if value is not None and value < 0 else value


def signed64(value: int) -> int:
    """The signed number with the same 64 bits."""
    return value - _TWO_64 if value >= _TWO_63 else value


def tiny_integer() -> TypeEngine[int]:
    """TINYINT: -128 to 127."""
    return _in_mysql(SmallInteger(), mysql.TINYINT())


def ascii_bin(length: int) -> String:
    """At most so many ASCII characters, compared byte by byte."""
    return _in_mysql(String(length), mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"))


def utf8_text() -> TypeEngine[str]:
    """TEXT that keeps every character (utf8mb4), byte for byte as it was given."""
    return _in_mysql(Text(), mysql.TEXT(**_UTF8))


def utf8_varchar(length: int) -> String:
    """At most so many characters, byte for byte as they were given."""
    return _in_mysql(String(length), mysql.VARCHAR(length, **_UTF8))


class _PerServer(FunctionElement[int]):
    """An SQL expression that each kind of server writes in its own way. {0}, {1}: its arguments."""

    mysql: ClassVar[str]  # and MariaDB
    sqlite: ClassVar[str]  # the functions toc_… are those of this process: see `databases`


@compiles(_PerServer)
def _compile_per_server(element: _PerServer, compiler: SQLCompiler, **kw: Any) -> str:
    text = element.sqlite if compiler.dialect.name == "sqlite" else element.mysql
    return text.format(*(compiler.process(clause, **kw) for clause in element.clauses))


# The classes below read as the SQL functions that they are.


class millis_of(_PerServer):  # noqa: N801
    """A time column as milliseconds since 1970, a number."""

    inherit_cache = True
    type = BigInteger()
    mysql = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0}) DIV 1000)"
    sqlite = "(strftime('%s', {0}) * 1000 + substr({0}, 21, 3))"


class hash_of(_PerServer):  # noqa: N801
    """The routing hash of a biz_id column (see `domain.routing`)."""

    inherit_cache = True
    type = BigInteger()
    mysql = "CRC32({0})"
    sqlite = "toc_hash({0})"


class db_now(_PerServer):  # noqa: N801
    """The database's clock, UTC, milliseconds: the clock of leases."""

    inherit_cache = True
    type = Millis()
    mysql = "UTC_TIMESTAMP(3)"
    sqlite = "toc_now(0)"


class db_now_plus(_PerServer):  # noqa: N801
    """The database's clock plus so many milliseconds (an expression)."""

    inherit_cache = True
    type = Millis()
    mysql = "TIMESTAMPADD(MICROSECOND, 1000 * ({0}), UTC_TIMESTAMP(3))"
    sqlite = "toc_now({0})"


class later_plus(_PerServer):  # noqa: N801
    """The later of the database's clock and a time, plus so many milliseconds. Arguments: ms, time."""

    inherit_cache = True
    type = Millis()
    mysql = (
        "TIMESTAMPADD(MICROSECOND, 1000 * ({0}), "
        "GREATEST(UTC_TIMESTAMP(3), CAST({1} AS DATETIME(3))))"
    )
    sqlite = "toc_now({0}, {1})"
