"""What `toc sql` takes and what it refuses, before any server is asked; and which shards it asks."""

from __future__ import annotations

import random
import re

import pytest

from tests.admin.queries import Maker
from toc.admin.allowed_functions import ALIASES, FUNCTIONS
from toc.admin.query_plan import QueryPlan, TableQuery, plan_query
from toc.admin.query_reader import TABLES, WINDOW_MAX
from toc.admin.query_run import shard_row_limit
from toc.admin.sql_writer import make_final_sql, make_shard_queries, sql_for_display
from toc.domain.ids import JobIdFactory
from toc.domain.routing import Routing, routing_hash_of
from toc.errors import InvalidInput
from toc.store.query_fan_out import DatabaseQuery

ROUTING = Routing(8, 2)


def refusal(sql: str, **values: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        plan_query(sql, values)
    text = str(caught.value)
    assert "\n" not in text
    return text


def written(sql: str, *, sqlite: bool = False, **values: str) -> str:
    """What one table is asked, without its source."""
    (table,) = plan_query(sql, values).tables
    first, *_ = queries_of(table, sqlite=sqlite, rows_max=9)
    return without_source(sql_for_display(first.sql, first.values, sqlite=sqlite))


def without_source(sql: str) -> str:
    return re.sub(r"FROM \(SELECT .*\) AS toc_\w+|FROM toc_biz_type", "FROM x", sql)


def queries_of(
    table: TableQuery, *, sqlite: bool = False, rows_max: int = 1000
) -> list[DatabaseQuery]:
    return make_shard_queries(table, ROUTING, sqlite=sqlite, rows_max=rows_max)


def sent(made: QueryPlan, *, sqlite: bool) -> list[tuple[str, dict[str, object]]]:
    """All that servers get, and the values that are bound."""
    found = [
        (without_source(query.sql), dict(query.values))
        for table in made.tables
        for query in queries_of(table, sqlite=sqlite)[:1]
    ]
    if made.final is not None:
        types = {table.name: ["BIGINT"] * len(table.select.expressions) for table in made.tables}
        found.append(make_final_sql(made.final, types, limit=9, sqlite=sqlite))
    return found


REFUSED = {
    # no change, nothing beside the answer
    "UPDATE toc_jobs SET status = 3": "only a SELECT is accepted, because this command changes nothing",
    "DELETE FROM toc_jobs": "only a SELECT is accepted, because this command changes nothing",
    "INSERT INTO toc_jobs VALUES (1)": "only a SELECT is accepted, because this command changes nothing",
    "REPLACE INTO toc_jobs VALUES (1)": "only a SELECT is accepted, because this command changes nothing",
    "DROP TABLE toc_job_0000": "only a SELECT is accepted, because this command changes nothing",
    "SET GLOBAL read_only = 1": "only a SELECT is accepted, because this command changes nothing",
    "CALL p()": "only a SELECT is accepted, because this command changes nothing",
    "DO SLEEP(1)": "only a SELECT is accepted, because this command changes nothing",
    "SHOW TABLES": "only a SELECT is accepted, because this command changes nothing",
    "HANDLER toc_jobs OPEN": "only a SELECT is accepted, because this command changes nothing",
    "LOAD DATA INFILE 'x' INTO TABLE toc_jobs": "only a SELECT is accepted, because this command changes",
    "EXPLAIN SELECT 1": "only a SELECT is accepted, because this command changes nothing",
    "WITH x AS (SELECT 1) SELECT * FROM x": "needs a table",
    "TABLE toc_jobs": "only a SELECT is accepted, because this command changes nothing",
    "VALUES ROW(1)": "only a SELECT is accepted, because this command changes nothing",
    "(SELECT job_id FROM toc_jobs)": "only a SELECT is accepted, because this command changes nothing",
    "SELECT 1; DROP TABLE toc_jobs": "write one statement only",
    "SELECT job_id FROM toc_jobs; SELECT 2": "write one statement only",
    "SELECT job_id FROM toc_jobs INTO OUTFILE '/tmp/x'": "INTO",
    "SELECT job_id FROM toc_jobs INTO @x": "INTO",
    "SELECT job_id INTO @x FROM toc_jobs": "INTO",
    "SELECT job_id FROM toc_jobs INTO DUMPFILE '/tmp/x'": "INTO",
    "SELECT job_id FROM toc_jobs FOR UPDATE": "a locking read",
    "SELECT job_id FROM toc_jobs FOR SHARE": "a locking read",
    "SELECT job_id FROM toc_jobs LOCK IN SHARE MODE": "a locking read",
    "SELECT @a := 1 FROM toc_jobs": "an assignment",
    "SELECT @@version FROM toc_jobs": "a system variable",
    "SELECT SLEEP(5) FROM toc_jobs": "this function is not accepted; got 'SLEEP'",
    "SELECT job_id FROM toc_jobs WHERE SLEEP(5)": "got 'SLEEP'",
    "SELECT GET_LOCK('a', 1) FROM toc_jobs": "got 'GET_LOCK'",
    "SELECT LOAD_FILE('/etc/passwd') FROM toc_jobs": "got 'LOAD_FILE'",
    "SELECT BENCHMARK(1000000000, 1 + 1) FROM toc_jobs": "got 'BENCHMARK'",
    "SELECT RAND() FROM toc_jobs": "got 'RAND'",
    "SELECT UUID() FROM toc_jobs": "got 'UUID'",
    "SELECT SYSDATE() FROM toc_jobs": "got 'SYSDATE'",
    "SELECT CONNECTION_ID() FROM toc_jobs": "got 'CONNECTION_ID'",
    "SELECT toc.my_function(1) FROM toc_jobs": "this is not accepted (dot)",
    "SELECT job_id /*! , status */ FROM toc_jobs": "MySQL would run this comment",
    "SELECT job_id /*!80000 , status */ FROM toc_jobs": "MySQL would run this comment",
    "SELECT job_id /*M! , status */ FROM toc_jobs": "MySQL would run this comment",
    "SELECT /*+ SET_VAR(max_execution_time = 0) */ job_id FROM toc_jobs": "an optimizer hint",
    "SELECT SQL_CALC_FOUND_ROWS job_id FROM toc_jobs": "OPERATION MODIFIERS",
    "SELECT HIGH_PRIORITY job_id FROM toc_jobs": "OPERATION MODIFIERS",
    # what cannot be merged
    "SELECT job_id FROM toc_jobs, toc_dead_jobs": "more than one table has this column: write the table",
    "SELECT job_id FROM toc_jobs NATURAL JOIN toc_dead_jobs": "NATURAL is not accepted here",
    "SELECT 1 FROM toc_jobs JOIN toc_events USING (job_id)": "write ON a.x = b.x",
    "SELECT 1 FROM toc_jobs STRAIGHT_JOIN toc_events": "this join",
    "SELECT 1 FROM toc_jobs, LATERAL (SELECT 1 FROM toc_events) x": "this is not accepted (lateral)",
    "SELECT 1 FROM toc_jobs JOIN mysql.user u ON 1 = 1": "a database's name is not accepted here",
    "SELECT 1 FROM toc_jobs j JOIN toc_events j ON 1 = 1": "two tables have this name",
    "SELECT j.job_id FROM toc_jobs j JOIN toc_events e ON e.job_id = x.job_id": "there is no such table",
    "SELECT 1 FROM toc_jobs j JOIN toc_events e ON COUNT(*) > 1": "ON cannot use aggregates: put this",
    "SELECT job_id FROM (SELECT job_id FROM toc_jobs)": "needs a name",
    "SELECT statsu FROM (SELECT status FROM toc_jobs) x": "did you mean status?",
    "SELECT job_id FROM toc_jobs WHERE job_id IN (SELECT user FROM mysql.user)": "a database's name is",
    "SELECT job_id FROM toc_jobs WHERE EXISTS (SELECT SLEEP(5) FROM toc_events)": "got 'SLEEP'",
    "SELECT job_id FROM toc_jobs WHERE job_id IN (SELECT job_id, what FROM toc_events)": "have one column",
    "SELECT job_id FROM toc_jobs WHERE status IN (SELECT what FROM toc_events)": "IN compares a number",
    "SELECT job_id FROM toc_jobs WHERE status = (SELECT what FROM toc_events)": "= compares a number and",
    "WITH RECURSIVE x AS (SELECT job_id FROM toc_jobs) SELECT * FROM x": "RECURSIVE is not accepted here",
    "WITH x (a, b) AS (SELECT job_id FROM toc_jobs) SELECT * FROM x": "names 2 columns, and the query has 1",
    "WITH x AS (UPDATE toc_jobs SET status = 1) SELECT 1 FROM x": "this is not accepted (update)",
    "SELECT job_id FROM toc_jobs UNION SELECT job_id, what FROM toc_events": "a UNION have 1 and 2 columns",
    "SELECT job_id FROM toc_jobs UNION SELECT what FROM toc_events": "UNION puts a number and a text in",
    "SELECT job_id FROM toc_jobs UNION SELECT job_id FROM toc_events ORDER BY job_id + 1": "names or places",
    "SELECT job_id FROM toc_jobs UNION SELECT job_id FROM toc_events INTO OUTFILE '/x'": "INTO",
    "SELECT job_id FROM toc_jobs UNION SELECT job_id FROM toc_events FOR UPDATE": "a locking read",
    "SELECT ROW_NUMBER() FROM toc_jobs": "needs OVER",
    "SELECT job_id FROM toc_jobs WHERE ROW_NUMBER() OVER (ORDER BY job_id) = 1": "cannot use window",
    "SELECT SUM(ROW_NUMBER() OVER (ORDER BY job_id)) FROM toc_jobs": "an aggregate of an aggregate or",
    "SELECT SLEEP(1) OVER () FROM toc_jobs": "this window function is not accepted",
    "SELECT SUM(status) OVER (ORDER BY due_time RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) "
    "FROM toc_jobs": "a frame",
    "SELECT RANK() OVER w FROM toc_jobs": "ALIAS is not accepted here",
    "SELECT GROUP_CONCAT(status, what) FROM toc_events": "this is not accepted (concat)",
    "SELECT job_id FROM toc_jobs ORDER BY attribute->'$.x'": "JSON has no order",
    "SELECT job_id FROM toc_jobs WHERE attribute->'$.x' = 'a'": "->> and JSON_UNQUOTE",
    "SELECT job_id FROM toc_jobs WHERE JSON_EXTRACT(attribute, '$.x') = 5": "JSON has no order and is not",
    "SELECT DISTINCT attribute->'$.x' FROM toc_jobs": "JSON has no order and cannot be grouped: ->> makes",
    "SELECT attribute->>'$.*' FROM toc_jobs": "write a path like '$.key[0].key'",
    "SELECT CONVERT_TZ(due_time, 'UTC', 'Asia/Shanghai') FROM toc_jobs": "write zones like '+08:00':",
    "SELECT job_id FROM toc_jobs WHERE EXISTS (SELECT 1)": "needs a table",
    "SELECT job_id FROM toc_jobs WHERE job_id > ALL (SELECT job_id FROM toc_events)": "a subquery in this",
    "SELECT job_id FROM toc_jobs EXCEPT SELECT job_id FROM toc_dead_jobs": "a subquery in this place is",
    "SELECT STDDEV(attempts) FROM toc_jobs": "got 'STDDEV'",
    "SELECT BIT_OR(status) FROM toc_jobs": "got 'BIT_OR'",
    "SELECT JSON_ARRAYAGG(job_id) FROM toc_jobs": "got 'JSON_ARRAYAGG'",
    "SELECT ANY_VALUE(job_id) FROM toc_jobs": "got 'ANY_VALUE'",
    "SELECT COUNT(*) FROM toc_jobs GROUP BY status WITH ROLLUP": "ROLLUP",
    "SELECT status, job_id FROM toc_jobs GROUP BY status": "neither in GROUP BY nor in an aggregate",
    "SELECT COUNT(*), job_id FROM toc_jobs": "neither in GROUP BY nor in an aggregate",
    "SELECT COUNT(*) FROM toc_jobs ORDER BY job_id": "neither in GROUP BY nor in an aggregate",
    "SELECT COUNT(*) FROM toc_jobs HAVING job_id = 1": "neither in GROUP BY nor in an aggregate",
    "SELECT job_id FROM toc_jobs HAVING job_id = 1": "HAVING needs GROUP BY or an aggregate: put this",
    "SELECT job_id FROM toc_jobs WHERE COUNT(*) > 1": "WHERE cannot use aggregates: put this condition in",
    "SELECT SUM(COUNT(*)) FROM toc_jobs": "an aggregate of an aggregate",
    "SELECT COUNT(*) AS n FROM toc_jobs GROUP BY n": "GROUP BY cannot use aggregates or window functions",
    "SELECT DISTINCT status FROM toc_jobs ORDER BY job_id": "DISTINCT, ORDER BY can only use selected",
    "SELECT job_id FROM toc_jobs PARTITION (p0)": "PARTITION",
    "SELECT job_id FROM toc_jobs TABLESAMPLE (10)": "SAMPLE",
    "SELECT job_id FROM toc_jobs USE INDEX (ix_due)": "an index hint",
    "SELECT job_id FROM toc_jobs IGNORE INDEX (ix_due)": "an index hint",
    "SELECT job_id FROM toc_jobs WINDOW w AS (ORDER BY job_id)": "a window function in this place is not",
    "SELECT job_id FROM toc_jobs ORDER BY dedup_key COLLATE utf8mb4_general_ci": "COLLATE",
    "SELECT _latin1'x' FROM toc_jobs": "a character set",
    "SELECT N'x' FROM toc_jobs": "a character set",
    "SELECT BINARY dedup_key FROM toc_jobs": "CAST converts to one of SIGNED, UNSIGNED, DECIMAL, CHAR, DATE,",
    "SELECT CAST(attribute AS JSON) FROM toc_jobs": "CAST converts to one of SIGNED, UNSIGNED, DECIMAL,",
    "SELECT INTERVAL 1 HOUR + due_time FROM toc_jobs": "write the INTERVAL after the time",
    "SELECT CONVERT(attribute USING latin1) FROM toc_jobs": "cannot be read from line 1, column 30 on",
    "SELECT attribute SOUNDS LIKE 'x' FROM toc_jobs": "this is not accepted (soundex)",
    "SELECT job_id FROM toc_jobs WHERE MATCH (attribute) AGAINST ('x')": "cannot be read from line 1,",
    "SELECT (status, attempts) = (1, 2) FROM toc_jobs": "a row of values",
    "SELECT status XOR attempts FROM toc_jobs": "XOR",
    "SELECT status & 1 FROM toc_jobs": "bitwise and",
    "SELECT x'41' FROM toc_jobs": "this is not accepted (hex string)",
    "SELECT job_id FROM toc_jobs WHERE attribute LIKE 'a' ESCAPE 'xy'": "ESCAPE takes one",
    "SELECT due_time + INTERVAL 1 MINUTE_SECOND FROM toc_jobs": "the unit must be one of MICROSECOND,",
    "SELECT due_time + INTERVAL 1.5 HOUR FROM toc_jobs": "a whole number",
    # names
    "SELECT job_id": "needs a table",
    "SELECT job_id FROM toc_job": "did you mean toc_jobs?",
    "SELECT job_id FROM toc_job_0000": "did you mean toc_jobs?",
    "SELECT user FROM mysql.user": "a database's name is not accepted here",
    "SELECT due_tme FROM toc_jobs": "no such column; did you mean due_time?; got 'due_tme'",
    "SELECT job_id FROM toc_jobs WHERE statsu = 1": "did you mean status?",
    "SELECT job_id FROM toc_jobs GROUP BY statu": "did you mean status?",
    "SELECT job_id FROM toc_jobs ORDER BY statu": "did you mean status?",
    "SELECT COUNT(*) FROM toc_jobs HAVING SUM(attempt) > 1": "did you mean attempts?",
    "SELECT error FROM toc_jobs": "toc_jobs has no such column",
    "SELECT live_key FROM toc_jobs": "toc_jobs has no such column",
    "SELECT t.job_id FROM toc_jobs j": "there is no such table in FROM; there are j",
    "SELECT toc_jobs.job_id FROM toc_jobs j": "there is no such table in FROM; there are j",
    "SELECT COUTN(*) FROM toc_jobs": "did you mean COUNT?",
    "SELECT attempts AS a FROM toc_jobs WHERE a = 1": "this is an alias, and WHERE can only use columns",
    "SELECT DATE(due_time) AS due_time FROM toc_jobs ORDER BY due_time": "another column's alias",
    "SELECT job_id, job_id FROM toc_jobs": "two columns have this name",
    "SELECT *, job_id FROM toc_jobs": "two columns have this name",
    "SELECT status AS n, attempts AS N FROM toc_jobs": "two columns have this name",
    "SELECT job_id FROM toc_jobs ORDER BY 2": "from 1 to 1",
    "SELECT job_id FROM toc_jobs ORDER BY 0": "from 1 to 1",
    # kinds
    "SELECT job_id FROM toc_jobs WHERE status = 'pending'": "status_name has the word; got 'pending'",
    "SELECT job_id FROM toc_jobs WHERE 'done' = status": "status_name has the word",
    "SELECT job_id FROM toc_jobs WHERE status IN (1, 'done')": "got 'done'",
    "SELECT job_id FROM toc_jobs WHERE due_time > 'yesterday'": "this is no time; write it like",
    "SELECT job_id FROM toc_jobs WHERE due_time > '2026-02-30'": "this is no time; write it like",
    "SELECT job_id FROM toc_jobs WHERE due_time > '2026-01-01 20:00:00+08:00'": "this is no time",
    "SELECT job_id FROM toc_jobs WHERE due_time > 20260101": "> compares a number and a time",
    "SELECT job_id FROM toc_jobs WHERE due_time = '2026-01-01 00:00:00.0005'": "times have milliseconds,",
    "SELECT job_id FROM toc_jobs WHERE dedup_key = 5": "= compares a number and a text",
    "SELECT job_id FROM toc_jobs WHERE due_time = attribute": "= compares a text and a time",
    "SELECT job_id FROM toc_jobs WHERE attribute": "WHERE takes a condition, and this is a text",
    "SELECT job_id FROM toc_jobs WHERE attribute AND status = 1": "AND takes a condition, and this is a text",
    "SELECT SUM(due_time) FROM toc_jobs": "SUM takes numbers, and this is a time",
    "SELECT due_time - action_time FROM toc_jobs": "TIMESTAMPDIFF",
    "SELECT attribute + 1 FROM toc_jobs": "+ takes numbers, and this is a text",
    "SELECT HOUR(attempts) FROM toc_jobs": "is no time",
    "SELECT job_id FROM toc_jobs WHERE attempts LIKE '1%'": "compares texts only; got 'LIKE'",
    "SELECT IF(status, due_time, 1) FROM toc_jobs": "a number or a time",
    "SELECT job_id FROM toc_jobs WHERE status = 1 = 1": "put this operand in parentheses",
    "SELECT job_id FROM toc_jobs WHERE status IN (1) IS TRUE": "put this operand in parentheses",
    "SELECT job_id FROM toc_jobs WHERE attempts > NOT status": "put this operand in parentheses",
    # limits
    "SELECT job_id FROM toc_jobs LIMIT 1000000": "LIMIT and OFFSET together can be 100000 at most",
    "SELECT job_id FROM toc_jobs LIMIT 1, 100000": "LIMIT and OFFSET together can be 100000 at most",
    "SELECT job_id FROM toc_jobs LIMIT -1": "a whole number",
    "SELECT job_id FROM toc_jobs LIMIT 1 + 1": "a whole number",
    "SELECT job_id FROM toc_jobs WHERE " + "(" * 60 + "1" + ")" * 60: "is nested too deep",
    "SELECT " + "1 + " * 3000 + "1 AS n FROM toc_jobs": "is nested too deep",
    "SELECT '" + "x" * 70_000 + "' FROM toc_jobs": "at most 65536 characters",
    "SELECT 'a\0b' FROM toc_jobs": "the characters must be valid Unicode without NUL",
    "SELECT 1e9999 FROM toc_jobs": "is no number",
    "": "write a SELECT",
    ";": "write a SELECT",
    "-- nothing": "write a SELECT",
    "SELECT": "needs a table",
    "SELECT job_id frm toc_jobs": "cannot be read from line 1, column 26 on; got 'toc_jobs'",
    "SELECT job_id\nFROM toc_jobs\nWHERE (": "line 3",
    "SELECT 'open FROM toc_jobs": "a quote or a comment is not closed",
    "SELECT job_id FROM toc_jobs WHERE biz_id = @biz": "this name has no value: add --set biz=VALUE",
    "SELECT job_id FROM toc_jobs WHERE biz_id = :biz": "other than @name",
    "SELECT job_id FROM toc_jobs WHERE biz_id = ?": "other than @name",
}


REFUSED_ON_SQLITE = {
    "SELECT DATE_FORMAT(due_time, '%U') FROM toc_jobs": "for weeks %v and %x",
    "SELECT DATE_FORMAT(due_time, attribute) FROM toc_jobs": "this function takes a text",
    "SELECT job_id FROM toc_jobs WHERE attribute REGEXP 'a'": "SQLite does not have REGEXP",
    "SELECT JSON_VALID(attribute) FROM toc_jobs": "not supported on SQLite",
    "SELECT job_id FROM toc_jobs WHERE biz_id > 9223372036854775808": "up to 2^63-1",
}


@pytest.mark.parametrize("sql", REFUSED_ON_SQLITE)
def test_sqlite_refuses_more(sql: str) -> None:
    assert written(sql)
    with pytest.raises(InvalidInput, match=re.escape(REFUSED_ON_SQLITE[sql])):
        written(sql, sqlite=True)


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: sql[:70])
def test_what_is_refused(sql: str, caplog: pytest.LogCaptureFixture) -> None:
    assert REFUSED[sql] in refusal(sql)
    assert not caplog.records  # the error is all that is said


