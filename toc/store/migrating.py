"""How steps come to a database: run on a connection, or written as a script for a DBA.

`migrations/env.py` gives one of the two to each revision. A run holds a lock of the database's name
(GET_LOCK) from its first look to its last word, and waits for a table's metadata lock for
`lock_wait_s` only: everything that wants the table queues up behind a DDL that waits.

SQLite has transactions for DDL: there a run is one transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.errors import SchemaMismatch, StoreUnavailable, TocError
from toc.store.schema import FITS_SINCE
from toc.store.steps import INSTANT, REBUILDS, Act, MakeTable, Step, Steps, Target

VERSION_TABLE = "toc_alembic_version"
LOCK_WAIT_S = 5

_RUNNER = "LEFT(CONCAT('toc_migrate.', DATABASE()), 64)"
_LOCK_WAIT, _NO_TABLE = 1205, 1146
_WOULD_COPY = {
    1845,
    1846,
    4080,
    4092,
}  # ALGORITHM or LOCK is not possible; MySQL: too many row versions

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
class Stepped:
    """A step that was taken: which, of which revision, and how many of this database's are done."""

    database: int
    revision: str
    table: str
    is_view: bool
    done: int
    total: int


Progress = Callable[[Stepped], None]


class Online:
    """Runs steps on a database, each after a look.

    `may_rebuild`: rebuild a table where the server cannot change it at once. `total`: the steps of the
    whole run, for progress.
    """

    def __init__(
        self,
        target: Target,
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
            self._take(step, step.up(sqlite=self.target.sqlite))
            self._tell(revision, step)

    def down(self, revision: str, steps: Steps) -> None:
        """Takes them back, in reverse. Tables that hold jobs must be empty, all of them (I1)."""
        taken = list(steps(self.target))[::-1]
        for step in taken:
            if _holds_jobs(step):
                self._refuse_rows(step)
        for step in taken:
            if _holds_jobs(step):
                self._drop_empty(step)
            else:
                self._take(step, step.down(sqlite=self.target.sqlite))
            self._tell(revision, step)

    def _take(self, step: Step, acts: list[Act]) -> None:
        with self._named(step.table):
            for act in acts:
                if act.unless is None or not self._ask(f"SELECT {act.unless}"):
                    self._act(act.sql)

    def _act(self, sql: str) -> None:
        instant = sql.endswith(INSTANT)
        ways = ("", *REBUILDS) if instant and self._may_rebuild else ("",)
        for way in ways:
            try:
                self._do(sql.removesuffix(INSTANT) + way if way else sql)
            except DBAPIError as error:
                if number_of(error) not in _WOULD_COPY or way == ways[-1]:
                    raise
            else:
                return

    def _drop_empty(self, step: Step) -> None:
        """Nobody can write between the look and the drop: SQLite's run is one transaction."""
        if self.target.sqlite:
            self._refuse_rows(step)
            self._take(step, step.down(sqlite=True))
            return
        with self._named(step.table):
            try:
                self._do(f"LOCK TABLES {step.table} WRITE")
            except DBAPIError as error:
                if _is_no_table(error):  # an earlier run has dropped it
                    return
                raise
            try:
                self._refuse_rows(step)
                self._do(f"DROP TABLE {step.table}")
            finally:
                with suppress(DBAPIError):  # the connection may be lost
                    self._do("UNLOCK TABLES")

    def _refuse_rows(self, step: Step) -> None:
        with self._named(step.table):
            try:
                rows = self._ask(f"SELECT EXISTS (SELECT 1 FROM {step.table})")
            except DBAPIError as error:
                if _is_no_table(error):
                    return
                raise
        if rows:
            text = "it holds jobs, and is not dropped before it is empty; nothing of it was changed"
            raise MigrationFailed(self.target.index, step.table, text)

    def _tell(self, revision: str, step: Step) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(
                Stepped(
                    self.target.index,
                    revision,
                    step.table,
                    step.is_view,
                    self._done,
                    max(self._total, self._done),
                )
            )

    def _do(self, sql: str) -> None:
        self.connection.exec_driver_sql(sql, execution_options=_RAW)

    def _ask(self, sql: str) -> Any:
        return self.connection.exec_driver_sql(sql, execution_options=_RAW).scalar()

    @contextmanager
    def _named(self, table: str) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            number = number_of(error)
            text = text_of(error)
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


def _holds_jobs(step: Step) -> bool:
    return isinstance(step, MakeTable) and step.holds_jobs


# ---- connections


@contextmanager
def opened(index: int, url: str, lock_wait_s: int, connect_timeout_s: int) -> Iterator[Connection]:
    """A connection of the only runner on this database; on SQLite, inside its transaction."""
    sqlite = make_url(url).get_backend_name() == "sqlite"
    timeout = {"timeout": lock_wait_s} if sqlite else {"connect_timeout": connect_timeout_s}
    engine = create_engine(url, poolclass=NullPool, connect_args=timeout)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise StoreUnavailable(index, error) from error
    alone = (
        _one_writer(index, connection) if sqlite else _one_runner(index, connection, lock_wait_s)
    )
    with connection:
        try:
            with alone:
                yield connection
        except DBAPIError as error:  # not one of a step's, which name their tables
            raise MigrationFailed(index, None, text_of(error), number_of(error)) from error


@contextmanager
def _one_writer(index: int, connection: Connection) -> Iterator[None]:
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except DBAPIError as error:
        if "locked" not in str(error.orig):
            raise StoreUnavailable(index, error) from error
        text = (
            "another migration, or a long transaction, is writing; run it again when it has ended"
        )
        raise MigrationFailed(index, None, text) from error
    yield
    connection.commit()


@contextmanager
def _one_runner(index: int, connection: Connection, lock_wait_s: int) -> Iterator[None]:
    connection.exec_driver_sql(f"SET SESSION {_waits(lock_wait_s)}")
    if connection.exec_driver_sql(f"SELECT GET_LOCK({_RUNNER}, {lock_wait_s})").scalar() != 1:
        holder = connection.exec_driver_sql(f"SELECT IS_USED_LOCK({_RUNNER})").scalar()
        by = f" (the server's connection {holder})" if holder else ""
        raise MigrationFailed(index, None, f"another migration is running there{by}")
    connection.commit()
    try:
        yield
    finally:
        with suppress(DBAPIError):  # a lost connection has let it go
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({_RUNNER})")


def _waits(seconds: int) -> str:
    return f"lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"


def refuse_others(index: int, connection: Connection, facts: Mapping[str, str]) -> None:
    """Raises SchemaMismatch where the catalogue says that this is another database, or another routing.

    URLs in another order would make each database the tables of its neighbour's shards.
    """
    try:
        rows = connection.exec_driver_sql("SELECT name, value FROM toc_meta").all()
    except DBAPIError as error:
        if _is_no_table(error):  # before the first revision
            return
        raise
    kept = {str(name): str(value) for name, value in rows}
    for name, value in {**facts, "database": str(index)}.items():
        if kept.get(name, value) != value:
            raise SchemaMismatch(
                f"database {index} was set up with {name} = {kept[name]}, the settings say {value}: "
                "nothing was changed"
            )


def keep_fits_since(connection: Connection, fits_since: str) -> None:
    """Writes which releases' statements run on the schema, in the transaction of its revision."""
    connection.exec_driver_sql(_fits_sql(fits_since), execution_options=_RAW)


def _fits_sql(fits_since: str, condition: str = "") -> str:
    return f"REPLACE INTO toc_meta (name, value) SELECT '{FITS_SINCE}', '{fits_since}'{condition}"


def _is_no_table(error: DBAPIError) -> bool:
    return number_of(error) == _NO_TABLE or "no such table" in str(error.orig)


def number_of(error: DBAPIError) -> int | None:
    """The server's number of an error; None of SQLite."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def text_of(error: BaseException) -> str:
    """What the server says, on one line."""
    arguments = getattr(getattr(error, "orig", None), "args", ())
    lines = str(arguments[-1] if arguments else error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# ---- scripts

_HEAD = """\
-- toc {release}: database {index} ({name}), shards {first} to {last}: from {start} to {end}.
-- Run it as it is, {how}.
-- {again}
"""


class Script:
    """Writes the statements for one database, as a file that its server's own client can run.

    `start` and `end` are revisions, None for an empty database; `between` those that it may meet when
    it is run once more after it was broken off.
    """

    def __init__(
        self, target: Target, out: TextIO, name: str, *, lock_wait_s: int = LOCK_WAIT_S
    ) -> None:
        self.target = target
        self._out, self._name, self._lock_wait_s = out, name, lock_wait_s

    def begin(self, release: str, start: str | None, end: str | None, between: list[str]) -> None:
        """The head, the locks, and the refusal of a database at a revision that this is not for."""
        shards, sqlite = self.target.shards, self.target.sqlite
        self._out.write(
            _HEAD.format(
                release=release,
                index=self.target.index,
                name=self._name,
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
            self._write(f"SET SESSION {_waits(self._lock_wait_s)}")
            lock = f"GET_LOCK({_RUNNER}, {self._lock_wait_s}) = 1"
            self._require(lock, "another migration is running on this database")
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
            self._require(fits, "this database is not at a revision that this script is for")

    def end(self) -> None:
        """Lets go of the locks."""
        self._out.write("\n")
        self._write("COMMIT" if self.target.sqlite else f"DO RELEASE_LOCK({_RUNNER})")

    def up(self, revision: str, steps: Steps) -> None:
        self._out.write(f"\n-- revision {revision}, up\n\n")
        for step in steps(self.target):
            self._acts(step.up(sqlite=self.target.sqlite))

    def down(self, revision: str, steps: Steps) -> None:
        taken = list(steps(self.target))[::-1]
        if any(_holds_jobs(step) for step in taken):
            text = "a script cannot see whether the job tables are empty: run the downgrade itself"
            raise MigrationFailed(self.target.index, None, text)
        self._out.write(f"\n-- revision {revision}, down\n\n")
        for step in taken:
            self._acts(step.down(sqlite=self.target.sqlite))

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

    def _acts(self, acts: list[Act]) -> None:
        for act in acts:
            if act.unless is None or self.target.sqlite:
                self._write(act.sql)
            else:
                self._prepared(act.unless, "DO 0", act.sql)

    def _require(self, condition: str, complaint: str) -> None:
        # A server says of a column that is not there what its name is; SIGNAL cannot be prepared.
        self._prepared(condition, "DO 0", f"SELECT `{complaint}`")

    def _prepared(self, condition: str, then: str, otherwise: str) -> None:
        quoted = otherwise.replace("'", "''")
        self._write(f"SET @toc = IF({condition}, '{then}', '{quoted}')")
        for statement in ("PREPARE toc FROM @toc", "EXECUTE toc", "DEALLOCATE PREPARE toc"):
            self._write(statement)

    def _write(self, statement: str) -> None:
        self._out.write(f"{statement};\n")
