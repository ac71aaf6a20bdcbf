"""Schedules in a caller's SQLAlchemy transaction: its commit arms the jobs, its rollback forgets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event

from toc.errors import InvalidInput
from toc.store.sqlite_writers import remember_open_writer
from toc.timer.reminder import Reminder

if TYPE_CHECKING:  # only callers that have an ORM session import the ORM
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session

    AnySession = Session | scoped_session[Any]

JobsToArm = list[tuple[str, Reminder]]
ArmJobs = Callable[[JobsToArm], None]
_KEY = "toc_armed_after_commit"


def transaction_to_join(
    session: object, connection: object
) -> tuple[Session | None, Connection | None]:
    """(The caller's session or None, the connection whose transaction the job joins or None).

    Raises InvalidInput when both arguments are given, or when one has another type.
    """
    if session is not None and connection is not None:
        raise InvalidInput("connection", connection, "give a session or a connection, not both")
    if session is None and connection is None:
        return None, None
    own = None if session is None else _check_session("session", session)
    joined = _check_connection("connection", connection) if own is None else own.connection()
    remember_open_writer(joined)  # if it has written, it holds SQLite's write lock
    return own, joined


def connection_of_transaction(given: object) -> Connection:
    """The connection of the given session, or the given connection. Raises InvalidInput for other types."""
    if isinstance(given, Connection) or hasattr(given, "sync_connection"):
        return _check_connection("transaction", given)
    return _check_session("transaction", given).connection()


def _check_session(field: str, given: object) -> Session:
    """The session; for a `scoped_session` this thread's session: a `scoped_session` has the events of all."""
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415 - see above

    if isinstance(given, scoped_session):
        given = given()
    if isinstance(given, Session):
        return given
    rule = "must be a SQLAlchemy Session or scoped_session"
    if hasattr(given, "sync_session"):  # recognised without importing SQLAlchemy's asyncio
        rule += ", and this is an AsyncSession: await its run_sync(lambda session: ...), and give that one"
    raise InvalidInput(field, given, rule)


def _check_connection(field: str, given: object) -> Connection:
    if isinstance(given, Connection):
        return given
    rule = "must be a SQLAlchemy Connection"
    if hasattr(given, "sync_connection"):
        rule += ", and this is an AsyncConnection: await its run_sync(lambda connection: ...)"
        rule += ", and give that one"
    raise InvalidInput(field, given, rule)


def arm_after_commit(session: Session, jobs: JobsToArm, arm: ArmJobs) -> None:
    """Calls `arm(jobs)` once the session's outermost transaction has committed.

    A savepoint's commit arms nothing. After a savepoint's rollback a job without a row may
    be armed: the claim finds no row, and removes the reminder.
    """
    waiting: list[tuple[ArmJobs, JobsToArm]] | None = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = []
        # The listeners stay as long as the session: they must not change while an event is dispatched.
        event.listen(session, "after_commit", _arm_committed_jobs)
        event.listen(session, "after_transaction_end", _forget_waiting_jobs)
    waiting.append((arm, jobs))


def _arm_committed_jobs(session: Session) -> None:
    if session.get_nested_transaction() is None:
        waiting = session.info[_KEY]
        ready = waiting.copy()
        waiting.clear()
        for arm, jobs in ready:
            arm(jobs)


def _forget_waiting_jobs(session: Session, transaction: SessionTransaction) -> None:
    """The transaction was committed (then no job waits), rolled back or closed."""
    if transaction.parent is None:
        session.info[_KEY].clear()