def test_a_value_that_is_not_in_the_statement_is_a_mistake() -> None:
    text = refusal("SELECT job_id FROM toc_jobs WHERE biz_id = @biz_id", biz_id="1", bizid="2")
    assert "@bizid" in text


def test_much_is_not_too_much() -> None:
    ids = ", ".join(map(str, range(4000)))
    assert written(f"SELECT status FROM toc_jobs WHERE job_id IN ({ids})").count(",") == 3999
    plan_query(f"SELECT job_id FROM toc_jobs LIMIT {WINDOW_MAX}")


def test_comments_are_passed_over() -> None:
    sql = "-- a head\n# another\nSELECT job_id, /* one */ status FROM toc_jobs -- tail\n;\n"
    assert written(sql) == "SELECT job_id AS c0, status AS c1 FROM x LIMIT 9"
    assert "5 - (-3)" in written("SELECT 5--3 AS n FROM toc_jobs")  # no comment without a space


# ---- what is sent


def test_no_text_of_the_statement_reaches_a_server() -> None:
    made = plan_query("SELECT 'one' AS `a ``quoted`` name`, job_id FROM toc_jobs WHERE attribute = 'two\\'\"'"
                " AND attribute LIKE 'th%:x' GROUP BY 1, job_id")  # fmt: skip
    for sqlite in (False, True):
        found = sent(made, sqlite=sqlite)
        assert not {
            word for word in ("one", "two", "quoted", "th%") for sql, _ in found if word in sql
        }
        bound = {value for _, values in found for value in values.values()}
        assert bound - {"\\"} == {"one", "two'\"", "th%:x"}


