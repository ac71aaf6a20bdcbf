"""Many statements in one packet: a round trip for all of them, where each would wait for its own.

The driver's protocol has it (CLIENT_MULTI_STATEMENTS), SQLAlchemy has not: it would close the cursor
after the first result, and whatever became of the others would be lost. So they are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

BYTES_MAX = 1_000_000  # of values in a packet: far below any server's max_allowed_packet


LOCK_ERRORS = {1205, 1213}  # lock wait timeout, deadlock
_REST = "the rest of a packet"


class NotTogetherError(Exception):
    """One of them failed, or could not be sent so. What they were to do has to be done one by one.

    refused: the server, or a proxy before it, takes no packets at all.
    """

    def __init__(self, *, refused: bool = False) -> None:
        super().__init__(refused)
        self.refused = refused


class Answer(NamedTuple):
    """Of one statement: its rowcount, as the driver has it, and the rows that it found."""

    rowcount: int
    rows: Sequence[tuple[Any, ...]]


Statement = tuple[str, tuple[Any, ...]]
"""Text, with the driver's marks for values; and the values, which the driver binds."""


def send_together(connection: Connection, statements: Sequence[Statement]) -> list[Answer]:
    """Answers in order.

    Within the caller's transaction, which must end when NotTogetherError is raised. Raises SQLAlchemy's
    errors only for a connection that is lost, and for a lock that was not to be had.
    """
    # A first one that gives rows keeps the cursor open.
    text = "; ".join(["SELECT 1", *(text for text, _ in statements)])
    values = tuple(value for _, values in statements for value in values)
    try:
        cursor = connection.exec_driver_sql(text, values).cursor
    except ProgrammingError as error:
        raise NotTogetherError(refused=True) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        raise NotTogetherError from error  # one by one it will be met again, and dealt with
    answers = [*_answers(connection, cursor)]
    if len(answers) != len(statements):  # whoever swallowed one, it must not count as done
        connection.invalidate()
        raise NotTogetherError
    return answers


def send_transaction(
    connection: Connection,
    changes: Sequence[Statement],
    looks: Sequence[Statement],
    idle_s: int,
) -> list[Answer]:
    """Changes with their COMMIT, and looks after it: all in one round trip. Answers in order.

    On a connection whose statements commit themselves. Where a change fails, the transaction stays open
    until this process hears of it: so the server ends the session after `idle_s` (see `idle`).
    """
    before: list[Statement] = [(f"SET SESSION wait_timeout = {idle_s:d}", ()), ("BEGIN", ())]
    try:
        answers = send_together(connection, [*before, *changes, *_COMMIT, *looks])
    except (NotTogetherError, OperationalError):
        connection.invalidate()  # it may stand amid the transaction
        raise
    first = len(before) + len(changes)
    return answers[len(before) : first] + answers[first + len(_COMMIT) :]


# Not what the server's completion_type says: it would open the next one.
_COMMIT: list[Statement] = [
    ("COMMIT AND NO CHAIN NO RELEASE", ()),
    ("SET SESSION wait_timeout = DEFAULT", ()),
]


def _answers(connection: Connection, cursor: Any) -> Iterator[Answer]:
    dbapi = connection.dialect.loaded_dbapi
    try:
        while cursor.nextset():
            yield Answer(cursor.rowcount, cursor.fetchall())
    except dbapi.IntegrityError as error:  # the server has said all that it will say
        raise NotTogetherError from error
    except dbapi.Error as error:
        lost = connection.dialect.is_disconnect(error, connection.connection, cursor)
        if lost:  # as SQLAlchemy has it: what took this one has taken the others in the pool too
            connection.engine.dispose()
        connection.invalidate()
        if lost or error.args[0] in LOCK_ERRORS:
            raise OperationalError(_REST, None, error, connection_invalidated=lost) from error
        raise NotTogetherError from error
