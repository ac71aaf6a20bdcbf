"""Statements of the most frequent calls, compiled once and given to the driver as text and values.

SQLAlchemy needs about 0.3 ms of Python for each execution of a Core statement, mostly for its
expanding IN; a job needs three statements. Here Core compiles the text once, and an execution only fills in
the table name, the ids (as one value if the driver supports it, else one placeholder each) and the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, Delete, Dialect, Insert, Select, Update, bindparam

from toc.store.schema import ANY_SHARD
from toc.store.verb import Statement

_EXPANDING = re.compile(r"__\[POSTCOMPILE_(\w+)\]")
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
"""The parameter of a statement for job ids."""


class IdList(tuple[int, ...]):
    """Many ids as one bound value, which costs the driver a fifth of the time of a value for each id."""

    __slots__ = ()


def id_list_to_sql(ids: IdList, mapping: object = None) -> str:
    """The SQL text of the ids, called by pymysql (see `databases`). Raises TypeError for a non-integer."""
    del mapping
    return ", ".join(map(int.__repr__, ids))


JobStatement = Update | Insert | Delete | Select[Any]


class CompiledStatement:
    """A statement on `schema.JOB`, compiled to text once by toc, not prepared on the server.

    The statement may have the parameter `IDS`. if_changed: see `Statement`. `compile_once` makes them.
    """

    def __init__(self, statement: JobStatement, dialect: Dialect, if_changed: bool) -> None:
        self._if_changed = if_changed
        if not dialect.positional:
            # Some drivers use named placeholders; all of them accept positional ones.
            dialect = type(dialect)(paramstyle="format")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        names, constants = compiled.positiontup or [], compiled.params
        mark = "?" if dialect.paramstyle == "qmark" else "%s"
        self._takes_ids = dialect.driver == "pymysql"
        any_shard = dialect.identifier_preparer.quote_identifier(ANY_SHARD)
        pieces = _EXPANDING.split(compiled.string.replace(any_shard, "\0"))
        text = pieces[0]
        for name, after in zip(pieces[1::2], pieces[2::2], strict=True):
            marks = "\1" if name == IDS.key else ", ".join([mark] * len(constants[name]))
            text += marks + after
        self._text, self._mark = text, mark
        # Fillers of the parameters before and after the ids, in order.
        self._has_ids = IDS.key in names
        at = names.index(IDS.key) if self._has_ids else len(names)
        self._before = [_make_argument_filler(compiled.binds[name], dialect) for name in names[:at]]
        self._after = [
            _make_argument_filler(compiled.binds[name], dialect) for name in names[at + 1 :]
        ]
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        processors = [column.type.result_processor(dialect, None) for column in columns]
        self._results = [
            (position, convert)
            for position, convert in enumerate(processors)
            if convert is not None
        ]

    def bind(self, table: str, ids: Sequence[int] = (), **values: Any) -> Statement:
        """Makes the statement for a table: the text for this number of ids, and the arguments."""
        given = [IdList(ids)] if self._takes_ids else ids
        text = self._text.replace("\0", table).replace("\1", ", ".join([self._mark] * len(given)))
        arguments: list[Any] = []
        for fill in self._before:
            fill(arguments, values)
        if self._has_ids:
            arguments += given
        for fill in self._after:
            fill(arguments, values)
        return Statement(text, tuple(arguments), self._if_changed)

    def bind_union(self, parts: Sequence[tuple[str, Sequence[int]]], **values: Any) -> Statement:
        """One statement that selects these ids from these tables (UNION ALL); the rows are unordered."""
        each = [self.bind(table, ids, **values) for table, ids in parts]
        text = " UNION ALL ".join([statement.text for statement in each])
        return Statement(text, tuple([value for statement in each for value in statement.values]))

    def convert_rows(self, rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
        """Converts rows of a SELECT from the driver's values to the columns' Python values."""
        for row in rows:
            values = list(row)
            for position, convert in self._results:
                values[position] = convert(values[position])
            yield values


@dataclass(frozen=True)
class _DialectKind:
    """What decides the text and the conversions of a statement: dialects of one kind compile it alike."""

    dialect_class: type[Dialect]
    driver: str
    paramstyle: str
    server_version: tuple[Any, ...] | None
    is_mariadb: bool
    quote: str
    dialect: Dialect = field(compare=False)


def compile_once(
    statement: JobStatement, dialect: Dialect, *, if_changed: bool = False
) -> CompiledStatement:
    """The compiled statement, shared by all databases of one kind.

    Compiling takes 2 to 3 ms. `statement` must be the same object each time: a constant of a module, or the
    cached result of a function.
    """
    kind = _DialectKind(
        type(dialect),
        dialect.driver,
        dialect.paramstyle,
        dialect.server_version_info,
        getattr(dialect, "is_mariadb", False),
        dialect.identifier_preparer.initial_quote,
        dialect,
    )
    return _compile(statement, kind, if_changed)


@lru_cache(maxsize=1024)
def _compile(statement: JobStatement, kind: _DialectKind, if_changed: bool) -> CompiledStatement:
    return CompiledStatement(statement, kind.dialect, if_changed)


ArgumentFiller = Callable[[list[Any], dict[str, Any]], None]
"""Appends one parameter's value (or values) to the arguments of an execution."""


def _make_argument_filler(parameter: BindParameter[Any], dialect: Dialect) -> ArgumentFiller:
    process = parameter.type.bind_processor(dialect) or _return_unchanged
    key = parameter.key
    if parameter.required:
        return lambda arguments, values: arguments.append(process(values[key]))
    constants: list[Any] = parameter.value if parameter.expanding else [parameter.value]  # type: ignore[assignment]
    ready = [process(value) for value in constants]
    return lambda arguments, values: arguments.extend(ready)


def _return_unchanged(value: Any) -> Any:
    return value
