"""Which of a driver's errors mean a server that cannot serve now, and which one refused statement."""

from __future__ import annotations

import sqlite3

import pymysql
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError

from toc.errors import StatementFailed, StoreUnavailable, TocError
from toc.store.driver_errors import hide_values, translate_error

SQL = "UPDATE `toc_shop`.`toc_job_0003` SET status = 1 WHERE `toc_job_0003`.`job_id` = 5"


def failure(error: DBAPIError) -> TocError | None:
    return translate_error(2, error)


@pytest.mark.parametrize(
    "number",
    [2003, 2006, 2013, 1040, 1047, 1053, 1114, 1203, 1205, 1213, 1290, 1317, 1836, 1927, 1969, 3024,
     3032, 3989, 4031, 9001],
)  # fmt: skip
def test_a_server_that_cannot_serve_now(number: int) -> None:
    cause = pymysql.err.OperationalError(number, "words")
    found = failure(OperationalError(SQL, {}, cause))
    assert isinstance(found, StoreUnavailable)
    assert str(found) == f"database 2 does not answer: ({number}, 'words')"


@pytest.mark.parametrize(
    "number", [1048, 1054, 1062, 1146, 1364, 1366, 1406, 1442, 1452, 1644, 3819, 4025]
)
def test_a_statement_that_is_refused(number: int) -> None:
    cause = pymysql.err.OperationalError(number, "words")
    found = failure(OperationalError(SQL, {}, cause))
    assert isinstance(found, StatementFailed)
    assert (found.database, found.table, found.number) == (2, "toc_job_0003", number)
    text = "database 2, table toc_job_0003: the server refuses a statement: "
    assert str(found).startswith(f"{text}error {number}: words")
    assert not found.retryable


# 2059, 2061: the driver's, of a way to log in that it does not have, or refuses.
@pytest.mark.parametrize("number", [1142, 1045, 2059, 2061])
def test_a_login_or_a_right_that_is_refused(number: int) -> None:
    cause = pymysql.err.OperationalError(number, "denied")
    found = failure(OperationalError(SQL, {}, cause))
    assert isinstance(found, StoreUnavailable)
    assert found.refused
    assert str(found).startswith("database 2 refuses: ")


def test_a_stream_that_the_driver_cannot_read() -> None:
    cause = pymysql.err.InternalError("Packet sequence number wrong - got 7 expected 1")
    assert isinstance(failure(InternalError(SQL, {}, cause)), StoreUnavailable)


@pytest.mark.parametrize(
    "key", ["PRIMARY", "toc_job_0003.PRIMARY", "toc_job_0003.uq_live", "uq_name"]
)
def test_a_duplicate_of_toc_s_own_key_is_left_to_the_verb(key: str) -> None:
    cause = pymysql.err.IntegrityError(1062, f"Duplicate entry '5' for key '{key}'")
    assert failure(IntegrityError(SQL, {}, cause)) is None


def test_a_duplicate_of_another_key_is_refused() -> None:
    cause = pymysql.err.IntegrityError(
        1062, "Duplicate entry 'PRIMARY' for key 'toc_job_0003.mine'"
    )
    assert isinstance(failure(IntegrityError(SQL, {}, cause)), StatementFailed)


@pytest.mark.parametrize(
    "words", ["no such table: toc_job_0003", "table toc_job_0003 has no column named x", 'near "X"']
)
def test_sqlite_refuses_a_statement(words: str) -> None:
    found = failure(OperationalError(SQL, {}, sqlite3.OperationalError(words)))
    assert isinstance(found, StatementFailed)
    assert (found.table, found.number) == ("toc_job_0003", None)


@pytest.mark.parametrize(
    "words",
    [
        "database is locked",
        "disk I/O error",
        "unable to open database file",
        "database or disk is full",
    ],
)
def test_sqlite_cannot_serve_now(words: str) -> None:
    found = failure(OperationalError(SQL, {}, sqlite3.OperationalError(words)))
    assert isinstance(found, StoreUnavailable)


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        (SQL, "UPDATE `toc_shop`.`toc_job_0003` SET status = …"),
        ("INSERT INTO toc_job_0003 (job_id, biz_id) VALUES (%s, 42)",
         "INSERT INTO toc_job_0003 (job_id, biz_id) …"),
        ("SELECT 'A-42', 7", "SELECT …"),
        ("SELECT * FROM toc_meta", "SELECT * FROM toc_meta"),
        ("", None),
    ],
)  # fmt: skip
def test_an_error_shows_no_value(statement: str, shown: str | None) -> None:
    error = OperationalError(
        statement, {"biz_id": "A-42"}, pymysql.err.OperationalError(1, "words")
    )
    hide_values(error)
    assert "A-42" not in str(error)
    if shown is not None:
        assert f"[SQL: {shown}]" in str(error)
