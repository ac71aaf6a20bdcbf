"""A person's WHERE: what is taken and how it is understood, what is refused, and that servers agree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sqlalchemy import text

from tests.contract.library import Library
from toc.admin.statement_parser import CHARS_MAX
from toc.admin.where_condition import VALUES_MAX, WhereCondition
from toc.domain.biz_ids import hash_text_id
from toc.domain.job import Status
from toc.domain.routing import BIZ_ID_MAX
from toc.errors import InvalidInput
from toc.store.biz_types import read_known_types
from toc.store.bulk_update import BulkUpdate
from toc.store.claims import OutcomeKind
from toc.store.row_conditions import (
    KINDS,
    AllOf,
    AnyOf,
    Column,
    Comparison,
    Condition,
    ConditionBounds,
    InList,
    IsNull,
    Like,
    Negation,
    TruthValue,
    bounds_of_condition,
)
from toc.store.views import COLUMNS, JOBS, jobs_of_shard_sql

NOW_MS = 1_773_490_000_123  # 2026-03-14 12:06:40.123
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000
TODAY_MS = NOW_MS - NOW_MS % DAY


def read(where: str) -> Condition:
    return WhereCondition(where).make_condition(NOW_MS)


def refusal(where: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(where)
    assert caught.value.field == "where"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_columns_are_those_of_the_view() -> None:
    assert tuple(KINDS) == COLUMNS[JOBS]


# ---- what is taken


def compare(name: str, operator: str, value: object) -> Comparison:
    return Comparison(Column(name), operator, value)  # type: ignore[arg-type]


def business(*texts: str) -> AllOf:
    numbers = tuple(map(hash_text_id, texts))
    return AllOf((InList(Column("biz_id"), numbers), InList(Column("biz_text"), texts)))


TAKEN: Mapping[str, Condition] = {
    "status = 0": compare("status", "=", 0),
    "STATUS <> 0": compare("status", "<>", 0),
    "0 < `attempts`": compare("attempts", ">", 0),
    "3 >= attempts": compare("attempts", "<=", 3),
    "late_ms > -5": compare("late_ms", ">", -5),
    "toc_jobs.status != 2": compare("status", "<>", 2),
    "biz_id = '42'": compare("biz_id", "=", 42),
    f"biz_id = {BIZ_ID_MAX}": compare("biz_id", "=", BIZ_ID_MAX),
    "due_time < action_time": compare("due_time", "<", Column("action_time")),
    'biz_type = "order.close"': compare("biz_type", "=", "order.close"),
    r"claim_token = 'it''s \'x\' 100%'": compare("claim_token", "=", "it's 'x' 100%"),
    "claim_token = ';-- /* x */ #'": compare("claim_token", "=", ";-- /* x */ #"),
    "(status = 0)": compare("status", "=", 0),
    "status = 0 AND (attempts > 1 AND shard = 2)": AllOf(
        (
            compare("status", "=", 0),
            AllOf((compare("attempts", ">", 1), compare("shard", "=", 2))),
        )
    ),
    "status = 0 OR status = 1 AND shard = 2": AnyOf(
        (
            compare("status", "=", 0),
            AllOf((compare("status", "=", 1), compare("shard", "=", 2))),
        )
    ),
    "status = 0 || status = 1 && shard = 2": AnyOf(
        (
            compare("status", "=", 0),
            AllOf((compare("status", "=", 1), compare("shard", "=", 2))),
        )
    ),
    "NOT status = 0": Negation(compare("status", "=", 0)),
    "biz_id IN (1, '2', (3))": InList(Column("biz_id"), (1, 2, 3)),
    "biz_id = 'A-42'": business("A-42"),
    "'A-42' = biz_id": business("A-42"),
    "biz_id <> 'A-42'": Negation(business("A-42")),
    "biz_id IN ('A-42', '42')": business("A-42", "42"),
    "biz_text = '42'": compare("biz_text", "=", "42"),
    "biz_id NOT IN (1)": Negation(InList(Column("biz_id"), (1,))),
    "attempts BETWEEN 1 AND 3": AllOf((compare("attempts", ">=", 1), compare("attempts", "<=", 3))),
    r"claim_token LIKE 'h\_1%'": Like(Column("claim_token"), r"h\_1%", "\\"),
    "claim_token LIKE 'h|_1%' ESCAPE '|'": Like(Column("claim_token"), "h|_1%", "|"),
    "claim_token NOT LIKE 'h%' ESCAPE ''": Negation(Like(Column("claim_token"), "h%", "")),
    "claim_token = 'x' 'y'": compare("claim_token", "=", "xy"),
    "dedup_key IS NULL": IsNull(Column("dedup_key")),
    "dedup_key IS NOT NULL": Negation(IsNull(Column("dedup_key"))),
    "TRUE": TruthValue(True),
    "(TRUE)": TruthValue(True),
    "FALSE": TruthValue(False),
}


@pytest.mark.parametrize("where", TAKEN)
def test_what_is_taken(where: str) -> None:
    assert read(where) == TAKEN[where]


MOMENTS = {
    "NOW()": NOW_MS,
    "now(3)": NOW_MS,
    "UTC_TIMESTAMP()": NOW_MS,
    "UTC_TIMESTAMP": NOW_MS,
    "CURRENT_TIMESTAMP": NOW_MS,
    "CURDATE()": TODAY_MS,
    "UTC_DATE()": TODAY_MS,
    "NOW() - INTERVAL 1 HOUR": NOW_MS - HOUR,
    "NOW() + INTERVAL '90' SECOND - INTERVAL 2 MINUTE": NOW_MS - 30 * SECOND,
    "NOW() + INTERVAL -1 DAY": NOW_MS - DAY,
    "CURRENT_DATE + INTERVAL 1 WEEK": TODAY_MS + 7 * DAY,
    "(DATE_SUB(NOW(), INTERVAL 2 DAY))": NOW_MS - 2 * DAY,
    "DATE_ADD(CURDATE(), INTERVAL 1 MONTH)": TODAY_MS + 31 * DAY,
    "DATE'2026-03-31' - INTERVAL 1 MONTH": TODAY_MS - 14 * DAY,  # 28 February: the last there is
    "DATE'2024-02-29' + INTERVAL 1 YEAR": TODAY_MS - 379 * DAY,
    "NOW() - INTERVAL 1 QUARTER": NOW_MS - 90 * DAY,
    "'2026-03-14'": TODAY_MS,
    "'2026-03-14 12:06:40.123'": NOW_MS,
    "'2026-03-14T12:06:40.123Z'": NOW_MS,
    "'2026-03-14 20:06:40.123+08:00'": NOW_MS,
    "TIMESTAMP'2026-03-14 00:00:01'": TODAY_MS + SECOND,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_moments(moment: str) -> None:
    assert read(f"due_time < {moment}") == compare("due_time", "<", MOMENTS[moment])
    assert read(f"{moment} < due_time") == compare("due_time", ">", MOMENTS[moment])
    between = read(f"due_time BETWEEN {moment} AND NOW()")
    assert isinstance(between, AllOf)
    assert between.parts[0] == compare("due_time", ">=", MOMENTS[moment])


# ---- what is refused

REFUSED = {
    # other statements, and what hides them
    "status = 0; DROP TABLE toc_job_0000": "write one expression only",
    "status = 0;": "write one expression only",
    "status = 0 -- and more": "comments are not accepted",
    "status = 0 # and more": "comments are not accepted",
    "status = 0 /* and more */": "comments are not accepted",
    "/* first */ status = 0": "comments are not accepted",
    "status /*+ hint */ = 0": "comments are not accepted",
    "status = 0 /*!50000 OR 1=1 */": "comments are not accepted",
    "/* nothing else */": "say which jobs; TRUE means all of them",
    "": "say which jobs; TRUE means all of them",
    "  \n": "say which jobs; TRUE means all of them",
    "status = 0 /* unclosed": "a quote or a comment is not closed",
    "claim_token = 'unclosed": "a quote or a comment is not closed",
    "UPDATE toc_job_0000 SET status = 3": "cannot be read from line 1, column 19 on",
    "DELETE FROM toc_job_0000": "cannot be read from line 1, column 11 on",
    "status = 0 UNION SELECT 1": "cannot be read from line 1, column 16 on",
    "status = 0 ORDER BY 1": "cannot be read from line 1, column 19 on",
    "status = 0 LIMIT 3": "cannot be read from line 1, column 16 on",
    "status = 0 FOR UPDATE": "cannot be read from line 1, column 14 on",
    "status = 0 INTO OUTFILE '/tmp/x'": "cannot be read from line 1, column 15 on",
    "(status = 0": "cannot be read from line 1, column 11 on",
    "status = 0)": "cannot be read from line 1, column 11 on",
    "status =": "cannot be read from line 1, column 8 on",
    # subqueries, functions, variables
    "job_id IN (SELECT job_id FROM toc_event)": "a subquery is not accepted here",
    "status = (SELECT 1)": "a subquery is not accepted here",
    "EXISTS (SELECT 1)": "a subquery is not accepted here",
    "status = ALL (SELECT 1)": "a subquery in this place is not accepted",
    "due_time < NOW() - INTERVAL (SELECT 1) DAY": "a subquery is not accepted here",
    "SLEEP(5)": "this function is not accepted; got 'SLEEP'",
    "status = SLEEP(5)": "this function is not accepted; got 'SLEEP'",
    "due_time < NOW(SLEEP(5))": "this function is not accepted; got 'SLEEP'",
    "due_time < NOW('3')": "NOW takes numbers, and this is a text",
    "due_time < DATE_ADD(NOW(), INTERVAL 1 DAY, 3)": "takes 2 arguments",
    "due_time < SYSDATE()": "this function is not accepted; did you mean DATE?",
    "claim_token = LOAD_FILE('/etc/passwd')": "this function is not accepted; got 'LOAD_FILE'",
    "GET_LOCK('x', 1) = 1": "this function is not accepted; got 'GET_LOCK'",
    "LOWER(claim_token) = 'x'": "this function is not accepted here; got 'LOWER'",
    "COUNT(*) > 1": "this function is not accepted here; got 'COUNT'",
    "claim_token REGEXP 'x'": "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted",
    "attribute->'$.x' = 1": "JSON has no order and is not compared: ->> and JSON_UNQUOTE make a text",
    "CASE WHEN TRUE THEN TRUE END": "only columns, values and times like NOW() - INTERVAL 1 HOUR are",
    "CAST(claim_token AS CHAR) = 'x'": "only columns, values and times like NOW() - INTERVAL 1 HOUR are",
    "BINARY claim_token = 'x'": "CAST converts to one of SIGNED, UNSIGNED, DECIMAL, CHAR, DATE, DATETIME,",
    "claim_token COLLATE utf8mb4_bin = 'x'": "COLLATE is not accepted",
    "status = @x": "a variable is not accepted here",
    "status = @@version": "a system variable is not accepted",
    "status = ?": "a parameter other than @name is not accepted",
    "status = :x": "a parameter other than @name is not accepted",
    "claim_token = _utf8'x'": "a character set is not accepted",
    "claim_token = N'x'": "a character set is not accepted",
    "claim_token = X'41'": "this is not accepted (hex string)",
    "status = 0x1": "this is not accepted (hex string)",
    "status = b'1'": "this is not accepted (bit string)",
    # operators
    "status & 1": "this is not accepted (bitwise and)",
    "attempts + 1 > 2": "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted",
    "attempts DIV 2 = 1": "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted",
    "status = 0 XOR status = 1": "XOR",
    "status <=> 0": "only columns, values and times like NOW() - INTERVAL 1 HOUR are accepted",
    "status = 0 = 0": "put this operand in parentheses beside =",
    "(status, shard) = (0, 1)": "a row of values is not accepted",
    "status IS TRUE": "only IS NULL and IS NOT NULL are accepted here",
    "due_time = action_time + INTERVAL 1 DAY": "only columns, values and times like NOW() - INTERVAL",
    # MySQL takes all that follows for the time
    "INTERVAL 1 WEEK + CURRENT_DATE < due_time": "write the INTERVAL after the time",
    # no condition
    "status": "is no condition",
    "1": "is no condition",
    "NOT status": "is no condition",
    "'x' AND TRUE": "AND takes a condition, and this is a text",
    # true of all jobs, or of none
    "1 = 1": "compares two values",
    "1 = '1'": "compares two values",
    "'a' > 'b'": "compares two values",
    "NOW() > NOW() - INTERVAL 1 DAY": "compares two values",
    "2 BETWEEN attempts AND 3": "compares two values",
    "biz_id = '1' OR '' = ''": "compares two values: one side must be a column",
    "job_id = job_id": "compares a column with itself",
    "NOT (biz_id < biz_id)": "compares a column with itself",
    "biz_id = 1 OR TRUE": "must stand alone: TRUE means all jobs",
    "NOT FALSE": "must stand alone: TRUE means all jobs",
    # columns
    "statsu = 0": "toc_jobs has no such column; did you mean status?",
    "duetime < NOW()": "did you mean due_time?",
    "password = 'x'": "toc_jobs has no such column",
    "live_key = 'x'": "no such column",
    "toc_event.status = 0": "there is no such table in FROM; there are toc_jobs",
    "mysql.user.worker = 'x'": "a database's name is not accepted here",
    # kinds
    "status = 'pending'": "status is a number; status_name has the word",
    "attempts > 'many'": "attempts is a number",
    "attempts > 1.5": "whole number",
    "attempts > 1e3": "whole number",
    "biz_id = -1": "biz_id lies from 0",
    f"biz_id = {BIZ_ID_MAX + 1}": "biz_id lies from 0",
    f"attempts = {2**63}": "attempts lies from",
    "biz_id = 99999999999999999999999": "biz_id lies from 0 to 18446744073709551615",
    "claim_token = 5": "= compares a number and a text",
    "claim_token = NOW()": "= compares a text and a time",
    "claim_token = biz_id": "= compares a number and a text",
    "due_time < 20260101": "< compares a number and a time",
    "due_time < 'tomorrow'": "is no time",
    "due_time < '2026-02-30'": "is no time",
    "due_time < '1969-12-31'": "must lie between",
    "due_time < '2026-01-01 00:00:00.0005'": "times have milliseconds, not more",
    "due_time < NOW() + INTERVAL 9000 YEAR": "must lie between",
    "due_time < NOW() + INTERVAL 999999999999 WEEK": "must lie between",
    "due_time < NOW() + INTERVAL 1.5 HOUR": "whole number",
    "due_time < NOW() + INTERVAL '1:30' MINUTE_SECOND": "the unit must be one of MICROSECOND,",
    "due_time < NOW() + INTERVAL 1 FORTNIGHT": "the unit must be one of",
    "status_name = 'pendin'": "status_name is one of",
    "status_name IN ('done', 'Dead')": "status_name is one of",
    "due_time = NULL": "IS NULL",
    "dedup_key IN ('x', NULL)": "IS NULL",
    "status IN ()": "a list must have",
    "status IN (attempts)": "not a column",
    "'x' LIKE claim_token": "a column must stand before LIKE",
    "action_time LIKE '2026%'": "LIKE is for texts",
    "biz_id LIKE '4%'": "this operator compares texts only",
    "claim_token LIKE 'x' ESCAPE 'xx'": "ESCAPE takes one character, after LIKE",
    "biz_id > 'A-42'": "biz_id is a number",
    "biz_id IN ('A-42', 42)": "either texts or integers",
    "biz_id = ' A'": "must not begin or end with a space",
    f"biz_id = '{'x' * 65}'": "must have 1 to 64 characters",
    "claim_token LIKE dedup_key": "not a column",
    # sizes
    f"biz_id IN ({', '.join(['1'] * (VALUES_MAX + 1))})": "a list must have",
    "(" * 100 + "status = 0" + ")" * 100: "the expression is nested too deep",
    "NOT " * 3000 + "status = 0": "the expression is nested too deep",
    "status = 0" + " " * CHARS_MAX: "at most 65536 characters are accepted",
    "claim_token = '\ud83d'": "the characters must be valid Unicode without NUL",
    "claim_token = '\0'": "the characters must be valid Unicode without NUL",
}


@pytest.mark.parametrize("where", REFUSED, ids=lambda where: where[:60])
def test_what_is_refused(where: str) -> None:
    assert REFUSED[where] in refusal(where)


def test_much_is_not_too_much() -> None:
    assert isinstance(read(" OR ".join(["biz_id = 42"] * 3000)), AnyOf)
    ids = read(f"biz_id IN ({', '.join(map(str, range(VALUES_MAX)))})")
    assert isinstance(ids, InList)
    assert len(ids.values) == VALUES_MAX


def test_it_says_how_it_was_understood() -> None:
    assert (
        WhereCondition("status=0||status=1&&shard in(2)").text
        == "status = 0 OR status = 1 AND shard IN (2)"
    )


def test_an_unknown_type_is_refused() -> None:
    names = {1: "order.close", 2: "report"}
    WhereCondition("biz_type IN ('order.close', 'report') OR biz_type LIKE 'x%'").check_biz_types(
        names
    )
    where = WhereCondition("status = 0 AND NOT (biz_type = 'order.clsoe' OR shard = 1)")
    with pytest.raises(InvalidInput, match=r"no such biz_type; did you mean order\.close\?"):
        where.check_biz_types(names)


# ---- which index


BOUNDS = {
    "TRUE": ConditionBounds(),
    "status = 0 OR biz_id = 42": ConditionBounds(),
    "NOT biz_id = 42": ConditionBounds(),
    "biz_id <> 42": ConditionBounds(),
    "biz_id = 'A-42'": ConditionBounds(biz_ids=frozenset({hash_text_id("A-42")})),
    "biz_id = 42 AND attempts > 1": ConditionBounds(biz_ids=frozenset({42})),
    "biz_id IN (42, 43) AND (biz_id IN (43, 44))": ConditionBounds(biz_ids=frozenset({43})),
    "job_id IN (1, 2)": ConditionBounds(job_ids=frozenset({1, 2})),
    "shard = 3 AND status IN (0, 1)": ConditionBounds(
        shards=frozenset({3}), statuses=frozenset({0, 1})
    ),
    "status_name = 'dead'": ConditionBounds(statuses=frozenset({4})),
    "status_name IN ('dead', 'done') AND status = 4": ConditionBounds(statuses=frozenset({4})),
    "due_time IS NOT NULL": ConditionBounds(is_due=True),
    "due_time < NOW()": ConditionBounds(is_due=True, due_until_ms=NOW_MS),
    "due_time BETWEEN CURDATE() AND NOW() AND due_time > '2026-01-01'": ConditionBounds(
        is_due=True, due_from_ms=TODAY_MS, due_until_ms=NOW_MS
    ),
    "due_time = NOW()": ConditionBounds(is_due=True, due_from_ms=NOW_MS, due_until_ms=NOW_MS),
    "due_time IN (NOW(), CURDATE())": ConditionBounds(
        is_due=True, due_from_ms=TODAY_MS, due_until_ms=NOW_MS
    ),
    "due_time <> NOW()": ConditionBounds(is_due=True),
    "due_time < action_time": ConditionBounds(),
}


@pytest.mark.parametrize("where", BOUNDS)
def test_what_follows_from_a_condition(where: str) -> None:
    assert bounds_of_condition(read(where)) == BOUNDS[where]


# ---- servers agree

SAME = [
    "TRUE",
    "FALSE",
    "status = 0",
    "status_name = 'pending' OR status_name > 'e'",
    "status IN (2, 3, 4) AND NOT status_name LIKE 'd%'",
    "biz_id = 18446744073709551615",
    "biz_id > 42",
    "biz_id <= 9223372036854775808",
    "biz_id BETWEEN 43 AND 9223372036854775807",
    "NOT biz_id < 18446744073709551615",
    "biz_id IN (42, 18446744073709551614, 18446744073709551615)",
    "job_id > biz_id",
    "shard = 2 OR shard > 2",
    "shard IN (0, 1)",
    "NOT shard = 0",
    "biz_type = 'order.close'",
    "biz_type <> 'report' AND status <> 0",
    "biz_type LIKE 'ORDER%'",
    "biz_type LIKE '_eport'",
    "biz_type IN ('report') AND attempts >= 1",
    "dedup_key IS NULL",
    "dedup_key = 'K'",
    "dedup_key > 'k'",
    "NOT dedup_key = 'k'",
    "dedup_key IN ('k', 'a%b')",
    r"dedup_key LIKE 'a\%%'",
    "dedup_key LIKE 'a%b'",
    "dedup_key LIKE 'a|%b' ESCAPE '|'",
    "dedup_key LIKE '_' ESCAPE ''",
    "dedup_key LIKE '*'",
    "dedup_key LIKE '[k]'",
    "dedup_key LIKE '%?%'",
    "attribute LIKE '%Größe%'",
    "attribute LIKE '%GRÖSSE%'",
    "attribute IS NULL OR attribute = '{\"a\":1}'",
    "claim_token IS NOT NULL AND claim_token <> 'ended'",
    "action_time < '2026-01-01 00:00:10'",
    "action_time >= '2026-01-01 00:00:10.005'",
    "due_time = action_time",
    "due_time <> action_time OR due_time IS NULL",
    "due_time BETWEEN '2026-01-01' AND '2026-01-01 00:00:05.000'",
    "claim_time IS NULL AND late_ms IS NULL",
    "late_ms = 0",
    "late_ms > 0 AND late_ms < 1000",
    "late_ms >= 1500 OR late_ms < 0",
    "gmt_create <= '2026-01-01' AND gmt_modified > '2026-01-01'",
    "attempts < 1 AND (status = 0 OR status = 3) AND NOT (dedup_key = 'k' OR shard = 1)",
]


@pytest.fixture
def various(library: Library) -> Library:
    """Jobs of all states, with odd ids, keys and attributes."""
    for number, biz_id in enumerate((0, 42, 43, 2**63 - 1, 2**63, BIZ_ID_MAX)):
        library.pending(biz_id, in_ms=5000 * number)
        library.pending(biz_id, in_ms=10_005, type_no=library.report_no, key="k")
    keys = ("", "K", "a%b", "axb", "*", "[k]", "a?b", "_")
    for number, key in enumerate(keys):
        library.pending(number, key=key, attribute='{"n":"Größe"}' if number % 2 else '{"a":1}')
    for kind in OutcomeKind:
        job_id = library.pending(1, in_ms=-1500)
        library.claim([job_id], "ended")
        library.clock.advance(0.25)
        library.settle_as(kind, job_id, "ended", library.now_ms + 4000, "x")
    library.running("one", biz_id=3)
    library.jobs.cancel(library.pending(4))
    return library


@pytest.mark.parametrize(
    ("where", "biz_ids"),
    [
        ("biz_id = 'A-42'", {"A-42"}),
        ("biz_id IN ('a-42', 'é', '42')", {"a-42", "é", "42"}),
        ("biz_text = '42'", {"42"}),
        ("biz_id <> 'A-42' AND biz_text IS NOT NULL", {"a-42", "é", "e\u0301", "42"}),
        ("biz_text LIKE '%-42' AND tenant IS NULL", {"A-42", "a-42"}),
    ],
)
def test_texts_as_business_ids(library: Library, where: str, biz_ids: set[str]) -> None:
    texts = ("A-42", "a-42", "é", "e\u0301", "42")
    ids = {library.pending(text): text for text in texts}
    library.pending(hash_text_id("A-42"))
    library.pending(42)
    found = by_us(library, where)
    assert {ids[job_id] for job_id in found} == biz_ids


def by_hand(library: Library, where: str) -> set[int]:
    """What the server itself finds in the view."""
    found: set[int] = set()
    for shard in range(4):
        view = jobs_of_shard_sql(shard, sqlite=library.sqlite)
        with library.databases[0].engine.connect() as connection:
            sql = f"SELECT job_id FROM ({view}) AS toc_jobs WHERE {where}"
            found |= set(connection.exec_driver_sql(sql.replace("%", "%%")).scalars())
    return found


def by_us(library: Library, where: str) -> set[int]:
    condition = read(where)
    names = read_known_types(library.databases).names
    sets = BulkUpdate(library.databases, names, condition, TruthValue(True))
    found: list[int] = []
    for window in sets.split_into_windows(
        library.databases[0], bounds_of_condition(condition), lambda: None
    ):
        ids = sets.find_changeable_jobs(window)
        tallies = sets.count_matching_jobs(window)
        assert sum(tally.matched for tally in tallies) == len(ids)
        found += ids
    assert len(found) == len(set(found))
    return set(found)


def test_it_means_what_it_means_to_the_server(various: Library) -> None:
    if various.sqlite:
        pytest.skip("MySQL's dialect: SQLite is compared with it below")
    ours = {where: by_us(various, where) for where in SAME}
    assert ours == {where: by_hand(various, where) for where in SAME}


EXPECTED_OF_SQLITE = {
    "TRUE": 28,
    "biz_id > 42": 8,
    "biz_id <= 9223372036854775808": 26,
    "NOT biz_id < 18446744073709551615": 2,
    "biz_type LIKE 'ORDER%'": 0,
    r"dedup_key LIKE 'a\%%'": 1,
    "dedup_key LIKE 'a%b'": 3,
    "dedup_key LIKE '*'": 1,
    "dedup_key LIKE '[k]'": 1,
    "dedup_key LIKE '_' ESCAPE ''": 9,
    "attribute LIKE '%Größe%'": 4,
    "late_ms >= 1500 OR late_ms < 0": 6,
}


def test_the_same_number_of_jobs_on_every_engine(various: Library) -> None:
    counts = {where: len(by_us(various, where)) for where in EXPECTED_OF_SQLITE}
    assert counts == EXPECTED_OF_SQLITE


def test_a_status_of_other_hands_has_no_name(library: Library) -> None:
    job_id = library.pending()
    table = f"toc_job_{library.shard(job_id):04d}"
    with library.databases[0].engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET status = 9 WHERE job_id = {job_id}"))
    assert by_us(library, "status = 9 AND status_name IS NULL") == {job_id}
    assert by_us(library, f"NOT status_name = '{Status.DONE.name.lower()}'") == set()
