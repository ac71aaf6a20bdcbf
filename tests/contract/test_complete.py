"""`complete`: a handler's effect and its job's end in one transaction of the handler's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.contract.library import LEASE_MS, Library
from toc.center.center import TimeoutCenter
from toc.domain.job import Job, Status
from toc.errors import ClaimLost, InvalidInput, NotFound, WrongDatabase
from toc.store.claims import Outcome, OutcomeKind
from toc.store.external_transaction import complete_in_transaction


@pytest.fixture
def engine(library: Library) -> Iterator[Engine]:
    """The handler's own, on the job's database; it knows nothing of toc."""
    library.database_metadata.verify_and_record_meta(
        library.settings.routing.meta_values()
    )  # gives the database its identity
    engine = create_engine(library.settings.databases[0], poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (job_id BIGINT, who CHAR(9))"))
        connection.execute(text("DELETE FROM effects"))
    yield engine
    engine.dispose()


def effects(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return list(connection.execute(text("SELECT who FROM effects")).scalars())


def job_of(library: Library, job_id: int, token: str) -> Job:
    """What the handler of this claim was given."""
    job = library.jobs.get(job_id)
    assert job is not None
    return replace(job, token=token, status=Status.RUNNING)


def act(library: Library, connection: Connection, job: Job) -> bool:
    """A handler's transaction, without its end."""
    first = complete_in_transaction(library.databases, library.database_metadata, job, connection)
    if first:
        statement = text("INSERT INTO effects VALUES (:job_id, :who)")
        connection.execute(statement, {"job_id": job.job_id, "who": job.token})
    return first


def expire(library: Library) -> None:
    """The lease is over: whoever looks may take the job over."""
    library.clock.advance(LEASE_MS / 1000 + 1)


def test_effect_and_end_are_one_commit(library: Library, engine: Engine) -> None:
    job_id = library.running("one")
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "one"))
        assert act(library, connection, job_of(library, job_id, "one")) is False
    row = library.row(job_id)
    assert (row.status, row.due_ms, row.attempts, row.claim_token) == (Status.DONE, None, 1, "one")
    assert effects(engine) == ["one"]
    # What the worker records afterwards stands already, and is no stale write.
    assert library.settle(Outcome(job_id, "one", OutcomeKind.DONE)) == {(job_id, "one")}


def test_a_commit_without_an_answer_is_repeated(library: Library, engine: Engine) -> None:
    job_id = library.running("one")
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "one"))
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "one")) is False
    assert effects(engine) == ["one"]


@pytest.mark.parametrize("end", ["rollback", "crash"])
def test_a_run_that_did_not_commit_leaves_nothing(
    library: Library, engine: Engine, end: str
) -> None:
    job_id = library.running("one")
    connection = engine.connect()
    assert act(library, connection, job_of(library, job_id, "one"))
    connection.rollback() if end == "rollback" else connection.invalidate()
    connection.close()
    assert library.row(job_id)[:1] == (Status.RUNNING,)
    assert effects(engine) == []
    expire(library)
    assert library.take_over(job_id, "one", "two")
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "two"))
    assert effects(engine) == ["two"]


def test_a_failure_after_the_commit_changes_nothing(library: Library, engine: Engine) -> None:
    job_id = library.running("one")
    with engine.begin() as connection:
        act(library, connection, job_of(library, job_id, "one"))
    for kind in (
        OutcomeKind.RETRY,
        OutcomeKind.SNOOZE,
        OutcomeKind.DROP,
        OutcomeKind.BURY,
        OutcomeKind.GIVE_BACK,
    ):
        assert library.settle(Outcome(job_id, "one", kind, library.now_ms, "it raised")) == set()
    assert library.row(job_id).status == Status.DONE


def test_a_run_whose_token_has_lost_its_mark_ends_its_job(library: Library, engine: Engine) -> None:
    """Others run beside it since (ADR 19): its claim is the same."""
    job_id = library.running("one")
    expire(library)
    assert library.take_over(job_id, "one", "two:alone")
    library.claims.replace_claim_token(
        library.home(job_id), library.shard(job_id), job_id, "two:alone", "two"
    )
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "two:alone"))
    assert library.settle(Outcome(job_id, "two:alone", OutcomeKind.DONE)) == {(job_id, "two:alone")}


