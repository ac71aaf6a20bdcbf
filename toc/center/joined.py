"""Schedules inside a caller's SQLAlchemy session: placed after its commit, forgotten on rollback."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from toc.timer.slots import Entry

Placed = list[tuple[str, Entry]]
Place = Callable[[Placed], None]
_KEY = "toc_placed_after_commit"


def after_commit(session: Session, jobs: Placed, place: Place) -> None:
    """Calls `place(jobs)` once the session's outermost transaction has committed.

    A savepoint's commit places nothing. After a savepoint's rollback a reminder may remain for a row
    that is not there: the claim finds that out.
    """
    waiting: list[tuple[Place, Placed]] | None = session.info.get(_KEY)
    if waiting is None:
        waiting = session.info[_KEY] = []
        # They stay for as long as the session does: an event's listeners must not change while it is
        # being told to them.
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)
    waiting.append((place, jobs))


def _committed(session: Session) -> None:
    if session.get_nested_transaction() is None:
        waiting = session.info[_KEY]
        ready = waiting.copy()
        waiting.clear()
        for place, jobs in ready:
            place(jobs)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    """Committed (then nothing waits any more), rolled back or closed."""
    if transaction.parent is None:
        session.info[_KEY].clear()
