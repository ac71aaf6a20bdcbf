"""`toc move`, step by step: what it leaves behind, and what comes of it when it dies in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from tests.deep import deep
from tests.growing.town import LATER, Town, begun, refused
from tests.servers.mysql import execute, replicate
from toc.store import move_server_session as module
from toc.store.database_mover import DatabaseMover
from toc.store.move_server_session import MoveServerSession, MoveStopped

BEFORE_HOME = ("guard", "note", "catch_up", "fence", "end", "wait", "stop", "open")
AFTER_HOME = ("home", "forget")


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def check_moved(town: Town) -> None:
    assert town.is_home("new")
    assert town.takes_writes("new")
    assert not town.takes_writes("old")
    assert town.server("new").read_replication_channel(town.server("old").uuid) is None


def check_not_moved(town: Town) -> None:
    assert town.takes_writes("old")
    assert not town.takes_writes("new")
    assert not town.is_home("new")
    channel = town.server("new").read_replication_channel(town.server("old").uuid)
    assert channel is not None
    assert channel.is_running


def test_it_moves(town: Town) -> None:
    job_id = town.center(town.ignorant).schedule(2, LATER)
    told: list[str] = []
    moved = town.mover(lambda step, text: told.append(step)).start_or_resume(lambda: None)
    check_moved(town)
    assert moved.pause_ms is not None
    assert moved.killed >= 1  # the client's
    assert told == [*BEFORE_HOME, *AFTER_HOME, "end"]
    assert job_id in town.ids("new")
    assert town.center(town.moved).get(job_id) is not None
    again = town.go()  # there is nothing left to do
    assert again.pause_ms is None
    check_moved(town)


@pytest.mark.parametrize("step", BEFORE_HOME)
def test_killed_before_the_switch_it_is_taken_back_or_finished(town: Town, step: str) -> None:
    town.dies_after(step)
    town.check_one_home()
    town.mover().undo()
    check_not_moved(town)
    town.center(town.ignorant).schedule(3, LATER)
    town.dies_after(step)
    town.check_one_home()
    town.go()
    check_moved(town)
    assert town.ids("new") == town.ids("old")


@pytest.mark.parametrize("step", AFTER_HOME)
def test_killed_after_the_switch_it_is_finished(town: Town, step: str) -> None:
    town.dies_after(step)
    town.check_one_home()
    assert town.is_home("new")
    assert "declared home" in refused(town.mover().undo)
    town.go()
    check_moved(town)


@pytest.mark.parametrize(
    "step",
    [BEFORE_HOME[3], *(pytest.param(it, marks=deep) for it in BEFORE_HOME[4:-1]), BEFORE_HOME[-1]],
)
def test_a_step_that_fails_takes_everything_back(town: Town, step: str) -> None:
    def tell(told: str, text: str) -> None:
        if told == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        town.mover(tell).start_or_resume(lambda: None)
    check_not_moved(town)


def test_the_answer_to_the_declaration_is_lost(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    declare = DatabaseMover._declare_home

    def lost(self: DatabaseMover) -> None:
        declare(self)
        raise module.StatementRefused(self._new, ConnectionError(2013, "lost"))

    monkeypatch.setattr(DatabaseMover, "_declare_home", lost)
    assert "the new server is home" in refused(town.go)
    monkeypatch.undo()
    assert town.is_home("new")
    town.check_one_home()
    town.go()
    check_moved(town)


def test_it_is_not_known_whether_it_was_declared(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: DatabaseMover) -> None:
        execute(town.pair.new, f"KILL {self._new.session}")
        self._new.read_value("SELECT 1")

    monkeypatch.setattr(DatabaseMover, "_declare_home", lost)
    assert "run `toc move 0 --go` again, or --undo" in refused(town.go)
    monkeypatch.undo()
    assert not town.takes_writes("old")  # nothing is lifted on a guess
    town.mover().undo()
    check_not_moved(town)


def test_an_old_server_that_is_lost_before_the_switch_is_not_left(town: Town) -> None:
    """A replica of it may have taken its place, which nobody has fenced."""

    def tell(step: str, text: str) -> None:
        if step == "open":
            execute(town.pair.old, f"KILL {mover._old.session}")

    mover = town.mover(tell)
    assert "could not be taken back" in refused(lambda: mover.start_or_resume(lambda: None))
    assert not town.is_home("new")
    town.mover().undo()
    check_not_moved(town)


def test_a_fence_that_somebody_lifts_stops_it(town: Town) -> None:
    def tell(step: str, text: str) -> None:
        if step == "open":
            town.server("old").set_fence(False)

    assert "lifted the fence" in refused(lambda: town.mover(tell).start_or_resume(lambda: None))
    check_not_moved(town)


def test_an_open_transaction_makes_it_give_up(town: Town) -> None:
    with connected(town.urls["old"]) as connection:
        begun(connection, town.schema)
        text = refused(lambda: town.go(pause_max_s=3))
        assert "transactions on the old server stay open" in text
        assert "in session " in text
        connection.rollback()
    check_not_moved(town)


def test_it_waits_for_an_open_transaction(town: Town) -> None:
    ended = threading.Event()
    with connected(town.urls["old"]) as connection:
        begun(connection, town.schema)
        threading.Timer(0.5, lambda: (connection.commit(), ended.set())).start()
        town.go()
        assert ended.is_set()
    ((value,),) = town.sql("new", "SELECT value FROM toc_meta WHERE name = 'database'")
    assert value == "x"  # what it waited for is there


def test_a_replica_that_does_not_catch_up_makes_it_give_up(town: Town) -> None:
    client = town.center(town.ignorant)

    def tell(step: str, text: str) -> None:
        if step == "catch_up":
            execute(town.pair.new, "STOP REPLICA")
            client.schedule(4, LATER)

    def stands(self: MoveServerSession, source: str) -> None:
        """Nobody starts it again."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MoveServerSession, "read_replication_channel", stands)
        text = refused(lambda: town.mover(tell).start_or_resume(lambda: None, 2))
    assert "did not catch up" in text
    assert town.takes_writes("old")
    assert not town.takes_writes("new")


