"""Column types and expressions in which MySQL, MariaDB and SQLite differ."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Dialect, SmallInteger, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from toc.domain.times import EPOCH, datetime_of

_TWO_63, _TWO_64 = 2**63, 2**64
_EPOCH = EPOCH.replace(tzinfo=None)
_MS = timedelta(milliseconds=1)
_NOW = "UTC_TIMESTAMP(3)"
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
    """The inverse of `sql_time`, for what drivers give back (naive datetimes or text).

    MySQL's zero dates, which a session without a strict `sql_mode` can write, are 0: they sort first there
    too, and one such row must not stop what reads a page of rows.
    """
    if isinstance(value, str):
        if _ZERO_DATE.match(value):
            return 0
        value = datetime.fromisoformat(value)
    return (value - _EPOCH) // _MS


class Millis(TypeDecorator[int]):
    """DATETIME(3) in UTC that Python sees as integer milliseconds since 1970."""

    impl = String(23)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(23))
        return dialect.type_descriptor(mysql.DATETIME(fsp=3))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else sql_time(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or isinstance(value, int):  # an int: the driver has converted it already
            return value
        return ms_of_sql_time(value)


class Day(TypeDecorator[str]):
    """DATE that Python sees as text, "2026-10-03"."""

    impl = String(10)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(10))
        return dialect.type_descriptor(mysql.DATE())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else str(value)


class millis_of(FunctionElement[int]):  # noqa: N801 - reads as the SQL function that it is
    """A time column as milliseconds since 1970, a number."""

    type = BigInteger()
    inherit_cache = True


@compiles(millis_of)
def _millis_mysql(element: millis_of, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column}) DIV 1000)"


@compiles(millis_of, "sqlite")
def _millis_sqlite(element: millis_of, compiler: SQLCompiler, **kw: Any) -> str:
    column = compiler.process(element.clauses, **kw)
    return f"(strftime('%s', {column}) * 1000 + substr({column}, 21, 3))"


class hash_of(FunctionElement[int]):  # noqa: N801 - as above
    """The routing hash of a biz_id column (see `domain.routing`)."""

    type = BigInteger()
    inherit_cache = True


@compiles(hash_of)
def _hash_mysql(element: hash_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CRC32({compiler.process(element.clauses, **kw)})"


@compiles(hash_of, "sqlite")
def _hash_sqlite(element: hash_of, compiler: SQLCompiler, **kw: Any) -> str:
    return f"toc_hash({compiler.process(element.clauses, **kw)})"


class UInt64(TypeDecorator[int]):
    """BIGINT UNSIGNED; SQLite has signed integers only and keeps the same 64 bits."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(mysql.BIGINT(unsigned=True))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        return signed64(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: int | None, dialect: Dialect) -> int | None:
        return value + _TWO_64 if value is not None and value < 0 else value


def signed64(value: int) -> int:
    """The signed number with the same 64 bits."""
    return value - _TWO_64 if value >= _TWO_63 else value


def tiny_integer() -> TypeEngine[int]:
    """TINYINT: -128 to 127."""
    return SmallInteger().with_variant(mysql.TINYINT(), "mysql", "mariadb")


def ascii_bin(length: int) -> String:
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def utf8_text() -> TypeEngine[str]:
    """TEXT that keeps every character (utf8mb4), byte for byte as it was given."""
    return Text().with_variant(
        mysql.TEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def utf8_varchar(length: int) -> String:
    """At most so many characters, byte for byte as they were given."""
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


class db_now(FunctionElement[int]):  # noqa: N801 - reads as the SQL function that it is
    """The database's clock, UTC, milliseconds: the clock of leases.

    In SQLite, which lives in this process, it is a function of this process (see `databases`).
    """

    type = Millis()
    inherit_cache = True


@compiles(db_now)
def _now_mysql(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return _NOW


@compiles(db_now, "sqlite")
def _now_sqlite(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "toc_now(0)"


class db_now_plus(FunctionElement[int]):  # noqa: N801
    """The database's clock plus so many milliseconds (an expression).

    With a second expression, a time: counted from there where the clock is behind it.
    """

    type = Millis()
    inherit_cache = True


@compiles(db_now_plus)
def _plus_mysql(element: db_now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    ms, *least = (compiler.process(clause, **kw) for clause in element.clauses)
    now = f"GREATEST(UTC_TIMESTAMP(3), CAST({least[0]} AS DATETIME(3)))" if least else _NOW
    return f"TIMESTAMPADD(MICROSECOND, 1000 * ({ms}), {now})"


@compiles(db_now_plus, "sqlite")
def _plus_sqlite(element: db_now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    return f"toc_now({compiler.process(element.clauses, **kw)})"