@pytest.mark.invariant("I5")
def test_a_stale_run_commits_nothing(library: Library, engine: Engine) -> None:
    job_id = library.running("one")
    expire(library)
    assert library.take_over(job_id, "one", "two")
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO effects VALUES (1, 'before')"))
        with pytest.raises(ClaimLost, match="running under two") as lost:
            act(library, connection, job_of(library, job_id, "one"))
    assert (lost.value.job_id, lost.value.token, lost.value.holder) == (job_id, "one", "two")
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "two"))
    with engine.begin() as connection:
        assert act(library, connection, job_of(library, job_id, "one")) is False
    assert effects(engine) == ["two"]


@pytest.mark.invariant("I3")
def test_after_a_cancel_nothing_is_committed(library: Library, engine: Engine) -> None:
    job_id = library.running("one")  # frozen before its first instruction
    expire(library)
    assert library.take_over(job_id, "one", "two")
    assert library.settle(Outcome(job_id, "two", OutcomeKind.RETRY, library.now_ms, "it raised"))
    for status, verb in (("pending", None), ("cancelled", library.jobs.cancel)):
        if verb is not None:
            assert verb(job_id) == "cancelled"
        for token in ("one", "two"):
            with pytest.raises(ClaimLost, match=status), engine.begin() as connection:
                act(library, connection, job_of(library, job_id, token))
    assert effects(engine) == []


def test_what_is_dead_or_gone(library: Library, engine: Engine) -> None:
    dead = library.dead()
    with pytest.raises(ClaimLost, match="dead"), engine.begin() as connection:
        act(library, connection, job_of(library, dead, "ended"))
    job = job_of(library, dead, "ended")
    library.sql(dead, f"DELETE FROM toc_job_{library.shard(dead):04d}")
    with pytest.raises(NotFound), engine.begin() as connection:
        act(library, connection, job)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nobody_takes_it_over_before_the_end(library: Library, engine: Engine, end: str) -> None:
    job_id = library.running("one")
    expire(library)
    taken: list[object] = []
    other = threading.Thread(target=lambda: taken.append(library.take_over(job_id, "one", "two")))
    with engine.connect() as connection:
        assert act(library, connection, job_of(library, job_id, "one"))
        other.start()
        if not library.sqlite:  # it has one writer: there it waits
            other.join(30)
            assert taken == [None]
        getattr(connection, end)()
    other.join(30)
    if not library.sqlite:
        taken = [library.take_over(job_id, "one", "two")]
    assert [row is None for row in taken] == [end == "commit"]
    if end == "rollback":
        with engine.begin() as connection:
            assert act(library, connection, job_of(library, job_id, "two"))
    assert effects(engine) == ["one" if end == "commit" else "two"]


def test_two_runs_of_one_claim_at_the_same_time(library: Library, engine: Engine) -> None:
    """As after a commit whose answer was lost: the second one waits, and finds it done."""
    job_id = library.running("one")
    asked = threading.Event()
    said: list[bool] = []

    def again() -> None:
        with engine.begin() as connection:
            asked.set()
            said.append(act(library, connection, job_of(library, job_id, "one")))

    with engine.connect() as connection:
        assert act(library, connection, job_of(library, job_id, "one"))
        other = threading.Thread(target=again)
        other.start()
        asked.wait(10)
        connection.commit()
    other.join(30)
    assert said == [False]
    assert effects(engine) == ["one"]


def test_an_old_snapshot_does_not_deceive(library: Library, engine: Engine) -> None:
    if library.sqlite:
        pytest.skip("SQLite refuses to write on an old snapshot")
    job_id = library.running("one")
    job = job_of(library, job_id, "one")
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        table = f"toc_job_{library.shard(job_id):04d}"
        read = text(f"SELECT status FROM {table} WHERE job_id = {job_id}")
        assert connection.execute(read).scalar_one() == Status.RUNNING
        with engine.begin() as other:
            assert act(library, other, job)
        assert connection.execute(read).scalar_one() == Status.RUNNING
        assert act(library, connection, job) is False


