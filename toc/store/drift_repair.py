"""`toc migrate --mend`: the statements that take drift back.

One table at a time, and each time from a new look: a run that was broken off is run again. Nothing
that holds data is dropped: a column that somebody added becomes NULL-able; `live_key` is computed, and is
made anew. A UNIQUE key, CHECK, foreign key or trigger that somebody added is dropped, and its definition
told before. What only a person can decide is left, and said.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TextIO, cast

from sqlalchemy import Connection, text

from toc.runtime.files import make_directory, open_file
from toc.runtime.settings import Settings
from toc.store import drift, migrate
from toc.store.drift import DriftFinding
from toc.store.identity import refuse_other_database
from toc.store.migration_connections import open_migration_connection
from toc.store.schema_executor import (
    IN_PLACE,
    LOCK_WAIT_S,
    OnlineExecutor,
    Progress,
    ScriptExecutor,
    StepProgress,
)
from toc.store.schema_steps import (
    AddColumn,
    AddIndex,
    InverseStep,
    MakeTable,
    SchemaStep,
    SchemaTarget,
    Shapes,
    definitions_of_table,
)

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
    """What is done about one fault. `statements`: in order; []: it is left, `note` says why."""

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
    """Takes back what differs in every database, and returns what was done and what was left.

    `may_rebuild`: also where the server must copy a table while its writes wait. Raises StoreUnavailable,
    SchemaMismatch, and MigrationFailed with the table: what was done stays, a later run goes on there.
    """
    done: list[DriftRepair] = []
    for index in range(len(settings.databases)):
        with open_migration_connection(index, settings, lock_wait_s) as connection:
            target, mends = _plan_repairs(settings, index, connection)
            online = OnlineExecutor(
                target, connection, lock_wait_s=lock_wait_s, may_rebuild=may_rebuild
            )
            for number, each in enumerate(mends, 1):
                for statement in each.statements:
                    online.run_repair(each.fault.table, statement)
                if progress is not None:
                    view = each.fault.kind == "view"
                    table = each.fault.table
                    progress(StepProgress(index, "mend", table, view, number, len(mends)))
            done += mends
    return done


def write_repair_scripts(
    settings: Settings,
    out: TextIO | None = None,
    directory: Path | None = None,
    *,
    lock_wait_s: int = LOCK_WAIT_S,
) -> list[Path]:
    """Writes what `mend` would run, and runs nothing: a file for each database, or one to `out`.

    The scripts check which database they run on, like those of the revisions. Asks every database.
    """
    if directory is None and len(settings.databases) > 1:
        migrate.refuse_single_output(len(settings.databases))
    paths = []
    for index in range(len(settings.databases)):
        with open_migration_connection(index, settings, lock_wait_s) as connection:
            target, mends = _plan_repairs(settings, index, connection)
            revision = migrate.current_revision(connection)
        with ExitStack() as stack:
            file = out or io.StringIO()
            if directory is not None:
                make_directory(directory)
                path = directory / f"mend_{migrate.script_name(settings, index)}"
                file = stack.enter_context(cast("TextIO", open_file(path, "w")))
                paths.append(path)
            name = migrate.database_name(settings, index)
            facts = settings.routing.facts()
            script = ScriptExecutor(target, file, name, facts, lock_wait_s=lock_wait_s)
            if revision is not None:
                script.write_head(version_of("toc"), revision, revision, [revision])
                for each in mends:
                    script.write_repair(
                        f"{each.fault.table}: {each.fault.text}", each.note, each.statements
                    )
                script.write_end()
    return paths


def _plan_repairs(
    settings: Settings, index: int, connection: Connection
) -> tuple[SchemaTarget, list[DriftRepair]]:
    target = migrate.schema_target(settings, index)
    refuse_other_database(target, connection, settings.routing.facts())
    at = migrate.current_revision(connection)
    applied = migrate.revisions()[: (migrate.revision_position(at) or 0) if at else 0]
    steps = [step for revision in applied for step in revision.steps(target)]
    found = drift.read_shapes(connection, sqlite=target.sqlite)
    faults, _ = drift.compare_shapes(found, drift.declared_shapes(steps, sqlite=target.sqlite))
    if not target.sqlite:
        connection.commit()
    plan = _RepairPlanner(target, connection, steps, found)
    return target, [plan.plan_repair(fault) for fault in sorted(faults, key=_repair_order)]


def _repair_order(fault: DriftFinding) -> tuple[bool, str, int]:
    """By table; columns before the indexes over them; views, which stand on tables, last."""
    kinds = ("missing", "engine", "extra index", "column")
    return fault.kind == "view", fault.table, kinds.index(fault.kind) if fault.kind in kinds else 9


class _RepairPlanner:
    """The statements for one database's faults."""

    def __init__(
        self,
        target: SchemaTarget,
        connection: Connection,
        steps: Iterable[SchemaStep],
        found: Shapes,
    ) -> None:
        self._target, self._connection, self._found = target, connection, found
        self._steps: dict[str, list[SchemaStep]] = {}
        for step in steps:
            self._steps.setdefault(step.table, []).append(step)
        self._dropped: set[tuple[str, str]] = set()  # indexes that an earlier statement drops

    def plan_repair(self, fault: DriftFinding) -> DriftRepair:
        statements, note = self._statements_and_note(fault)
        return DriftRepair(self._target.index, fault, tuple(statements), note)

    def _statements_and_note(self, fault: DriftFinding) -> tuple[list[str], str]:
        if fault.kind in ("missing", "view"):
            steps = self._steps[fault.table]
            steps = steps[-1:] if fault.kind == "view" else steps
            return [act.sql for step in steps for act in step.up(sqlite=self._target.sqlite)], ""
        if self._target.sqlite:
            return [], "SQLite cannot change it in place: it is left"
        if fault.kind in ("engine", "column", "index"):
            return list(self._restore_declared(fault)), ""
        return self._remove_addition(fault)

    def _restore_declared(self, fault: DriftFinding) -> Iterable[str]:
        """Of a part that toc made, and somebody changed or dropped."""
        if fault.kind == "engine":
            return [f"ALTER TABLE {fault.table} ENGINE = InnoDB"]
        part = self._restore_column if fault.kind == "column" else self._restore_index
        return part(fault.table, fault.name)

    def _remove_addition(self, fault: DriftFinding) -> tuple[list[str], str]:
        """Of a part that somebody added."""
        table, name = fault.table, _quoted_name(fault.name)
        alter = f"ALTER TABLE {table}"
        if fault.kind == "extra column":
            note = "it stays, with its values, and may be NULL"
            return [self._make_nullable(table, fault.name)], note
        if fault.kind == "extra index":
            was = self._found[table].indexes[fault.name]
            return [f"{alter} DROP INDEX {name}{IN_PLACE}"], f"it was {was}"
        if fault.kind == "trigger":
            return [f"DROP TRIGGER {name}"], f"it was {self._rule_definition(_TRIGGER, fault.name)}"
        if fault.kind == "CHECK":
            return [
                f"{alter} DROP CONSTRAINT {name}"
            ], f"it was {self._rule_definition(_CHECK, fault.name)}"
        if fault.kind == "foreign key":
            return [f"{alter} DROP FOREIGN KEY {name}"], ""
        return [], "only a person can decide that: it is left"

    def _restore_column(self, table: str, name: str) -> Iterator[str]:
        texts, alter = self._declared_definitions(table), f"ALTER TABLE {table} "
        wanted, there = texts["column", name], name in self._found[table].columns
        if "GENERATED ALWAYS" not in wanted:
            column, default = _split_expression_default(wanted)
            yield f"{alter}{'MODIFY' if there else 'ADD'} COLUMN {column}"
            if default:
                yield f"{alter}ALTER COLUMN {name} SET DEFAULT {default}"
            return
        # It holds nothing of its own. An index over it would lose the column, and refuse rows.
        over = [
            index
            for (kind, index), definition in texts.items()
            if kind == "index" and re.search(rf"\b{name}\b", definition.partition("(")[2])
        ]
        for index in over:
            if index in self._found[table].indexes:
                yield f"{alter}DROP INDEX {index}{IN_PLACE}"
        if there:
            yield f"{alter}DROP COLUMN {name}"
        yield f"{alter}ADD COLUMN {wanted}"
        for index in over:
            self._dropped.add((table, index))
            yield f"{alter}ADD {texts['index', index]}{IN_PLACE}"

    def _restore_index(self, table: str, name: str) -> list[str]:
        if (table, name) in self._dropped:
            return []
        drop = ""
        if name in self._found[table].indexes:
            drop = "DROP PRIMARY KEY, " if name == "PRIMARY" else f"DROP INDEX {name}, "
        return [
            f"ALTER TABLE {table} {drop}ADD {self._declared_definitions(table)['index', name]}{IN_PLACE}"
        ]

    def _declared_definitions(self, table: str) -> dict[tuple[str, str], str]:
        """The definitions of columns and indexes as the revisions have them, by kind and name."""
        texts: dict[tuple[str, str], str] = {}
        for step in self._steps[table]:
            taken = step.step if isinstance(step, InverseStep) else step
            if isinstance(taken, MakeTable):
                new = definitions_of_table(taken.sql)
            elif isinstance(taken, AddColumn):
                new = {("column", taken.column): f"{taken.column} {taken.definition}"}
            elif isinstance(taken, AddIndex):
                unique = "UNIQUE " if taken.unique else ""
                definition = f"{unique}KEY {taken.index} ({', '.join(taken.columns)})"
                new = {("index", taken.index): definition}
            else:
                new = {}
            texts |= new
        return texts

    def _make_nullable(self, table: str, name: str) -> str:
        values = {"table": table, "name": name}
        kind, collation = self._connection.execute(text(_COLUMN), values).one()
        collate = f" COLLATE {collation}" if collation else ""
        return f"ALTER TABLE {table} MODIFY COLUMN {_quoted_name(name)} {kind}{collate} NULL"

    def _rule_definition(self, query: str, name: str) -> str:
        """The definition of a rule that is dropped, on one line."""
        found = self._connection.scalar(text(query), {"name": name})
        return " ".join(str(found).split())


def _split_expression_default(definition: str) -> tuple[str, str]:
    """A column's definition, and its default if that is an expression and the column may be NULL.

    MySQL refuses a new column whose default is CURRENT_USER() (error 1674): a replica could fill the rows
    that are there with another account. As a statement of its own, the default is accepted.
    """
    column, _, default = definition.partition(" NULL DEFAULT (")
    if not default or column.endswith(" NOT"):
        return definition, ""
    return f"{column} NULL", f"({default}"


def _quoted_name(name: str) -> str:
    """A name that somebody else has given, for a statement."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
