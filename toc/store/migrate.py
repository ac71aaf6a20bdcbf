"""Making, changing and checking the schema. The revisions are in `migrations/`, run by Alembic.

A revision of phase `pre` only adds: it comes before the release that needs it, and the release before
goes on running on it. One of phase `post` takes away what only older releases need: it comes after them.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Literal, TextIO

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError as AlembicError
from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from toc.errors import InvalidInput, SchemaMismatch
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases
from toc.store.migrating import (
    LOCK_WAIT_S,
    VERSION_TABLE,
    MigrationFailed,
    Progress,
    Script,
    Stepped,
)
from toc.store.schema import FITS_SINCE
from toc.store.steps import AddColumn, AddIndex, MakeTable, MakeView, Steps, Target

__all__ = [
    "BASE",
    "LOCK_WAIT_S",
    "VERSION_TABLE",
    "MigrationFailed",
    "Phase",
    "Progress",
    "Revision",
    "Stepped",
]

Phase = Literal["pre", "post", "all"]
BASE = "base"
"""The name of the revision before the first: nothing is there."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of this release. `fits_since`: the oldest release (its newest revision) that it fits."""

    name: str
    phase: str
    title: str
    fits_since: str
    steps: Steps


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a run left a database: its revision, and those that are pending still."""

    database: int
    revision: str | None
    pending: tuple[Revision, ...]


# ---- what this release brings


def _scripts() -> Path:
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_migrations"  # in an installed wheel
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _config(settings: Settings | None = None, **attributes: object) -> Config:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes.update(settings=settings, **attributes)
    return config


def revisions() -> tuple[Revision, ...]:
    """Those that this release brings, oldest first."""
    return _revisions(_scripts())


@functools.cache
def _revisions(scripts: Path) -> tuple[Revision, ...]:
    found = [
        Revision(
            script.revision,
            script.module.phase,
            script.doc.rstrip("."),
            script.module.fits_since,
            script.module.steps,
        )
        for script in ScriptDirectory(str(scripts)).walk_revisions()
    ]
    if not found:
        raise SchemaMismatch("no migrations were found")
    return tuple(reversed(found))


def head() -> str:
    """The newest revision that this release brings."""
    return revisions()[-1].name


def needed() -> str:
    """The oldest revision that this release's processes run on: all that is newer is of phase post."""
    return next(r.name for r in reversed(revisions()) if r.phase == "pre")


def known(name: str) -> int | None:
    """How many revisions lead to this one; 0 for the base, None when this release does not bring it."""
    if name == BASE:
        return 0
    return next((at for at, r in enumerate(revisions(), 1) if r.name == name), None)


def target_of(settings: Settings, index: int) -> Target:
    """A database of the settings, as revisions see it."""
    sqlite = make_url(settings.databases[index]).get_backend_name() == "sqlite"
    return Target(index, settings.routing.shards_of_database(index), sqlite)


# ---- whether a process may run on it


def revision_of(database: Database) -> str | None:
    """The revision a database stands at; None before the first migration."""
    return database.read(_revision)


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def fits_since(database: Database) -> str | None:
    """The oldest release that the schema says it fits; None when it does not say."""
    meta = database.meta
    query = select(meta.c.value).where(meta.c.name == FITS_SINCE)
    return database.read(lambda connection: connection.scalar(query))


def misfit(database: Database) -> str | None:
    """Why this release's processes must not use a database, and what to do; None: they may.

    They may when it stands at a revision from `needed()` to `head()`; and at a newer one that says it
    fits a release as old as this one.
    """
    found = revision_of(database)
    at = None if found is None else known(found)
    if at is not None:
        if at >= (known(needed()) or 0):
            return None
        return f"is at revision {found}, this release needs {needed()}: run `toc migrate`"
    if found is None:
        return f"is at revision none, this release needs {needed()}: run `toc migrate`"
    since = fits_since(database)
    if since is None:
        return (
            f"is at revision {found}, which this release does not know (its newest is {head()}) and which "
            "does not say that it fits: deploy the release that brought it"
        )
    if known(since) is None:
        return (
            f"is at revision {found}, which fits releases from {since} on; this one brings {head()}: "
            "deploy a newer release"
        )
    return None


