"""The revisions of the schema: whether this release fits a database, and how the database is changed.

The revisions are in `migrations/`; Alembic runs them. A revision of phase `pre` only adds: it is run before
the release that needs it, while the release before it still runs. A revision of phase `post` removes things
that only older releases need: it is run when none of their processes is left.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version as version_of
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO

from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from toc.errors import InvalidInput, SchemaMismatch
from toc.runtime.clock import SystemClock
from toc.runtime.private_files import make_private_directory, open_private_file
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases
from toc.store.migration_run import ContextFactory, MigrationRun, MigrationTask, RevisionApplied
from toc.store.schema import FITS_SINCE, VERSION_TABLE
from toc.store.schema_executor import (
    LOCK_WAIT_S,
    CompletedStep,
    MigrationFailed,
    Progress,
    ScriptExecutor,
    refuse_table_with_jobs,
    tables_holding_jobs,
)
from toc.store.schema_steps import AddColumn, MakeTable, MakeView, SchemaTarget, Steps

if TYPE_CHECKING:
    from alembic.migration import MigrationContext

# Only the function that changes a schema imports Alembic. Every client asks which revision a database is
# at, and the import of Alembic would take a third of the time of the client's first call.

__all__ = [
    "BASE",
    "LOCK_WAIT_S",
    "VERSION_TABLE",
    "CompletedStep",
    "MigrationFailed",
    "Phase",
    "Progress",
    "Revision",
]

Phase = Literal["pre", "post", "all"]
BASE = "base"
"""The name of the state before the first revision: a database without tables of toc."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision. `fits_since`: the oldest release whose statements run on the
    schema of this revision; a release is named by its newest revision."""

    name: str
    phase: str
    title: str
    fits_since: str
    steps: Steps


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The revision that a run brought a database to, and the revisions that are still pending."""

    database: int
    revision: str | None
    pending: tuple[Revision, ...]


# ---- what this release brings


@functools.cache
def _migrations_directory() -> Path:
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_migrations"  # in an installed wheel
    return packaged if packaged.is_dir() else package.parent / "migrations"


def revisions_of_release() -> tuple[Revision, ...]:
    """The revisions that this release brings, oldest first."""
    return _load_revisions(_migrations_directory())


@functools.cache
def _load_revisions(scripts: Path) -> tuple[Revision, ...]:
    found: list[Revision] = []
    for path in sorted((scripts / "versions").glob("[0-9]*.py")):
        module = _load_module(path)
        before = found[-1].name if found else None
        if module.down_revision != before:
            raise SchemaMismatch(
                f"migration {path.name} follows revision {module.down_revision}, but the file before it "
                f"has revision {before}: install toc again"
            )
        title = str(module.__doc__).partition("\n\n")[0].strip().rstrip(".")
        found.append(
            Revision(module.revision, module.phase, title, module.fits_since, module.steps)
        )
    if not found:
        raise SchemaMismatch("no migrations were found: install toc again")
    return tuple(found)


