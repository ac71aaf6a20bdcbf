"""Every function that is taken: MySQL's own, and the same on SQLite."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.admin.world import World, prepare, same_rows
from toc.admin.allowed_functions import ALIASES, FUNCTIONS, UNITS
from toc.admin.sqlite_dialect import OTHER_NAMES, SAME_NAMES, UNSUPPORTED
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.errors import InvalidInput

Rows = list[tuple[Any, ...]]
EXPRESSIONS = [
    "CONCAT(shard, '-', biz_type)", "CONCAT(due_time, '|', status)", "LENGTH(attribute)",
    "CHAR_LENGTH(attribute)", "LOWER(attribute)", "UPPER(attribute)",
    *(f"SUBSTRING(attribute, {n})" for n in (-3, -1, 0, 1, 2, 9)),
    *(f"SUBSTRING(attribute, {n}, {k})" for n in (-2, 0, 1, 3) for k in (-1, 0, 1, 5)),
    *(f"SUBSTRING_INDEX(claim_token, '-', {n})" for n in (-3, -1, 0, 1, 3)),
    "SUBSTRING_INDEX(claim_token, '', 1)", "SUBSTRING_INDEX(claim_token, ':1', 1)",
    *(f"LEFT(attribute, {n})" for n in (-1, 0, 2, 99)),
    *(f"RIGHT(attribute, {n})" for n in (-1, 0, 2, 99)),
    "LOCATE('e', claim_token)", "LOCATE('e', claim_token, 5)", "LOCATE('E', claim_token)",
    "LOCATE('', claim_token)",
    "LOCATE('e', claim_token, 0)", "INSTR(claim_token, ':')", "REPLACE(claim_token, ':', '--')",
    "REPLACE(claim_token, '', 'x')", "TRIM(CONCAT('  ', claim_token, '  '))",
    "LTRIM(CONCAT('  ', claim_token))",
    "RTRIM(CONCAT(claim_token, '  '))", "ABS(attempts - 3)", "SIGN(attempts - 3)",
    *(f"ROUND(attempts * 1.25 - 3.5{digits})" for digits in ("", ", 1", ", 0", ", -1", ", 5")),
    *(f"TRUNCATE(attempts * 1.25 - 3.5, {n})" for n in (0, 1, -1)),
    "ROUND(late_ms, -2)", "TRUNCATE(late_ms, -2)", "FLOOR(attempts * 1.5 - 3)",
    "CEILING(attempts * 1.5 - 3)", "MOD(attempts - 3, 2)", "attempts % 0", "MOD(attempts, 1.5)",
    "COALESCE(due_time, claim_time)", "COALESCE(claim_token, dedup_key, 'none')", "COALESCE(status)",
    "COALESCE(due_time, 'never')", "COALESCE(attempts, 'none')",
    "NULLIF(claim_token, 'node-a:1:1')", "NULLIF(due_time, claim_time)", "GREATEST(attempts, status, 2)",
    "GREATEST(due_time, claim_time)", "GREATEST(due_time, '2026-01-01 10:00')",
    "LEAST(claim_token, 'node-b')",
    "LEAST(attempts, NULL)", "NOW()", "NOW(1)", "NOW(2)", "NOW(3)", "UTC_TIMESTAMP()",
    "UTC_TIMESTAMP(3)", "CURDATE()", "UTC_DATE()",
    "DATE(due_time)", "DATE('2026-02-03 04:05:06')", "LAST_DAY(due_time)",
    *(f"{name}(due_time)" for name in ("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND",
                                       "MICROSECOND", "DAYOFWEEK", "WEEKDAY", "DAYOFYEAR")),
    "DATEDIFF(due_time, action_time)", "DATEDIFF(NOW(), due_time)", "DATEDIFF('2026-03-01', due_time)",
    "DATE_FORMAT(due_time, '%Y %y %m %c %M %b %d %e %D %j %H %k %h %I %l %i %s %S %f %p %T %r')",
    "DATE_FORMAT(due_time, '%W %a %w %v %x %% %q')", "DATE_FORMAT('2021-01-03', '%x-%v')",
    "UNIX_TIMESTAMP(due_time)", "UNIX_TIMESTAMP(DATE(due_time))", "UNIX_TIMESTAMP()",
    "FROM_UNIXTIME(1767225600)", "FROM_UNIXTIME(attempts)",
    *(f"due_time + INTERVAL attempts {unit}" for unit in UNITS[1:]),
    *(f"due_time - INTERVAL 700 {unit}" for unit in UNITS[1:]),
    *(f"DATE(due_time) + INTERVAL 5 {unit}" for unit in UNITS[1:]),
    "DATE_SUB('2024-03-31', INTERVAL 1 MONTH) < due_time", "DATE_ADD(due_time, INTERVAL 250000 MICROSECOND)",
    "due_time + INTERVAL 9000 YEAR", "TIMESTAMPADD(DAY, 3, due_time)",
    *(f"TIMESTAMPDIFF({unit}, action_time, NOW())" for unit in UNITS),
    *(f"TIMESTAMPDIFF({unit}, '2024-02-29 13:00:00', due_time)" for unit in UNITS),
    *(f"TIMESTAMPDIFF({unit}, due_time, '2024-02-29')" for unit in UNITS),
    "IF(status = 1, 'one', 'other')", "ISNULL(due_time)", "IFNULL(late_ms, -1)",
    "CASE WHEN due_time < NOW() THEN 'past' WHEN due_time IS NULL THEN 'ended' ELSE 'ahead' END",
    "CASE status WHEN 0 THEN due_time ELSE DATE(action_time) END", "CASE status WHEN 9 THEN 1 END",
    "CAST(attempts AS CHAR)", "CAST(claim_token AS CHAR(4))", "CAST('12abc' AS SIGNED)",
    "CAST(attempts * 0.5 AS SIGNED)", "CAST(attempts * 0.5 AS UNSIGNED)",
    "CAST(attempts / 3 AS DECIMAL(6, 2))", "CAST('2.345' AS DECIMAL(6, 2))", "CAST(attempts AS DECIMAL)",
    "CAST(due_time AS DATE)", "CAST(due_time AS DATETIME)", "CAST(due_time AS DATETIME(3))",
    "CAST('2026-01-02 03:04' AS DATETIME)", "CAST(attempts AS DOUBLE)", "CAST('x' AS DATETIME)",
    "attempts / 4", "attempts / 0", "attempts DIV 2", "(attempts - 3) DIV 2", "attempts DIV 0",
    "-attempts", "- -attempts", "NOT attempts", "NOT (due_time > NOW())", "TRUE + TRUE",
    "due_time LIKE '2026-01-%'", "claim_token LIKE '%:_'", "claim_token LIKE 'NODE%'",
    "attribute LIKE '%\\\\\\\\%'",
    "claim_token LIKE 'node|-a%' ESCAPE '|'", "NOT claim_token NOT LIKE '%|%%' ESCAPE '|'",
    "claim_token LIKE 'n%' ESCAPE ''",
    "due_time IN ('2026-01-01', '2026-01-02 00:00')", "DATE(due_time) = '2026-01-01 00:00:00'",
    "DATE(due_time) < '2026-01-01 10:00:00'", "due_time <= CURDATE()", "due_time BETWEEN CURDATE() AND NOW()",
    "CONCAT_WS('-', claim_token, NULL, status)", "CONCAT_WS(NULL, claim_token)", "REVERSE(attribute)",
    *(f"LPAD(attribute, {n}, 'xy')" for n in (-1, 0, 1, 7)), "LPAD(attribute, 9, '')",
    *(f"RPAD(attribute, {n}, 'xy')" for n in (-1, 0, 1, 7)), "RPAD(claim_token, 4, '')",
    "EXTRACT(HOUR FROM due_time)", "EXTRACT(QUARTER FROM due_time)", "EXTRACT(WEEK FROM due_time)",
    "WEEK(due_time)", "WEEK(due_time, 3)", "DAYNAME(due_time)", "MONTHNAME(due_time)",
    "CONVERT_TZ(due_time, '+00:00', '+08:00')", "CONVERT_TZ(due_time, '-03:30', '+00:00')",
    "due_time < TIMESTAMP '2026-01-01 10:00:00'",
    "DATE_ADD(TIMESTAMP'2026-01-01 00:00:00', INTERVAL 1 DAY) < due_time",
    "attribute REGEXP '^a'", "NOT claim_token RLIKE 'node-[ab]:'", "JSON_VALID(attribute)",
    "IF(JSON_VALID(attribute), attribute->>'$.n', NULL)", "IF(JSON_VALID(attribute), attribute->'$.n', NULL)",
    "JSON_UNQUOTE(JSON_EXTRACT('{\"a\": [1, \"x\"]}', '$.a[1]'))",
    "status = '1'", "biz_id > '20'", "claim_token <=> NULL", "NULL IS TRUE", "(attempts > 2) IS FALSE",
]  # fmt: skip


def test_every_function_is_here() -> None:
    text = " ".join(EXPRESSIONS)
    called = {ALIASES.get(name, name) for name in re.findall(r"(\w+)\(", text)}
    assert FUNCTIONS.keys() <= called
    special = {name for name, function in FUNCTIONS.items() if function.takes == "special"}
    own = FUNCTIONS.keys() - special - UNSUPPORTED - SAME_NAMES - OTHER_NAMES.keys()
    assert {f"my_{name.lower()}" for name in own} <= mysql_functions_for_sqlite(0).keys()


TOGETHER = (
    10  # expressions of one statement: to read and ask one takes longer than what they compute
)


@pytest.mark.parametrize("first", range(0, len(EXPRESSIONS), TOGETHER))
@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_they_mean_the_same(sqlite_rows: World, world: World, first: int) -> None:
    group = EXPRESSIONS[first : first + TOGETHER]
    sql = select(group)
    truth = world.truth(sql)
    check_columns(group, world.rows(sql), truth)
    try:
        check_columns(group, sqlite_rows.rows(sql), truth, nearly=True)
    except InvalidInput:  # SQLite lacks one of them
        for number, expression in enumerate(group):
            check_alone(sqlite_rows, expression, [(row[0], row[number + 1]) for row in truth])


def check_alone(sqlite_rows: World, expression: str, truth: Rows) -> None:
    try:
        ours = sqlite_rows.rows(select([expression]))
    except InvalidInput as error:  # it has none of these
        assert re.search(r"REGEXP|JSON|WEEK|DAYNAME|MONTHNAME", str(error))  # noqa: PT017
        return
    check_columns([expression], ours, truth, nearly=True)


def select(expressions: list[str]) -> str:
    columns = ", ".join(f"{expression} AS x{n}" for n, expression in enumerate(expressions))
    return f"SELECT job_id, {columns} FROM toc_jobs ORDER BY job_id"


def check_columns(expressions: list[str], ours: Rows, truth: Rows, *, nearly: bool = False) -> None:
    for number, expression in enumerate(expressions, 1):
        wrong = [
            (a, b)
            for a, b in zip(ours, truth, strict=True)
            if not same_rows([(a[0], a[number])], [(b[0], b[number])], nearly=nearly)
        ]
        assert not wrong, (expression, wrong[:3])


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_texts_compare_byte_for_byte_whatever_made_them(world: World) -> None:
    """Merging relies on it."""
    with create_engine(world.truth_url, poolclass=NullPool).connect() as connection:
        prepare(connection)
        for expression in EXPRESSIONS:
            if "attribute->" in expression or "JSON_" in expression:
                continue  # MariaDB has no such operator
            sql = f"SELECT COLLATION({expression}) FROM toc_jobs LIMIT 1".replace("%", "%%")
            found = connection.exec_driver_sql(sql).scalar_one()
            assert found in ("utf8mb4_bin", "ascii_bin", "binary"), expression
            if found == "binary":  # numbers and times
                sql = f"SELECT {expression} FROM toc_jobs".replace("%", "%%")
                kinds = {type(row[0]) for row in connection.exec_driver_sql(sql)}
                assert not kinds & {str, bytes}, expression
