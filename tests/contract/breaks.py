"""Ways to break a connection at the worst moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql
from sqlalchemy import Connection, Engine, event

from toc.store.databases import Database
from toc.store.pipelined_executor import PipelinedExecutor
from toc.store.verb import StatementResult


@dataclass
class Lost:
    times: int = 0


@contextmanager
def lose_answers(
    database: Database, times: int = 1, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[Lost]:
    """The server commits, and the client learns only that the connection is gone.

    So it goes for the COMMIT of a transaction and for a change that commits itself, `times` times.
    `meanwhile` is called after the commit, before the client learns of its loss.
    """
    lost = Lost()
    losing = partial(_lose, database, lost, times, meanwhile)
    # Every engine has a dialect of its own.
    dialects = (database.engine.dialect, database.autocommit_engine.dialect)
    do_commit, is_disconnect = dialects[0].do_commit, dialects[0].is_disconnect

    def commit_and_lose(connection: Any) -> None:
        do_commit(connection)
        losing(connection)

    def change_and_lose(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("SELECT"):
            losing(connection.connection)

    begin = PipelinedExecutor.__init__

    def begin_and_lose(line: PipelinedExecutor, engine: Engine, idle_s: int) -> None:
        begin(line, engine, idle_s)
        if engine is database.autocommit_engine:
            line._pooled = _Losing(line._pooled, losing, lambda: lost.times < times)  # type: ignore[assignment]

    def is_lost(error: Exception, *args: Any) -> bool:
        return "lost on purpose" in str(error) or is_disconnect(error, *args)  # type: ignore[arg-type]

    event.listen(database.autocommit_engine, "after_cursor_execute", change_and_lose)
    PipelinedExecutor.__init__ = begin_and_lose  # type: ignore[method-assign]
    for dialect in dialects:
        dialect.do_commit = commit_and_lose  # type: ignore[method-assign, assignment]
        dialect.is_disconnect = is_lost  # type: ignore[method-assign, assignment]
    try:
        yield lost
    finally:
        event.remove(database.autocommit_engine, "after_cursor_execute", change_and_lose)
        PipelinedExecutor.__init__ = begin  # type: ignore[method-assign]
        for dialect in dialects:
            del dialect.do_commit, dialect.is_disconnect


def _lose(
    database: Database, lost: Lost, times: int, meanwhile: Callable[[], object], connection: Any
) -> None:
    if lost.times >= times:
        return
    lost.times += 1
    meanwhile()
    if database.sqlite:
        raise sqlite3.OperationalError("lost on purpose")
    raw = getattr(connection, "driver_connection", connection)
    raw._force_close()  # as after a reset by the peer
    raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


class _Losing:
    """A pooled connection that loses the answer of a packet that commits."""

    def __init__(
        self, pooled: Any, losing: Callable[[Any], None], loses: Callable[[], bool]
    ) -> None:
        self._pooled, self._losing, self._loses = pooled, losing, loses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)

    def cursor(self) -> Any:
        cursor = self._pooled.cursor()
        execute = cursor.execute

        def execute_and_lose(text: str) -> None:
            execute(text)
            if self._loses() and ("; COMMIT " in text or text.startswith(("INSERT", "UPDATE"))):
                while cursor.nextset():  # until the server has done all of it
                    pass
                self._losing(self._pooled)

        cursor.execute = execute_and_lose
        return cursor


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Every statement that is sent meanwhile."""
    seen: list[str] = []

    def note(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        seen.append(statement)

    send = PipelinedExecutor._send_packet

    def send_and_note(line: PipelinedExecutor, texts: Sequence[str]) -> list[StatementResult]:
        if line._engine is database.autocommit_engine:
            seen.append("; ".join(texts))
        return send(line, texts)

    for engine in (database.engine, database.autocommit_engine):
        event.listen(engine, "before_cursor_execute", note)
    PipelinedExecutor._send_packet = send_and_note  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        PipelinedExecutor._send_packet = send  # type: ignore[method-assign]
        for engine in (database.engine, database.autocommit_engine):
            event.remove(engine, "before_cursor_execute", note)
