"""Ways to break a connection at the worst moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql
from sqlalchemy import Connection, event

from toc.store.databases import Database


@dataclass
class Lost:
    times: int = 0


@contextmanager
def lose_answers(database: Database, times: int = 1) -> Iterator[Lost]:
    """The server commits, and the client learns only that the connection is gone.

    So it goes for the COMMIT of a transaction and for a change that commits itself, `times` times.
    """
    lost = Lost()
    losing = partial(_lose, database, lost, times)
    # Every engine has a dialect of its own.
    dialects = (database.engine.dialect, database.single.dialect)
    do_commit, is_disconnect = dialects[0].do_commit, dialects[0].is_disconnect

    def commit_and_lose(connection: Any) -> None:
        do_commit(connection)
        losing(connection)

    def change_and_lose(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("SELECT"):
            losing(connection.connection)
        elif "; COMMIT " in statement and lost.times < times:
            _get_through(cursor)
            losing(connection.connection)

    def is_lost(error: Exception, *args: Any) -> bool:
        return "lost on purpose" in str(error) or is_disconnect(error, *args)  # type: ignore[arg-type]

    event.listen(database.single, "after_cursor_execute", change_and_lose)
    for dialect in dialects:
        dialect.do_commit = commit_and_lose  # type: ignore[method-assign, assignment]
        dialect.is_disconnect = is_lost  # type: ignore[method-assign, assignment]
    try:
        yield lost
    finally:
        event.remove(database.single, "after_cursor_execute", change_and_lose)
        for dialect in dialects:
            del dialect.do_commit, dialect.is_disconnect


def _lose(database: Database, lost: Lost, times: int, connection: Any) -> None:
    if lost.times >= times:
        return
    lost.times += 1
    if database.sqlite:
        raise sqlite3.OperationalError("lost on purpose")
    raw = getattr(connection, "driver_connection", connection)
    raw._force_close()  # as after a reset by the peer
    raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def _get_through(cursor: Any) -> None:
    """Until the server has done all of a packet."""
    while cursor.nextset():
        pass


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Every statement that is sent meanwhile."""
    seen: list[str] = []

    def note(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        seen.append(statement)

    for engine in (database.engine, database.single):
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        for engine in (database.engine, database.single):
            event.remove(engine, "before_cursor_execute", note)
