"""Statements of the busiest paths, compiled once and handed to the driver as text and values.

SQLAlchemy's execution of a Core statement costs about 0.3 ms of Python each time, mostly for its
expanding IN; a job needs three. Here Core writes the text once, and a run only fills in the shard's
name, the ids (as one value where the driver takes them so, else a mark for each) and the bound values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, CursorResult, Dialect, Insert, Select, Update

from toc.store.packets import Statement
from toc.store.schema import ANY_SHARD

_EXPANDING = re.compile(r"__\[POSTCOMPILE_(\w+)\]")
_IDS = "ids"


class Ids(tuple[int, ...]):
    """Many ids as one value: bound as one, they cost the driver a fifth."""

    __slots__ = ()


def text_of_ids(ids: Ids, mapping: object = None) -> str:
    """How pymysql writes them (see `databases`). Raises TypeError for what is no integer."""
    del mapping
    return ", ".join(map(int.__repr__, ids))


class Prepared:
    """A statement on `schema.JOB`, with one expanding parameter `ids` or none."""

    def __init__(self, statement: Update | Insert | Select[Any], dialect: Dialect) -> None:
        if not dialect.positional:  # some drivers take names; all of them take positions
            dialect = type(dialect)(paramstyle="format")  # type: ignore[call-arg]
        compiled = statement.compile(dialect=dialect)
        names, constants = compiled.positiontup or [], compiled.params
        mark = "?" if dialect.paramstyle == "qmark" else "%s"
        self._takes_ids = dialect.driver == "pymysql"
        any_shard = dialect.identifier_preparer.quote_identifier(ANY_SHARD)
        pieces = _EXPANDING.split(compiled.string.replace(any_shard, "\0"))
        text = pieces[0]
        for name, after in zip(pieces[1::2], pieces[2::2], strict=True):
            marks = "\1" if name == _IDS else ", ".join([mark] * len(constants[name]))
            text += marks + after
        self._text, self._mark = text, mark
        # What goes in before and after the ids, in order: a value, or the name of one that a run gives.
        self._has_ids = _IDS in names
        at = names.index(_IDS) if self._has_ids else len(names)
        self._before = [_filler(compiled.binds[name], dialect) for name in names[:at]]
        self._after = [_filler(compiled.binds[name], dialect) for name in names[at + 1 :]]
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        processors = [column.type.result_processor(dialect, None) for column in columns]
        self._results = [
            (position, convert)
            for position, convert in enumerate(processors)
            if convert is not None
        ]

    def run(
        self, connection: Connection, table: str, ids: Sequence[int], **values: Any
    ) -> CursorResult[Any]:
        """Executes on the table (a quoted name) for some ids."""
        return connection.exec_driver_sql(*self.on(table, ids, **values))

    def on(self, table: str, ids: Sequence[int] = (), **values: Any) -> Statement:
        """The text for this table and so many ids, and its arguments."""
        given = [Ids(ids)] if self._takes_ids else ids
        text = self._text.replace("\0", table).replace("\1", ", ".join([self._mark] * len(given)))
        arguments: list[Any] = []
        for fill in self._before:
            fill(arguments, values)
        if self._has_ids:
            arguments += given
        for fill in self._after:
            fill(arguments, values)
        return text, tuple(arguments)

    def on_all(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Statement:
        """A SELECT of these ids of these tables as one statement: their rows in no order."""
        each = [self.on(table, ids) for table, ids in parts]
        text = " UNION ALL ".join([text for text, _ in each])
        return text, tuple([value for _, values in each for value in values])

    def converted(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
        """What the driver gave for a select, as the columns' Python values."""
        for row in rows:
            values = list(row)
            for position, convert in self._results:
                values[position] = convert(values[position])
            yield values


Filler = Callable[[list[Any], dict[str, Any]], None]
"""Appends one parameter's value (or values) to the arguments of a run."""


def _filler(parameter: BindParameter[Any], dialect: Dialect) -> Filler:
    process = parameter.type.bind_processor(dialect) or _as_is
    key = parameter.key
    if parameter.required:
        return lambda arguments, values: arguments.append(process(values[key]))
    constants: list[Any] = parameter.value if parameter.expanding else [parameter.value]  # type: ignore[assignment]
    ready = [process(value) for value in constants]
    return lambda arguments, values: arguments.extend(ready)


def _as_is(value: Any) -> Any:
    return value