def test_no_name_of_the_statement_reaches_a_server() -> None:
    made = plan_query("WITH evil (`a;b`) AS (SELECT status AS `x'y` FROM toc_jobs AS `j``k` GROUP BY `x'y`) "
                "SELECT n.`a;b` AS `p\"q`, SUM(n.`a;b`) OVER (PARTITION BY n.`a;b`) AS foul FROM evil AS `n` "
                "WHERE EXISTS (SELECT nasty.what FROM toc_events nasty WHERE nasty.job_id = n.`a;b`)"
    )  # fmt: skip
    for sqlite in (False, True):
        for sql, _ in sent(made, sqlite=sqlite):
            assert not {
                w
                for w in ("evil", "foul", "nasty", ";", "`", '"', "k", "q")
                if w in sql.replace("ck", "")
            }


def test_a_random_statement_is_made_of_names_numbers_and_bound_values() -> None:
    for number in range(300):
        made = plan_query(Maker(random.Random(number)).statement())  # noqa: S311
        for sqlite in (False, True):
            for sql, _ in sent(made, sqlite=sqlite):
                mine = re.sub(r"'\$\[(\*|\d+)\]'", "", sql)  # where JSON has a column
                assert not set(mine) & set("'\"`\\;#@")
                assert "--" not in mine
                assert "/*" not in mine