def check(databases: Iterable[Database]) -> None:
    """Raises SchemaMismatch unless this release may run on each of them."""
    for database in databases:
        why = misfit(database)
        if why is not None:
            raise SchemaMismatch(f"database {database.index} {why}")


# ---- changing it


def upgrade(
    settings: Settings,
    progress: Progress | None = None,
    *,
    phase: Phase = "all",
    to: str | None = None,
    lock_wait_s: int = LOCK_WAIT_S,
    may_rebuild: bool = False,
) -> list[Reached]:
    """Brings every database to the newest revision, or as far as `phase` and `to` allow.

    pre: up to the first pending revision of phase post. post: only those of phase post; raises
    MigrationFailed where one of phase pre comes first. A database that is empty gets all, since no
    process can run on it. `to`: not beyond this revision. `may_rebuild`: where the server cannot change a
    table at once, rebuild it, and let writes wait if it must be. `progress` is called per table.

    Raises StoreUnavailable, SchemaMismatch (unknown revision, another routing), MigrationFailed (with
    database and table; the run may be repeated).
    """
    if to is not None and known(to) in (None, 0):
        raise InvalidInput("revision", to, f"must be one of {_names()}")
    reached = []
    with _databases(settings) as databases:
        for database in databases:
            found = _known_revision(database)
            goal = _goal(database.index, found, phase, to)
            if goal != found and goal is not None:
                ahead = revisions()[_at(found) : _at(goal)]
                config = _run(
                    settings, database.index, progress, lock_wait_s, ahead, may_rebuild=may_rebuild
                )
                command.upgrade(config, goal)
            reached.append(Reached(database.index, goal, revisions()[_at(goal) :]))
    return reached


