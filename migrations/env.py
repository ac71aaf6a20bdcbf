"""What plain `alembic` runs: the revisions, on every database of the settings, one after the other.

`toc migrate` does the same without this file. `alembic` accepts `-x directory=DIR` (for the scripts of
`--sql`), `-x lock_wait_s=N` and `-x rebuild=yes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from toc.errors import TocError
from toc.runtime.settings import load_settings
from toc.store import migrate
from toc.store.migration_run import MigrationRun, MigrationTask, RevisionApplied
from toc.store.schema import VERSION_TABLE
from toc.store.schema_executor import LOCK_WAIT_S

arguments = context.get_x_argument(as_dictionary=True)
settings = context.config.attributes.get("settings") or load_settings()
lock_wait_s = int(arguments.get("lock_wait_s") or LOCK_WAIT_S)


def make_context(connection: Connection, applied: RevisionApplied) -> Any:
    context.configure(connection=connection, version_table=VERSION_TABLE, on_version_apply=applied)
    return context


def run_online() -> None:
    run = MigrationRun(
        settings, lock_wait_s=lock_wait_s, may_rebuild=bool(arguments.get("rebuild"))
    )
    targets = [migrate.schema_target(settings, index) for index in range(len(settings.databases))]
    run.run_tasks([MigrationTask(target, make_context) for target in targets])


def write_scripts() -> None:
    """Alembic's own statements cannot be run twice, so toc's scripts are written."""
    start, end = context.get_starting_revision_argument(), context.get_revision_argument()
    names = [migrate.BASE if name is None else str(name) for name in (start, end)]
    directory = Path(arguments["directory"]) if "directory" in arguments else None
    migrate.write_migration_scripts(
        settings, directory=directory, start=names[0], end=names[1], lock_wait_s=lock_wait_s
    )


try:
    if context.is_offline_mode():
        write_scripts()
    else:
        run_online()
except TocError as error:
    if context.config.cmd_opts is None:
        raise
    raise CommandError(str(error)) from error  # which `alembic` shows on one line
