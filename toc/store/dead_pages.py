"""Reads dead letters by the time of death, newest first, page by page."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, or_, select

from toc.domain.mass_change import ERROR_CHARS
from toc.store.databases import Database


class DeadLetter(NamedTuple):
    """A dead letter. error: its beginning."""

    job_id: int
    biz_id: int | str
    type_no: int
    tenant: str | None
    error: str
    dead_ms: int


def read_dead_page(
    database: Database, since_ms: int, until_ms: int, before: DeadLetter | None, limit: int
) -> list[DeadLetter]:
    """The newest `limit` letters of jobs that died in this range, older than `before`.

    Raises StoreUnavailable.
    """
    its = database.dead.c
    query = (
        select(its.job_id, its.biz_id, its.biz_text, its.type_no, its.tenant,
               func.substr(its.error, 1, ERROR_CHARS), its.dead_time)
        .where(its.dead_time >= since_ms, its.dead_time <= until_ms)
        .order_by(its.dead_time.desc(), its.job_id.desc())
        .limit(limit)
    )  # fmt: skip
    for dialect in ("mysql", "mariadb"):  # else the server may sort the whole table for each page
        query = query.with_hint(database.dead, "FORCE INDEX (ix_dead_time)", dialect)
    if before is not None:
        query = query.where(
            its.dead_time <= before.dead_ms,
            or_(its.dead_time < before.dead_ms, its.job_id < before.job_id),
        )
    return [
        DeadLetter(job_id, number if text is None else text, *rest)
        for job_id, number, text, *rest in database.select(query)
    ]
