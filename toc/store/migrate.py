"""Making, changing and checking the schema. The revisions are in `migrations/`, run by Alembic.

A revision of phase `pre` only adds: it comes before the release that needs it, and the release before
goes on running on it. One of phase `post` takes away what only older releases need: it comes after them.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as version_of
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from toc.errors import InvalidInput, SchemaMismatch
from toc.runtime.clock import SystemClock
from toc.runtime.files import make_directory
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases
from toc.store.parallel_migration import ContextFactory, MigrationTask, ParallelUpgrade
from toc.store.schema import FITS_SINCE
from toc.store.schema_executor import (
    LOCK_WAIT_S,
    VERSION_TABLE,
    MigrationFailed,
    Progress,
    ScriptExecutor,
    StepProgress,
)
from toc.store.schema_steps import AddColumn, AddIndex, MakeTable, MakeView, SchemaTarget, Steps

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported by the functions that change a schema. Every client asks which revision a
# database has, and the import of Alembic would take a third of the time of its first call.

__all__ = [
    "BASE",
    "LOCK_WAIT_S",
    "VERSION_TABLE",
    "MigrationFailed",
    "Phase",
    "Progress",
    "Revision",
    "StepProgress",
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
class MigrationResult:
    """Where a run left a database: its revision, and those that are pending still."""

    database: int
    revision: str | None
    pending: tuple[Revision, ...]


# ---- what this release brings


def _scripts() -> Path:
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_migrations"  # in an installed wheel
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _alembic_config(settings: Settings | None = None, **attributes: object) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see above

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes.update(settings=settings, **attributes)
    return config


def _alembic_commands() -> Any:
    from alembic import command  # noqa: PLC0415 - see above

    return command


def revisions() -> tuple[Revision, ...]:
    """Those that this release brings, oldest first."""
    return _revisions(_scripts())


@functools.cache
def _revisions(scripts: Path) -> tuple[Revision, ...]:
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
    """The module of a revision. Its file name is no module name, so it is loaded by its path."""
    spec = spec_from_file_location(f"toc_revision_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it is a Python file
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def newest_revision() -> str:
    """The newest revision that this release brings."""
    return revisions()[-1].name


def oldest_usable_revision() -> str:
    """The oldest revision that this release's processes run on: all that is newer is of phase post."""
    return next(r.name for r in reversed(revisions()) if r.phase == "pre")


def revision_position(name: str) -> int | None:
    """How many revisions lead to this one; 0 for the base, None when this release does not bring it."""
    if name == BASE:
        return 0
    return next((at for at, r in enumerate(revisions(), 1) if r.name == name), None)


def schema_target(settings: Settings, index: int) -> SchemaTarget:
    """A database of the settings, as revisions see it."""
    sqlite = make_url(settings.databases[index]).get_backend_name() == "sqlite"
    return SchemaTarget(index, settings.routing.shards_of_database(index), sqlite)


# ---- whether a process may run on it


def read_revision(database: Database) -> str | None:
    """The revision a database stands at; None before the first migration."""
    return database.read(current_revision)


def current_revision(connection: Connection) -> str | None:
    """The revision that a connection's database stands at; None before the first migration."""
    if not connection.dialect.has_table(connection, VERSION_TABLE):
        return None
    return connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608


def read_fits_since(database: Database) -> str | None:
    """The oldest release that the schema says it fits; None when it does not say."""
    meta = database.meta
    query = select(meta.c.value).where(meta.c.name == FITS_SINCE)
    return database.read(lambda connection: connection.scalar(query))


def describe_incompatibility(database: Database) -> str | None:
    """Why this release's processes must not use a database, and what to do; None: they may.

    They may when it stands at a revision from `needed()` to `head()`; and at a newer one that says it
    fits a release as old as this one.
    """
    found = read_revision(database)
    at = None if found is None else revision_position(found)
    if at is not None:
        if at >= (revision_position(oldest_usable_revision()) or 0):
            return None
        return f"is at revision {found}, this release needs {oldest_usable_revision()}: run `toc migrate`"
    if found is None:
        return (
            f"is at revision none, this release needs {oldest_usable_revision()}: run `toc migrate`"
        )
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
    """Raises SchemaMismatch unless this release may run on each of them."""
    for database in databases:
        why = describe_incompatibility(database)
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
    parallel: int = 1,
) -> list[MigrationResult]:
    """Brings every database to the newest revision, or as far as `phase` and `to` allow.

    pre: up to the first pending revision of phase post. post: only those of phase post; raises
    MigrationFailed where one of phase pre comes first. A database that is empty gets all, since no
    process can run on it. `to`: not beyond this revision. `may_rebuild`: where the server cannot change a
    table at once, rebuild it, and let writes wait if it must be. `progress` is called per table.
    `parallel`: so many databases at a time; the first error stops them all.

    Raises StoreUnavailable, SchemaMismatch (unknown revision, another routing), MigrationFailed (with
    database and table; the run may be repeated).
    """
    if to is not None and revision_position(to) in (None, 0):
        raise InvalidInput("revision", to, f"must be one of {_revision_names()}")
    reached, tasks = [], []
    with _open_databases(settings) as databases:
        for database in databases:
            found = _read_known_revision(database)
            goal = _target_revision(database.index, found, phase, to)
            if goal is not None and goal != found:
                ahead = revisions()[_position(found) : _position(goal)]
                target = schema_target(settings, database.index)
                steps = sum(1 for revision in ahead for _ in revision.steps(target))
                tasks.append(MigrationTask(target, goal, steps))
            reached.append(MigrationResult(database.index, goal, revisions()[_position(goal) :]))
    if tasks:
        upgrades = ParallelUpgrade(
            settings,
            _make_context_factory(),
            progress,
            lock_wait_s=lock_wait_s,
            may_rebuild=may_rebuild,
        )
        upgrades.run(tasks, parallel)
    return reached


