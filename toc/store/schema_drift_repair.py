"""`toc migrate --mend`: the statements that undo drift.

Each run compares the tables again, so an interrupted run can be repeated. Columns with data are never
dropped: a column that somebody added becomes nullable; `live_key` is a generated column, and is dropped and
added again. A UNIQUE key, CHECK, foreign key or trigger that somebody added is dropped, and its definition is
shown. A fault that only a person can repair is left, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TextIO

from sqlalchemy import Connection, text

from toc.runtime.settings import Settings
from toc.store import migrate, schema_drift
from toc.store.database_identity import refuse_other_database
from toc.store.migration_run import open_migration_connection
from toc.store.schema import quote_name
from toc.store.schema_drift import DriftFinding
from toc.store.schema_executor import (
    IN_PLACE,
    LOCK_WAIT_S,
    CompletedStep,
    OnlineExecutor,
    Progress,
)
from toc.store.schema_steps import SchemaStep, SchemaTarget
from toc.store.table_shapes import PRIMARY, Shapes, read_shapes

_COLUMN = (
    "SELECT COLUMN_TYPE, COLLATION_NAME FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = :table AND COLUMN_NAME = :name"
)
_TRIGGER = (
    "SELECT CONCAT_WS(' ', ACTION_TIMING, EVENT_MANIPULATION, 'FOR EACH ROW', ACTION_STATEMENT) "
    "FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME = :name"
)
_CHECK = (
    "SELECT MAX(CHECK_CLAUSE) FROM information_schema.CHECK_CONSTRAINTS "
    "WHERE CONSTRAINT_SCHEMA = DATABASE() AND CONSTRAINT_NAME = :name"
)


@dataclass(frozen=True, slots=True)
class DriftRepair:
    """The statements that undo one fault, in order; (): the fault is left, and `note` says why."""

    database: int
    fault: DriftFinding
    statements: tuple[str, ...]
    note: str = ""


def repair_drift(
    settings: Settings,
    progress: Progress | None = None,
    *,
    lock_wait_s: int = LOCK_WAIT_S,
    may_rebuild: bool = False,
) -> list[DriftRepair]:
    """Repairs the faults of every database; returns all faults, also those that were left.

    `may_rebuild`: also if the server must copy a table while writes to the table wait. Raises
    StoreUnavailable, SchemaMismatch, and MigrationFailed with the table: changes that were made stay, and a
    later run continues.
    """
    done: list[DriftRepair] = []
    for index in range(len(settings.databases)):
        with open_migration_connection(index, settings, lock_wait_s) as connection:
            target, repairs = _plan_repairs(settings, index, connection)
            executor = OnlineExecutor(
                target, connection, lock_wait_s=lock_wait_s, may_rebuild=may_rebuild
            )
            for number, repair in enumerate(repairs, 1):
                table, is_view = repair.fault.table, repair.fault.kind == "view"
                for statement in repair.statements:
                    executor.run_drift_repair(table, statement)
                if progress is not None:
                    progress(CompletedStep(index, "mend", table, is_view, number, len(repairs)))
            done += repairs
    return done


def write_repair_scripts(
    settings: Settings,
    out: TextIO | None = None,
    directory: Path | None = None,
    *,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[Path]:
    """Writes the statements of `repair_drift` without running them: a file per database, or all to `out`.

    The scripts check which database they run on, like those of the revisions. Reads every database.
    """
    paths = migrate.prepare_script_paths(settings, directory, prefix="mend_")
    for index in range(len(settings.databases)):
        with open_migration_connection(index, settings, lock_wait_s) as connection:
            _, repairs = _plan_repairs(settings, index, connection)
            revision = migrate.read_revision_of_connection(connection)
        with migrate.open_script(settings, index, paths, out, lock_wait_s) as script:
            if revision is not None:
                script.write_head(version_of("toc"), revision, revision, [revision])
                for repair in repairs:
                    fault = f"{repair.fault.table}: {repair.fault.text}"
                    script.write_drift_repair(fault, repair.note, repair.statements)
                script.write_end()
    return paths


def _plan_repairs(
    settings: Settings, index: int, connection: Connection
) -> tuple[SchemaTarget, list[DriftRepair]]:
    target = migrate.schema_target(settings, index)
    refuse_other_database(target, connection, settings.routing.meta_values())
    revision = migrate.read_revision_of_connection(connection)
    at = migrate.revision_position(revision) if revision is not None else 0
    steps = [
        step
        for applied in migrate.revisions_of_release()[: at or 0]
        for step in applied.steps(target)
    ]
    found = read_shapes(connection, sqlite=target.sqlite)
    declared = schema_drift.declared_shapes(steps, sqlite=target.sqlite)
    faults, _ = schema_drift.compare_shapes(found, declared)
    if not target.sqlite:
        connection.commit()
    planner = _RepairPlanner(target, connection, steps, declared, found)
    return target, [planner.plan_repair(fault) for fault in sorted(faults, key=_repair_sort_key)]


def _repair_sort_key(fault: DriftFinding) -> tuple[bool, str, int]:
    """The sort key: by table; columns before the indexes over them; views, which read tables, last."""
    kinds = ("missing", "engine", "extra index", "column")
    return fault.kind == "view", fault.table, kinds.index(fault.kind) if fault.kind in kinds else 9


class _RepairPlanner:
    """Finds the statements that repair the faults of one database."""

    def __init__(
        self,
        target: SchemaTarget,
        connection: Connection,
        steps: Iterable[SchemaStep],
        declared: Shapes,
        found: Shapes,
    ) -> None:
        self._target, self._connection = target, connection
        self._steps, self._declared, self._found = list(steps), declared, found
        self._remade: set[tuple[str, str]] = set()  # indexes that an earlier statement adds again

    def plan_repair(self, fault: DriftFinding) -> DriftRepair:
        note = ""
        if fault.kind in ("missing", "view"):
            statements = self._make_create_statements(fault)
        elif self._target.sqlite:
            statements, note = [], "SQLite cannot change a table in place: the fault is left"
        elif fault.kind == "engine":
            statements = [f"ALTER TABLE {fault.table} ENGINE = InnoDB"]
        elif fault.kind == "column":
            statements = list(self._restore_column(fault.table, fault.name))
        elif fault.kind == "index":
            statements = list(self._restore_index(fault.table, fault.name))
        else:
            statements, note = self._remove_addition(fault)
        return DriftRepair(self._target.index, fault, tuple(statements), note)

    def _make_create_statements(self, fault: DriftFinding) -> list[str]:
        """The statements of the revisions that create this table or view."""
        steps = [step for step in self._steps if step.table == fault.table]
        if fault.kind == "view":  # the last revision that makes the view counts
            steps = steps[-1:]
        return [
            each.sql for step in steps for each in step.up_statements(sqlite=self._target.sqlite)
        ]

    def _remove_addition(self, fault: DriftFinding) -> tuple[list[str], str]:
        """The statements that remove or disarm a part that somebody added, and a note."""
        table, name = fault.table, quote_name(fault.name)
        alter = f"ALTER TABLE {table}"
        match fault.kind:
            case "extra column":
                note = "the column stays, with its values, and may be NULL"
                return [self._make_nullable(table, fault.name)], note
            case "extra index":
                was = self._found[table].indexes[fault.name]
                return [f"{alter} DROP INDEX {name}{IN_PLACE}"], f"it was {was}"
            case "trigger":
                return [f"DROP TRIGGER {name}"], self._describe_rule(_TRIGGER, fault.name)
            case "CHECK":
                drop = f"{alter} DROP CONSTRAINT {name}"
                return [drop], self._describe_rule(_CHECK, fault.name)
            case "foreign key":
                return [f"{alter} DROP FOREIGN KEY {name}"], ""
            case _:
                return [], "only a person can decide what to do: the fault is left"

    def _restore_column(self, table: str, name: str) -> Iterator[str]:
        definitions, found = self._declared[table].definitions, self._found[table]
        alter, wanted = f"ALTER TABLE {table} ", definitions["column", name]
        if "GENERATED ALWAYS" not in wanted:
            column, default = _split_expression_default(wanted)
            yield f"{alter}{'MODIFY' if name in found.columns else 'ADD'} COLUMN {column}"
            if default:
                yield f"{alter}ALTER COLUMN {name} SET DEFAULT {default}"
            return
        # A generated column has no data of its own. An index over a dropped column would go on without this
        # column, and refuse rows.
        over = [
            index
            for (kind, index), definition in definitions.items()
            if kind == "index" and re.search(rf"\b{name}\b", definition.partition("(")[2])
        ]
        for index in over:
            if index in found.indexes:
                yield f"{alter}DROP INDEX {index}{IN_PLACE}"
        if name in found.columns:
            yield f"{alter}DROP COLUMN {name}"
        yield f"{alter}ADD COLUMN {wanted}"
        for index in over:
            self._remade.add((table, index))
            yield f"{alter}ADD {definitions['index', index]}{IN_PLACE}"

    def _restore_index(self, table: str, name: str) -> Iterator[str]:
        if (table, name) not in self._remade:
            drop = ""
            if name in self._found[table].indexes:
                drop = "DROP PRIMARY KEY, " if name == PRIMARY else f"DROP INDEX {name}, "
            definition = self._declared[table].definitions["index", name]
            yield f"ALTER TABLE {table} {drop}ADD {definition}{IN_PLACE}"

    def _make_nullable(self, table: str, name: str) -> str:
        values = {"table": table, "name": name}
        kind, collation = self._connection.execute(text(_COLUMN), values).one()
        collate = f" COLLATE {collation}" if collation else ""
        return f"ALTER TABLE {table} MODIFY COLUMN {quote_name(name)} {kind}{collate} NULL"

    def _describe_rule(self, query: str, name: str) -> str:
        """Reads the definition of a trigger or CHECK that is dropped, as one line."""
        found = self._connection.scalar(text(query), {"name": name})
        return f"it was {' '.join(str(found).split())}"


def _split_expression_default(definition: str) -> tuple[str, str]:
    """Splits a column's definition into the part without the default, and the default.

    Splits only if the default is an expression and the column may be NULL. Otherwise the second text is "".

    MySQL refuses a new column whose default is CURRENT_USER() (error 1674): a replica could fill the
    existing rows with another account. MySQL accepts the default in a separate statement.
    """
    column, _, default = definition.partition(" NULL DEFAULT (")
    if not default or column.endswith(" NOT"):
        return definition, ""
    return f"{column} NULL", f"({default}"