def _load_module(path: Path) -> Any:
    """The module of a revision, loaded by its path: a module's name cannot begin with a digit."""
    spec = spec_from_file_location(f"toc_revision_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it is a Python file
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def newest_revision() -> str:
    """The newest revision that this release brings."""
    return revisions_of_release()[-1].name


def oldest_usable_revision() -> str:
    """The oldest revision that this release's processes run on: all later revisions are of phase post."""
    return next(r.name for r in reversed(revisions_of_release()) if r.phase == "pre")


def revision_position(name: str) -> int | None:
    """How many revisions lead to this one; 0 for the base, None for a revision that this release lacks."""
    if name == BASE:
        return 0
    return next((at for at, r in enumerate(revisions_of_release(), 1) if r.name == name), None)


def schema_target(settings: Settings, index: int) -> SchemaTarget:
    """A database of the settings, as revisions see it."""
    sqlite = make_url(settings.databases[index]).get_backend_name() == "sqlite"
    return SchemaTarget(index, settings.routing.shards_of_database(index), sqlite)


# ---- whether a process may use a database


def read_revision(database: Database) -> str | None:
    """The revision that a database is at; None before the first migration."""
    return database.run_read(read_revision_of_connection)


def read_revision_of_connection(connection: Connection) -> str | None:
    """The revision that a connection's database is at; None before the first migration."""
    if not connection.dialect.has_table(connection, VERSION_TABLE):
        return None
    return connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608


def read_fits_since(database: Database) -> str | None:
    """The oldest release that the schema says it fits; None when it does not say."""
    meta = database.meta
    query = select(meta.c.value).where(meta.c.name == FITS_SINCE)
    return database.run_read(lambda connection: connection.scalar(query))


def describe_incompatibility(database: Database) -> str | None:
    """Says why this release's processes must not use a database, and what to do; None: they may use it.

    A database may be used at each revision from `oldest_usable_revision()` to `newest_revision()`, and at a
    newer revision whose entry in `toc_meta` says that it fits this release.
    """
    found, oldest = read_revision(database), oldest_usable_revision()
    at = revision_position(found or BASE)
    if at is not None:
        if at >= _position_or_zero(oldest):
            return None
        return f"is at revision {found or 'none'}, this release needs {oldest}: run `toc migrate`"
    since = read_fits_since(database)
    if since is None:
        return (
            f"is at revision {found}, which this release does not know (its newest is {newest_revision()}) "
            "and which does not say that it fits: deploy the release that brought it"
        )
    if revision_position(since) is None:
        return (
            f"is at revision {found}, which fits releases from {since} on; "
            f"this one brings {newest_revision()}: deploy a newer release"
        )
    return None


def refuse_incompatible(databases: Iterable[Database]) -> None:
    """Raises SchemaMismatch unless this release may run on each of these databases."""
    for database in databases:
        why = describe_incompatibility(database)
        if why is not None:
            raise SchemaMismatch(f"database {database.index} {why}")


# ---- changing the schema of databases


def upgrade(
    settings: Settings,
    progress: Progress | None = None,
    *,
    phase: Phase = "all",
    to: str | None = None,
    lock_wait_s: int = LOCK_WAIT_S,
    may_rebuild: bool = False,
    parallel: int = 1,
) -> list[MigrationResult]:
    """Brings every database to the newest revision, or as far as `phase` and `to` allow.

    pre: up to the first pending revision of phase post. post: only revisions of phase post; raises
    MigrationFailed if a pending revision of phase pre comes first. An empty database gets all revisions,
    because no process can run on it. `to`: the last revision to reach. `may_rebuild`: a table that the server
    cannot change at once is rebuilt, if necessary while writes wait. `progress` is called per table.
    `parallel`: the number of databases that are changed at a time; the first error stops all.

    Raises StoreUnavailable, SchemaMismatch (unknown revision, another routing), MigrationFailed (with
    database and table; the run may be repeated).
    """
    if to is not None:
        _refuse_unknown_revision(to, allow_base=False)
    reached, tasks = [], []
    with _open_databases(settings) as databases:
        for database in databases:
            found = _read_known_revision(database)
            goal = _target_revision(database.index, found, phase, to)
            if goal is not None and goal != found:
                tasks.append(_plan_task(settings, database.index, found, goal))
            reached.append(_migration_result(database.index, goal))
    run = MigrationRun(settings, progress, lock_wait_s=lock_wait_s, may_rebuild=may_rebuild)
    run.run_tasks(tasks, parallel)
    return reached


def downgrade(
    settings: Settings,
    to: str,
    progress: Progress | None = None,
    *,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[MigrationResult]:
    """Takes back every revision after `to`, on every database; "base" takes back all.

    Raises InvalidInput for an unknown revision, MigrationFailed where tables that would be dropped hold
    jobs: then nothing has been changed on any database.
    """
    _refuse_unknown_revision(to)
    reached, tasks = [], []
    with _open_databases(settings) as databases:
        for database in databases:
            found = _read_known_revision(database)
            back = revisions_of_release()[_position_or_zero(to) : _position_or_zero(found)]
            if back:
                _refuse_tables_with_jobs(database, back)
                tasks.append(_plan_task(settings, database.index, found, to))
            reached.append(_migration_result(database.index, to if back else found))
    MigrationRun(settings, progress, lock_wait_s=lock_wait_s).run_tasks(tasks)
    return reached


def _plan_task(settings: Settings, index: int, found: str | None, goal: str) -> MigrationTask:
    low, high = sorted((_position_or_zero(found), _position_or_zero(goal)))
    target = schema_target(settings, index)
    total = sum(1 for revision in revisions_of_release()[low:high] for _ in revision.steps(target))
    return MigrationTask(
        target, _alembic_context_factory(goal, up=_position_or_zero(found) == low), total
    )


def _alembic_context_factory(goal: str, *, up: bool) -> ContextFactory:
    """Makes Alembic's contexts for the revisions to `goal`. Alembic's environment serves only one thread."""
    from alembic.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    logging.getLogger("alembic").setLevel(logging.WARNING)
    scripts = ScriptDirectory(str(_migrations_directory()))
    choose = scripts._upgrade_revs if up else scripts._downgrade_revs  # noqa: SLF001

    def make_context(connection: Connection, applied: RevisionApplied) -> MigrationContext:
        options = {
            "version_table": VERSION_TABLE,
            "on_version_apply": (applied,),
            "fn": lambda heads, _: choose(goal, heads),
        }
        return MigrationContext.configure(connection, opts=options)

    return make_context


def _migration_result(index: int, revision: str | None) -> MigrationResult:
    at = None if revision == BASE else revision
    return MigrationResult(index, at, revisions_of_release()[_position_or_zero(at) :])


def list_downgrade_drops(settings: Settings, to: str) -> list[str]:
    """Describes the tables, views and columns that a downgrade would drop. Raises like `downgrade`."""
    _refuse_unknown_revision(to)
    with _open_databases(settings) as databases:
        found = max(_position_or_zero(_read_known_revision(database)) for database in databases)
    target = schema_target(settings, 0)
    steps = [
        step
        for r in revisions_of_release()[_position_or_zero(to) : found]
        for step in r.steps(target)
    ]
    columns = Counter(step.column for step in steps if isinstance(step, AddColumn))
    jobs = tables_holding_jobs(steps)
    return [
        *(f"view {step.table}" for step in steps if isinstance(step, MakeView)),
        *(f"column {name} of {count} tables" for name, count in columns.items()),
        *(f"table {s.table}" for s in steps if isinstance(s, MakeTable) and s.table not in jobs),
        *([f"{len(jobs)} job tables, if they are empty"] if jobs else []),
    ]


def _refuse_tables_with_jobs(database: Database, taken_back: Sequence[Revision]) -> None:
    target = SchemaTarget(database.index, database.shards, database.sqlite)
    tables = [
        table for revision in taken_back for table in tables_holding_jobs(revision.steps(target))
    ]

    def refuse_each_table(connection: Connection) -> None:
        for table in tables:
            refuse_table_with_jobs(connection, database.index, table)

    database.run_read(refuse_each_table)


def _target_revision(index: int, found: str | None, phase: Phase, to: str | None) -> str | None:
    """The revision that a database is to be brought to."""
    at, end = (
        _position_or_zero(found),
        len(revisions_of_release()) if to is None else _position_or_zero(to),
    )
    if end < at:
        text = f"it is at revision {found} already; the way back is --down-to {to}"
        raise MigrationFailed(index, None, text)
    ahead = revisions_of_release()[at:end]
    if found is None or phase == "all" or not ahead:
        return revisions_of_release()[end - 1].name if ahead else found
    if phase == "post" and ahead[0].phase == "pre":
        text = f"revision {ahead[0].name} is of phase pre and comes first: run `toc migrate`, and deploy"
        raise MigrationFailed(index, None, text)
    goal = found
    for revision in ahead:
        if revision.phase != phase:
            break
        goal = revision.name
    return goal


def _read_known_revision(database: Database) -> str | None:
    found = read_revision(database)
    if found is not None and revision_position(found) is None:
        raise SchemaMismatch(
            f"database {database.index} is at revision {found}, which this release does not know (its newest "
            f"is {newest_revision()}): migrate with the release that brought it"
        )
    return found


def _position_or_zero(name: str | None) -> int:
    return 0 if name is None else revision_position(name) or 0


def _refuse_unknown_revision(revision: str, *, allow_base: bool = True) -> None:
    """Raises InvalidInput for a revision that this release does not bring."""
    if revision_position(revision) is None or (revision == BASE and not allow_base):
        names = ", ".join(each.name for each in revisions_of_release())
        base = f" or {BASE}" if allow_base else ""
        raise InvalidInput("revision", revision, f"must be one of {names}{base}")


@contextmanager
def _open_databases(settings: Settings) -> Iterator[Databases]:
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)
    try:
        yield databases
    finally:
        databases.close()


# ---- scripts for DBAs


def write_migration_scripts(
    settings: Settings,
    out: TextIO | None = None,
    directory: Path | None = None,
    *,
    start: str = BASE,
    end: str | None = None,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[Path]:
    """Writes the statements from one revision to another (default: the newest), up or down.

    One file per database into `directory`, whose paths are returned; without it, for one database, to
    `out`. Connects to nothing.
    """
    end = newest_revision() if end is None else end
    for name in (start, end):
        _refuse_unknown_revision(name)
    if end == BASE:
        text = "a script cannot see whether the job tables are empty: run the downgrade itself"
        raise MigrationFailed(0, None, text)
    low, high = sorted((_position_or_zero(start), _position_or_zero(end)))
    between = [revision.name for revision in revisions_of_release()[max(low - 1, 0) : high]]
    paths = prepare_script_paths(settings, directory)
    for index in range(len(settings.databases)):
        with open_script(settings, index, paths, out, lock_wait_s) as script:
            first = None if start == BASE else start
            script.write_head(version_of("toc"), first, end, between)
            _write_revision_range(script, low, high, up=_position_or_zero(start) == low)
            script.write_end()
    return paths


def _write_revision_range(script: ScriptExecutor, low: int, high: int, *, up: bool) -> None:
    """Writes the revisions between two positions."""
    for at in range(low, high) if up else range(high - 1, low - 1, -1):
        revision = revisions_of_release()[at]
        before = revisions_of_release()[at - 1] if at else None
        if up:
            script.up(revision.name, revision.steps)
            script.write_revision_stamp(
                before.name if before else None, revision.name, revision.fits_since
            )
        elif before is not None:  # scripts do not lead to the base
            script.down(revision.name, revision.steps)
            script.write_revision_stamp(revision.name, before.name, before.fits_since)


def prepare_script_paths(
    settings: Settings, directory: Path | None, prefix: str = ""
) -> list[Path]:
    """Makes the directory and returns the path of each database's script; []: no directory is given.

    Raises InvalidInput: one stream of SQL for several databases would be run on one of them.
    """
    count = len(settings.databases)
    if directory is not None:
        make_private_directory(directory)
        return [directory / f"{prefix}{_script_name(settings, index)}" for index in range(count)]
    if count > 1:
        raise InvalidInput(
            "--sql", count, "there are several databases: --directory DIR writes a script for each"
        )
    return []


@contextmanager
def open_script(
    settings: Settings, index: int, paths: Sequence[Path], out: IO[str] | None, lock_wait_s: int
) -> Iterator[ScriptExecutor]:
    """The script of a database: in its file of `paths`, or written to `out` (default: standard output)."""
    with open_private_file(paths[index], "w") if paths else nullcontext(out or sys.stdout) as file:
        target, name = schema_target(settings, index), _database_name(settings, index)
        yield ScriptExecutor(
            target, file, name, settings.routing.meta_values(), lock_wait_s=lock_wait_s
        )


def _database_name(settings: Settings, index: int) -> str:
    """The name of a database on its server; of SQLite, its file's."""
    url = make_url(settings.databases[index])
    name = str(url.database)
    return Path(name).name if url.get_backend_name() == "sqlite" else name


def _script_name(settings: Settings, index: int) -> str:
    """The file name of a database's script: toc_0_orders.sql."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", _database_name(settings, index))
    return f"toc_{index}_{name}.sql"