def test_what_came_last_is_waited_for(town: Town) -> None:
    client = town.center(town.ignorant)
    ids: list[int] = []

    def tell(step: str, text: str) -> None:
        if step == "catch_up":
            execute(town.pair.new, "STOP REPLICA")
            ids.extend(client.schedule_many([(n, LATER) for n in range(500)]))

    town.mover(tell).start_or_resume(lambda: None)
    assert set(ids) <= town.ids("new")


def test_the_fence_is_of_one_server(town: Town) -> None:
    town.server("new").set_fence(True)
    town.server("old").set_fence(True)
    town.server("old").set_fence(False)
    town.catch_up()
    assert town.server("new").is_fenced()
    town.server("new").set_fence(False)
    town.server("old").set_fence(True)
    town.catch_up()
    assert not town.server("new").is_fenced()


def test_a_statement_that_hangs_is_interrupted(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_S", 100)
    with connected(town.urls["old"]) as connection:
        begun(connection, town.schema)
        assert "stay open" in refused(lambda: town.go(pause_max_s=2))
    check_not_moved(town)


def test_an_old_server_that_takes_writes_afterwards_is_found(town: Town) -> None:
    def tell(step: str, text: str) -> None:
        if step == "home":
            town.server("old").set_fence(False)

    assert "the old server takes writes" in refused(
        lambda: town.mover(tell).start_or_resume(lambda: None)
    )


def test_taking_back_closes_the_new_server_first(town: Town) -> None:
    town.dies_after("open")

    def tell(step: str, text: str) -> None:
        if step == "guard":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        town.mover(tell).undo()
    assert not town.takes_writes("old")
    assert not town.takes_writes("new")


@pytest.mark.parametrize("role", ["old", "new"])
def test_one_lock_is_enough_to_keep_others_out(town: Town, role: str) -> None:
    with town.server(role).hold_move_lock():
        for call in (town.go, town.mover().undo):
            assert f"on the {role} server" in refused(call)


def test_two_movers_do_not_meet(town: Town) -> None:
    def tell(step: str, text: str) -> None:
        if step == "wait":
            assert "another `toc move` holds the lock" in refused(town.go)
            assert "another `toc move` holds the lock" in refused(town.mover().undo)

    town.mover(tell).start_or_resume(lambda: None)
    check_moved(town)


@pytest.mark.parametrize("step", ["fence", "wait", "stop", "open"])
def test_a_mover_that_was_thought_dead_opens_nothing(town: Town, step: str) -> None:
    """Its sessions are ended, the fence is lifted by another; then it goes on."""
    seen: list[bool] = []

    def tell(told: str, text: str) -> None:
        if told == step and not seen:
            for role, process in (("old", town.pair.old), ("new", town.pair.new)):
                session = {"old": mover._old, "new": mover._new}[role].session
                execute(process, f"KILL {session}")
            town.mover().undo()
            seen.append(town.takes_writes("old"))

    mover = town.mover(tell)
    refused(lambda: mover.start_or_resume(lambda: None))
    assert seen == [True]
    check_not_moved(town)


def test_a_fence_for_another_move_is_left_alone(town: Town) -> None:
    town.sql("old", "REPLACE INTO toc_meta (name, value) VALUES ('moving_to', 'another-server')")
    town.catch_up()
    town.server("old").set_fence(True)
    for call in (town.go, town.mover().undo):
        assert "not for a move to this new server" in refused(call)
    assert not town.takes_writes("old")
    assert not town.is_home("new")


def test_a_former_home_is_not_opened_again(town: Town) -> None:
    """It was moved to, and away from, and nobody has made it a replica since."""
    town.go()
    town.server("new").set_fence(True)
    for call in (town.go, town.mover().undo):
        assert "the database has moved on from there" in refused(call)
    assert not town.takes_writes("old")
    assert not town.takes_writes("new")


def test_it_moves_back(town: Town) -> None:
    first = town.center().schedule(5, LATER)
    town.go()
    second = town.center(town.moved).schedule(6, LATER)
    replicate(town.pair.new, town.pair.old)
    assert not town.takes_writes("old")
    assert town.is_home("new")
    old, new = town.server("old"), town.server("new")
    old.role, new.role = "new", "old"
    urls = {"new": town.urls["old"], "old": town.urls["new"]}
    back = DatabaseMover(new, old, lambda server: town.server(server.role, urls[server.role]))
    back.start_or_resume(lambda: None)
    assert town.takes_writes("old")
    assert not town.takes_writes("new")
    assert {first, second} <= town.ids("old")
    third = town.center(town.ignorant).schedule(7, LATER)
    assert third in town.ids("old")


def test_what_the_new_server_lacks_is_found(town: Town) -> None:
    job_id = town.center(town.ignorant).schedule(8, LATER)

    def tell(step: str, text: str) -> None:
        if step == "open":
            for shard in range(2):
                town.sql("new", f"DELETE FROM toc_job_{shard:04d} WHERE job_id = {job_id}")

    text = refused(lambda: town.mover(tell).start_or_resume(lambda: None))
    assert "the new server lacks job_id" in text
    assert str(job_id) in text


def test_a_check_that_fails_stops_it_before_anything(town: Town) -> None:
    def check() -> None:
        raise MoveStopped("database 0: the move was not started: no")

    assert "the move was not started" in refused(lambda: town.mover().start_or_resume(check))
    assert town.takes_writes("old")
    assert town.takes_writes("new")  # nobody has guarded it yet
    assert "moving_to" not in town.server("old").read_meta()
