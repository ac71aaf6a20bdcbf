"""The answer over all shards is the answer of one table: the same rows, copied into one, asked the same."""

from __future__ import annotations

import os
import random
import re
from typing import Any

import pytest

from tests.admin.composed import Composer
from tests.admin.queries import Maker
from tests.admin.world import SHARDS, World, same_rows, sorted_rows
from tests.deep import ALL
from toc.store.views import COLUMNS

PER_TEST = 12 if ALL else 2
"""Random statements of each seed."""


def is_ordered(sql: str) -> bool:
    """Whether it is as a whole, and not only something in its parentheses."""
    while sql != (outer := re.sub(r"\([^()]*\)", "", sql)):
        sql = outer
    return "ORDER BY" in sql


def check(world: World, sql: str, truth: list[tuple[Any, ...]], *, nearly: bool = False) -> None:
    ours = world.rows(sql)
    if not is_ordered(sql):
        ours, truth = sorted_rows(ours), sorted_rows(truth)
    assert same_rows(ours, truth, nearly=nearly), f"{sql}\n{ours[:9]}\n{truth[:9]}"


@pytest.mark.parametrize("seed", range(12))
def test_random_statements(world: World, seed: int) -> None:
    for number in range(PER_TEST):
        maker = Maker(random.Random(f"{seed} {number}"), everywhere=world.sqlite)  # noqa: S311
        sql = maker.statement()
        check(world, sql, world.truth(sql))


