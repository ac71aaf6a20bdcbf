"""Jobs that join a caller's transaction: placed after its commit, gone with its rollback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.contract.library import Library
from tests.integration.world import World
from toc.center.center import TimeoutCenter
from toc.domain.job import Job, Status
from toc.errors import DuplicateJob, InvalidInput, WrongDatabase
from toc.store import sqlite_writers

MINUTE = timedelta(minutes=1)


@pytest.fixture
def engine(world: World) -> Iterator[Engine]:
    """The caller's own engine, with a table of his own."""
    # toc itself writes new rows of toc_meta and toc_biz_type, and SQLite has one writer: not while the
    # caller's transaction is open.
    opened = world.center._open_connections()
    opened.database_metadata.types.get_or_create_number("default", opened.databases[0])
    engine = create_engine(world.settings.databases[0], poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY)"))
        connection.execute(text("DELETE FROM orders"))
    yield engine
    engine.dispose()


def orders(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.execute(text("SELECT COUNT(*) FROM orders")).scalar_one())


def test_both_are_committed_and_then_placed(world: World, engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (42)"))
        near = world.center.schedule(42, MINUTE, session=session)
        far = world.center.schedule(42, timedelta(days=30), session=session)
        assert world.reminders() == 0
        session.commit()
        assert (world.reminder(near), world.reminder(far)) == (60_000, None)
    assert (orders(engine), world.library.count()) == (1, 2)


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_neither_is_there_after_a_rollback(world: World, engine: Engine, end: str) -> None:
    session = Session(engine)
    session.execute(text("INSERT INTO orders VALUES (42)"))
    gone = world.center.schedule(42, MINUTE, session=session)
    getattr(session, end)()
    assert (orders(engine), world.library.count(), world.reminders()) == (0, 0, 0)
    # The session lives on, and what it commits next is placed, without what was rolled back.
    kept = world.center.schedule(42, MINUTE, session=session)
    session.commit()
    assert world.reminder(kept) == 60_000
    assert world.reminder(gone) is None
    session.close()


def test_every_commit_places_its_own(world: World, engine: Engine) -> None:
    with Session(engine) as session:
        for n in range(1, 4):
            world.center.schedule(n, MINUTE, session=session)
            session.commit()
            assert world.reminders() == n
        session.execute(text("INSERT INTO orders VALUES (42)"))
        session.commit()
        assert world.reminders() == 3


@pytest.mark.parametrize("mode", ["ANSI", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", ""])
def test_the_callers_session_may_have_another_sql_mode(world: World, mode: str) -> None:
    """Also one in which `"` quotes names, and one that is not strict."""
    if world.library.sqlite:
        pytest.skip("SQLite has no sql_mode")
    attribute = {"a": "it's \\ \" ` %"}
    its_own = {"init_command": f"SET SESSION sql_mode = '{mode}'"}
    url = world.settings.databases[0]
    engine = create_engine(url, poolclass=NullPool, connect_args=its_own)
    with Session(engine) as session:
        own = {"dedup_key": "k", "attribute": attribute, "session": session}
        job_id = world.center.schedule(42, MINUTE * 2, **own)  # type: ignore[arg-type]
        own["on_duplicate"] = "replace"
        assert world.center.schedule(42, MINUTE, **own) == job_id  # type: ignore[arg-type]
        session.commit()
    assert world.reminder(job_id) == 60_000
    found = world.center.get(job_id)
    assert found is not None
    assert found.attribute == attribute
    engine.dispose()


def test_a_savepoint_places_nothing_before_the_commit(world: World, engine: Engine) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            job_id = world.center.schedule(42, MINUTE, session=session)
        assert world.reminders() == 0
        session.commit()
        assert world.reminder(job_id) == 60_000


def test_a_savepoints_rollback_leaves_the_rest(world: World, engine: Engine) -> None:
    with Session(engine) as session:
        kept = world.center.schedule(42, MINUTE, session=session)
        savepoint = session.begin_nested()
        world.center.schedule(43, MINUTE, session=session)
        savepoint.rollback()
        later = world.center.schedule(44, MINUTE, session=session)
        session.commit()
    assert world.library.count() == 2
    assert (world.reminder(kept), world.reminder(later)) == (60_000, 60_000)


def test_a_held_key_inside_a_transaction(world: World, engine: Engine) -> None:
    held = world.center.schedule(42, MINUTE, dedup_key="k")
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (42)"))
        again = world.center.schedule(42, MINUTE / 2, dedup_key="k", session=session)
        with pytest.raises(DuplicateJob):
            world.center.schedule(42, MINUTE, dedup_key="k", on_duplicate="error", session=session)
        session.commit()
    assert again == held
    assert world.reminder(held) == 60_000
    assert orders(engine) == 1  # a refused job costs the caller nothing


def test_replace_inside_a_transaction(world: World, engine: Engine) -> None:
    held = world.center.schedule(42, MINUTE, dedup_key="k")
    with Session(engine) as session:
        options = {"dedup_key": "k", "on_duplicate": "replace", "session": session}
        assert world.center.schedule(42, MINUTE / 2, **options) == held  # type: ignore[arg-type]
        assert world.reminder(held) == 60_000
        session.commit()
    assert world.reminder(held) == 30_000
    assert world.center.get(held).due_ms == world.now_ms + 30_000  # type: ignore[union-attr]


def test_a_core_connection_places_when_it_is_told_to(world: World, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (42)"))
        near = world.center.schedule(42, MINUTE, connection=connection)
        far = world.center.schedule(42, timedelta(days=30), connection=connection)
    assert (world.library.count(), world.reminders()) == (2, 0)
    world.center.place(near, far)
    assert (world.reminder(near), world.reminder(far)) == (60_000, None)


def test_a_job_that_was_rolled_back_is_not_placed(world: World, engine: Engine) -> None:
    with engine.connect() as connection:
        job_id = world.center.schedule(42, MINUTE, connection=connection)
        connection.rollback()
    world.center.place(job_id)
    assert (world.library.count(), world.reminders()) == (0, 0)


def test_what_was_never_placed_is_brought_by_the_loader(world: World, engine: Engine) -> None:
    with engine.begin() as connection:
        job_id = world.center.schedule(42, MINUTE, connection=connection)
    world.loader().load_due_shards()
    assert world.reminder(job_id) == 60_000


def test_another_database_is_refused(world: World, tmp_path: Path) -> None:
    other = Library([f"sqlite:///{tmp_path}/other.db"])
    other.database_metadata.verify_and_record_meta({})
    engine = create_engine(other.settings.databases[0], poolclass=NullPool)
    with Session(engine) as session, pytest.raises(WrongDatabase, match="database 0"):
        world.center.schedule(42, MINUTE, session=session)
    with engine.begin() as connection, pytest.raises(WrongDatabase):
        world.center.schedule(42, MINUTE, connection=connection)
    assert (world.library.count(), other.count()) == (0, 0)
    other.close()


def test_the_other_shards_database_is_refused(tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/1.db"])
    world = World(library, "none")
    opened = world.center._open_connections()
    opened.database_metadata.types.get_or_create_number("default", opened.databases[0])
    engines = [create_engine(url, poolclass=NullPool) for url in world.settings.databases]
    for biz_id in range(8):
        home = library.home(library.new(biz_id).job_id).index
        with engines[1 - home].begin() as connection, pytest.raises(WrongDatabase):
            world.center.schedule(biz_id, MINUTE, connection=connection)
        with engines[home].begin() as connection:
            world.center.schedule(biz_id, MINUTE, connection=connection)
    assert library.count() == 8
    world.close()
    library.close()


def test_one_of_both(world: World, engine: Engine) -> None:
    with (
        Session(engine) as session,
        engine.connect() as connection,
        pytest.raises(InvalidInput, match="give a session or a connection, not both"),
    ):
        world.center.schedule(42, MINUTE, session=session, connection=connection)


# ---- sessions of all kinds


def test_a_scoped_session_is_this_threads_own(world: World, engine: Engine) -> None:
    """Its events are those of every session of the application."""
    factory = sessionmaker(engine)
    scoped = scoped_session(factory)
    job_id = world.center.schedule(42, MINUTE, session=scoped)
    assert world.reminders() == 0
    with factory() as other, Session(engine) as stranger:
        for session in (other, stranger):
            session.execute(text("SELECT 1"))
            session.commit()
    assert world.reminders() == 0
    scoped.commit()
    assert world.reminder(job_id) == 60_000
    scoped.remove()
    with factory() as other:
        other.execute(text("INSERT INTO orders VALUES (42)"))
        other.commit()
    assert orders(engine) == 1


def test_complete_takes_a_scoped_session(world: World, engine: Engine) -> None:
    library = world.library
    job_id = library.running("one")
    job = library.jobs.get(job_id)
    assert job is not None
    scoped = scoped_session(sessionmaker(engine))
    assert world.center.complete(job, scoped)
    scoped.commit()
    scoped.remove()
    assert library.row(job_id).status == Status.DONE


class _Async:
    """As an AsyncSession or an AsyncConnection looks from outside."""

    def __init__(self, name: str) -> None:
        setattr(self, name, object())


@pytest.mark.parametrize(
    ("field", "given", "rule"),
    [
        ("session", _Async("sync_session"), "AsyncSession.*run_sync"),
        ("connection", _Async("sync_connection"), "AsyncConnection.*run_sync"),
        ("session", "a text", "Session"),
        ("connection", 5, "Connection"),
    ],
)
def test_what_is_no_session_is_refused(world: World, field: str, given: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule) as met:
        world.center.schedule(42, MINUTE, **{field: given})
    assert met.value.field == field
    job = Job(1, 1, "t", Status.RUNNING, 0, {}, 0, 1, "token")
    with pytest.raises(InvalidInput, match=r"must be a SQLAlchemy") as met:
        world.center.complete(job, given)
    assert met.value.field == "transaction"
    assert world.library.count() == 0


# ---- SQLite has one writer

IN_TIME_S = 10.0  # far below the time-out of SQLite's lock


@pytest.mark.parametrize(
    "call",
    [
        lambda center, job_id: center.schedule(43, MINUTE),
        lambda center, job_id: center.schedule(43, MINUTE, dedup_key="k", on_duplicate="replace"),
        lambda center, job_id: center.schedule_many([(43, MINUTE), (44, MINUTE)]),
        lambda center, job_id: center.schedule(43, MINUTE, biz_type="never.heard.of"),
        lambda center, job_id: center.cancel(job_id),
        lambda center, job_id: center.reschedule(job_id, MINUTE),
        lambda center, job_id: center.redrive(job_id),
        lambda center, job_id: center.discard(job_id),
    ],
)
def test_who_would_wait_for_his_own_transaction_is_told_at_once(
    small: World, call: Callable[[TimeoutCenter, int], Any]
) -> None:
    held = small.center.schedule(41, MINUTE)
    engine = create_engine(small.settings.databases[0], poolclass=NullPool)
    for join in ("session", "connection"):
        with engine.connect() as connection, Session(engine) as session:
            given: dict[str, Any] = {"session": session, "connection": connection}
            small.center.schedule(42, MINUTE, **{join: given[join]})
            began_s = time.monotonic()
            with pytest.raises(InvalidInput, match=r"write lock of .*toc\.db"):
                call(small.center, held)
            assert time.monotonic() - began_s < IN_TIME_S
            assert small.center.get(held) is not None  # to look costs no lock
            given[join].rollback()
            small.center.cancel(small.center.schedule(45, MINUTE))
    assert small.center.cancel(held) == "cancelled"
    engine.dispose()


def test_a_new_type_in_a_transaction_that_has_written_is_told_at_once(small: World) -> None:
    engine = create_engine(small.settings.databases[0], poolclass=NullPool)
    with Session(engine) as session:
        session.execute(text("CREATE TABLE orders (id BIGINT PRIMARY KEY)"))
        session.execute(text("INSERT INTO orders VALUES (1)"))
        began_s = time.monotonic()
        with pytest.raises(InvalidInput, match="new biz_type"):
            small.center.schedule(42, MINUTE, biz_type="never.heard.of", session=session)
        assert time.monotonic() - began_s < IN_TIME_S
    engine.dispose()


def test_another_threads_transaction_is_waited_for(small: World) -> None:
    small.center.cancel(small.center.schedule(41, MINUTE))
    engine = create_engine(small.settings.databases[0], poolclass=NullPool)
    made: list[int] = []
    with Session(engine) as session:
        small.center.schedule(42, MINUTE, session=session)
        other = threading.Thread(target=lambda: made.append(small.center.schedule(43, MINUTE)))
        other.start()
        session.commit()
    other.join(30)
    assert len(made) == 1
    engine.dispose()


def test_transactions_that_have_ended_are_forgotten(small: World) -> None:
    """A thread that only ever joins keeps no trace of what it joined."""
    engine = create_engine(small.settings.databases[0], poolclass=NullPool)
    for n in range(20):
        with Session(engine) as session:
            small.center.schedule(n, MINUTE, session=session)
            session.commit()
    assert len(sqlite_writers._thread_writers.writers) <= 1
    engine.dispose()
