"""Runs the steps of revisions on a database, or writes them as a script for a DBA.

A run and a script hold a lock of the database's name (GET_LOCK) from beginning to end. Statements wait for
a table's metadata lock for `lock_wait_s` only: all statements on that table queue behind a DDL that waits.

SQLite has transactions for DDL: a run on SQLite is one transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from toc.domain.text_escaping import escape_to_one_line
from toc.errors import TocError
from toc.store import database_identity
from toc.store.driver_errors import error_number, error_text, is_missing_table
from toc.store.schema import FITS_SINCE, VERSION_TABLE, quote_name
from toc.store.schema_steps import (
    INSTANT,
    REBUILDS,
    MakeTable,
    SchemaStep,
    SchemaTarget,
    Steps,
    StepStatement,
)
from toc.store.sessions import SQL_MODE

LOCK_WAIT_S = 5
IN_PLACE = ", ALGORITHM = INPLACE, LOCK = NONE"

LOCK_NAME = "LEFT(CONCAT('toc_migrate.', DATABASE()), 64)"
_LOCK_WAIT = 1205
# ALGORITHM or LOCK is not possible; MySQL: the table has had too many instant changes.
_WOULD_COPY = {1845, 1846, 4080, 4092}

_RAW = {"no_parameters": True}  # the text goes to the driver as it is: a % is a %


class MigrationFailed(TocError):
    """A migration stopped. The changes that it made stay, and a later run continues after them.

    `table` is None when the error concerns the database as a whole; `number`: the
    server's error number, None on SQLite.
    """

    code = "migration_failed"

    def __init__(
        self, database: int, table: str | None, text: str, number: int | None = None
    ) -> None:
        self.database, self.table, self.number = database, table, number
        place = f"database {database}" + (f", table {table}" if table else "")
        super().__init__(f"{place}: {text}")


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that has just been run, and how many of all steps of this database are done."""

    database: int
    revision: str
    table: str
    is_view: bool
    done: int
    total: int


Progress = Callable[[CompletedStep], None]


class OnlineExecutor:
    """Runs steps on a database; skips the statements of a step that is done already.

    `may_rebuild`: rebuild a table where the server cannot change it at once. `total`: the number of steps of
    the whole run, for `progress`.
    """

    def __init__(
        self,
        target: SchemaTarget,
        connection: Connection,
        *,
        lock_wait_s: int = LOCK_WAIT_S,
        may_rebuild: bool = False,
        progress: Progress | None = None,
        total: int = 0,
    ) -> None:
        self.target = target
        self.connection = connection
        self._lock_wait_s, self._may_rebuild = lock_wait_s, may_rebuild
        self._progress, self._total, self._done = progress, total, 0

    def up(self, revision: str, steps: Steps) -> None:
        """Runs the steps of a revision, in order."""
        for step in steps(self.target):
            self._run_step_statements(step, step.up_statements(sqlite=self.target.sqlite))
            self._report_progress(revision, step)

    def down(self, revision: str, steps: Steps) -> None:
        """Reverts the steps of a revision, in reverse order. All tables that hold jobs must be empty (I1)."""
        reverse = list(steps(self.target))[::-1]
        for table in tables_holding_jobs(reverse):
            with self._name_table_in_errors(table):
                refuse_table_with_jobs(self.connection, self.target.index, table)
        for step in reverse:
            if isinstance(step, MakeTable) and step.holds_jobs:
                self._drop_empty_table(step)
            else:
                self._run_step_statements(step, step.down_statements(sqlite=self.target.sqlite))
            self._report_progress(revision, step)

    def run_drift_repair(self, table: str, sql: str) -> None:
        """Runs a statement that undoes drift. Copies a table, while writes wait, only if `may_rebuild`."""
        forms = [sql]
        if sql.startswith("ALTER TABLE") and "ALGORITHM" not in sql and not self.target.sqlite:
            forms = [sql + INSTANT, sql + IN_PLACE, *([sql] if self._may_rebuild else [])]
        with self._name_table_in_errors(table):
            self._run_first_accepted(forms)

    def _run_step_statements(self, step: SchemaStep, statements: list[StepStatement]) -> None:
        with self._name_table_in_errors(step.table):
            for statement in statements:
                if statement.unless is not None and self._condition_holds(statement.unless):
                    continue
                sql, forms = statement.sql, [statement.sql]
                if sql.endswith(INSTANT) and self._may_rebuild:
                    forms += [sql.removesuffix(INSTANT) + rebuild for rebuild in REBUILDS]
                self._run_first_accepted(forms)

    def _run_first_accepted(self, forms: Sequence[str]) -> None:
        """Runs a statement in the first form that the server can run without a copy of the table."""
        for form in forms:
            try:
                self._run_sql(form)
            except DBAPIError as error:
                if error_number(error) not in _WOULD_COPY or form == forms[-1]:
                    raise
            else:
                return

    def _drop_empty_table(self, step: SchemaStep) -> None:
        """Drops a job table. Nobody can write between check and drop: SQLite's run is one transaction."""
        with self._name_table_in_errors(step.table):
            if self.target.sqlite:
                refuse_table_with_jobs(self.connection, self.target.index, step.table)
                self._run_sql(f"DROP TABLE IF EXISTS {step.table}")
                return
            try:
                self._run_sql(f"LOCK TABLES {step.table} WRITE")
            except DBAPIError as error:
                if is_missing_table(error):  # an earlier run has dropped the table
                    return
                raise
            try:
                refuse_table_with_jobs(self.connection, self.target.index, step.table)
                self._run_sql(f"DROP TABLE {step.table}")
            finally:
                with suppress(DBAPIError):  # the connection may be lost
                    self._run_sql("UNLOCK TABLES")

    def _report_progress(self, revision: str, step: SchemaStep) -> None:
        self._done += 1
        if self._progress is not None:
            place = self.target.index, revision, step.table, step.is_view
            self._progress(CompletedStep(*place, self._done, self._total))

    def _run_sql(self, sql: str) -> None:
        self.connection.exec_driver_sql(sql, execution_options=_RAW)

    def _condition_holds(self, condition: str) -> bool:
        sql = f"SELECT {condition}"
        return bool(self.connection.exec_driver_sql(sql, execution_options=_RAW).scalar())

    @contextmanager
    def _name_table_in_errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            number = error_number(error)
            text = error_text(error)
            if number == _LOCK_WAIT:
                text = (
                    f"a transaction holds the table, gave up after {self._lock_wait_s} s so that no other "
                    "statement waits longer; run the migration again when the transaction has ended"
                )
            elif number in _WOULD_COPY:
                text = (
                    "the server would have to rebuild the table, which needs the option --rebuild (writes "
                    f"to the table may wait meanwhile): {text}"
                )
            raise MigrationFailed(self.target.index, table, text, number) from error