def downgrade(
    settings: Settings,
    to: str,
    progress: Progress | None = None,
    *,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[Reached]:
    """Takes back every revision after `to`, on every database; "base" takes back all.

    Raises InvalidInput for an unknown revision, MigrationFailed where tables that would be dropped hold
    jobs: then nothing has been changed on any database.
    """
    if known(to) is None:
        raise InvalidInput("revision", to, f"must be one of {_names()} or {BASE}")
    reached = []
    with _databases(settings) as databases:
        found = {database: _known_revision(database) for database in databases}
        for database in databases:
            _refuse_jobs(
                database, target_of(settings, database.index), _at(to), _at(found[database])
            )
        for database in databases:
            back = revisions()[_at(to) : _at(found[database])]
            if back:
                config = _run(settings, database.index, progress, lock_wait_s, back)
                command.downgrade(config, to)
            left = to if back else found[database]
            left = None if left == BASE else left
            reached.append(Reached(database.index, left, revisions()[_at(left) :]))
    return reached


def taken_back(settings: Settings, to: str) -> list[str]:
    """What a downgrade would drop in any of the databases, in words. Raises like `downgrade`."""
    at = known(to)
    if at is None:
        raise InvalidInput("revision", to, f"must be one of {_names()} or {BASE}")
    with _databases(settings) as databases:
        found = max(_at(_known_revision(database)) for database in databases)
    steps = [step for r in revisions()[at:found] for step in r.steps(target_of(settings, 0))]
    columns = Counter(step.column for step in steps if isinstance(step, AddColumn))
    indexes = Counter(step.index for step in steps if isinstance(step, AddIndex))
    tables = [step.table for step in steps if isinstance(step, MakeTable) and not step.holds_jobs]
    jobs = sum(isinstance(step, MakeTable) and step.holds_jobs for step in steps)
    return [
        *(f"view {step.table}" for step in steps if isinstance(step, MakeView)),
        *(f"column {name} of {count} tables" for name, count in columns.items()),
        *(f"index {name} of {count} tables" for name, count in indexes.items()),
        *(f"table {name}" for name in tables),
        *([f"{jobs} job tables, if they are empty"] if jobs else []),
    ]


def _refuse_jobs(database: Database, target: Target, to: int, found: int) -> None:
    for revision in revisions()[to:found]:
        for step in revision.steps(target):
            if isinstance(step, MakeTable) and step.holds_jobs and _has_rows(database, step.table):
                text = "it holds jobs, and is not dropped before it is empty; nothing was changed"
                raise MigrationFailed(database.index, step.table, text)


def _has_rows(database: Database, table: str) -> bool:
    def look(connection: Connection) -> bool:
        if not connection.dialect.has_table(connection, table):
            return False
        return bool(connection.exec_driver_sql(f"SELECT EXISTS (SELECT 1 FROM {table})").scalar())  # noqa: S608

    return database.read(look)


def _goal(index: int, found: str | None, phase: Phase, to: str | None) -> str | None:
    """The revision that a database is to be brought to."""
    at, end = _at(found), len(revisions()) if to is None else _at(to)
    if end < at:
        text = f"it is at revision {found} already; the way back is --down-to {to}"
        raise MigrationFailed(index, None, text)
    ahead = revisions()[at:end]
    if found is None or phase == "all" or not ahead:
        return revisions()[end - 1].name if ahead else found
    if phase == "post" and ahead[0].phase == "pre":
        text = f"revision {ahead[0].name} is of phase pre and comes first: run `toc migrate`, and deploy"
        raise MigrationFailed(index, None, text)
    goal = found
    for revision in ahead:
        if revision.phase != phase:
            break
        goal = revision.name
    return goal


def _known_revision(database: Database) -> str | None:
    found = revision_of(database)
    if found is not None and known(found) is None:
        raise SchemaMismatch(
            f"database {database.index} is at revision {found}, which this release does not know (its newest "
            f"is {head()}): migrate with the release that brought it"
        )
    return found


def _at(name: str | None) -> int:
    return 0 if name is None else known(name) or 0


def _names() -> str:
    return ", ".join(revision.name for revision in revisions())


def _run(
    settings: Settings,
    index: int,
    progress: Progress | None,
    lock_wait_s: int,
    taken: Iterable[Revision],
    *,
    may_rebuild: bool = False,
) -> Config:
    target = target_of(settings, index)
    total = 0 if progress is None else sum(1 for r in taken for _ in r.steps(target))
    return _config(
        settings,
        only=index,
        progress=progress,
        total=total,
        lock_wait_s=lock_wait_s,
        may_rebuild=may_rebuild,
    )


@contextmanager
def _databases(settings: Settings) -> Iterator[Databases]:
    databases = Databases.of(settings, SystemClock(), pool_size=1)
    try:
        yield databases
    finally:
        databases.close()


# ---- scripts for DBAs


def write_script(
    settings: Settings,
    out: TextIO | None = None,
    directory: Path | None = None,
    *,
    start: str = BASE,
    end: str | None = None,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[Path]:
    """Writes what would be run, from one revision to another (default: the newest), up or down.

    One file per database into `directory`, whose paths are returned; without it, for one database, to
    `out`. Connects to nothing.
    """
    end = head() if end is None else end
    for name in (start, end):
        if known(name) is None:
            raise InvalidInput("revision", name, f"must be one of {_names()} or {BASE}")
    if directory is None and len(settings.databases) > 1:
        refuse_one_stream(len(settings.databases))
    files = range(len(settings.databases)) if directory else ()
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    config = _config(settings, out=out, directory=directory, lock_wait_s=lock_wait_s)
    run = command.upgrade if _at(end) >= _at(start) else command.downgrade
    run(config, f"{start}:{end}", sql=True)
    return [directory / script_name(settings, index) for index in files] if directory else []


def begin_script(script: Script, start: str | None, end: str | tuple[str, ...] | None) -> None:
    """Writes a script's head. Called by `env.py`."""
    named = [name if isinstance(name, str) and name != BASE else None for name in (start, end)]
    for name in named:
        if name is not None and known(name) is None:  # +1, -1
            raise AlembicError(f"--sql needs revisions by their names: {_names()}")
    low, high = sorted(map(_at, named))
    between = [revision.name for revision in revisions()[max(low - 1, 0) : high]]
    first, last = named
    script.begin(version_of("toc"), first, last, between)


def refuse_one_stream(count: int) -> None:
    """Raises: one stream of SQL for several databases would be run on one of them."""
    raise InvalidInput(
        "--sql", count, "there are several databases: --directory DIR writes a script for each"
    )


def database_name(settings: Settings, index: int) -> str:
    """The name of a database on its server; of SQLite, its file's."""
    url = make_url(settings.databases[index])
    name = str(url.database)
    return Path(name).name if url.get_backend_name() == "sqlite" else name


def script_name(settings: Settings, index: int) -> str:
    """The file name of a database's script: toc_0_orders.sql."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", database_name(settings, index))
    return f"toc_{index}_{name}.sql"