def _make_context_factory() -> ContextFactory:
    """What begins an upgrade on a connection, in any thread: Alembic's environment is one per process."""
    from alembic.migration import MigrationContext  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    scripts = ScriptDirectory(str(_scripts()))

    def begin(connection: Connection, goal: str, applied: Callable[..., None]) -> MigrationContext:
        options = {
            "version_table": VERSION_TABLE,
            "on_version_apply": (applied,),
            "fn": lambda heads, _: scripts._upgrade_revs(goal, heads),  # noqa: SLF001
        }
        return MigrationContext.configure(connection, opts=options)

    return begin


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
    if revision_position(to) is None:
        raise InvalidInput("revision", to, f"must be one of {_revision_names()} or {BASE}")
    reached = []
    with _open_databases(settings) as databases:
        found = {database: _read_known_revision(database) for database in databases}
        for database in databases:
            _refuse_if_jobs(
                database,
                schema_target(settings, database.index),
                _position(to),
                _position(found[database]),
            )
        for database in databases:
            back = revisions()[_position(to) : _position(found[database])]
            if back:
                target = schema_target(settings, database.index)
                config = _alembic_config(
                    settings,
                    only=database.index,
                    progress=progress,
                    total=sum(1 for revision in back for _ in revision.steps(target)),
                    lock_wait_s=lock_wait_s,
                )
                _alembic_commands().downgrade(config, to)
            left = to if back else found[database]
            left = None if left == BASE else left
            reached.append(MigrationResult(database.index, left, revisions()[_position(left) :]))
    return reached


def list_downgrade_drops(settings: Settings, to: str) -> list[str]:
    """What a downgrade would drop in any of the databases, in words. Raises like `downgrade`."""
    at = revision_position(to)
    if at is None:
        raise InvalidInput("revision", to, f"must be one of {_revision_names()} or {BASE}")
    with _open_databases(settings) as databases:
        found = max(_position(_read_known_revision(database)) for database in databases)
    steps = [step for r in revisions()[at:found] for step in r.steps(schema_target(settings, 0))]
    columns = Counter(step.column for step in steps if isinstance(step, AddColumn))
    indexes = Counter(step.index for step in steps if isinstance(step, AddIndex))
    tables = [step.table for step in steps if isinstance(step, MakeTable) and not step.holds_jobs]
    jobs = sum(isinstance(step, MakeTable) and step.holds_jobs for step in steps)
    return [
        *(f"view {step.table}" for step in steps if isinstance(step, MakeView)),
        *(
            f"column {name} of {count} table{'' if count == 1 else 's'}"
            for name, count in columns.items()
        ),
        *(f"index {name} of {count} tables" for name, count in indexes.items()),
        *(f"table {name}" for name in tables),
        *([f"{jobs} job tables, if they are empty"] if jobs else []),
    ]


def _refuse_if_jobs(database: Database, target: SchemaTarget, to: int, found: int) -> None:
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


def _target_revision(index: int, found: str | None, phase: Phase, to: str | None) -> str | None:
    """The revision that a database is to be brought to."""
    at, end = _position(found), len(revisions()) if to is None else _position(to)
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


def _read_known_revision(database: Database) -> str | None:
    found = read_revision(database)
    if found is not None and revision_position(found) is None:
        raise SchemaMismatch(
            f"database {database.index} is at revision {found}, which this release does not know (its newest "
            f"is {newest_revision()}): migrate with the release that brought it"
        )
    return found


def _position(name: str | None) -> int:
    return 0 if name is None else revision_position(name) or 0


def _revision_names() -> str:
    return ", ".join(revision.name for revision in revisions())


@contextmanager
def _open_databases(settings: Settings) -> Iterator[Databases]:
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)
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
    end = newest_revision() if end is None else end
    for name in (start, end):
        if revision_position(name) is None:
            raise InvalidInput("revision", name, f"must be one of {_revision_names()} or {BASE}")
    if directory is None and len(settings.databases) > 1:
        refuse_single_output(len(settings.databases))
    files = range(len(settings.databases)) if directory else ()
    if directory is not None:
        make_directory(directory)
    config = _alembic_config(settings, out=out, directory=directory, lock_wait_s=lock_wait_s)
    run = (
        _alembic_commands().upgrade
        if _position(end) >= _position(start)
        else _alembic_commands().downgrade
    )
    run(config, f"{start}:{end}", sql=True)
    return [directory / script_name(settings, index) for index in files] if directory else []


def write_script_head(
    script: ScriptExecutor, start: str | None, end: str | tuple[str, ...] | None
) -> None:
    """Writes a script's head. Called by `env.py`."""
    named = [name if isinstance(name, str) and name != BASE else None for name in (start, end)]
    for name in named:
        if name is not None and revision_position(name) is None:  # +1, -1
            from alembic.util.exc import CommandError  # noqa: PLC0415 - see above

            raise CommandError(f"--sql needs revisions by their names: {_revision_names()}")
    low, high = sorted(map(_position, named))
    between = [revision.name for revision in revisions()[max(low - 1, 0) : high]]
    first, last = named
    script.write_head(version_of("toc"), first, last, between)


def refuse_single_output(count: int) -> None:
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
