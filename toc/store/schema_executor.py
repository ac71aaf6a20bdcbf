"""How steps come to a database: run on a connection, or written as a script for a DBA.

`migrations/env.py` gives one of the two to each revision. A run holds a lock of the database's name
(GET_LOCK) from its first look to its last word, and waits for a table's metadata lock for
`lock_wait_s` only: everything that wants the table queues up behind a DDL that waits.

SQLite has transactions for DDL: there a run is one transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from toc.domain.texts import one_line
from toc.errors import TocError
from toc.store import identity
from toc.store.driver_errors import error_number, error_text, is_missing_table
from toc.store.schema import FITS_SINCE
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

VERSION_TABLE = "toc_alembic_version"
LOCK_WAIT_S = 5

RUNNER = "LEFT(CONCAT('toc_migrate.', DATABASE()), 64)"
_LOCK_WAIT = 1205
_WOULD_COPY = {
    1845,
    1846,
    4080,
    4092,
}  # ALGORITHM or LOCK is not possible; MySQL: too many row versions

IN_PLACE = ", ALGORITHM = INPLACE, LOCK = NONE"
_RAW = {"no_parameters": True}  # the text goes to the driver as it is: a % is a %


class MigrationFailed(TocError):
    """A run stopped: what was done stays, and a later run goes on where this one stopped.

    `table` is None when it is the database as a whole; `number` is the server's, None of SQLite.
    """

    code = "migration_failed"

    def __init__(
        self, database: int, table: str | None, text: str, number: int | None = None
    ) -> None:
        self.database, self.table, self.number = database, table, number
        place = f"database {database}" + (f", table {table}" if table else "")
        super().__init__(f"{place}: {text}")


@dataclass(frozen=True, slots=True)
class StepProgress:
    """A step that was taken: which, of which revision, and how many of this database's are done."""

    database: int
    revision: str
    table: str
    is_view: bool
    done: int
    total: int


Progress = Callable[[StepProgress], None]


class OnlineExecutor:
    """Runs steps on a database, each after a look.

    `may_rebuild`: rebuild a table where the server cannot change it at once. `total`: the steps of the
    whole run, for progress.
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
        """Takes the steps of a revision, in order."""
        for step in steps(self.target):
            self._run_step(step, step.up(sqlite=self.target.sqlite))
            self._report_progress(revision, step)

    def down(self, revision: str, steps: Steps) -> None:
        """Takes them back, in reverse. Tables that hold jobs must be empty, all of them (I1)."""
        taken = list(steps(self.target))[::-1]
        for step in taken:
            if _holds_jobs(step):
                self._refuse_if_not_empty(step)
        for step in taken:
            if _holds_jobs(step):
                self._drop_empty(step)
            else:
                self._run_step(step, step.down(sqlite=self.target.sqlite))
            self._report_progress(revision, step)

    def run_repair(self, table: str, sql: str) -> None:
        """One statement of a mend. Copies a table, while its writes wait, only with `may_rebuild`."""
        is_alter = (
            sql.startswith("ALTER TABLE") and "ALGORITHM" not in sql and not self.target.sqlite
        )
        in_place = (", ALGORITHM = INSTANT", IN_PLACE) if is_alter else ("",)
        ways = (*in_place, "") if self._may_rebuild and is_alter else in_place
        with self._name_table_in_errors(table):
            for way in ways:
                try:
                    self._run_sql(sql + way)
                except DBAPIError as error:
                    if error_number(error) not in _WOULD_COPY or way == ways[-1]:
                        raise
                else:
                    return

    def _run_step(self, step: SchemaStep, acts: list[StepStatement]) -> None:
        with self._name_table_in_errors(step.table):
            for act in acts:
                if act.unless is None or not self._fetch_value(f"SELECT {act.unless}"):
                    self._run_change(act.sql)

    def _run_change(self, sql: str) -> None:
        instant = sql.endswith(INSTANT)
        ways = ("", *REBUILDS) if instant and self._may_rebuild else ("",)
        for way in ways:
            try:
                self._run_sql(sql.removesuffix(INSTANT) + way if way else sql)
            except DBAPIError as error:
                if error_number(error) not in _WOULD_COPY or way == ways[-1]:
                    raise
            else:
                return

    def _drop_empty(self, step: SchemaStep) -> None:
        """Nobody can write between the look and the drop: SQLite's run is one transaction."""
        if self.target.sqlite:
            self._refuse_if_not_empty(step)
            self._run_step(step, step.down(sqlite=True))
            return
        with self._name_table_in_errors(step.table):
            try:
                self._run_sql(f"LOCK TABLES {step.table} WRITE")
            except DBAPIError as error:
                if is_missing_table(error):  # an earlier run has dropped it
                    return
                raise
            try:
                self._refuse_if_not_empty(step)
                self._run_sql(f"DROP TABLE {step.table}")
            finally:
                with suppress(DBAPIError):  # the connection may be lost
                    self._run_sql("UNLOCK TABLES")

    def _refuse_if_not_empty(self, step: SchemaStep) -> None:
        with self._name_table_in_errors(step.table):
            try:
                rows = self._fetch_value(f"SELECT EXISTS (SELECT 1 FROM {step.table})")
            except DBAPIError as error:
                if is_missing_table(error):
                    return
                raise
        if rows:
            text = "it holds jobs, and is not dropped before it is empty; nothing of it was changed"
            raise MigrationFailed(self.target.index, step.table, text)

    def _report_progress(self, revision: str, step: SchemaStep) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(
                StepProgress(
                    self.target.index,
                    revision,
                    step.table,
                    step.is_view,
                    self._done,
                    max(self._total, self._done),
                )
            )

    def _run_sql(self, sql: str) -> None:
        self.connection.exec_driver_sql(sql, execution_options=_RAW)

    def _fetch_value(self, sql: str) -> Any:
        return self.connection.exec_driver_sql(sql, execution_options=_RAW).scalar()

    @contextmanager
    def _name_table_in_errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            number = error_number(error)
            text = error_text(error)
            if number == _LOCK_WAIT:
                text = (
                    f"a transaction holds it, gave up after {self._lock_wait_s} s so that nothing waits "
                    "longer behind this; run it again when that has ended, it goes on here"
                )
            elif number in _WOULD_COPY:
                text = (
                    "the server would rebuild it, and was not let (the option for it is --rebuild: "
                    f"writes to a table may wait meanwhile): {text}"
                )
            raise MigrationFailed(self.target.index, table, text, number) from error


