"""The table `runs`: each phase of each nightly run, with its duration and what it counted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toc.domain.times import datetime_of
from toc.reconcile.delta_tables import DAY, append_rows
from toc.reconcile.tables.day_filler import tables_root
from toc.reconcile.tables.table_rows import rows_of_spec
from toc.reconcile.tables.table_specs import RUNS
from toc.runtime.private_files import private_umask
from toc.runtime.settings import Settings

WHOLE = "whole"
"""The phase that stands for a whole part, and in the part "night" for the whole run."""

NOTE_CHARS_MAX = 1000


class PhaseRecord(NamedTuple):
    """One phase. part: as `toc nightly` names it. began_ms: of the part, since 1970. items: what the phase
    counted (rows, jobs, disagreements); None: nothing. code: an exit code. note: why the part failed.
    """

    part: str
    phase: str
    began_ms: int
    seconds: float
    items: int | None
    code: int
    note: str = ""


@dataclass(slots=True)
class RunHistory:
    """The phases of this run, until they are written in one commit."""

    began_ms: int
    phases: list[PhaseRecord] = field(default_factory=list)

    def add_part(
        self,
        whole: PhaseRecord,
        seconds: Mapping[str, float],
        counts: Mapping[str, int],
    ) -> None:
        """Adds a part, and the phases that it has measured. A count without a duration has 0 s."""
        self.phases.append(whole)
        for phase in dict.fromkeys([*seconds, *counts]):
            self.phases.append(
                PhaseRecord(
                    whole.part,
                    phase,
                    whole.began_ms,
                    seconds.get(phase, 0.0),
                    counts.get(phase),
                    whole.code,
                )
            )

    def write(self, settings: Settings, phases: Iterable[PhaseRecord] = ()) -> None:
        """Adds the rows of this run to the table. Raises SchemaMismatch and DELTA_ERRORS."""
        rows = [*self.phases, *phases]
        began = datetime_of(self.began_ms)
        run_id = f"{began:%Y-%m-%dT%H%M%S}.{self.began_ms % 1000:03d}Z-{os.getpid()}"
        columns: dict[str, list[Any]] = {
            "run_id": [run_id] * len(rows),
            "part": [row.part for row in rows],
            "phase": [row.phase for row in rows],
            "began_at": [row.began_ms for row in rows],
            "seconds": [round(row.seconds, 3) for row in rows],
            "items": [row.items for row in rows],
            "code": [row.code for row in rows],
            "note": [row.note[:NOTE_CHARS_MAX] or None for row in rows],
            DAY: [began.date()] * len(rows),
        }
        with private_umask():
            append_rows(tables_root(settings), RUNS, rows_of_spec(RUNS, columns))
