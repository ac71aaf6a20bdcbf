"""The schema of each database: its revision, the pending revisions, and the differences of its tables.

For `toc migrate --status`, `toc doctor` and the start of a node. A status needs a few queries of each
database, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from toc.errors import StatementFailed, TocError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate, schema_drift
from toc.store.database_identity import describe_meta_differences
from toc.store.databases import Database, Databases
from toc.store.migration_run import PARALLEL_MAX
from toc.store.recorded_meta import read_recorded_meta
from toc.store.schema_drift import DriftFinding
from toc.store.schema_steps import SchemaTarget
from toc.store.table_shapes import Shapes, read_shapes


@dataclass(frozen=True, slots=True)
class PendingRevision:
    """A revision that a database lacks. `open`: the tables and views whose steps have not been taken.

    If `open` has fewer names than the number `steps`, a run was interrupted.
    """

    revision: str
    phase: str
    title: str
    steps: int
    open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of one database. `error`: why the status could not be read.

    `incompatibility`: why this release must not use the database. At a revision that this release does not
    know nothing is `pending`, and the tables are not compared.
    """

    database: int
    revision: str | None = None
    pending: tuple[PendingRevision, ...] = ()
    faults: tuple[DriftFinding, ...] = ()
    notes: tuple[DriftFinding, ...] = ()
    incompatibility: str | None = None
    error: str | None = None

    @property
    def has_no_problem(self) -> bool:
        """Whether the database answers, no revision is pending, and the tables are as declared."""
        return not (self.error or self.incompatibility or self.pending or self.faults)


def read_schema_statuses(settings: Settings) -> list[SchemaStatus]:
    """Reads the status of all databases in parallel. A database that does not answer has an `error`."""
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)

    def read_status_or_error(database: Database) -> SchemaStatus:
        try:
            return read_schema_status(database, settings.routing.meta_values())
        except TocError as error:
            return SchemaStatus(database.index, error=str(error))

    migrate.revisions_of_release()  # loaded once, not by each thread
    try:
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            return list(pool.map(read_status_or_error, databases))
    finally:
        databases.close()


def read_schema_status(database: Database, expected_meta: Mapping[str, str]) -> SchemaStatus:
    """The status of one database. Raises StoreUnavailable.

    `expected_meta`: the routing of the settings. If the database was set up with another routing, the tables
    are not compared: all would differ.
    """
    target = SchemaTarget(database.index, database.shards, database.sqlite)
    revision = migrate.read_revision(database)
    at = 0 if revision is None else migrate.revision_position(revision)
    incompatibility = migrate.describe_incompatibility(database)
    if at is None:
        return SchemaStatus(database.index, revision, incompatibility=incompatibility)
    if revision is not None:
        recorded: dict[str, str] = {}
        # StatementFailed: toc_meta is missing. `compare_shapes` reports the missing table.
        with suppress(StatementFailed):
            recorded = read_recorded_meta(database)
        wrong = describe_meta_differences(target, expected_meta, recorded)
        if wrong:
            text = f"{wrong}: put the settings right (TOC_DATABASES, TOC_SHARDS)"
            return SchemaStatus(database.index, revision, incompatibility=text)
    found = database.run_read(lambda connection: read_shapes(connection, sqlite=target.sqlite))
    applied, ahead = migrate.revisions_of_release()[:at], migrate.revisions_of_release()[at:]
    faults, notes = schema_drift.compare_shapes(found, _declared_shapes(applied, target))
    if ahead:  # the parts that an interrupted run has made already are no drift
        _, expected = schema_drift.compare_shapes(
            found, _declared_shapes((*applied, *ahead), target)
        )
        notes = [note for note in notes if note in expected]
    return SchemaStatus(
        database.index,
        revision,
        tuple(_pending_revision(each, target, found) for each in ahead),
        tuple(faults),
        tuple(notes),
        incompatibility,
    )


def _declared_shapes(revisions: Sequence[migrate.Revision], target: SchemaTarget) -> Shapes:
    steps = (step for revision in revisions for step in revision.steps(target))
    return schema_drift.declared_shapes(steps, sqlite=target.sqlite)


def _pending_revision(
    revision: migrate.Revision, target: SchemaTarget, found: Shapes
) -> PendingRevision:
    steps = list(revision.steps(target))
    left = dict.fromkeys(step.table for step in steps if not step.is_applied(found))
    return PendingRevision(revision.name, revision.phase, revision.title, len(steps), tuple(left))
