"""Compares the tables of a database with the declared ones, before a node uses the database.

A silent fault (see `schema_drift`) stops the start: nobody would notice two live jobs under one key, or a
lost event. Any other fault is logged, and shown by `/health`: it makes toc slow, or fails with an error,
table by table, and the jobs of the other tables go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from toc.errors import SchemaMismatch
from toc.runtime.clock import Clock
from toc.store.databases import Database
from toc.store.schema_drift import DriftFinding, group_findings_by_text
from toc.store.schema_status import read_schema_status

log = logging.getLogger(__name__)

WAY_OUT = "`toc migrate --status` shows all faults, `toc migrate --mend` repairs them"
SHOWN = 5


class TableCheck:
    """The faults in the databases of one process, as they were when it began to use each database.

    `checked_ms`: when the last check was made, by the process' clock; None: none yet. Thread-safe: each
    database has its own entry. `expected_meta`: the routing of the settings.
    """

    def __init__(self, clock: Clock, expected_meta: Mapping[str, str]) -> None:
        self._clock, self._expected_meta = clock, expected_meta
        self.checked_ms: int | None = None
        self._faults: dict[int, list[DriftFinding]] = {}

    def check_tables(self, database: Database) -> None:
        """Runs a few queries. Raises SchemaMismatch for a silent fault, StoreUnavailable; logs the others."""
        # toc's own statements do not use the views, which are for people.
        status = read_schema_status(database, self._expected_meta)
        faults = [fault for fault in status.faults if fault.kind != "view"]
        self.checked_ms = self._clock.wall_ms()
        silent = [fault for fault in faults if fault.silent]
        if silent:
            raise SchemaMismatch(
                f"database {database.index}: {'; '.join(summarize_faults(silent))}: toc would break its "
                f"promises without an error, so this process does not start; {WAY_OUT}"
            )
        for line in summarize_faults(faults):
            log.warning("database %d: %s; %s", database.index, line, WAY_OUT)
        self._faults[database.index] = faults

    @property
    def fault_lines(self) -> list[str]:
        """The faults of all databases, a line for each kind of fault."""
        return [
            f"database {index}: {line}"
            for index, faults in sorted(self._faults.items())
            for line in summarize_faults(faults)
        ]


def summarize_faults(faults: Sequence[DriftFinding]) -> list[str]:
    """One line for each different fault, with its tables; at most SHOWN, and the number of the others."""
    lines = group_findings_by_text(faults)
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more faults"] if more > 0 else lines
