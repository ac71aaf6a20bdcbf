"""Schedules inside a caller's SQLAlchemy session: placed after its commit, forgotten on rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from toc.timer.slots import Entry

Placed = list[tuple[str, Entry]]
_KEY = "toc_placed_after_commit"


def after_commit(session: Session, jobs: Placed, place: Callable[[Placed], None]) -> None:
    """Calls `place(jobs)` once the session's outermost transaction has committed.

    A savepoint's commit places nothing. After a savepoint's rollback a reminder may remain for a row
    that is not there: the claim finds that out.
    """
    waiting: Placed | None = session.info.get(_KEY)
    if waiting is not None:
        waiting.extend(jobs)
        return
    waiting = session.info[_KEY] = list(jobs)

    def committed(session: Session) -> None:
        if session.get_nested_transaction() is None:
            forget()
            place(waiting)

    def rolled_back(session: Session, previous: Any) -> None:
        if previous.parent is None:
            forget()

    def forget() -> None:
        session.info.pop(_KEY, None)
        event.remove(session, "after_commit", committed)
        event.remove(session, "after_soft_rollback", rolled_back)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_soft_rollback", rolled_back)
