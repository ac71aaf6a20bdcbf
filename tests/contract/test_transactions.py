"""Deadlocks, lock waits, lost connections: what is repeated, and what the caller hears."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from tests.contract.breaks import lose_answers
from tests.contract.library import Library
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import StatementFailed, StoreUnavailable
from toc.store import sessions
from toc.store.databases import (
    DEADLOCK_TRIES_MAX,
    TRIES_MAX,
    ConnectionLimits,
    Database,
    Databases,
)
from toc.store.verb import Statement, Verb


@pytest.fixture
def mysql_only(library: Library) -> None:
    if library.sqlite:
        pytest.skip("SQLite has one writer and no row locks")


def crosswise(library: Library, ids: tuple[int, int], both: threading.Barrier) -> list[int]:
    """Changes two rows in this order, once the other thread has changed its first."""
    tries: list[int] = []
    first, _ = ids

    def work(connection: Connection) -> None:
        tries.append(first)
        for job_id in ids:
            table = f"toc_job_{library.shard(job_id):04d}"
            connection.execute(
                text(f"UPDATE {table} SET attempts = attempts + 1 WHERE job_id = :id"),
                {"id": job_id},
            )
            if job_id == first and len(tries) == 1:
                both.wait(10)

    library.databases[0].run_transaction(work)
    return tries


@pytest.mark.usefixtures("mysql_only")
def test_a_deadlock_is_repeated(library: Library) -> None:
    one, two = library.pending(1), library.pending(2)
    both = threading.Barrier(2)
    tries: list[int] = []
    threads = [
        threading.Thread(target=lambda ids=ids: tries.extend(crosswise(library, ids, both)))
        for ids in ((one, two), (two, one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(tries) == 3  # one of them was the victim, once
    assert library.row(one).attempts == library.row(two).attempts == 2


@pytest.mark.usefixtures("mysql_only")
def test_a_lock_wait_is_repeated_until_the_lock_is_free(library: Library) -> None:
    job_id = library.pending()
    holder = create_engine(library.settings.databases[0], poolclass=NullPool).connect()
    table = f"toc_job_{library.shard(job_id):04d}"
    holder.execute(text(f"SELECT * FROM {table} WHERE job_id = {job_id} FOR UPDATE"))

    def impatient(raw: Any, *_: Any) -> None:
        raw.cursor().execute("SET SESSION innodb_lock_wait_timeout = 1")

    engines = (library.databases[0].engine, library.databases[0].autocommit_engine)
    for engine in engines:
        event.listen(engine, "checkout", impatient)
    held = threading.Timer(2.5, holder.close)  # longer than one try waits, and than two
    held.start()
    try:
        assert library.jobs.cancel(job_id) == "cancelled"
    finally:
        held.join()
        for engine in engines:
            event.remove(engine, "checkout", impatient)


def lock(connection: Connection, library: Library, job_id: int) -> None:
    table = f"toc_job_{library.shard(job_id):04d}"
    connection.execute(text(f"SELECT * FROM {table} WHERE job_id = {job_id} FOR UPDATE"))


@pytest.fixture
def impatient(library: Library) -> Iterator[Database]:
    """The same database with sessions that end when they stand still for a second."""
    databases = Databases(
        library.settings.databases,
        library.settings.routing,
        library.clock,
        limits=ConnectionLimits(idle_transaction_s=1),
    )
    yield databases[0]
    databases.close()


@pytest.mark.usefixtures("mysql_only")
def test_who_stands_still_in_a_transaction_loses_it(library: Library, impatient: Database) -> None:
    job_id = library.pending()
    still = impatient.engine.connect()
    lock(still, library, job_id)
    assert library.jobs.cancel(job_id) == "cancelled"  # it waits for the lock for 25 s at most
    with pytest.raises(OperationalError):
        still.execute(text("SELECT 1"))
    still.close()


@pytest.mark.usefixtures("mysql_only")
def test_a_transaction_that_was_lost_by_standing_still_is_repeated(
    library: Library, impatient: Database
) -> None:
    job_id, tries = library.pending(), list[int]()

    def work(connection: Connection) -> None:
        tries.append(1)
        lock(connection, library, job_id)
        if len(tries) == 1:
            time.sleep(3)
        lock(connection, library, job_id)

    impatient.run_transaction(work)
    assert len(tries) == 2


@pytest.mark.usefixtures("mysql_only")
def test_a_session_that_was_idle_for_long_is_not_used(
    library: Library, impatient: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_REAL_CLOCK", library.clock)

    def session() -> int:
        return impatient.run_transaction(lambda c: c.scalar(text("SELECT CONNECTION_ID()")) or 0)

    first = session()
    library.clock.advance(0.5)
    assert session() == first
    library.clock.advance(0.6)
    assert session() != first


@pytest.mark.usefixtures("mysql_only")
def test_all_sessions_are_lost_while_a_statement_is_under_way(library: Library) -> None:
    """As when a server fails over: whoever tries again must not try it on a session that is as dead."""
    database, job_id = library.databases[0], library.pending()
    with (
        database.autocommit_engine.connect(),
        database.autocommit_engine.connect(),
        database.autocommit_engine.connect(),
    ):
        pass  # so many are in the pool
    other = create_engine(library.settings.databases[0], poolclass=NullPool)
    waiting = text(
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE%'"
    )
    theirs = text(
        "SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id NOT IN (CONNECTION_ID(), :holder)"
    )
    with other.connect() as holder, other.connect() as killer, ThreadPoolExecutor(1) as pool:
        table = database.job_table_name(library.shard(job_id))
        holder.execute(text(f"SELECT 1 FROM {table} WHERE job_id = {job_id} FOR UPDATE"))
        holder_id = holder.scalar(text("SELECT CONNECTION_ID()"))
        answer = pool.submit(library.jobs.cancel, job_id)
        wait_until(lambda: list(killer.execute(waiting)), "the change to wait for the row")
        for (session,) in killer.execute(theirs, {"holder": holder_id}).all():
            with suppress(OperationalError):  # it has ended by itself
                killer.execute(text(f"KILL {session}"))
        holder.rollback()
        assert answer.result(30) == "cancelled"
    assert library.row(job_id).status == Status.CANCELLED


@pytest.mark.usefixtures("mysql_only")
def test_a_server_that_chains_transactions_swallows_none(library: Library) -> None:
    """completion_type = CHAIN: a plain COMMIT begins the next transaction, which nobody would end."""
    database = library.databases[0]

    def chains(raw: Any, record: Any) -> None:
        raw.cursor().execute("SET SESSION completion_type = 'CHAIN'")

    event.listen(database.autocommit_engine, "connect", chains)
    database.autocommit_engine.dispose()
    first, second = library.pending(1), library.pending(2)
    assert library.jobs.cancel(first) == "cancelled"
    third = library.pending(3)  # by one statement, on a session that has just committed a packet
    assert [library.row(job_id).status for job_id in (first, second, third)] == [
        Status.CANCELLED,
        Status.PENDING,
        Status.PENDING,
    ]


def test_a_packet_that_is_broken_off_leaves_no_connection_behind(library: Library) -> None:
    """Who comes next must not read its answers."""
    if not library.packets:
        pytest.skip("it has no packets")
    database = library.databases[0]
    asked = [Statement("SELECT CONNECTION_ID()")]

    def broken_off(_: object, line: Any) -> None:
        cursor = line._pooled.driver_connection.cursor
        ids.append(line.send_autocommit(asked)[0].rows[0][0])

        class Interrupted(cursor().__class__):  # type: ignore[misc]
            def nextset(self) -> bool:
                if self._executed:  # some are read, and some are not
                    raise KeyboardInterrupt
                return bool(super().nextset())

        line._pooled.driver_connection.cursorclass = Interrupted
        line.send_autocommit([*asked, *asked])

    ids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        database.run_pipelined(Verb(asked, (), broken_off))
    answers = database.run_pipelined(Verb(asked, asked, lambda results, _: results))
    assert answers is not None
    assert answers[0].rows == answers[1].rows
    assert answers[0].rows[0][0] not in ids


@pytest.mark.usefixtures("mysql_only")
def test_a_session_amid_a_packet_ends_when_it_stands_still(library: Library) -> None:
    """And has its own patience again afterwards."""
    read = Statement("SELECT @@SESSION.wait_timeout")

    if not library.packets:
        pytest.skip("it has no packets")
    library.databases[0].idle_transaction_s = 7
    answers = library.databases[0].run_pipelined(
        Verb([read, read], [read], lambda results, _: results)
    )
    assert answers is not None
    amid, _, after = answers
    assert amid.rows[0][0] == 7
    assert after.rows[0][0] == library.databases[0].run_read(
        lambda c: c.exec_driver_sql("SELECT @@GLOBAL.wait_timeout").scalar()
    )


def raiser(error: Exception, times: int) -> tuple[Callable[[Connection], str], list[int]]:
    tries: list[int] = []

    def work(connection: Connection) -> str:
        tries.append(1)
        if len(tries) <= times:
            raise error
        return "done"

    return work, tries


def lock_error(library: Library, number: int = 1205) -> OperationalError:
    cause: Exception = sqlite3.OperationalError("database is locked")
    if not library.sqlite:
        import pymysql  # noqa: PLC0415 - only here

        cause = pymysql.err.OperationalError(number, "a lock")
    return OperationalError("UPDATE", {}, cause)


@pytest.mark.parametrize("number", [1205, 1213])
def test_locks_are_waited_for_only_so_often(library: Library, number: int) -> None:
    most = DEADLOCK_TRIES_MAX if number == 1213 and not library.sqlite else TRIES_MAX
    work, tries = raiser(lock_error(library, number), most - 1)
    assert library.databases[0].run_transaction(work) == "done"
    assert len(tries) == most
    work, tries = raiser(lock_error(library, number), most)
    with pytest.raises(StoreUnavailable) as caught:
        library.databases[0].run_transaction(work)
    assert caught.value.database == 0
    assert len(tries) == most


def test_a_lost_connection_is_replaced_once(library: Library) -> None:
    job_id = library.pending()
    with lose_answers(library.databases[0], times=1):
        assert library.jobs.reschedule(job_id, 5) == "rescheduled"
    with lose_answers(library.databases[0], times=2), pytest.raises(StoreUnavailable) as caught:
        library.jobs.reschedule(job_id, 5)
    assert caught.value.retryable
    assert library.jobs.get(job_id) is not None


@pytest.mark.parametrize("verb", ["reschedule", "redrive"])
def test_a_change_whose_answer_was_lost_is_told_though_the_job_runs_already(
    library: Library, verb: str
) -> None:
    if library.sqlite:
        pytest.skip("SQLite has one writer: a claim cannot come between a COMMIT and its answer")
    job_id = library.dead() if verb == "redrive" else library.pending(in_ms=90_000)
    now_ms, tokens = library.now_ms, iter("ab")

    def claim() -> None:
        assert library.claim([job_id], next(tokens))[job_id].status is Status.RUNNING

    with lose_answers(library.databases[0], meanwhile=claim):
        answer = getattr(library.jobs, verb)(job_id, now_ms)
    assert answer == {"reschedule": "rescheduled", "redrive": "redriven"}[verb]
    assert next(tokens) == "b"  # it was claimed, once
    # Asked anew it says what is the case.
    assert getattr(library.jobs, verb)(job_id, now_ms) == "running"


def test_a_server_that_is_gone_is_unavailable(library: Library) -> None:
    if library.sqlite:
        url = "sqlite:////no/such/directory/toc.db"
    else:
        there = make_url(library.settings.databases[0])
        url = there.set(port=free_port()).render_as_string(hide_password=False)
    gone = Databases(
        [url], library.settings.routing, library.clock, limits=ConnectionLimits(connect_timeout_s=1)
    )
    for use in (gone[0].now_ms, lambda: gone[0].run_transaction(lambda _: 0)):
        with pytest.raises(StoreUnavailable, match=r"^database 0 does not answer: ") as caught:
            use()
        assert caught.value.retryable
        assert "\n" not in str(caught.value)
    gone.close()


@pytest.mark.usefixtures("mysql_only")
def test_connections_that_were_killed_while_idle_are_replaced(library: Library) -> None:
    job_id = library.pending()
    library.jobs.insert([library.new(key="a"), library.new(key="b")], "keep")  # in a transaction
    killed = 0
    killer = create_engine(library.settings.databases[0], poolclass=NullPool)
    with killer.begin() as connection:
        sql = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
        mine = connection.scalar(text("SELECT CONNECTION_ID()"))
        for other in connection.scalars(text(sql)).all():
            if other != mine:
                connection.execute(text(f"KILL {other}"))
                killed += 1
    assert killed >= 2
    assert library.jobs.cancel(job_id) == "cancelled"
    assert len(library.insert(library.new(key="c"), library.new(key="d"))) == 2


@pytest.mark.usefixtures("mysql_only")
def test_a_read_only_server_is_unavailable(library: Library) -> None:
    # So a primary looks from its demotion until clients have found the new one.
    import pymysql  # noqa: PLC0415 - only here

    cause = pymysql.err.OperationalError(1290, "The server is running with --read-only")
    work, tries = raiser(OperationalError("UPDATE", {}, cause), 1)
    with pytest.raises(StoreUnavailable, match="read-only"):
        library.databases[0].run_transaction(work)
    assert len(tries) == 1


def test_what_is_wrong_with_a_statement_is_said(library: Library) -> None:
    job_id = library.pending()
    with pytest.raises(IntegrityError):
        library.sql(job_id, "INSERT INTO toc_biz_type (type_no, name) VALUES (1, NULL)")

    def nonsense(connection: Connection) -> None:
        connection.exec_driver_sql("SELEKT 1")

    with pytest.raises(StatementFailed, match="SELEKT"):
        library.databases[0].run_transaction(nonsense)


def test_a_failed_transaction_leaves_nothing(library: Library) -> None:
    def work(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO toc_meta (name, value) VALUES ('x', 'y')")
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        library.databases[0].run_transaction(work)
    rows = library.sql(library.new().job_id, "SELECT * FROM toc_meta WHERE name = 'x'")
    assert rows == []


@pytest.mark.usefixtures("mysql_only")
def test_a_server_without_a_free_connection_is_unavailable(library: Library) -> None:
    admin = create_engine(library.settings.databases[0], poolclass=NullPool)
    account = f"toc_{library.settings.databases[0][-8:]}"
    with admin.begin() as connection:
        connection.exec_driver_sql(f"DROP USER IF EXISTS {account}")
        connection.exec_driver_sql(
            f"CREATE USER {account} IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 1"
        )
        connection.exec_driver_sql(f"GRANT ALL ON {admin.url.database}.* TO {account}")
    url = admin.url.set(username=account, password="x")
    databases = Databases([str(url.render_as_string(hide_password=False))],
                          library.settings.routing, library.clock)  # fmt: skip
    try:
        with databases[0].engine.connect(), pytest.raises(StoreUnavailable, match="max_user"):
            databases[0].now_ms()
        databases[0].engine.dispose()
        assert databases[0].now_ms() == library.now_ms
    finally:
        databases.close()
        with admin.begin() as connection:
            connection.exec_driver_sql(f"DROP USER {account}")
