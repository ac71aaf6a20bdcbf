"""Rows of toc_event as other hands could have written them, to be read back exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.contract.ended_rows import ASCII_TEXTS, TEXTS
from tests.contract.library import Library
from toc.store.column_types import sql_time_of_ms
from toc.store.event_reader import COLUMNS

ACTORS = tuple(text[:96] for text in TEXTS if text is not None)
RELATED = (None, 0, 1, 2**63 - 1, 2**63, 2**64 - 1)


def write_events(library: Library, rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows into database 0: values by column."""
    database = library.databases[0]
    with database.engine.begin() as connection:
        for row in rows:
            marks = ", ".join(["?" if database.sqlite else "%s"] * len(row))
            sql = f"INSERT INTO toc_event ({', '.join(row)}) VALUES ({marks})"
            connection.exec_driver_sql(sql, tuple(row.values()))


def event_row(event_id: int, event_ms: int, job_id: int = 7, **values: Any) -> dict[str, Any]:
    """A plain row."""
    return {
        "event_id": event_id, "event_time": sql_time_of_ms(event_ms), "job_id": job_id,
        "what": "cancel", "from_status": 0, "to_status": 3, "attempts": 0, "actor": "somebody",
        **values,
    }  # fmt: skip


def hostile_events(library: Library, number: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of all sorts, one ms after the other from the library's now on; ids with gaps."""
    event_id = 1000
    for n in range(number):
        event_id += rng.choice([1, 1, 1, 7, 1000])
        related = rng.choice(RELATED)
        signed = library.sqlite and related is not None and related >= 2**63
        row = {
            "job_id": rng.choice([0, 1, 2**62, 2**63 - 1]),
            "what": rng.choice(["", "cancel", "repair", "x" * 16]),
            "from_status": rng.choice([0, 4, -32768]),
            "to_status": rng.choice([0, 3, 32767]),
            "attempts": rng.choice([0, 1, 32767]),
            "claim_time": rng.choice([None, "2026-01-01 00:00:00.001", "1970-01-01 00:00:00.000"]),
            "actor": rng.choice(ACTORS),
            "reason": rng.choice(TEXTS),
            "run_id": rng.choice([text and text[:32] for text in ASCII_TEXTS]),
            "related_job_id": related - 2**64 if signed and related is not None else related,
            "account": rng.choice([None, "", "toc@%", "\N{PILE OF POO}" * 288]),
        }
        yield event_row(event_id, library.now_ms + n, **row)


assert set(COLUMNS) == set(event_row(1, 1)) | {
    "claim_time", "reason", "run_id", "related_job_id", "account",
}  # fmt: skip