def tables_holding_jobs(steps: Iterable[SchemaStep]) -> list[str]:
    """The tables of these steps that hold jobs."""
    return [step.table for step in steps if isinstance(step, MakeTable) and step.holds_jobs]


def refuse_table_with_jobs(connection: Connection, database: int, table: str) -> None:
    """Raises MigrationFailed if the table has a row; a missing table is accepted."""
    try:
        has_rows = connection.exec_driver_sql(f"SELECT EXISTS (SELECT 1 FROM {table})").scalar()
    except DBAPIError as error:
        if is_missing_table(error):
            return
        raise
    if has_rows:
        text = "the table holds jobs, and is dropped only when it is empty; it was not changed"
        raise MigrationFailed(database, table, text)


def lock_wait_assignments(seconds: int) -> str:
    """Assignments for SET SESSION: how long a statement waits for a lock."""
    return f"lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"


def record_fits_since_sql(fits_since: str, condition: str = "") -> str:
    """The statement that records in `toc_meta` the oldest release that the schema fits."""
    return f"REPLACE INTO toc_meta (name, value) SELECT '{FITS_SINCE}', '{fits_since}'{condition}"


# ---- scripts

_HEAD = """\
-- toc {release}: database {index} ({name}), shards {first} to {last}: from {start} to {end}.
-- Run it as it is, {how}.
-- {again}
"""