def test_texts_are_written_out_for_people_as_the_server_reads_them() -> None:
    sql = r"SELECT 'it''s', 'a\\b', 'c\nd', 'e\_f' FROM toc_jobs"
    assert written(sql).startswith(
        "SELECT 'it''s' AS c0, 'a\\\\b' AS c1, 'c\nd' AS c2, 'e\\\\_f' AS c3"
    )
    assert written(sql, sqlite=True).startswith(
        "SELECT 'it''s' AS c0, 'a\\b' AS c1, 'c\nd' AS c2, 'e\\_f' AS c3"
    )


def test_limits_are_pushed_down() -> None:
    def asked(sql: str, rows_max: int = 1000) -> str:
        made = plan_query(sql)
        (table,) = made.tables
        wanted = shard_row_limit(made, table, rows_max)
        (limit,) = {
            query.sql.rpartition(" LIMIT ")[2] for query in queries_of(table, rows_max=wanted)
        }
        return limit

    assert asked("SELECT job_id FROM toc_jobs ORDER BY due_time LIMIT 10") == "10"
    assert asked("SELECT job_id FROM toc_jobs ORDER BY due_time LIMIT 10 OFFSET 5") == "15"
    assert asked("SELECT job_id FROM toc_jobs LIMIT 5000", 1000) == "1001"  # one more tells of more
    assert asked("SELECT job_id FROM toc_jobs LIMIT 20, 5000", 1000) == "1021"
    assert asked("SELECT job_id FROM toc_jobs", 7) == "8"
    assert asked("SELECT DISTINCT status FROM toc_jobs LIMIT 3") == "3"
    assert asked("SELECT status, COUNT(*) FROM toc_jobs GROUP BY status LIMIT 3") == "100001"


