"""Where each database stands: its revision, what is pending, and what differs from what is declared.

For `toc migrate --status`. A few queries per database, the databases side by side; one that does not
answer is said to be so, and hides none of the others. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from toc.errors import StatementFailed, TocError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import drift, migrate
from toc.store.databases import Database, Databases
from toc.store.drift import DriftFinding
from toc.store.identity import describe_differences
from toc.store.recorded_meta import read_recorded_meta
from toc.store.schema_steps import SchemaStep, SchemaTarget, Shapes

PARALLEL_MAX = 8


@dataclass(frozen=True, slots=True)
class PendingRevision:
    """A revision that is to come. `open`: the tables and views whose steps are still to be taken.

    Fewer of them than `steps`: a run was broken off half-way.
    """

    revision: str
    phase: str
    title: str
    steps: int
    open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """One database. `error`: why nothing else is known; `misfit`: why this release must not use it.

    A revision that this release does not know has no `pending`, and is not compared with anything.
    """

    database: int
    revision: str | None = None
    pending: tuple[PendingRevision, ...] = ()
    faults: tuple[DriftFinding, ...] = ()
    notes: tuple[DriftFinding, ...] = ()
    misfit: str | None = None
    error: str | None = None

    @property
    def is_well(self) -> bool:
        """It answers, nothing is pending, and it is as declared."""
        return not (self.error or self.misfit or self.pending or self.faults)


def read_statuses(settings: Settings) -> list[SchemaStatus]:
    """Asks every database."""
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)

    def ask(database: Database) -> SchemaStatus:
        try:
            target = migrate.schema_target(settings, database.index)
            return read_status(database, target, settings.routing.facts())
        except TocError as error:
            return SchemaStatus(database.index, error=str(error))

    migrate.revisions()  # loaded once, not by each thread
    try:
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            return list(pool.map(ask, databases))
    finally:
        databases.close()


def read_status(
    database: Database, target: SchemaTarget, expected_meta: Mapping[str, str]
) -> SchemaStatus:
    """The revision of one database, and how its tables and its routing differ. Raises StoreUnavailable.

    `facts`: the routing that the settings say.

    With other settings than it was set up with, it is compared with nothing: all tables would be wrong.
    """
    revision = migrate.read_revision(database)
    at = 0 if revision is None else migrate.revision_position(revision)
    misfit = migrate.describe_incompatibility(database)
    if at is None:
        return SchemaStatus(database.index, revision, misfit=misfit)
    if revision is not None:
        kept: dict[str, str] = {}
        with suppress(StatementFailed):  # without a catalogue: that is found below
            kept = read_recorded_meta(database)
        wrong = describe_differences(target, expected_meta, kept)
        if wrong:
            text = f"{wrong}: put the settings right (TOC_DATABASES, TOC_SHARDS)"
            return SchemaStatus(database.index, revision, misfit=text)
    found = database.read(lambda connection: drift.read_shapes(connection, sqlite=target.sqlite))
    applied, ahead = migrate.revisions()[:at], migrate.revisions()[at:]
    faults, notes = drift.compare_shapes(found, _declared_shapes(applied, target))
    if ahead:  # what a broken-off run has made already is no surprise
        _, expected = drift.compare_shapes(found, _declared_shapes((*applied, *ahead), target))
        notes = [note for note in notes if note in expected]
    return SchemaStatus(
        database.index,
        revision,
        tuple(_pending_revision(r, list(r.steps(target)), found) for r in ahead),
        tuple(faults),
        tuple(notes),
        misfit,
    )


def _declared_shapes(revisions: Sequence[migrate.Revision], target: SchemaTarget) -> Shapes:
    steps = (step for revision in revisions for step in revision.steps(target))
    return drift.declared_shapes(steps, sqlite=target.sqlite)


def _pending_revision(
    revision: migrate.Revision, steps: list[SchemaStep], found: Shapes
) -> PendingRevision:
    still = dict.fromkeys(step.table for step in steps if not step.is_done(found))
    return PendingRevision(revision.name, revision.phase, revision.title, len(steps), tuple(still))
