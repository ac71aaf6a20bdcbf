"""Commits of the archive to a Delta table, so that each row is in the table once, whatever is killed.

A table keeps numbers for each database, as Delta's application transactions: the number of the run that began
last; the position before which rows are in the table, a time for jobs and an id for events; and the cutoff of
the run that reached this position. A commit changes all numbers and the list of files at once, or nothing.

delta-rs refuses a commit if another commit has changed a number that this commit changes too, since the
version that this commit has read. A run of a database first commits its own number, without files. From here
on every run of that database with a lower number fails at its commit, even if it was frozen for days. So a
run that has begun in the table knows for certain which rows of its database are there.

The numbers of runs come from the database (store/archive_status.py), and always increase there. If the table
has a higher number than the database, the database was restored from a backup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from toc.errors import TocError
from toc.reconcile.archive_tables import MARKS
from toc.reconcile.delta_tables import (
    COMMIT_TRIES_MAX,
    TableSpec,
    open_files,
    open_table,
    repeat_commit,
    table_url,
)
from toc.store.archive_status import ARCHIVED, ArchiveStatus
from toc.store.column_types import sql_time_of_ms
from toc.store.database_metadata import DATABASE_ID
from toc.store.databases import Database
from toc.store.recorded_meta import read_recorded_meta


class CannotArchive(TocError):
    """A database could not be archived; the text says why."""


@dataclass(slots=True)
class ArchiveTable:
    """A table of the archive, for one database.

    database_id: the id of the database, as its `toc_meta` has it. run: the number of this run, once it has
    begun.
    """

    root: str
    spec: TableSpec
    database: int
    database_id: str
    run: int = 0
    _table: DeltaTable = field(init=False)

    def __post_init__(self) -> None:
        self._table = open_table(self.root, self.spec)

    @classmethod
    def of_database(cls, root: str, spec: TableSpec, database: Database) -> ArchiveTable:
        """Opens the table for a database that was set up, which is asked for its id."""
        return cls(root, spec, database.index, read_recorded_meta(database)[DATABASE_ID])

    @property
    def url(self) -> str:
        return table_url(self.root, self.spec.name)

    @property
    def mark(self) -> str:
        """The row of `toc_meta` that says how far the table is."""
        return MARKS[self.spec.name]

    @property
    def position(self) -> int:
        """Rows of the database before this position (`ArchiveStatus.position`) are in the table; 0: none is.

        Since the run has begun, only this run can change the number.
        """
        return self._table.transaction_version(self._until_app) or 0

    def refuse_other_origin(self, status: ArchiveStatus | None) -> None:
        """Raises CannotArchive if the table has rows of another system, or of a later state of the database,
        or lacks rows that were archived, as when another folder is mounted.

        `status`: read after the table was opened.
        """
        owner = self._table.metadata().configuration.get(self._owner_property, self.database_id)
        if owner != self.database_id:
            raise CannotArchive(
                f"{self.url} has rows of another database {self.database}: do two systems share the folder, "
                "or was the database set up anew? Each system needs a folder of its own "
                "(docs/how-to/archive.md)"
            )
        last = self._read_last_run(self._table)
        if last > (0 if status is None else status.begun):
            raise CannotArchive(
                f"{self.url} has rows of run {last} of database {self.database}, but the database says that "
                f"run {0 if status is None else status.begun} was the last one: was it restored from a "
                f"backup? If so, set {self.mark} in its toc_meta to '{self._status_of_table(last)}' "
                "(docs/how-to/archive.md)"
            )
        if status is not None and status.position > self.position:
            # Perhaps a run has committed and then moved the mark since the table was opened.
            self._table = DeltaTable(self.url)
            if status.position > self.position:
                raise self._lacking_rows_error(status)

    def _status_of_table(self, run: int) -> ArchiveStatus:
        """What the database should say."""
        event_id = None if self.mark == ARCHIVED else self.position
        return ArchiveStatus(self.until_ms, run, run, event_id=event_id)

    def _lacking_rows_error(self, status: ArchiveStatus) -> CannotArchive:
        has = f"has only {self._describe(self.position)}" if self.position else "has no rows"
        return CannotArchive(
            f"{self.url} {has} of database {self.database}, but {self.mark} in its toc_meta says that "
            f"{self._describe(status.position)} are archived. Is the folder mounted, and is it "
            "the right one? If the archive shall go on in a new folder, run `toc archive begin` "
            "(docs/how-to/archive.md)"
        )

    def _describe(self, position: int) -> str:
        if self.mark == ARCHIVED:
            return f"jobs that ended before {sql_time_of_ms(position)}"
        return f"events with ids below {position}"

    def begin_run(self, run: int) -> None:
        """Writes the number of this run. Raises CannotArchive if a later run has begun."""
        self.run = run
        repeat_commit(self._try_to_begin)
        self._reload()

    @property
    def until_ms(self) -> int:
        """The cutoff of the run that reached `position`, in ms since 1970; 0: no run has."""
        return self._table.transaction_version(self._cutoff_app) or 0

    def commit_files(self, actions: Sequence[AddAction], position: int, until_ms: int) -> None:
        """Adds files and sets `position` and `until_ms`, in one commit.

        Raises CannotArchive if a later run has begun, and if this process does not see the files.
        """
        self._refuse_unseen_files(actions)
        numbers = [
            Transaction(self._run_app, self.run),
            Transaction(self._until_app, position),
            Transaction(self._cutoff_app, until_ms),
        ]

        def try_to_commit() -> None:
            try:
                self._commit(self._table, actions, numbers)
            except CommitFailedError:
                self._reload()
                if self.position != position:  # else only the answer of the commit was lost
                    raise

        repeat_commit(try_to_commit)
        self._reload()

    def _refuse_unseen_files(self, actions: Sequence[AddAction]) -> None:
        """delta-rs adds a file to the table whether it is there or not."""
        found = open_files(self.url).get_file_info([action.path for action in actions])
        for action, info in zip(actions, found, strict=True):
            if info.size != action.size:
                raise CannotArchive(
                    f"{self.url} has no file {action.path} of {action.size} bytes here, although an executor "
                    "wrote it: do all executors and this process see the same folder?"
                )

    def _try_to_begin(self) -> None:
        table = DeltaTable(self.url)
        if self._read_last_run(table) >= self.run:
            raise self._other_run_error()
        if self._owner_property not in table.metadata().configuration:
            table.alter.set_table_properties(
                {self._owner_property: self.database_id}, raise_if_not_exists=False
            )
            table = DeltaTable(self.url)
        if table.metadata().configuration[self._owner_property] != self.database_id:
            raise CannotArchive(f"{self.url}: another system has just begun to use this folder")
        self._commit(table, [], [Transaction(self._run_app, self.run)])

    def _commit(
        self, table: DeltaTable, actions: Sequence[AddAction], numbers: list[Transaction]
    ) -> None:
        table.create_write_transaction(
            list(actions),
            "append",
            table.schema(),
            partition_by=list(self.spec.partition_by),
            commit_properties=CommitProperties(
                custom_metadata={"toc": f"database {self.database}, run {self.run}"},
                max_commit_retries=COMMIT_TRIES_MAX,
                app_transactions=numbers,
            ),
        )

    def _reload(self) -> None:
        """Reads the newest version, in which this run must still be the last one that has begun."""
        self._table = DeltaTable(self.url)
        if self._read_last_run(self._table) != self.run:
            raise self._other_run_error()

    def _other_run_error(self) -> CannotArchive:
        return CannotArchive(
            "another run of the archive has begun meanwhile; this run changed nothing"
        )

    def _read_last_run(self, table: DeltaTable) -> int:
        return table.transaction_version(self._run_app) or 0

    @property
    def _run_app(self) -> str:
        return f"toc.run.{self.database_id}"

    @property
    def _until_app(self) -> str:
        return f"toc.until.{self.database_id}"

    @property
    def _cutoff_app(self) -> str:
        return f"toc.cutoff.{self.database_id}"

    @property
    def _owner_property(self) -> str:
        return f"toc.database.{self.database}"
