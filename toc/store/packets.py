"""Many statements in one packet: a round trip for all of them, where each would wait for its own.

The driver's protocol has it (CLIENT_MULTI_STATEMENTS), SQLAlchemy has not: it would close the cursor
after the first result, and whatever became of the others would be lost. So packets are sent and read
here, by the driver itself, on connections of SQLAlchemy's pool; its cursor events and `handle_error` do
not hear of them. That also saves the Python of its execution, which is as much as the driver's: where a
call is a single statement, it is worth a packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from toc.store.moving import is_fence

BYTES_MAX = 1_000_000  # of values in a packet: far below any server's max_allowed_packet

# gone away, lost during query, shutdown, killed, ended for being idle
LOST_ERRORS = {2006, 2013, 2055, 1053, 1927, 4031}
_PARSE_ERROR = 1064  # what a server says of a second statement, where it takes one at a time


class NotTogetherError(Exception):
    """One of them failed, or could not be sent so. What they were to do has to be done one by one.

    refused: the server, or a proxy before it, takes no packets at all. undone: of a transaction without
    looks nothing counts, for certain; else nobody knows.
    """

    def __init__(self, *, refused: bool = False, undone: bool = True) -> None:
        super().__init__(refused, undone)
        self.refused, self.undone = refused, undone


class Answer(NamedTuple):
    """Of one statement: its rowcount, as the driver has it, and the rows that it found."""

    rowcount: int
    rows: Sequence[tuple[Any, ...]]


Statement = tuple[str, tuple[Any, ...]]
"""Text, with the driver's marks for values; and the values, which the driver binds."""


class Line:
    """A connection of an engine whose statements commit themselves, for packets. A context manager.

    Raises SQLAlchemy's OperationalError for a connection that is lost, or cannot be had; for all else
    that a server may say, the fence of `moving` too, NotTogetherError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._pool, self._dbapi = engine, engine.pool, engine.dialect.loaded_dbapi
        try:
            self._pooled = engine.raw_connection()
        except self._dbapi.Error as error:
            lost = is_fence(error) or self._is_lost(error)
            raise OperationalError("", None, error, connection_invalidated=lost) from error

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._pooled.close()

    def send(self, statements: Sequence[Statement]) -> list[Answer]:
        """Answers in order."""
        text = "; ".join([text for text, _ in statements])
        values = tuple([value for _, values in statements for value in values])
        answers: list[Answer] = []
        try:
            cursor = self._pooled.cursor()
            cursor.execute(text, values)
            for answer in _answers(cursor):
                answers.append(answer)  # noqa: PERF402 - those before an error count
        except self._dbapi.IntegrityError as error:  # the server has said all that it will say
            raise NotTogetherError from error
        except self._dbapi.Error as error:
            self._give_up()
            lost = self._is_lost(error)
            if (lost or is_fence(error)) and self._engine.pool is self._pool:
                self._engine.dispose()  # what took this one has taken the others too
            if lost:
                raise OperationalError(text, None, error, connection_invalidated=True) from error
            refused = len(statements) > 1 and not answers and error.args[0] == _PARSE_ERROR
            # One by one it is met again, and dealt with. Not a number: the driver says it, of a stream
            # that it cannot read, and the server may have said yes.
            undone = isinstance(error.args[0], int)
            raise NotTogetherError(refused=refused, undone=undone) from error
        except BaseException:  # the thread is told to end, say: answers may be on their way
            self._give_up()
            raise
        if len(answers) != len(statements):  # whoever swallowed one, it must not count as done
            self._give_up()
            raise NotTogetherError(undone=False)
        return answers

    def send_transaction(
        self, packets: Sequence[Sequence[Statement]], looks: Sequence[Statement], idle_s: int
    ) -> list[Answer]:
        """Changes, in as many packets, with their COMMIT; and looks after it. Answers in order.

        A single change commits itself.

        Where a change fails, the transaction stays open until this process hears of it: so the server
        ends the session after `idle_s` (see `idle`).
        """
        if sum(map(len, packets)) == 1:
            return self.send([*packets[0], *looks])
        begin: list[Statement] = [(f"SET SESSION wait_timeout = {idle_s:d}", ()), ("BEGIN", ())]
        *before, last = packets
        answers: list[Answer] = []
        try:
            for changes in before:
                answers += self.send([*begin, *changes])[len(begin) :]
                begin = []
            found = self.send([*begin, *last, *_COMMIT, *looks])
        except BaseException:
            self._give_up()  # it may stand amid the transaction
            raise
        looked = len(begin) + len(last) + len(_COMMIT)
        return [*answers, *found[len(begin) : looked - len(_COMMIT)], *found[looked:]]

    def _give_up(self) -> None:
        if self._pooled.is_valid:
            self._pooled.invalidate()

    def _is_lost(self, error: Any) -> bool:
        known = error.args[0] in LOST_ERRORS
        return known or self._engine.dialect.is_disconnect(error, None, None)


_COMMIT: list[Statement] = [
    # Before it: an error that the server answers then means that nothing was committed.
    ("SET SESSION wait_timeout = DEFAULT", ()),
    # Not what the server's completion_type says: it would open the next one.
    ("COMMIT AND NO CHAIN NO RELEASE", ()),
]


def _answers(cursor: Any) -> Iterator[Answer]:
    while True:
        yield Answer(cursor.rowcount, cursor.fetchall())
        if not cursor.nextset():
            return