def test_conditions_on_one_table_are_pushed_below_joins() -> None:
    """Where a row without a match is none of the answer."""

    def asked(sql: str) -> dict[str, str]:
        made = plan_query(sql)
        return {
            table.table: without_source(queries_of(table)[0].sql)
            .partition("WHERE ")[2].partition(" LIMIT")[0]
            for table in made.tables
        }  # fmt: skip

    joined = (
        "SELECT 1 FROM toc_jobs j {} toc_events e "
        "ON e.job_id = j.job_id AND e.attempts > 1 AND j.shard = 2 "
    )
    where = "WHERE j.status = 4 AND e.attempts IS NULL AND j.attempts > e.attempts"
    assert asked(joined.format("JOIN") + where) == {
        "toc_jobs": "(status = 4) AND (shard = 2)", "toc_events": "(attempts IS NULL) AND (attempts > 1)",
    }  # fmt: skip
    assert asked(joined.format("LEFT JOIN") + where) == {
        "toc_jobs": "(status = 4)", "toc_events": "(attempts > 1)",
    }  # fmt: skip
    assert asked(joined.format("RIGHT JOIN") + where) == {"toc_jobs": "", "toc_events": ""}


def test_jobs_are_asked_for_what_smaller_tables_have() -> None:
    def links(sql: str) -> dict[str, list[tuple[str, str]]]:
        return {
            table.table: [(one.column, one.other) for one in table.id_filters]
            for table in plan_query(sql).tables
        }

    joined = "SELECT j.status FROM toc_jobs j {} toc_dead_jobs d ON {}"
    assert links(joined.format("JOIN", "d.job_id = j.job_id"))["toc_jobs"] == [("job_id", "l1")]
    assert links(joined.format("LEFT JOIN", "d.job_id = j.job_id"))["toc_jobs"] == []
    assert links(joined.format("RIGHT JOIN", "d.job_id = j.job_id"))["toc_jobs"] == []
    assert links(joined.format("JOIN", "d.job_id = j.job_id OR j.shard = 1"))["toc_jobs"] == []
    assert links(joined.format("JOIN", "d.attempts = j.attempts"))["toc_jobs"] == []
    other = "SELECT d.error FROM toc_dead_jobs d LEFT JOIN toc_jobs j ON j.job_id = d.job_id"
    assert links(other)["toc_jobs"] == [("job_id", "l0")]
    inside = "SELECT status FROM toc_jobs WHERE {} (SELECT job_id FROM toc_dead_jobs)"
    assert links(inside.format("job_id IN"))["toc_jobs"] == [("job_id", "l1")]
    assert links(inside.format("NOT job_id IN"))["toc_jobs"] == []
    within = "SELECT {} FROM toc_{} a WHERE {} (SELECT 1 FROM toc_{} b WHERE b.job_id = a.job_id)"
    found = links(within.format("error", "dead_jobs", "EXISTS", "jobs"))
    assert found["toc_jobs"] == [("job_id", "l0")]
    assert links(within.format("status", "jobs", "NOT EXISTS", "events"))["toc_jobs"] == []


