"""Merging: exact numbers, the server's way to compare, and the bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.admin.test_sql_safety import asking
from tests.admin.world import LIMITS, World
from toc.admin import query_run
from toc.admin.query_plan import plan_query
from toc.admin.query_run import QueryFailed, QueryRun
from toc.admin.row_merge import JsonTable, RowMerge, make_sort_key_function
from toc.admin.sql_writer import make_final_sql
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.store.query_fan_out import DatabaseQuery, QueryFailure, QueryFanOut, QueryRows

TEXT = st.text(alphabet="\t\x01 aAäz~\U0001f600", max_size=6)


def padded_order(one: str, other: str) -> int:
    """PAD SPACE, as it is defined: the shorter text is filled up with spaces."""
    width = max(len(one), len(other))
    a, b = one.ljust(width), other.ljust(width)
    return (a > b) - (a < b)


@given(TEXT, TEXT)
def test_keys_compare_texts_as_if_spaces_followed(one: str, other: str) -> None:
    key = make_sort_key_function(pads=True)
    a, b = key(one), key(other)
    assert (a > b) - (a < b) == padded_order(one, other)


@given(st.lists(TEXT, max_size=8))
def test_sorting_by_keys_is_sorting_as_the_server_does(texts: list[str]) -> None:
    assert sorted(texts, key=make_sort_key_function(pads=True)) == sorted(
        texts, key=cmp_to_key(padded_order)
    )
    assert sorted(texts, key=make_sort_key_function(pads=False)) == sorted(texts)


def test_null_is_the_smallest() -> None:
    key = make_sort_key_function(pads=True)
    values = [None, "", "a", None, "b"]
    assert sorted(values, key=key) == [None, None, "", "a", "b"]
    assert sorted([3, None, Decimal("-1.5"), 2.5], key=key) == [None, Decimal("-1.5"), 2.5, 3]


# ---- groups


def merged(world: World, sql: str, *shards: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What becomes of shards' partial groups."""
    made = plan_query(sql)
    assert made.final is not None
    (query,) = made.tables
    table = JsonTable(len(query.select.expressions), query.ids, world.sqlite)
    for place, rows in enumerate(shards):
        table.add_rows(place, rows)
    types = {"l0": table.column_types()}
    text, values = make_final_sql(made.final, types, limit=99, sqlite=world.sqlite)
    with closing(asking(world)) as own:
        reply = own.run_query(
            DatabaseQuery(0, 0, "", text, {**values, "l0": table.as_json_array()})
        )
    assert isinstance(reply, QueryRows), reply
    return reply.rows


def test_whole_numbers_are_added_exactly(world: World) -> None:
    big = 2**62 + 1
    sql = "SELECT SUM(attempts) FROM toc_jobs"
    ((total,),) = merged(world, sql, [(big,)], [(big,)], [(big,)])
    assert int(total) == 3 * big
    assert merged(world, "SELECT COUNT(*) FROM toc_jobs", [(2**53,)], [(1,)]) == [(2**53 + 1,)]
    if not world.sqlite:
        huge = (2**64 - 1) * 10**20
        ((total,),) = merged(world, sql, *[[(Decimal(huge),)]] * 2)
        assert int(total) == 2 * huge


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_decimals_are_added_exactly_and_keep_their_digits(world: World) -> None:
    sql = "SELECT SUM(attempts) FROM toc_jobs"
    parts = [[(Decimal("0.10"),)], [(Decimal("99999999999999999999999999999999999.95"),)]]
    ((total,),) = merged(world, sql, *parts)
    assert str(total) == "100000000000000000000000000000000000.05"


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_floats_are_rounded_once_on_sqlite(world: World) -> None:
    sql = "SELECT SUM(attempts) FROM toc_jobs"
    assert merged(world, sql, *[[(0.1,)]] * 10) == [
        (1.0,)
    ]  # one after the other: 0.9999999999999999
    assert merged(world, sql, [(1e16,)], [(1.0,)], [(-1e16,)]) == [(1.0,)]
    assert merged(world, sql, [(2,)], [(0.5,)], [(None,)]) == [(2.5,)]


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_an_average_is_rounded_as_mysql_rounds_it(world: World) -> None:
    sql = "SELECT AVG(attempts) FROM toc_jobs"

    def average(*parts: tuple[Any, int]) -> str:
        return str(merged(world, sql, *([part] for part in parts))[0][0])

    assert average((Decimal(1), 1), (Decimal(0), 2)) == "0.3333"
    assert average((Decimal(2), 2), (Decimal(0), 1)) == "0.6667"
    assert average((Decimal(-2), 2), (Decimal(0), 1)) == "-0.6667"
    assert average((Decimal("0.005"), 4), (Decimal("0.000"), 4)) == "0.0006250"
    assert average((Decimal(1), 20_000), (None, 0)) == "0.0001"  # 0.00005: up
    assert average((None, 0), (None, 0)) == "None"
    assert average((Decimal(2**64), 1), (Decimal(2**64), 2)) == "12297829382473034410.6667"


