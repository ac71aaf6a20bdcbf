"""Many statements in one packet: a round trip for all of them, where each would wait for its own.

The driver's protocol supports this (CLIENT_MULTI_STATEMENTS). SQLAlchemy does not: it closes the cursor
after the first result, and the other results are lost. So this module sends packets and reads results
with the driver itself, on connections of SQLAlchemy's pool; SQLAlchemy's cursor events and `handle_error`
are not called for them. This also saves SQLAlchemy's execution time in Python, which is as much as the
driver's: so a single statement is sent this way too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from toc.store.database_home import is_fence

BYTES_MAX = 1_000_000  # of values in a packet: far below any server's max_allowed_packet

# gone away, lost during query, shutdown, killed, ended because idle
LOST_ERRORS = {2006, 2013, 2055, 1053, 1927, 4031}
_PARSE_ERROR = 1064  # the error for a second statement, when the server accepts only one at a time


class PipelineUnsupportedError(Exception):
    """The batch failed or is unsupported: run the statements one by one.

    refused: the server, or a proxy before it, takes no packets at all. undone: True: a transaction without
    reads was certainly rolled back; False: nobody knows.
    """

    def __init__(self, *, refused: bool = False, undone: bool = True) -> None:
        super().__init__(refused, undone)
        self.refused, self.undone = refused, undone


class StatementResult(NamedTuple):
    """The result of one statement: the driver's rowcount, and the rows that the statement returned."""

    rowcount: int
    rows: Sequence[tuple[Any, ...]]


Statement = tuple[str, tuple[Any, ...]]
"""SQL text with the driver's placeholders, and the values that the driver binds."""


class PipelinedConnection:
    """An autocommit connection that sends packets of statements. A context manager.

    Raises SQLAlchemy's OperationalError when the connection is lost or cannot be opened, and
    PipelineUnsupportedError for every other server error, a fenced database (`database_home`) included.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._pool, self._dbapi = engine, engine.pool, engine.dialect.loaded_dbapi
        try:
            self._pooled = engine.raw_connection()
        except self._dbapi.Error as error:
            lost = is_fence(error) or self._is_lost(error)
            raise OperationalError("", None, error, connection_invalidated=lost) from error

    def __enter__(self) -> PipelinedConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._pooled.close()

    def send(self, statements: Sequence[Statement]) -> list[StatementResult]:
        """Sends the statements in one packet; returns their results, in order."""
        text = "; ".join([text for text, _ in statements])
        values = tuple([value for _, values in statements for value in values])
        results: list[StatementResult] = []
        try:
            cursor = self._pooled.cursor()
            cursor.execute(text, values)
            for result in _read_results(cursor):
                results.append(result)  # noqa: PERF402 - those before an error count
        except self._dbapi.IntegrityError as error:  # the server sends no further results
            raise PipelineUnsupportedError from error
        except self._dbapi.Error as error:
            self._discard_connection()
            lost = self._is_lost(error)
            if (lost or is_fence(error)) and self._engine.pool is self._pool:
                self._engine.dispose()  # the other pooled connections are lost as well
            if lost:
                raise OperationalError(text, None, error, connection_invalidated=True) from error
            refused = len(statements) > 1 and not results and error.args[0] == _PARSE_ERROR
            # The retry, statement by statement, meets the error again and handles it. An error without a
            # number is the driver's own: it could not read the stream, and the server may have committed.
            undone = isinstance(error.args[0], int)
            raise PipelineUnsupportedError(refused=refused, undone=undone) from error
        except (
            BaseException
        ):  # for example the thread is told to end: results may still be in transit
            self._discard_connection()
            raise
        if len(results) != len(
            statements
        ):  # a result is missing: its statement must not count as done
            self._discard_connection()
            raise PipelineUnsupportedError(undone=False)
        return results

    def send_transaction(
        self,
        packets: Sequence[Sequence[Statement]],
        reads: Sequence[Statement],
        idle_timeout_s: int,
    ) -> list[StatementResult]:
        """Sends changes in `packets`, one transaction with its COMMIT, then `reads` after the COMMIT.

        Returns all results in order. A single change is sent without a transaction: it commits itself.
        When a change fails, the transaction stays open until this process reads the error. So the
        server ends the session after `idle_timeout_s` without a statement (see `session_timeout`).
        """
        if sum(map(len, packets)) == 1:
            return self.send([*packets[0], *reads])
        begin: list[Statement] = [
            (f"SET SESSION wait_timeout = {idle_timeout_s:d}", ()),
            ("BEGIN", ()),
        ]
        *before, last = packets
        results: list[StatementResult] = []
        try:
            for changes in before:
                results += self.send([*begin, *changes])[len(begin) :]
                begin = []
            found = self.send([*begin, *last, *_COMMIT, *reads])
        except BaseException:
            self._discard_connection()  # the connection may be in the middle of the transaction
            raise
        reads_start = len(begin) + len(last) + len(_COMMIT)
        return [*results, *found[len(begin) : reads_start - len(_COMMIT)], *found[reads_start:]]

    def _discard_connection(self) -> None:
        if self._pooled.is_valid:
            self._pooled.invalidate()

    def _is_lost(self, error: Any) -> bool:
        known = error.args[0] in LOST_ERRORS
        return known or self._engine.dialect.is_disconnect(error, None, None)


_COMMIT: list[Statement] = [
    # Before the COMMIT: an error of this statement then means that nothing was committed.
    ("SET SESSION wait_timeout = DEFAULT", ()),
    # Explicit, because completion_type CHAIN would open the next transaction.
    ("COMMIT AND NO CHAIN NO RELEASE", ()),
]


def _read_results(cursor: Any) -> Iterator[StatementResult]:
    while True:
        yield StatementResult(cursor.rowcount, cursor.fetchall())
        if not cursor.nextset():
            return