def test_values_are_given_by_name() -> None:
    sql = (
        "SELECT job_id FROM toc_jobs WHERE biz_id = @biz_id AND dedup_key = @key AND attempts > @n"
    )
    where = written(sql, biz_id="42", key="it's", n="-1").partition("WHERE ")[2]
    assert where.startswith("(biz_id = 42) AND (dedup_key = 'it''s') AND (attempts > (-1))")
    sql = "SELECT job_id FROM toc_jobs WHERE dedup_key = @key LIMIT 3"
    assert "dedup_key = '5' LIMIT" in written(sql, key="'5'")
    assert "compares a number and a text" in refusal(sql, key="5")
    sql = "SELECT job_id FROM toc_jobs WHERE due_time < NOW() + INTERVAL @n HOUR LIMIT @n"
    assert plan_query(sql, {"n": "7"}).limit == 7


# ---- whom to ask


def shards(sql: str, database: int | None = None, **values: str) -> list[int]:
    (table,) = plan_query(sql, values).tables
    queries = make_shard_queries(table, ROUTING, sqlite=False, rows_max=9, database=database)
    return [int(query.table.removeprefix("toc_job_")) for query in queries]


def test_an_id_says_the_shard() -> None:
    home = ROUTING.shard_of_hash(routing_hash_of(42))
    job_id = JobIdFactory(lambda: 1_800_000_000_000, 0).make_ids([routing_hash_of(42)])[0]
    every = list(range(8))
    where = {
        "biz_id = 42": [home],
        "42 = biz_id": [home],
        "biz_id = @biz_id": [home],
        "biz_id IN (42, 43)": sorted({home, ROUTING.shard_of_hash(routing_hash_of(43))}),
        f"job_id = {job_id}": [home],
        "shard = 3": [3],
        "shard IN (3, 5, 99)": [3, 5],
        "biz_id = 42 AND status = 0 AND attempts > 1": [home],
        "biz_id = 42 OR status = 0": every,
        "NOT biz_id = 42": every,
        "biz_id > 42": every,
        "biz_id = attempts": every,
        "biz_id IN (42, attempts)": every,
        "biz_id = 42 + 0": every,
        "(biz_id = 42) IS TRUE": every,
        "shard = 3 AND shard = 4": [0],  # somebody has to say that there is nothing
    }
    for condition, expected in where.items():
        values = {"biz_id": "42"} if "@" in condition else {}
        found = shards(f"SELECT COUNT(*) FROM toc_jobs WHERE {condition}", **values)
        assert found == expected, condition