def test_a_claim_that_meets_it_waits_and_takes_the_others(library: Library, engine: Engine) -> None:
    job_id, due = library.running("one"), library.pending()
    found: list[str | None] = []
    asked = threading.Event()

    def claim() -> None:
        asked.set()
        seen = library.claim([job_id, due], "two")
        found.extend([seen[job_id].token, seen[due].token])

    with engine.connect() as connection:
        assert act(library, connection, job_of(library, job_id, "one"))
        other = threading.Thread(target=claim)
        other.start()
        asked.wait(10)
        connection.commit()
    other.join(30)
    assert found == ["one", "two"]


# ---- the verb itself


@pytest.fixture
def center(library: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(library.settings, clock=library.clock) as center:
        yield center


def test_a_session_or_a_connection(library: Library, engine: Engine, center: TimeoutCenter) -> None:
    first, second = library.running("one"), library.running("one")
    with Session(engine) as session:
        assert center.complete(job_of(library, first, "one"), session)
        session.commit()
        assert center.complete(job_of(library, first, "one"), session) is False
    with engine.begin() as connection:
        assert center.complete(job_of(library, second, "one"), connection)
    assert library.row(first).status == library.row(second).status == Status.DONE


def test_what_is_refused(
    library: Library, engine: Engine, center: TimeoutCenter, tmp_path: Path
) -> None:
    job_id = library.running("one")
    job = job_of(library, job_id, "one")
    with engine.connect() as connection, pytest.raises(InvalidInput, match="was given"):
        center.complete(replace(job, token=None), connection)
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(InvalidInput, match="by itself"):
        center.complete(job, connection)
    elsewhere = create_engine(f"sqlite:///{tmp_path}/other.db", poolclass=NullPool)
    with elsewhere.connect() as connection, pytest.raises(WrongDatabase):
        center.complete(job, connection)
    assert library.row(job_id).status == Status.RUNNING


@pytest.mark.parametrize("how", ["engine", "driver", "statement", "session"])
def test_a_connection_that_commits_by_itself_is_refused(
    library: Library, engine: Engine, center: TimeoutCenter, how: str
) -> None:
    """However that came about: the effect would be apart from the job's end."""
    job_id = library.running("one")
    job, url = job_of(library, job_id, "one"), library.settings.databases[0]
    options: dict[str, Any] = {"poolclass": NullPool}
    if how in ("engine", "session"):
        options["isolation_level"] = "AUTOCOMMIT"
    elif how == "driver":
        alone = {"isolation_level": None} if library.sqlite else {"autocommit": True}
        options["connect_args"] = alone
    elif library.sqlite:
        pytest.skip("no statement does that to SQLite")
    alone = create_engine(url, **options)
    with alone.connect() as connection, Session(alone) as session:
        if how == "statement":
            connection.exec_driver_sql("SET autocommit = 1")
        given = session if how == "session" else connection
        with pytest.raises(InvalidInput, match="by itself"):
            center.complete(job, given)
        joined: dict[str, Any] = {("session" if how == "session" else "connection"): given}
        with pytest.raises(InvalidInput, match="by itself"):
            center.schedule(42, timedelta(), biz_type="order.close", **joined)
    assert library.row(job_id).status == Status.RUNNING
    assert library.count() == 1


def test_a_transaction_that_the_caller_begins_himself(
    library: Library, center: TimeoutCenter
) -> None:
    """As SQLAlchemy advises for SQLite: the driver begins nothing, an event does."""
    if not library.sqlite:
        pytest.skip("it is about SQLite")
    job_id = library.running("one")
    own = {"isolation_level": None}
    engine = create_engine(library.settings.databases[0], poolclass=NullPool, connect_args=own)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        assert center.complete(job_of(library, job_id, "one"), connection)
        connection.rollback()
    assert library.row(job_id).status == Status.RUNNING
