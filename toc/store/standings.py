"""Where each database stands: its revision, what is pending, and what differs from what is declared.

For `toc migrate --status`. A few queries per database, the databases side by side; one that does not
answer is said to be so, and hides none of the others. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from toc.errors import TocError
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import drift, migrate
from toc.store.databases import Database, Databases
from toc.store.drift import Finding
from toc.store.steps import Shapes, Step, Target

PARALLEL_MAX = 8


@dataclass(frozen=True, slots=True)
class Pending:
    """A revision that is to come. `open`: the tables and views whose steps are still to be taken.

    Fewer of them than `steps`: a run was broken off half-way.
    """

    revision: str
    phase: str
    title: str
    steps: int
    open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """One database. `error`: why nothing else is known; `misfit`: why this release must not use it.

    A revision that this release does not know has no `pending`, and is not compared with anything.
    """

    database: int
    revision: str | None = None
    pending: tuple[Pending, ...] = ()
    faults: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    misfit: str | None = None
    error: str | None = None

    @property
    def is_well(self) -> bool:
        """It answers, nothing is pending, and it is as declared."""
        return not (self.error or self.misfit or self.pending or self.faults)


def standings(settings: Settings) -> list[Standing]:
    """Asks every database."""
    databases = Databases.of(settings, SystemClock(), pool_size=1)

    def ask(database: Database) -> Standing:
        try:
            return _standing(database, migrate.target_of(settings, database.index))
        except TocError as error:
            return Standing(database.index, error=str(error))

    migrate.revisions()  # loaded once, not by each thread
    try:
        with ThreadPoolExecutor(PARALLEL_MAX) as pool:
            return list(pool.map(ask, databases))
    finally:
        databases.close()


def _standing(database: Database, target: Target) -> Standing:
    revision = migrate.revision_of(database)
    at = 0 if revision is None else migrate.known(revision)
    misfit = migrate.misfit(database)
    if at is None:
        return Standing(database.index, revision, misfit=misfit)
    found = database.read(lambda connection: drift.look(connection, sqlite=target.sqlite))
    applied, ahead = migrate.revisions()[:at], migrate.revisions()[at:]
    faults, notes = drift.compare(found, _declared(applied, target))
    if ahead:  # what a broken-off run has made already is no surprise
        _, expected = drift.compare(found, _declared((*applied, *ahead), target))
        notes = [note for note in notes if note in expected]
    return Standing(
        database.index,
        revision,
        tuple(_pending(r, list(r.steps(target)), found) for r in ahead),
        tuple(faults),
        tuple(notes),
        misfit,
    )


def _declared(revisions: Sequence[migrate.Revision], target: Target) -> Shapes:
    steps = (step for revision in revisions for step in revision.steps(target))
    return drift.declared(steps, sqlite=target.sqlite)


def _pending(revision: migrate.Revision, steps: list[Step], found: Shapes) -> Pending:
    still = tuple(step.table for step in steps if not step.is_done(found))
    return Pending(revision.name, revision.phase, revision.title, len(steps), still)