def test_one_database_can_be_asked_alone() -> None:
    assert shards("SELECT COUNT(*) FROM toc_jobs", 1) == [4, 5, 6, 7]
    for table, count in (
        ("toc_dead_jobs", 2),
        ("toc_events", 2),
        ("toc_purges", 2),
        ("toc_biz_type", 1),
    ):
        (query,) = plan_query(f"SELECT COUNT(*) FROM {table}").tables
        assert len(queries_of(query)) == count
        own = make_shard_queries(query, ROUTING, sqlite=False, rows_max=9, database=1)
        assert [one.database for one in own] == [1]


def test_names_of_types_are_looked_up_only_if_wanted() -> None:
    def source(sql: str) -> str:
        found = queries_of(plan_query(sql).tables[0])[0].sql
        return found.partition(" FROM (")[2].rpartition(") AS ")[0]

    for table in ("toc_jobs", "toc_dead_jobs"):
        assert "JOIN" not in source(f"SELECT COUNT(*) FROM {table}")
        assert "biz_type" not in source(f"SELECT COUNT(*) FROM {table}")
        for sql in ("SELECT biz_type FROM {}", "SELECT COUNT(*) FROM {} WHERE biz_type = 'a'",
                    "SELECT * FROM {}", "SELECT job_id FROM {} ORDER BY biz_type"):  # fmt: skip
            assert "LEFT JOIN toc_biz_type" in source(sql.format(table))


def test_all_that_there_is_can_be_asked() -> None:
    for table, columns in TABLES.items():
        assert len(plan_query(f"SELECT * FROM {table}").columns) == len(columns)
        assert plan_query(f"SELECT * FROM {table}").final is None
    assert not ALIASES.keys() & FUNCTIONS.keys()
    assert set(ALIASES.values()) <= FUNCTIONS.keys()