class ScriptExecutor:
    """Writes the statements for one database, as a file that its server's own client can run.

    `name`: of the database. `expected_meta`: the rows that its `toc_meta` must have, if it has rows (see
    `database_identity`).
    """

    def __init__(
        self,
        target: SchemaTarget,
        out: IO[str],
        name: str,
        expected_meta: Mapping[str, str],
        *,
        lock_wait_s: int = LOCK_WAIT_S,
    ) -> None:
        self.target = target
        self._out, self._name, self._expected_meta = out, name, expected_meta
        self._lock_wait_s = lock_wait_s

    def write_head(self, release: str, start: str | None, end: str, between: list[str]) -> None:
        """Writes the comment, the lock, and the guards that stop the script on a wrong database.

        `start`: None for an empty database. `between`: the revisions at which the database may be when
        the script is run again after it was interrupted.
        """
        shards, sqlite = self.target.shards, self.target.sqlite
        self._out.write(
            _HEAD.format(
                release=release,
                index=self.target.index,
                name=escape_to_one_line(self._name),
                first=shards[0],
                last=shards[-1],
                start="an empty database" if start is None else f"revision {start}",
                end=f"revision {end}",
                how="with -bail: sqlite3 -bail FILE < this"
                if sqlite
                else "without --force: mysql -h HOST -u USER -p < this",
                again="It is one transaction: all of it, or nothing."
                if sqlite
                else "It may be run again after an interruption: each step that is done is left out.",
            )
        )
        if sqlite:
            self._write_statement("BEGIN IMMEDIATE")
        else:
            self._write_statement(f"USE {quote_name(self._name)}")
            self._write_statement("SET NAMES utf8mb4")
            self._write_statement(f"SET SESSION sql_mode = '{SQL_MODE}'")
            self._write_statement(f"SET SESSION {lock_wait_assignments(self._lock_wait_s)}")
            lock = f"GET_LOCK({LOCK_NAME}, {self._lock_wait_s}) = 1"
            self._write_requirement(lock, "another migration is running on this database")
            self._write_identity_guard()
        self._write_statement(
            f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        if not sqlite:
            known = ", ".join(f"'{revision}'" for revision in between)
            at = f"SELECT COUNT(*) FROM {VERSION_TABLE}"
            fits = f"({at} WHERE version_num NOT IN ({known})) = 0"
            if start is not None:
                fits += f" AND ({at}) = 1"
            self._write_requirement(
                fits, "this database is not at a revision that this script is for"
            )

    def write_end(self) -> None:
        """Releases the lock. On SQLite, first writes the guards, and COMMIT instead of the release."""
        self._out.write("\n")
        if self.target.sqlite:
            for statement in database_identity.identity_guard_sqlite(
                self.target, self._expected_meta
            ):
                self._write_statement(statement)
        self._write_statement("COMMIT" if self.target.sqlite else f"DO RELEASE_LOCK({LOCK_NAME})")

    def up(self, revision: str, steps: Steps) -> None:
        """Writes the statements of a revision."""
        self._out.write(f"\n-- revision {revision}, up\n\n")
        for step in steps(self.target):
            self._write_statements(step.up_statements(sqlite=self.target.sqlite))

    def down(self, revision: str, steps: Steps) -> None:
        """Writes the statements that revert a revision.

        The caller must not pass a revision that makes job tables: the script would drop them with their jobs.
        """
        self._out.write(f"\n-- revision {revision}, down\n\n")
        for step in list(steps(self.target))[::-1]:
            self._write_statements(step.down_statements(sqlite=self.target.sqlite))

    def write_drift_repair(self, fault: str, note: str, statements: Sequence[str]) -> None:
        """Writes the statements that undo one fault, below comments that describe the fault."""
        for text in (fault, note):
            if text:
                self._out.write(f"-- {' '.join(text.split())}\n")
        for statement in statements:
            self._write_statement(statement.strip())

    def write_revision_stamp(self, source: str | None, destination: str, fits_since: str) -> None:
        """Writes, as one transaction, statements that record the revision and the releases that it fits."""
        if not self.target.sqlite:
            self._write_statement("START TRANSACTION")
        if source is None:
            empty = f"WHERE NOT EXISTS (SELECT 1 FROM {VERSION_TABLE})"
            dual = "" if self.target.sqlite else "FROM DUAL "
            self._write_statement(
                f"INSERT INTO {VERSION_TABLE} SELECT '{destination}' {dual}{empty}"
            )
        else:
            self._write_statement(
                f"UPDATE {VERSION_TABLE} SET version_num = '{destination}' "
                f"WHERE version_num = '{source}'"
            )
        reached = f" FROM {VERSION_TABLE} WHERE version_num = '{destination}'"
        self._write_statement(record_fits_since_sql(fits_since, reached))
        if not self.target.sqlite:
            self._write_statement("COMMIT")

    def _write_statements(self, statements: list[StepStatement]) -> None:
        for statement in statements:
            if statement.unless is None or self.target.sqlite:
                self._write_statement(statement.sql)
            else:
                self._write_unless(statement.unless, statement.sql)

    def _write_identity_guard(self) -> None:
        """Writes statements that stop the script on a wrong database, before any change."""
        self._write_statement("SET @toc_meta = NULL")
        ask, wrong = database_identity.identity_guard_sql(self.target, self._expected_meta)
        self._write_unless(f"NOT {database_identity.HAS_META}", ask)
        self._write_statement(
            f"SET @toc = COALESCE(CONCAT('SELECT `', REPLACE({wrong}, '`', ''), '`'), 'DO 0')"
        )
        self._write_prepared_execution()

    def _write_requirement(self, condition: str, complaint: str) -> None:
        # The error for a missing column shows its name; SIGNAL cannot be prepared.
        self._write_unless(condition, f"SELECT `{complaint}`")

    def _write_unless(self, condition: str, statement: str) -> None:
        quoted = statement.replace("'", "''")
        self._write_statement(f"SET @toc = IF({condition}, 'DO 0', '{quoted}')")
        self._write_prepared_execution()

    def _write_prepared_execution(self) -> None:
        for statement in ("PREPARE toc FROM @toc", "EXECUTE toc", "DEALLOCATE PREPARE toc"):
            self._write_statement(statement)

    def _write_statement(self, statement: str) -> None:
        self._out.write(f"{statement};\n")
