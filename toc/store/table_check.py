"""Whether the tables are as toc's promises need them: looked at before a node uses a database.

A silent fault (see `drift`) refuses the start: two live jobs under one key, or an event that is lost,
would be seen by nobody. Any other fault is logged, and shown by `/health`: it makes toc slow, or fails
with an error, table by table, and the other tables' jobs must go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from toc.errors import SchemaMismatch
from toc.runtime.clock import Clock
from toc.store.databases import Database
from toc.store.drift import DriftFinding
from toc.store.schema_status import read_status
from toc.store.schema_steps import SchemaTarget

log = logging.getLogger(__name__)

WAY_OUT = "`toc migrate --status` shows all, `toc migrate --mend` takes it back"
SHOWN = 5


class TableCheck:
    """What differs in the databases of one process, as it was when the process began to use each.

    `looked_ms`: when the last one was looked at, by the process' clock; None: none yet. Thread-safe: each
    database has its own entry. `facts`: of the settings' routing.
    """

    def __init__(self, clock: Clock, expected_meta: Mapping[str, str]) -> None:
        self._clock, self._expected_meta = clock, expected_meta
        self.looked_ms: int | None = None
        self._faults: dict[int, list[DriftFinding]] = {}

    def check(self, database: Database) -> None:
        """A few queries. Raises SchemaMismatch for a silent fault, StoreUnavailable; logs the others."""
        faults = read_faults(database, self._expected_meta)
        self.looked_ms = self._clock.wall_ms()
        silent = [fault for fault in faults if fault.silent]
        if silent:
            raise SchemaMismatch(
                f"database {database.index}: {'; '.join(summarize_faults(silent))}: toc would break its "
                f"promises without an error, so it does not start; {WAY_OUT}"
            )
        for line in summarize_faults(faults):
            log.warning("database %d: %s; %s", database.index, line, WAY_OUT)
        self._faults[database.index] = faults

    @property
    def lines(self) -> list[str]:
        """What differs, a line for each kind of fault, of all databases; []: nothing."""
        return [
            f"database {index}: {line}"
            for index, faults in sorted(self._faults.items())
            for line in summarize_faults(faults)
        ]


def read_faults(database: Database, expected_meta: Mapping[str, str]) -> list[DriftFinding]:
    """What toc's own statements meet: views are for people, and are not among it."""
    target = SchemaTarget(database.index, database.shards, database.sqlite)
    return [
        fault
        for fault in read_status(database, target, expected_meta).faults
        if fault.kind != "view"
    ]


def summarize_faults(faults: Sequence[DriftFinding]) -> list[str]:
    """A line for each text, with the first of its tables; at most SHOWN, and how many more there are."""
    tables: dict[str, list[str]] = {}
    for fault in faults:
        tables.setdefault(fault.text, []).append(fault.table)
    lines = [
        f"{names[0]}: {text}" + (f" (and {len(names) - 1} more tables)" if names[1:] else "")
        for text, names in tables.items()
    ]
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more faults"] if more > 0 else lines
