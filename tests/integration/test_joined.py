"""Jobs that join a caller's transaction: placed after its commit, gone with its rollback."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.contract.library import Library
from tests.integration.world import World
from toc.errors import DuplicateJob, InvalidInput, WrongDatabase

MINUTE = timedelta(minutes=1)


@pytest.fixture
def engine(world: World) -> Iterator[Engine]:
    """The caller's own engine, with a table of his own."""
    # What is new to the catalogue is written by toc itself, and SQLite has one writer: not while the
    # caller's transaction is open.
    world.center._opened().catalogue.number("default")
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
    world.loader().step()
    assert world.reminder(job_id) == 60_000


def test_another_database_is_refused(world: World, tmp_path: Path) -> None:
    other = Library([f"sqlite:///{tmp_path}/other.db"])
    other.catalogue.check({})
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
    world.center._opened().catalogue.number("default")
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
