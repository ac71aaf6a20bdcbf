"""`toc migrate`: brings every database to the schema of this release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from toc.cli.failures import NO, SETTINGS, USAGE, CommandError
from toc.cli.frame import answers
from toc.cli.output import Output, console

if TYPE_CHECKING:
    from toc.runtime.settings import Settings

SHARED_TABLES = 3  # meta, biz_type, dead_job: per database

Sql = Annotated[bool, typer.Option("--sql", help="Run nothing; print the statements instead.")]


@answers
def migrate(output: Output, *, sql: Sql = False) -> None:
    """Create or update the tables of every database.

    May be repeated: what is there is left alone, and a run that was killed goes on where it
    stopped. It shows its progress on standard error.
    """
    from toc.runtime.settings import load_settings  # noqa: PLC0415 - quick start
    from toc.store import migrate as store  # noqa: PLC0415

    settings = load_settings()
    if sql:
        if output.as_json:
            raise CommandError("--sql prints SQL: it does not go with --json", USAGE)
        store.upgrade(settings, sql=True)
        return
    tables: Counter[int] = Counter()
    with _refusals(), _progress(settings) as show:

        def step(database: int, table: str) -> None:
            tables[database] += 1
            show(database, table)

        store.upgrade(settings, step)
    revision, made = store.head(), tables.total()
    output.answer(
        {"databases": len(settings.databases), "tables": made, "revision": revision},
        f"{_count(len(settings.databases), 'database')} at revision {revision}: "
        + (f"{_count(made, 'table')} brought up to date" if made else "nothing was to be done"),
    )


@contextmanager
def _refusals() -> Iterator[None]:
    from alembic.util.exc import CommandError as AlembicError  # noqa: PLC0415

    try:
        yield
    except AlembicError as error:
        text = f"{error}: these databases were migrated by a newer release"
        raise CommandError(text, SETTINGS) from error
    except RuntimeError as error:  # another migration is running
        raise CommandError(str(error), NO) from error


@contextmanager
def _progress(settings: Settings) -> Iterator[Callable[[int, str], None]]:
    """A bar per database, on standard error. Yields what is to be called per table."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn  # noqa: PLC0415

    total = settings.routing.tables_per_database + SHARED_TABLES
    columns = (
        TextColumn("database {task.fields[database]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[table]}"),
    )
    progress = Progress(*columns, console=console(stderr=True))
    tasks: dict[int, TaskID] = {}

    def show(database: int, table: str) -> None:
        if database not in tasks:  # one that is up to date has no bar
            progress.start()
            tasks[database] = progress.add_task("", total=total, database=database, table="")
        progress.update(tasks[database], advance=1, table=table)

    try:
        yield show
    finally:
        if tasks:  # a display without bars would still write an empty line
            progress.stop()


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
