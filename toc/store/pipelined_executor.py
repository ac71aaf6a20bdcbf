"""Sends many statements in one packet: one round trip for all, instead of one for each.

The driver's protocol supports this (CLIENT_MULTI_STATEMENTS). SQLAlchemy does not: it closes the cursor
after the first result, and the other results are lost. So this module sends packets and reads results
with the driver itself, on connections of SQLAlchemy's pool; SQLAlchemy's cursor events and `handle_error`
are not called for them. Packets also save SQLAlchemy's execution time in Python, which is as much as the
driver's: so a single statement is sent as a packet too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from toc.store.database_home import is_fence_error
from toc.store.driver_errors import LOST_ERRORS
from toc.store.verb import Executor, Statement, StatementResult

BYTES_MAX = 1_000_000  # approximate limit of a packet, far below any server's max_allowed_packet

_PARSE_ERROR = 1064  # the error for a second statement, when the server accepts only one at a time
_IF_CHANGED = " AND ROW_COUNT() > 0"  # the statement before changed a row: `Statement.if_changed`


class PacketFailedError(Exception):
    """The packet failed or is unsupported: run the statements one by one.

    refused: the server, or a proxy before it, accepts no packets at all. undone: True: a transaction
    without reads was certainly rolled back; False: the transaction may have been
    committed.
    """

    def __init__(self, *, refused: bool = False, undone: bool = True) -> None:
        super().__init__(refused, undone)
        self.refused, self.undone = refused, undone


class PipelinedExecutor(Executor):
    """The executor of verbs that sends packets of statements.

    The executor has one autocommit connection. When a change of a transaction fails, the transaction stays
    open until this process reads the error; so the server ends a session that is in a transaction after
    `idle_transaction_s` without a statement (see `sessions`).

    Raises SQLAlchemy's OperationalError when the connection is lost or cannot be opened, and
    PacketFailedError for every other server error, a fenced database (`database_home`) included.
    """

    def __init__(self, engine: Engine, idle_transaction_s: int) -> None:
        self._engine, self._pool, self._dbapi = engine, engine.pool, engine.dialect.loaded_dbapi
        self._idle_transaction_s = idle_transaction_s
        try:
            self._pooled = engine.raw_connection()
        except self._dbapi.Error as error:
            lost = is_fence_error(error) or self._is_connection_lost(error)
            raise OperationalError("", None, error, connection_invalidated=lost) from error

    def __exit__(self, *_: object) -> None:
        self._pooled.close()

    def send_autocommit(self, statements: Sequence[Statement]) -> list[StatementResult]:
        return self._send_packet(self._render_statements(statements))

    def _send_transaction(
        self, changes: Sequence[Statement], reads: Sequence[Statement]
    ) -> list[StatementResult]:
        """Sends one packet, or more if the changes are longer than BYTES_MAX."""
        begin = [f"SET SESSION wait_timeout = {self._idle_transaction_s:d}", "BEGIN"]
        *before, last = _split_packets(self._render_statements(changes))
        results: list[StatementResult] = []
        try:
            for packet in before:
                results += self._send_packet([*begin, *packet])[len(begin) :]
                begin = []
            found = self._send_packet([*begin, *last, *_COMMIT, *self._render_statements(reads)])
        except BaseException:
            self._discard_connection()  # the connection may be in the middle of the transaction
            raise
        reads_start = len(begin) + len(last) + len(_COMMIT)
        return [*results, *found[len(begin) : reads_start - len(_COMMIT)], *found[reads_start:]]

    def _render_statements(self, statements: Sequence[Statement]) -> list[str]:
        """The texts of statements, with the values that the driver has escaped."""
        cursor = self._pooled.cursor()
        return [
            cursor.mogrify(text + _IF_CHANGED if if_changed else text, values)
            for text, values, if_changed in statements
        ]

    def _send_packet(self, texts: Sequence[str]) -> list[StatementResult]:
        packet = "; ".join(texts)
        results: list[StatementResult] = []
        try:
            cursor = self._pooled.cursor()
            cursor.execute(packet)
            for result in _read_results(cursor):
                results.append(result)  # noqa: PERF402 - those before an error count
        except self._dbapi.IntegrityError as error:  # the server sends no further results
            raise PacketFailedError from error
        except self._dbapi.Error as error:
            self._discard_connection()
            lost = self._is_connection_lost(error)
            if (lost or is_fence_error(error)) and self._engine.pool is self._pool:
                self._engine.dispose()  # the other pooled connections are lost as well
            if lost:
                # Without the packet, which has the values of jobs.
                raise OperationalError("", None, error, connection_invalidated=True) from error
            refused = len(texts) > 1 and not results and error.args[0] == _PARSE_ERROR
            # The retry, statement by statement, meets the error again and handles it. An error without a
            # number is the driver's own: it could not read the stream, and the server may have committed.
            undone = isinstance(error.args[0], int)
            raise PacketFailedError(refused=refused, undone=undone) from error
        except BaseException:  # for example KeyboardInterrupt: results may still be in transit
            self._discard_connection()
            raise
        if len(results) != len(texts):  # the statement without a result may not have run
            self._discard_connection()
            raise PacketFailedError(undone=False)
        return results

    def _discard_connection(self) -> None:
        if self._pooled.is_valid:
            self._pooled.invalidate()

    def _is_connection_lost(self, error: Any) -> bool:
        known = error.args[0] in LOST_ERRORS
        return known or self._engine.dialect.is_disconnect(error, None, None)


_COMMIT = [
    # Before the COMMIT: an error of this statement then means that nothing was committed.
    "SET SESSION wait_timeout = DEFAULT",
    # Explicit, because completion_type CHAIN would open the next transaction.
    "COMMIT AND NO CHAIN NO RELEASE",
]


def _read_results(cursor: Any) -> Iterator[StatementResult]:
    while True:
        yield StatementResult(cursor.rowcount, cursor.fetchall())
        if not cursor.nextset():
            return


def _split_packets(texts: Sequence[str]) -> Iterator[list[str]]:
    """Splits texts into packets of about BYTES_MAX."""
    packet: list[str] = []
    size = 0
    for text in texts:
        if packet and size + len(text) > BYTES_MAX:
            yield packet
            packet, size = [], 0
        packet.append(text)
        size += len(text)
    yield packet
