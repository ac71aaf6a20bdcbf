"""Finds how the tables and views of a database differ from those that its revisions declare.

A *fault* breaks toc's statements, or makes them slow: a table, column, index or view is missing or differs;
or somebody added a part that can make the server refuse toc's writes (a NOT NULL column without a default,
a UNIQUE key, a trigger, a CHECK, a foreign key). Every other part that somebody added is a *note*.

A fault is *silent* when toc would go on without an error and break a promise: two live jobs under one key,
an id twice, a lost event. Processes do not start if there is a silent fault. Other faults make statements on
their table slow, or make them fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toc.store.schema_steps import SchemaStep
from toc.store.table_shapes import INVISIBLE, PRIMARY, UNKNOWN, Shapes, TableShape

UNIQUE = "unique "


@dataclass(frozen=True, slots=True)
class DriftFinding:
    """One difference of one table or view.

    `kind` and `name` say which part differs: a column, an index, ...; both are "" for the whole table.
    """

    table: str
    text: str
    silent: bool = False
    kind: str = ""
    name: str = ""


def declared_shapes(steps: Iterable[SchemaStep], *, sqlite: bool) -> Shapes:
    """The tables and views that the steps make, in order, in an empty database."""
    shapes: Shapes = {}
    for step in steps:
        step.add_to_shapes(shapes, sqlite=sqlite)
    return shapes


def compare_shapes(found: Shapes, wanted: Shapes) -> tuple[list[DriftFinding], list[DriftFinding]]:
    """Compares tables and views with the wanted shapes; returns faults and notes, ordered by table."""
    faults: list[DriftFinding] = []
    notes: list[DriftFinding] = []
    for table, shape in sorted(wanted.items()):
        if table not in found:
            kind = "view" if shape.is_view else "missing"
            faults.append(DriftFinding(table, f"the {_table_or_view(shape)} is missing", kind=kind))
        else:
            faults += _shape_differences(table, found[table], shape)
            for finding, refuses_writes in _find_additions(table, found[table], shape):
                (faults if refuses_writes else notes).append(finding)
    for table in sorted(found.keys() - wanted.keys()):
        notes.append(
            DriftFinding(table, f"the {_table_or_view(found[table])} is not one of toc's here")
        )
    return faults, notes


def group_findings_by_text(findings: Iterable[DriftFinding]) -> list[str]:
    """Formats findings: one line per text, with all tables to which the text applies."""
    tables: dict[str, list[str]] = {}
    for finding in findings:
        tables.setdefault(finding.text, []).append(finding.table)
    return [f"{format_table_ranges(names)}: {text}" for text, names in tables.items()]


def format_table_ranges(names: Sequence[str]) -> str:
    """Formats names of tables on one line; consecutive shards as the first and last name."""
    parts: list[list[str]] = []
    for name in sorted(names):
        number = _shard_of_table(name)
        if parts and number is not None and _shard_of_table(parts[-1][-1]) == number - 1:
            parts[-1].append(name)
        else:
            parts.append([name])
    shown = [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts]
    total = f" ({len(names)} tables)" if len(shown) < len(names) else ""
    return ", ".join(shown) + total


def _shard_of_table(table: str) -> int | None:
    shard = table.removeprefix("toc_job_")
    return int(shard) if shard.isascii() and shard.isdigit() else None


def _table_or_view(shape: TableShape) -> str:
    return "view" if shape.is_view else "table"


def _shape_differences(table: str, found: TableShape, wanted: TableShape) -> Iterator[DriftFinding]:
    if found.is_view != wanted.is_view:
        text = f"it is a {_table_or_view(found)}, declared as a {_table_or_view(wanted)}"
        yield DriftFinding(table, text, kind="table")
    elif wanted.is_view:
        for text in _view_differences(found, wanted):
            yield DriftFinding(table, text, kind="view")
    else:
        if found.engine != wanted.engine:
            text = f"its engine is {found.engine}, declared {wanted.engine}"
            yield DriftFinding(table, text, silent=True, kind="engine")
        yield from _part_differences(table, "column", found.columns, wanted.columns)
        yield from _part_differences(table, "index", found.indexes, wanted.indexes)


def _view_differences(found: TableShape, wanted: TableShape) -> Iterator[str]:
    if not found.columns:
        yield "it cannot be read: a table, view or column that it reads is missing"
        return
    for name in wanted.columns:
        if name not in found.columns:
            yield f"column {name} is missing"
    if found.tables == UNKNOWN:
        return
    if found.tables != wanted.tables:
        read, declared = set(found.tables.split()), set(wanted.tables.split())
        yield "; ".join(
            [f"it leaves out {name}" for name in sorted(declared - read)]
            + [f"it also reads {name}" for name in sorted(read - declared)]
        )
    elif found.select != wanted.select and set(found.columns) >= set(wanted.columns):
        yield "its SELECT is another one"
    if found.security != "INVOKER":
        yield f"it runs with its maker's rights (SQL SECURITY {found.security}), declared INVOKER"


def _part_differences(
    table: str, kind: str, found: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[DriftFinding]:
    for name, declared in wanted.items():
        there = found.get(name)
        if there != declared:
            difference = f"is {there}, declared {declared}" if there else "is missing"
            silent = _is_silent_fault(kind, there, declared)
            yield DriftFinding(table, f"{kind} {name} {difference}", silent, kind, name)


def _is_silent_fault(kind: str, found: str | None, wanted: str) -> bool:
    """Whether toc's statements would succeed with this fault, and give wrong results."""
    if kind == "index":  # a unique index protects also if it is invisible to the optimizer
        return wanted.startswith(UNIQUE) and (found or "").removesuffix(INVISIBLE) != wanted
    # A missing column makes statements fail. A wrong generated value or collation lets two jobs have one key.
    return found is not None and any(
        part(found) != part(wanted)
        for part in (_generated_expression, _is_auto_increment, _collation_of_column)
    )


