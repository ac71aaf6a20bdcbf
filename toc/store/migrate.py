"""Creating and checking the schema. The revisions are in `migrations/`, run by Alembic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from toc.errors import SchemaMismatch
from toc.runtime.settings import Settings
from toc.store.databases import Database

VERSION_TABLE = "toc_alembic_version"


def _scripts() -> Path:
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_migrations"  # in an installed wheel
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _config(
    settings: Settings | None = None, step: Callable[[int, str], None] | None = None
) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes.update(settings=settings, step=step)
    return config


def head() -> str:
    """The newest revision that this release brings."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise SchemaMismatch("no migrations were found")
    return found


def upgrade(
    settings: Settings, step: Callable[[int, str], None] | None = None, *, sql: bool = False
) -> None:
    """Brings every database to the newest revision. `step(database, table)` is called per table.

    With `sql` nothing is run: the statements go to standard output.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    command.upgrade(_config(settings, step), "head", sql=sql)


def revision_of(database: Database) -> str | None:
    """The revision a database stands at; None before the first migration."""
    return database.read(
        lambda c: MigrationContext.configure(
            c, opts={"version_table": VERSION_TABLE}
        ).get_current_revision()
    )


def check(databases: Iterable[Database]) -> None:
    """Raises SchemaMismatch unless each database stands at the newest revision."""
    expected = head()
    for database in databases:
        found = revision_of(database)
        if found != expected:
            raise SchemaMismatch(
                f"database {database.index} is at revision {found or 'none'}, this release needs "
                f"{expected}: run `toc migrate`"
            )