def _holds_jobs(step: SchemaStep) -> bool:
    return isinstance(step, MakeTable) and step.holds_jobs


# ---- connections and the catalogue


def lock_wait_assignments(seconds: int) -> str:
    """Assignments for SET SESSION: how long a statement waits for a lock."""
    return f"lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"


def write_fits_since(connection: Connection, fits_since: str) -> None:
    """Writes which releases' statements run on the schema, in the transaction of its revision."""
    connection.exec_driver_sql(_fits_sql(fits_since), execution_options=_RAW)


def _fits_sql(fits_since: str, condition: str = "") -> str:
    return f"REPLACE INTO toc_meta (name, value) SELECT '{FITS_SINCE}', '{fits_since}'{condition}"


# ---- scripts

_HEAD = """\
-- toc {release}: database {index} ({name}), shards {first} to {last}: from {start} to {end}.
-- Run it as it is, {how}.
-- {again}
"""


class ScriptExecutor:
    """Writes the statements for one database, as a file that its server's own client can run.

    `facts`: what `toc_meta` must say, where it says anything (see `identity`).

    `start` and `end` are revisions, None for an empty database; `between` those that it may meet when
    it is run once more after it was broken off.
    """

    def __init__(
        self,
        target: SchemaTarget,
        out: TextIO,
        name: str,
        expected_meta: Mapping[str, str],
        *,
        lock_wait_s: int = LOCK_WAIT_S,
    ) -> None:
        self.target = target
        self._out, self._name, self._expected_meta = out, name, expected_meta
        self._lock_wait_s = lock_wait_s

    def write_head(
        self, release: str, start: str | None, end: str | None, between: list[str]
    ) -> None:
        """The head, the locks, and the refusal of a database at a revision that this is not for."""
        shards, sqlite = self.target.shards, self.target.sqlite
        self._out.write(
            _HEAD.format(
                release=release,
                index=self.target.index,
                name=one_line(self._name),
                first=shards[0],
                last=shards[-1],
                start="an empty database" if start is None else f"revision {start}",
                end="the empty database" if end is None else f"revision {end}",
                how="with -bail: sqlite3 -bail FILE < this"
                if sqlite
                else "without --force: mysql -h HOST -u USER -p < this",
                again="It is one transaction: all of it, or nothing."
                if sqlite
                else "It may be run again when it was broken off: what is done is left alone.",
            )
        )
        if sqlite:
            self._write("BEGIN IMMEDIATE")
        else:
            quoted = self._name.replace("`", "``")
            self._write(f"USE `{quoted}`")
            self._write("SET NAMES utf8mb4")
            self._write(f"SET SESSION sql_mode = '{SQL_MODE}'")
            self._write(f"SET SESSION {lock_wait_assignments(self._lock_wait_s)}")
            lock = f"GET_LOCK({RUNNER}, {self._lock_wait_s}) = 1"
            self._write_requirement(lock, "another migration is running on this database")
            self._write_guard()
        self._write(
            f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        if not sqlite:
            known = ", ".join(f"'{revision}'" for revision in between)
            at = f"SELECT COUNT(*) FROM {VERSION_TABLE}"
            fits = f"({at} WHERE version_num NOT IN ({known})) = 0"
            if start is not None and end is not None:
                fits += f" AND ({at}) = 1"
            self._write_requirement(
                fits, "this database is not at a revision that this script is for"
            )

    def write_end(self) -> None:
        """Lets go of the locks. SQLite's transaction ends well only on the database that it is for."""
        self._out.write("\n")
        if self.target.sqlite:
            for statement in identity.guard_statements_sqlite(self.target, self._expected_meta):
                self._write(statement)
        self._write("COMMIT" if self.target.sqlite else f"DO RELEASE_LOCK({RUNNER})")

    def up(self, revision: str, steps: Steps) -> None:
        self._out.write(f"\n-- revision {revision}, up\n\n")
        for step in steps(self.target):
            self._write_statements(step.up(sqlite=self.target.sqlite))

    def down(self, revision: str, steps: Steps) -> None:
        taken = list(steps(self.target))[::-1]
        if any(_holds_jobs(step) for step in taken):
            text = "a script cannot see whether the job tables are empty: run the downgrade itself"
            raise MigrationFailed(self.target.index, None, text)
        self._out.write(f"\n-- revision {revision}, down\n\n")
        for step in taken:
            self._write_statements(step.down(sqlite=self.target.sqlite))

    def write_repair(self, fault: str, note: str, statements: Sequence[str]) -> None:
        """What takes one fault back, below comments that say what it is."""
        for text in (fault, note):
            if text:
                self._out.write(f"-- {' '.join(text.split())}\n")
        for statement in statements:
            self._write(statement.strip())

    def stamp(self, source: str | None, destination: str | None, fits_since: str) -> None:
        """The revision that is reached now, and which releases it fits, in one transaction."""
        if destination is None:
            self._write(f"DELETE FROM {VERSION_TABLE}")
            return
        if not self.target.sqlite:
            self._write("START TRANSACTION")
        if source is None:
            there = f"WHERE NOT EXISTS (SELECT 1 FROM {VERSION_TABLE})"
            dual = "" if self.target.sqlite else "FROM DUAL "
            self._write(f"INSERT INTO {VERSION_TABLE} SELECT '{destination}' {dual}{there}")
        else:
            self._write(
                f"UPDATE {VERSION_TABLE} SET version_num = '{destination}' "
                f"WHERE version_num = '{source}'"
            )
        reached = f" FROM {VERSION_TABLE} WHERE version_num = '{destination}'"
        self._write(_fits_sql(fits_since, reached))
        if not self.target.sqlite:
            self._write("COMMIT")

    def _write_statements(self, acts: list[StepStatement]) -> None:
        for act in acts:
            if act.unless is None or self.target.sqlite:
                self._write(act.sql)
            else:
                self._write_conditional(act.unless, "DO 0", act.sql)

    def _write_guard(self) -> None:
        """Stops the script, before it changes anything, on a database that it is not for."""
        self._write("SET @toc_meta = NULL")
        ask, wrong = identity.guard_sql(self.target, self._expected_meta)
        self._write_conditional(f"NOT {identity.HAS_META}", "DO 0", ask)
        self._write(
            f"SET @toc = COALESCE(CONCAT('SELECT `', REPLACE({wrong}, '`', ''), '`'), 'DO 0')"
        )
        self._write_execute()

    def _write_requirement(self, condition: str, complaint: str) -> None:
        # A server says of a column that is not there what its name is; SIGNAL cannot be prepared.
        self._write_conditional(condition, "DO 0", f"SELECT `{complaint}`")

    def _write_conditional(self, condition: str, then: str, otherwise: str) -> None:
        quoted = otherwise.replace("'", "''")
        self._write(f"SET @toc = IF({condition}, '{then}', '{quoted}')")
        self._write_execute()

    def _write_execute(self) -> None:
        for statement in ("PREPARE toc FROM @toc", "EXECUTE toc", "DEALLOCATE PREPARE toc"):
            self._write(statement)

    def _write(self, statement: str) -> None:
        self._out.write(f"{statement};\n")
