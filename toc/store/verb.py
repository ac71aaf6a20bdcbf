"""A verb of the store is written once, as a `Verb`, and run by one of two executors.

The pipelined executor (`PipelinedExecutor`) sends the statements in packets: one round trip. The plain
executor (`PlainExecutor`) runs the same statements one by one through SQLAlchemy: on SQLite, with other
drivers, behind a proxy that accepts one statement at a time, and after a packet has failed.
`Database.run_verb` chooses the executor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

from sqlalchemy import Connection, Engine

T = TypeVar("T")


class Statement(NamedTuple):
    """SQL text with the driver's placeholders, and the values that the driver binds.

    if_changed: the statement runs only if the previous statement has changed a row. The text then ends with a
    condition (WHERE), to which the pipelined executor adds another condition.
    """

    text: str
    values: tuple[Any, ...] = ()
    if_changed: bool = False


class StatementResult(NamedTuple):
    """The result of one statement: the driver's rowcount, and the rows that the statement returned."""

    rowcount: int
    rows: Sequence[Any]


class Executor(ABC):
    """Runs statements on one database and returns their results in order. A context manager."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def send_autocommit(self, statements: Sequence[Statement]) -> list[StatementResult]:
        """Runs statements of which each is its own transaction."""

    def send_transaction(
        self, changes: Sequence[Statement], reads: Sequence[Statement]
    ) -> list[StatementResult]:
        """Runs changes in one transaction, and `reads` after its COMMIT; a single change commits itself."""
        if len(changes) == 1:
            return self.send_autocommit([*changes, *reads])
        return self._send_transaction(changes, reads)

    @abstractmethod
    def _send_transaction(
        self, changes: Sequence[Statement], reads: Sequence[Statement]
    ) -> list[StatementResult]: ...


@dataclass(slots=True)
class Verb(Generic[T]):
    """One operation on one database. A verb can be repeated: its guards or ids make a second run harmless.

    changes: run in one transaction. reads: run after its COMMIT.
    make_answer: makes the answer from the results of all changes and reads, in order; it may send more reads.
    tries: the runs that may have been committed, the present one included. 2 or more: the answer of an
    earlier run was lost.
    """

    changes: Sequence[Statement]
    reads: Sequence[Statement]
    make_answer: Callable[[list[StatementResult], Executor], T]
    tries: int = 0

    def run(self, executor: Executor) -> T:
        """Runs the verb once."""
        self.tries += 1
        return self.make_answer(executor.send_transaction(self.changes, self.reads), executor)


class PlainExecutor(Executor):
    """The executor of verbs that runs statements one by one. Raises SQLAlchemy's errors."""

    def __init__(self, engine: Engine, autocommit_engine: Engine) -> None:
        self._engine, self._autocommit_engine = engine, autocommit_engine
        self._autocommit: Connection | None = None  # opened when it is needed

    def __exit__(self, *_: object) -> None:
        if self._autocommit is not None:
            self._autocommit.close()

    def send_autocommit(self, statements: Sequence[Statement]) -> list[StatementResult]:
        if not statements:
            return []
        if self._autocommit is None:
            self._autocommit = self._autocommit_engine.connect()
        return run_statements(self._autocommit, statements)

    def _send_transaction(
        self, changes: Sequence[Statement], reads: Sequence[Statement]
    ) -> list[StatementResult]:
        # The changes share one COMMIT, which is the expensive part.
        with self._engine.begin() as connection:
            results = run_statements(connection, changes)
        return results + self.send_autocommit(reads)


def run_statements(
    connection: Connection, statements: Sequence[Statement]
) -> list[StatementResult]:
    """Runs statements one by one on a connection, in its transaction; returns their results in order."""
    results: list[StatementResult] = []
    for statement in statements:
        if statement.if_changed and not results[-1].rowcount:
            results.append(StatementResult(0, ()))
            continue
        cursor = connection.exec_driver_sql(statement.text, statement.values)
        rows = cursor.all() if cursor.returns_rows else ()
        results.append(StatementResult(cursor.rowcount, rows))
    return results