def test_no_rows_are_a_group_where_nothing_is_grouped(world: World) -> None:
    sql = (
        "SELECT COUNT(*), COUNT(DISTINCT claim_token), SUM(attempts), MAX(attempts), AVG(attempts) "
        "FROM toc_jobs"
    )
    assert merged(world, sql) == [(0, 0, None, None, None)]
    assert merged(world, "SELECT COUNT(*) FROM toc_jobs GROUP BY status") == []


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_what_is_equal_for_the_server_is_one_group(world: World) -> None:
    sql = (
        "SELECT claim_token, COUNT(*), COUNT(DISTINCT dedup_key) FROM toc_jobs "
        "GROUP BY claim_token ORDER BY claim_token"
    )
    found = merged(
        world,
        sql,
        [("a ", "x", 1), ("b", "x", 1), (None, None, 4)],
        [("a", "x  ", 2), ("A", "y", 1), (None, "y", 1)],
    )
    told = [(token and token.rstrip(), *rest) for token, *rest in found]
    assert told == [(None, 5, 1), ("A", 1, 1), ("a", 3, 1), ("b", 1, 1)]


def test_the_order_of_answers_changes_nothing() -> None:
    made = plan_query(
        "SELECT status, claim_token FROM toc_jobs ORDER BY status DESC, claim_token LIMIT 6"
    )
    rng = random.Random(7)  # noqa: S311
    shards = [
        sorted(
            ((rng.randrange(3), rng.choice((None, "a", "b"))) for _ in range(9)),
            key=lambda row: (-row[0], row[1] or ""),
        )
        for _ in range(5)
    ]
    results = set()
    for _ in range(20):
        rows = RowMerge(made, 6, make_sort_key_function(pads=True))
        for place in rng.sample(range(5), 5):
            rows.add_rows(place, shards[place])
        results.add(tuple(map(tuple, rows.merged_rows())))
    assert len(results) == 1


def is_mariadb(url: str) -> bool:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect():
        return bool(getattr(engine.dialect, "is_mariadb", False))


def with_sorted_lists(row: Sequence[Any]) -> tuple[Any, ...]:
    """MariaDB concatenates the same rows in another order each time, where no ORDER BY says which."""
    return tuple(tuple(sorted(cell.split(","))) if "," in str(cell) else cell for cell in row)


class ShuffledFanOut(QueryFanOut):
    """Shards answer in an order that a seed determines."""

    rng = random.Random()  # noqa: S311

    def run_queries(
        self, questions: Sequence[DatabaseQuery], tick: Callable[[], None]
    ) -> Generator[QueryRows | QueryFailure]:
        replies = list(super().run_queries(questions, tick))
        self.rng.shuffle(replies)
        yield from replies