def _generated_expression(column: str) -> str:
    return column.partition(" as ")[2]


def _is_auto_increment(column: str) -> bool:
    return "auto_increment" in column


def _collation_of_column(column: str) -> str:
    return next((word for word in column.split() if word.endswith(("_bin", "_ci", "_cs"))), "")


def _find_additions(
    table: str, found: TableShape, wanted: TableShape
) -> Iterator[tuple[DriftFinding, bool]]:
    """Yields each part that somebody added, and whether the part can make the server refuse toc's writes."""
    if found.tables == UNKNOWN:
        text = "its SELECT cannot be seen: the account lacks SHOW VIEW"
        yield DriftFinding(table, text, kind="view"), False
    if wanted.is_view:
        return
    for name in (name for name in found.columns if name not in wanted.columns):
        needed = name in found.required_columns
        effect = ", and has no default: each INSERT fails" if needed else ""
        text = f"column {name} is not one of toc's{effect}"
        yield DriftFinding(table, text, kind="extra column", name=name), needed
    for name in (name for name in found.indexes if name not in wanted.indexes):
        refuses = _index_refuses_rows(found.indexes[name], wanted)
        effect = ", and is unique: it refuses rows" if refuses else ""
        text = f"index {name} is not one of toc's{effect}"
        yield DriftFinding(table, text, kind="extra index", name=name), refuses
    for rule, name in sorted(found.rules - wanted.rules):
        text = f"{rule} {name} is not one of toc's: it can refuse or change rows"
        yield DriftFinding(table, text, kind=rule, name=name), True


def _index_refuses_rows(index: str, wanted: TableShape) -> bool:
    """Whether an added index is unique, without containing the primary key: then the index refuses rows."""
    if not index.startswith(UNIQUE):
        return False
    return not _columns_of_index(wanted.indexes.get(PRIMARY, "?")) <= _columns_of_index(index)


def _columns_of_index(index: str) -> set[str]:
    return set(index.partition("(")[2].rpartition(")")[0].split(", "))
