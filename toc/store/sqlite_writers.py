"""Remembers which callers' transactions of this thread hold the write lock of a SQLite file.

SQLite has one writer. A joined transaction holds the lock until the caller ends the transaction. If another
connection of the same thread wants to write meanwhile, it waits for the lock until its time-out, because the
thread that should end the transaction is the thread that waits. So toc refuses such a write at once.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from sqlalchemy import Connection

from toc.errors import InvalidInput


class _ThreadWriters(threading.local):
    def __init__(self) -> None:
        self.writers: list[tuple[weakref.ref[Connection], str]] = []

    def list_open_writers(self) -> list[tuple[weakref.ref[Connection], str]]:
        """The connections of this thread that are still in a transaction, each with its file."""
        self.writers = [
            (writer, file)
            for writer, file in self.writers
            if (connection := writer()) is not None and _is_in_transaction(connection)
        ]
        return self.writers


_thread_writers = _ThreadWriters()


def remember_open_writer(connection: Connection) -> None:
    """Notes a caller's connection that is in a transaction on a SQLite file."""
    if connection.dialect.name != "sqlite" or not _is_in_transaction(connection):
        return
    writers = _thread_writers.list_open_writers()
    if all(writer() is not connection for writer, _ in writers):
        files = connection.exec_driver_sql("PRAGMA database_list")
        path = next((row[2] for row in files if row[1] == "main"), "")
        writers.append((weakref.ref(connection), path))


def refuse_self_deadlock(path: str) -> None:
    """Raises InvalidInput when a transaction of this thread that toc has joined may hold the file's lock."""
    writers = _thread_writers.list_open_writers()
    if writers and os.path.realpath(path) in {file for _, file in writers}:
        raise InvalidInput(
            "session",
            None,
            f"this thread's open transaction holds the write lock of {path} (SQLite has one writer), and "
            "this call, on a connection of its own, would wait for it for ever: commit first, or give "
            "schedule() the same session. A new biz_type is written on a connection of its own, too",
        )


def _is_in_transaction(connection: Connection) -> bool:
    if connection.closed or connection.invalidated:
        return False
    raw: Any = connection.connection.driver_connection
    return bool(getattr(raw, "in_transaction", False))
