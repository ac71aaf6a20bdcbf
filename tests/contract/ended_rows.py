"""Rows of job tables as other hands could have written them, to be read back exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.contract.library import Library
from toc.domain.ids import lowest_id_at
from toc.store.column_types import sql_time_of_ms

TEXTS = (
    None, "", "-", "1=-", "|", "1=|", "\\", "'", '"', "%s %(a)s :first", "{job}", "\n\r\t", "é",
    "\N{PILE OF POO}\N{ZERO WIDTH JOINER}", "a" * 4096, "\N{PILE OF POO}" * 1024,
)  # fmt: skip
ASCII_TEXTS = (None, "", "-", "1=-", "|", "'", "!~", "k" * 64)
BIZ_IDS = (0, 1, 2**63 - 1, 2**63, 2**64 - 1)


def write(library: Library, shard: int, rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows: values by column."""
    database = library.databases.database_of_shard(shard)
    with database.engine.begin() as connection:
        for row in rows:
            names = ", ".join(row)
            marks = ", ".join(["?" if database.sqlite else "%s"] * len(row))
            sql = f"INSERT INTO {database.job_table_name(shard)} ({names}) VALUES ({marks})"
            connection.exec_driver_sql(sql, tuple(row.values()))


def made_at(library: Library, job_id: int, ms: int) -> int:
    """SQLite's default for gmt_create knows nothing of the test's clock."""
    table = f"toc_job_{library.shard(job_id):04d}"
    values = {"id": job_id, "made": sql_time_of_ms(ms)}
    library.sql(job_id, f"UPDATE {table} SET gmt_create = :made WHERE job_id = :id", values)
    return job_id


def hostile(library: Library, number: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Ended rows of all sorts, one ms after the other from the library's now on."""
    now_ms = library.now_ms
    for n in range(number):
        biz_id = rng.choice(BIZ_IDS)
        yield {
            "job_id": lowest_id_at(now_ms) + n,
            "gmt_create": sql_time_of_ms(now_ms - rng.randrange(10**9)),
            "gmt_modified": sql_time_of_ms(now_ms + n),
            "biz_id": biz_id - 2**64 if library.sqlite and biz_id >= 2**63 else biz_id,
            "type_no": rng.choice([library.close_no, library.report_no, 99]),
            "status": rng.choice([2, 3, 4]),
            "action_time": sql_time_of_ms(
                rng.choice([now_ms - 1, now_ms + n, 0, 253_402_300_799_999])
            ),
            "attribute": rng.choice(TEXTS),
            "due_time": rng.choice([None, sql_time_of_ms(now_ms)]),
            "attempts": rng.choice([0, 1, 2, 32767]),
            "claim_token": rng.choice(ASCII_TEXTS),
            "dedup_key": rng.choice(ASCII_TEXTS),
            "priority": rng.choice([-128, 0, 127]),
            "tenant": rng.choice([None, "", "shop-1"]),
            "biz_text": rng.choice([None, "A-42", "\N{PILE OF POO}" * 64]),
            "result": rng.choice(TEXTS),
            "trace": rng.choice(ASCII_TEXTS),
            "claim_time": rng.choice([None, sql_time_of_ms(now_ms + n)]),
        }