@pytest.mark.parametrize(
    "sql",
    [
        (
            "SELECT biz_type, COUNT(*), SUM(attempts), AVG(late_ms), MIN(due_time), MAX(dedup_key), "
            "COUNT(DISTINCT claim_token) FROM toc_jobs GROUP BY biz_type ORDER BY biz_type"
        ),
        (
            "SELECT status, SUM(CAST(late_ms AS DOUBLE) / 7), AVG(attempts / 3) FROM toc_jobs "
            "GROUP BY status ORDER BY status"
        ),
        (
            "SELECT shard % 3 AS s, GROUP_CONCAT(attempts), GROUP_CONCAT(DISTINCT claim_token) FROM toc_jobs "
            "GROUP BY s ORDER BY s"
        ),
        (
            "SELECT e.what, COUNT(*), GROUP_CONCAT(j.attempts) FROM toc_jobs j JOIN toc_events e "
            "ON e.job_id = j.job_id GROUP BY e.what ORDER BY e.what"
        ),
    ],
)
def test_the_order_of_answers_changes_no_group(world: World, sql: str) -> None:
    settings, found = world.settings, set()
    on_mariadb = is_mariadb(world.truth_url)
    for seed in range(4):
        fan_out = ShuffledFanOut(
            settings.databases, settings.routing, world.clock, LIMITS, mysql_functions_for_sqlite
        )
        fan_out.rng = random.Random(seed)  # noqa: S311 - the same orders each time
        with closing(fan_out):
            result = QueryRun(plan_query(sql), settings.routing, fan_out, 1000).run_query()
        assert len(result.rows) > 1
        found.add(tuple(map(tuple if not on_mariadb else with_sorted_lists, result.rows)))
    assert len(found) == 1


def test_only_what_can_be_shown_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan_query("SELECT job_id FROM toc_jobs ORDER BY job_id DESC LIMIT 3")
    rows = RowMerge(made, 3, make_sort_key_function(pads=True))
    for place in range(100):
        rows.add_rows(place, [(place * 1000 + i,) for i in range(1000)])
        assert len(rows._kept) <= 11_006
    assert rows.merged_rows() == [(99_999,), (99_998,), (99_997,)]


# ---- on servers


def test_numbers_beyond_a_double_are_exact(own_world: World) -> None:
    """Sums of ids: 2^53 is passed by each."""
    big = 2**62 + 1
    for database, shard in ((0, 0), (0, 2), (1, 6)):
        own_world.execute(f"UPDATE toc_job_{shard:04d} SET biz_id = 0, dedup_key = NULL", database)
        own_world.execute(
            f"UPDATE toc_job_{shard:04d} SET biz_id = {big} WHERE job_id = "
            f"(SELECT * FROM (SELECT MIN(job_id) FROM toc_job_{shard:04d}) AS first)",
            database,
        )
    (row,) = own_world.rows(
        "SELECT SUM(biz_id), MAX(biz_id), SUM(biz_id) + 1, COUNT(DISTINCT biz_id) FROM toc_jobs "
        "WHERE shard IN (0, 2, 6)"
    )
    if own_world.sqlite:  # it has no numbers beyond 64 bits: the command makes one of the text
        assert (int(row[0]), row[1]) == (3 * big, big)
    else:
        assert row == (3 * big, big, 3 * big + 1, 2)


@pytest.mark.parametrize("own_world", ["mysql", "mariadb"], indirect=True)
def test_the_largest_ids_and_decimals(own_world: World) -> None:
    top = 2**64 - 1
    for shard, database in ((1, 0), (7, 1)):
        own_world.execute(
            f"UPDATE toc_job_{shard:04d} SET biz_id = {top} - attempts * 4 - status, dedup_key = NULL",
            database,
        )
    selected = (
        "SELECT MAX(biz_id), MIN(biz_id), SUM(biz_id * 0.1), AVG(biz_id), MAX(biz_id) - 1 FROM"
    )
    ((most, least, tenth, average, less),) = own_world.rows(
        f"{selected} toc_jobs WHERE shard IN (1, 7)"
    )
    source = " UNION ALL ".join(
        f"SELECT biz_id FROM {own_world.schema(database)}.toc_job_{shard:04d}"
        for shard, database in ((1, 0), (7, 1))
    )
    expected = own_world.truth(f"{selected} ({source}) x")[0]
    assert (most, least, tenth, less) == (expected[0], expected[1], expected[2], expected[4])
    assert str(average) == str(expected[3])


