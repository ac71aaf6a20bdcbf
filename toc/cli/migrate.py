"""`toc migrate`: brings every database to the schema of this release, and shows the schema of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, SETTINGS, UNAVAILABLE, USAGE, CommandError
from toc.cli.output import Output, make_console, printable_text
from toc.errors import MYSQL_REFUSALS, StoreUnavailable
from toc.runtime.settings import Settings, load_settings
from toc.store import migrate as store
from toc.store import schema_drift_repair
from toc.store.driver_errors import CLIENT_ERRORS, error_text
from toc.store.migrate import CompletedStep, MigrationResult, newest_revision
from toc.store.schema_drift import format_table_ranges, group_findings_by_text
from toc.store.schema_executor import MigrationFailed
from toc.store.schema_status import SchemaStatus, read_schema_statuses

_LOCK_WAIT_S_MAX = 3600
FAULTS_SHOWN = 5

PhaseOption = Annotated[
    Literal["pre", "post", "all"],
    typer.Option(
        "--phase",
        help="pre: changes for the new release, before you deploy it; post: removals, when no older "
        "release runs; all: both.",
    ),
]
To = Annotated[str | None, typer.Option("--to", metavar="REVISION", help="Stop at this revision.")]
DownTo = Annotated[
    str | None,
    typer.Option(
        "--down-to",
        metavar="REVISION",
        help="Undo every revision after this one; 'base' undoes all.",
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="With --down-to: undo the revisions; without --yes, only list what would be dropped.",
    ),
]
Status = Annotated[
    bool,
    typer.Option(
        "--status", help="Change nothing; show revision and differences of each database."
    ),
]
Sql = Annotated[bool, typer.Option("--sql", help="Run nothing; print the statements instead.")]
Mend = Annotated[
    bool,
    typer.Option(
        "--mend",
        help="Undo changes that somebody made in toc's tables; with --sql print the statements.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option("--directory", help="With --sql: write a script for each database there."),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="REVISION",
        help="With --sql: the revision of the databases now; if it is newer than --to, the script goes back.",
    ),
]
LockWait = Annotated[
    int,
    typer.Option(
        "--lock-wait",
        min=1,
        max=_LOCK_WAIT_S_MAX,
        help="Seconds to wait for a table that a transaction holds, or for another migration.",
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        min=1,
        max=8,
        help="Number of databases to migrate at a time; an error stops all.",
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild", help="Rebuild a table that the server cannot change at once; writes may wait."
    ),
]


@answering_command
def migrate_databases(
    output: Output,
    *,
    status: Status = False,
    phase: PhaseOption = "pre",
    to: To = None,
    down_to: DownTo = None,
    yes: Yes = False,
    sql: Sql = False,
    directory: Directory = None,
    start: Start = "base",
    mend: Mend = False,
    lock_wait: LockWait = 5,
    rebuild: Rebuild = False,
    parallel: Parallel = 1,
) -> int:
    """Create or change the tables of every database.

    May be repeated: steps that are done are left out. So run the command again after a run that was killed.
    Progress is shown on standard error. docs/how-to/upgrade.md is for DBAs.
    """
    _refuse_option_combinations(
        {
            "--status": status,
            "--mend": mend and not sql,
            "--sql": sql,
            "--down-to": down_to,
            "--to": to and not sql,
        },
        {"--directory": directory, "--from": start != "base"} if not sql else {},
    )
    settings = load_settings()
    if status:
        return _print_schema_status(output, settings)
    if sql:
        write = partial(
            schema_drift_repair.write_repair_scripts if mend else store.write_migration_scripts,
            settings,
        )
        if not mend:
            write = partial(write, start=start, end=to)
        return _write_sql_scripts(output, directory, partial(write, lock_wait_s=lock_wait))
    with _convert_migration_errors(), closing(_MigrationProgressBars()) as progress:
        if mend:
            return _repair_drift(output, settings, progress, lock_wait, may_rebuild=rebuild)
        if down_to is not None:
            return _downgrade_databases(output, settings, down_to, progress, lock_wait, sure=yes)
        return _upgrade_databases(
            output,
            settings,
            progress,
            phase=phase,
            to=to,
            lock_wait_s=lock_wait,
            may_rebuild=rebuild,
            parallel=parallel,
        )


def _refuse_option_combinations(alone: dict[str, Any], only_with_sql: dict[str, Any]) -> None:
    given = [name for name, value in alone.items() if value]
    if len(given) > 1:
        raise CommandError(f"{' and '.join(given)} do not go together", USAGE)
    for name, value in only_with_sql.items():
        if value:
            raise CommandError(f"{name} goes with --sql only", USAGE)


# ---- up and down


def _upgrade_databases(
    output: Output, settings: Settings, progress: _MigrationProgressBars, **how: Any
) -> int:
    reached = store.upgrade(settings, progress, **how)
    waiting = [revision for database in reached for revision in database.pending]
    last = ""
    if waiting and how["to"] is None:
        last = (
            f"; {waiting[0].name} ({waiting[0].phase}) is pending: run `toc migrate --phase "
            f"{waiting[0].phase}` when no process of a release before it runs any more"
        )
    _print_migration_result(output, reached, progress, "brought up to date", last)
    return _refuse_drift(settings)


def _refuse_drift(settings: Settings) -> int:
    """Raises CommandError for tables that differ although the revision is right: somebody changed them."""
    lines = [
        f"database {status.database}: {printable_text(line)}"
        for status in read_schema_statuses(settings)
        for line in group_findings_by_text(status.faults)
    ]
    if not lines:
        return OK
    text = "; ".join(lines[:FAULTS_SHOWN])
    raise CommandError(f"{text}: `toc migrate --status` shows all", NO)


def _downgrade_databases(
    output: Output,
    settings: Settings,
    to: str,
    progress: _MigrationProgressBars,
    lock_wait_s: int,
    *,
    sure: bool,
) -> int:
    if not sure:
        lost = store.list_downgrade_drops(settings, to)
        raise CommandError(
            f"--down-to {to} drops, in each database and with all they hold: {', '.join(lost) or 'nothing'}; "
            "repeat it with --yes",
            USAGE,
        )
    reached = store.downgrade(settings, to, progress, lock_wait_s=lock_wait_s)
    _print_migration_result(output, reached, progress, "taken back")
    return OK


def _print_migration_result(
    output: Output,
    reached: Sequence[MigrationResult],
    progress: _MigrationProgressBars,
    done: str,
    last: str = "",
) -> None:
    # "" (no revision) sorts first.
    where = sorted({database.revision or "" for database in reached})
    value = {
        "databases": len(reached),
        "revision": where[0] or None,
        "tables": len(progress.tables),
        "views": len(progress.views),
        "steps": progress.steps,
        "pending": sorted({r.name for database in reached for r in database.pending}),
    }
    kinds = ((len(progress.tables), "table"), (len(progress.views), "view"))
    changed = " and ".join(_number_with_noun(number, word) for number, word in kinds if number)
    text = f"{changed} {done}" if changed else "nothing was to be done"
    at = " and ".join(name or "none" for name in where)
    output.print_value(
        value, f"{_number_with_noun(len(reached), 'database')} at revision {at}: {text}{last}"
    )


@contextmanager
def _convert_migration_errors() -> Iterator[None]:
    """Gives the errors of a migration their exit codes."""
    try:
        yield
    except MigrationFailed as error:
        code = NO
        if error.number in MYSQL_REFUSALS:
            code = SETTINGS
        elif error.number in CLIENT_ERRORS:
            code = UNAVAILABLE
        raise CommandError(str(error), code) from error
    except StoreUnavailable as error:
        if not error.refused:
            raise
        text = error_text(error.__cause__ or error)
        raise CommandError(f"database {error.database} refuses: {text}", SETTINGS) from error


class _MigrationProgressBars:
    """Counts the steps done, and shows a bar for each database on standard error."""

    def __init__(self) -> None:
        self.steps = 0
        self.tables: set[tuple[int, str]] = set()
        self.views: set[tuple[int, str]] = set()
        self._tasks: dict[int, TaskID] = {}
        self._bars = Progress(
            TextColumn("database {task.fields[database]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[table]}"),
            console=make_console(stderr=True),
        )

    def __call__(self, step: CompletedStep) -> None:
        self.steps += 1
        (self.views if step.is_view else self.tables).add((step.database, step.table))
        if step.database not in self._tasks:  # a database that is up to date has no bar
            self._bars.start()
            self._tasks[step.database] = self._bars.add_task(
                "", total=step.total, database=step.database, table=""
            )
        task = self._tasks[step.database]
        self._bars.update(task, completed=step.done, table=f"{step.revision} {step.table}")

    def close(self) -> None:
        if self._tasks:  # a display without bars would still write an empty line
            self._bars.stop()


# ---- mending


def _repair_drift(
    output: Output,
    settings: Settings,
    progress: _MigrationProgressBars,
    lock_wait_s: int,
    *,
    may_rebuild: bool,
) -> int:
    repairs = schema_drift_repair.repair_drift(
        settings, progress, lock_wait_s=lock_wait_s, may_rebuild=may_rebuild
    )
    value = [
        {
            "database": repair.database,
            "table": repair.fault.table,
            "fault": repair.fault.text,
            "statements": list(repair.statements),
            "note": repair.note,
        }
        for repair in repairs
    ]
    lines = [
        f"database {repair.database}, {repair.fault.table}: {repair.fault.text}"
        + (f"; {repair.note}" if repair.note else "")
        for repair in repairs
    ]
    text = "\n".join(map(printable_text, lines)) or "nothing differs: nothing was to be done"
    output.print_value({"repairs": value}, text)
    return _refuse_drift(settings)


# ---- scripts


def _write_sql_scripts(
    output: Output, directory: Path | None, write: Callable[..., list[Path]]
) -> int:
    if output.as_json and directory is None:
        raise CommandError("--sql prints SQL: it does not go with --json", USAGE)
    try:
        with _convert_migration_errors():
            paths = write(out=sys.stdout, directory=directory)
    except OSError as error:
        if directory is None or error.filename is None:  # an error of a connection
            raise
        text = f"--directory {directory} cannot be used: {error.strerror}"
        raise CommandError(printable_text(text), USAGE) from error
    if directory is not None:
        output.print_value({"scripts": [str(path) for path in paths]}, "\n".join(map(str, paths)))
    return OK


# ---- status


def _print_schema_status(output: Output, settings: Settings) -> int:
    found = read_schema_statuses(settings)
    well = sum(status.has_no_problem for status in found)
    value = {
        "head": newest_revision(),
        "databases": [_schema_status_as_json(each) for each in found],
    }
    databases = _number_with_noun(len(found), "database")
    last = f"this release brings {newest_revision()}; {well} of {databases} as declared"
    output.print_value(
        value, "\n".join([*(line for each in found for line in _make_status_lines(each)), last])
    )
    return OK if well == len(found) else NO


def _schema_status_as_json(status: SchemaStatus) -> dict[str, Any]:
    return {
        "database": status.database,
        "ok": status.has_no_problem,
        "revision": status.revision,
        "pending": [asdict(pending) for pending in status.pending],
        "faults": [{"table": fault.table, "text": fault.text} for fault in status.faults],
        "notes": [{"table": note.table, "text": note.text} for note in status.notes],
        "misfit": status.incompatibility,
        "error": status.error,
    }


def _make_status_lines(status: SchemaStatus) -> Iterator[str]:
    if status.error is not None:
        yield printable_text(status.error)
        return
    at = f"database {status.database}: revision {status.revision or 'none'}"
    yield f"{at}, as declared" if status.has_no_problem else at
    for pending in status.pending:
        done, rest = f"{pending.steps - len(pending.open)} of {pending.steps} steps done", ""
        if len(pending.open) == pending.steps:
            done = "not begun"
        elif pending.open:
            rest = f", open: {format_table_ranges(pending.open)}"
        yield f"  pending {pending.revision} ({pending.phase}), {pending.title}: {done}{rest}"
    if status.incompatibility is not None and not status.pending:
        subject = "it " if status.incompatibility.startswith("is ") else ""
        yield f"  {subject}{status.incompatibility}"
    for word, findings in (("fault", status.faults), ("note", status.notes)):
        yield from (
            f"  {word}: {printable_text(line)}" for line in group_findings_by_text(findings)
        )


def _number_with_noun(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