COMPOSED = int(os.environ.get("TOC_TEST_STATEMENTS", "84" if ALL else "2"))
"""Statements of each of 12 seeds, on each engine."""
FIRST_SEED = int(os.environ.get("TOC_TEST_FIRST_SEED", "0"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(12))
def test_random_statements_over_several_tables(world: World, seed: int) -> None:
    """Joins, WITH, subqueries, UNION, window functions, GROUP_CONCAT: none is refused."""
    for number in range(COMPOSED):
        sql = Composer(random.Random(f"{FIRST_SEED + seed} {number}")).statement()  # noqa: S311
        print(f"seed {FIRST_SEED + seed} {number}: {sql}")  # noqa: T201 - shown where it fails
        check(world, sql, world.truth(sql))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_sqlite_means_what_mysql_means(sqlite_rows: World, world: World, seed: int) -> None:
    for number in range(PER_TEST):
        sql = Maker(random.Random(f"{seed} {number}"), everywhere=True).statement()  # noqa: S311
        check(sqlite_rows, sql, world.truth(sql), nearly=True)


STATEMENTS = [
    "SELECT * FROM toc_jobs ORDER BY job_id",
    "SELECT toc_jobs.* FROM toc_jobs WHERE status = 4 ORDER BY job_id",
    "SELECT j.job_id FROM toc_jobs AS j ORDER BY j.job_id LIMIT 3",
    "SELECT * FROM toc_dead_jobs ORDER BY job_id",
    "SELECT * FROM toc_events ORDER BY event_id",
    "SELECT * FROM toc_biz_type ORDER BY type_no",
    "SELECT COUNT(*) FROM toc_jobs",
    "SELECT COUNT(*), SUM(attempts), MIN(due_time), AVG(late_ms) FROM toc_jobs WHERE biz_id = -1",
    "SELECT COUNT(DISTINCT attribute), COUNT(DISTINCT status, dedup_key) FROM toc_jobs WHERE status > 9",
    "SELECT COUNT(DISTINCT biz_id), COUNT(DISTINCT claim_token), SUM(attempts) FROM toc_jobs",
    "SELECT status, COUNT(DISTINCT type_no), COUNT(DISTINCT shard) FROM toc_jobs GROUP BY 1 ORDER BY 1",
    "SELECT COUNT(*) FROM toc_jobs WHERE FALSE GROUP BY status",
    "SELECT SUM(biz_id), SUM(job_id), MAX(biz_id), MIN(job_id) FROM toc_jobs",
    "SELECT biz_type, MIN(attribute), MAX(attribute) FROM toc_jobs GROUP BY biz_type ORDER BY biz_type",
    "SELECT COUNT(*) AS n FROM toc_jobs HAVING n > 100000",
    "SELECT status FROM toc_jobs GROUP BY status ORDER BY COUNT(*) DESC, status",
    "SELECT DISTINCT status, COUNT(*) > 0 AS some FROM toc_jobs GROUP BY status, type_no ORDER BY status",
    "SELECT DISTINCT biz_type, status FROM toc_jobs ORDER BY 2 DESC, biz_type LIMIT 4 OFFSET 2",
    "SELECT job_id FROM toc_jobs ORDER BY due_time IS NULL, due_time, job_id LIMIT 20",
    "SELECT job_id FROM toc_jobs ORDER BY attribute DESC, job_id LIMIT 40",
    "SELECT job_id, late_ms FROM toc_jobs ORDER BY late_ms, job_id LIMIT 300",
    "SELECT job_id FROM toc_jobs LIMIT 0",
    "SELECT status, SUM(late_ms * 0.5), SUM(attempts > 2), SUM(2.25) FROM toc_jobs GROUP BY 1 ORDER BY 1",
    "SELECT 'x' AS word, COUNT(*) FROM toc_jobs",
    "SELECT DATE(due_time) AS d, COUNT(*) FROM toc_jobs WHERE status = 0 GROUP BY d ORDER BY d DESC",
    "SELECT LEFT(biz_type, 1) AS k, CONCAT(LEFT(biz_type, 1), '!') FROM toc_jobs GROUP BY k ORDER BY k",
    "SELECT CURDATE(), COUNT(*) FROM toc_jobs WHERE gmt_modified < CURRENT_TIMESTAMP",
    "SELECT job_id FROM toc_jobs WHERE dedup_key IN ('a', 'b') AND status <> 2 ORDER BY job_id",
    "SELECT biz_id, COUNT(*) FROM toc_jobs WHERE biz_id IN (1, 2, 3, 17) GROUP BY biz_id ORDER BY biz_id",
    "SELECT * FROM toc_purges ORDER BY day, type_no, status, jobs",
    "SELECT day, biz_type, SUM(jobs), MIN(first_id) FROM toc_purges GROUP BY day, biz_type ORDER BY 1, 2",
    "SELECT day, jobs FROM toc_purges WHERE day >= CURDATE() - INTERVAL 2 DAY ORDER BY day DESC, jobs",
    "SELECT status_name, MAX(day) FROM toc_purges WHERE day < NOW() AND jobs > 9 GROUP BY 1 ORDER BY 1",
    "SELECT account, COUNT(*) FROM toc_events GROUP BY account ORDER BY account",
    "SELECT SUBSTRING_INDEX(error, '\\n', 1) AS e, COUNT(*) FROM toc_dead_jobs GROUP BY e ORDER BY e",
]


@pytest.mark.parametrize("sql", STATEMENTS)
def test_chosen_statements(world: World, sql: str) -> None:
    if world.sqlite and ("DISTINCT status, dedup" in sql or "SUM(biz_id)" in sql):
        pytest.skip("one table of SQLite counts no pairs and overflows; shards of it do not")
    check(world, sql, world.truth(sql))


# What a reader of MySQL's grammar can get wrong.
PRECEDENCES = [
    "NOT status = 1",
    "NOT status IN (1, 2) AND attempts > 1",
    "!status = 1",
    "status = 0 OR status = 1 AND attempts > 2",
    "status = 0 || attempts > 2 && type_no = 1",
    "2 + 3 * attempts - 4 > 5",
    "attempts - 2 - 1 > 0",
    "- attempts + 3 < 2",
    "attempts * 7 % 4 = 3",
    "attempts % 4 * 7 = 7",
    "7 DIV 2 * attempts = 6",
    "attempts - -2 = 3",
    "attempts BETWEEN 1 AND 2 AND status = 2",
    "NOT attempts BETWEEN 1 AND 2 OR status = 4",
    "status IS NOT NULL AND NOT due_time IS NULL",
    "(status = 1) = (attempts > 2)",
    "(status IN (0, 1)) IS TRUE",
    "due_time + INTERVAL 1 HOUR - INTERVAL 30 MINUTE < NOW()",
    "CASE status WHEN 0 THEN attempts ELSE - attempts END > 1",
    "(dedup_key LIKE 'k-%') = FALSE",
    "attribute = 'it''s' OR attribute = \"it's\" OR attribute = 'say\"x\"'",
    "attribute = 'back\\\\slash' OR attribute LIKE '50\\%' OR attribute LIKE 'under\\_%'",
    "attribute = 'two\\nlines' OR attribute = 'a\\tb'",
    "attribute = 'a' '-b'",
    "status <=> NULL OR claim_token <=> NULL",
]


@pytest.mark.parametrize("condition", PRECEDENCES)
def test_conditions_are_read_as_mysql_reads_them(world: World, condition: str) -> None:
    sql = f"SELECT job_id FROM toc_jobs WHERE {condition} ORDER BY job_id"
    truth = world.truth(sql)
    check(world, sql, truth)
    if world.settings.databases[0].startswith("mysql") and "NULL" not in condition:
        assert truth  # or it would tell nothing


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_can_be_asked(world: World, table: str) -> None:
    for column in COLUMNS[table]:
        sql = f"SELECT {column}, COUNT(*) FROM {table} GROUP BY {column} ORDER BY {column}"
        check(world, sql, world.truth(sql))


def test_rows_that_nothing_tells_apart_come_in_the_order_of_shards(world: World) -> None:
    shards = [row[0] for row in world.rows("SELECT shard FROM toc_jobs")]
    assert shards == sorted(shards)
    assert 5 not in shards  # is empty
    assert len(set(shards)) == SHARDS - 1
    first = world.rows("SELECT status, shard FROM toc_jobs ORDER BY status LIMIT 30")
    assert [row[1] for row in first] == sorted(row[1] for row in first)