@pytest.mark.parametrize("own_world", ["mysql", "mariadb"], indirect=True)
def test_texts_that_differ_in_spaces_at_the_end_are_one(own_world: World) -> None:
    for shard, database, text in ((0, 0, "pad"), (2, 0, "pad  "), (6, 1, "pad "), (7, 1, " pad")):
        own_world.execute(f"UPDATE toc_job_{shard:04d} SET attribute = '{text}'", database)
    where = "WHERE shard IN (0, 2, 6, 7)"
    rows = own_world.rows(
        f"SELECT attribute, COUNT(DISTINCT shard) FROM toc_jobs {where} GROUP BY attribute"
    )
    assert sorted((text.rstrip(), count) for text, count in rows) == [(" pad", 1), ("pad", 3)]
    assert own_world.rows(f"SELECT COUNT(DISTINCT attribute) FROM toc_jobs {where}") == [(2,)]
    assert len(own_world.rows(f"SELECT DISTINCT attribute FROM toc_jobs {where}")) == 2


@pytest.mark.parametrize("own_world", ["sqlite"], indirect=True)
def test_for_sqlite_spaces_at_the_end_count(own_world: World) -> None:
    for shard, database, text in ((0, 0, "pad"), (2, 0, "pad  ")):
        own_world.execute(f"UPDATE toc_job_{shard:04d} SET attribute = '{text}'", database)
    assert own_world.rows(
        "SELECT COUNT(DISTINCT attribute) FROM toc_jobs WHERE shard IN (0, 2)"
    ) == [(2,)]


def test_expressions_of_averages_have_the_digits_of_averages(world: World) -> None:
    if world.sqlite:
        pytest.skip("its averages are floats")
    sql = (
        "SELECT ROUND(AVG(late_ms) / 1000, 3), ROUND(AVG(attempts) * 1000), AVG(attempts) * 1000 "
        "FROM toc_jobs"
    )
    (ours,), (truth,) = world.rows(sql), world.truth(sql)
    assert ours[:2] == truth[:2]
    assert abs(ours[2] - truth[2]) < Decimal("0.0001")


def test_types_are_those_of_one_table(world: World) -> None:
    if world.sqlite:
        pytest.skip("it has none")
    sql = (
        "SELECT SUM(attempts), AVG(attempts), AVG(late_ms * 0.25), COUNT(*), MIN(due_time), SUM(1.50), "
        "SUM(attempts) / COUNT(*), SUM(1.50) + 1, MIN(due_time) + INTERVAL 1 SECOND, "
        "CONCAT(MIN(due_time)), CONCAT(SUM(attempts) / 7) FROM toc_jobs"
    )
    assert list(map(repr, world.rows(sql)[0])) == list(map(repr, world.truth(sql)[0]))


@pytest.mark.usefixtures("small_bounds")
def test_too_many_groups_are_an_error_and_no_answer(world: World) -> None:
    with pytest.raises(
        QueryFailed, match=r"^database \d, table toc_job_000\d: has more than 5 groups"
    ):
        world.rows("SELECT job_id, COUNT(*) FROM toc_jobs GROUP BY job_id")
    with pytest.raises(QueryFailed, match="has more than 5 groups"):
        world.rows("SELECT COUNT(DISTINCT job_id) FROM toc_jobs")
    with pytest.raises(QueryFailed, match="the groups of all shards to more than 12"):
        world.rows("SELECT shard, status = 0, COUNT(*) FROM toc_jobs GROUP BY 1, 2")
    assert (
        len(world.rows("SELECT status, COUNT(*) FROM toc_jobs WHERE shard < 2 GROUP BY 1 LIMIT 2"))
        == 2
    )


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_run, "GROUPS_MAX", 5)
    monkeypatch.setattr(query_run, "ROWS_MAX", 12)


def test_too_many_bytes_are_an_error_and_no_answer(world: World) -> None:
    sql = "SELECT job_id, attribute, CONCAT(SUM(attempts), '!') FROM toc_jobs GROUP BY 1, 2"
    assert len(world.rows(sql, merge_bytes=100_000)) > 100
    with pytest.raises(
        QueryFailed,
        match=r"^database \d, table toc_job_000\d: the rows to be merged are more than 0.001 MB",
    ):
        world.rows(sql, merge_bytes=1000)
    assert world.rows("SELECT * FROM toc_jobs", merge_bytes=1000)  # is not merged
