"""Runs the revisions on every database of the settings, one after the other.

`toc migrate` and plain `alembic` both come here. Each revision is given what takes its steps: one that
runs them, or with `--sql` one that writes a script for each database. Plain `alembic` may say
`-x directory=DIR`, `-x lock_wait_s=N` and `-x rebuild=yes`.
"""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from toc.errors import TocError
from toc.runtime.files import open_file
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate
from toc.store.parallel_migration import RevisionApplied, fits_since_of, run_revisions
from toc.store.schema_executor import LOCK_WAIT_S, VERSION_TABLE, ScriptExecutor

attributes = context.config.attributes
arguments = context.get_x_argument(as_dictionary=True)
settings: Settings = attributes.get("settings") or load_settings()
lock_wait_s = int(attributes.get("lock_wait_s") or arguments.get("lock_wait_s") or LOCK_WAIT_S)
only = attributes.get("only")  # the index of one database; None: all
indexes = range(len(settings.databases)) if only is None else [only]


def online(index: int) -> None:
    def make_context(connection: Connection, applied: RevisionApplied) -> Any:
        context.configure(
            connection=connection, version_table=VERSION_TABLE, on_version_apply=applied
        )
        return context

    run_revisions(
        migrate.schema_target(settings, index),
        settings,
        make_context,
        lock_wait_s=lock_wait_s,
        may_rebuild=bool(arguments.get("rebuild")),
        progress=attributes.get("progress"),
        total=attributes.get("total", 0),
    )


def offline(index: int, stack: ExitStack) -> None:
    target = migrate.schema_target(settings, index)
    path, name = _directory(), migrate.database_name(settings, index)
    if path is None:
        out = attributes.get("out") or sys.stdout
    else:
        out = stack.enter_context(open_file(path / migrate.script_name(settings, index), "w"))
    script = ScriptExecutor(target, out, name, settings.routing.facts(), lock_wait_s=lock_wait_s)

    def applied(step: Any, **rest: object) -> None:
        (source,) = step.source_revision_ids or (None,)
        (destination,) = step.destination_revision_ids or (None,)
        script.stamp(source, destination, fits_since_of(step) or "")

    start, end = context.get_starting_revision_argument(), context.get_revision_argument()
    migrate.write_script_head(script, start, end)
    context.configure(
        dialect_name="sqlite" if target.sqlite else "mysql",
        output_buffer=io.StringIO(),  # Alembic's own statements: they cannot be run twice
        on_version_apply=applied,
    )
    with context.begin_transaction():
        context.run_migrations(migration=script)
    script.write_end()


def _directory() -> Path | None:
    named = attributes.get("directory") or arguments.get("directory")
    if named is None and len(indexes) > 1:
        migrate.refuse_single_output(len(indexes))
    return None if named is None else Path(named)


try:
    with ExitStack() as stack:
        for index in indexes:
            offline(index, stack) if context.is_offline_mode() else online(index)
except TocError as error:
    if context.config.cmd_opts is None:
        raise
    raise CommandError(str(error)) from error  # which `alembic` says on one line
