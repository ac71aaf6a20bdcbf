"""Counts the live jobs of a business id, with a bound on the rows that are read."""

from __future__ import annotations

from sqlalchemy import func, select

from toc.domain.biz_ids import BusinessId
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.store.databases import Databases
from toc.store.schema import JOB

c = JOB.c
_LIVE = [int(status) for status in Status if status.live]


def count_live_jobs(databases: Databases, business: BusinessId, type_no: int, rows_max: int) -> int:
    """How many of the newest `rows_max` jobs of a business id and type are live. Raises StoreUnavailable.

    The rows come backwards from the index `uq_live` (its last part is the job_id), so a business id with
    a million ended jobs costs no more than one with `rows_max`.
    """
    shard = databases.routing.shard_of_hash(routing_hash_of(business.number))
    newest = (
        select(c.status, c.biz_text, c.tenant)
        .where(c.biz_id == business.number, c.type_no == type_no)
        .order_by(c.live_key.desc(), c.job_id.desc())
        .limit(rows_max)
        .subquery()
    )
    mine = (
        newest.c.biz_text.is_not_distinct_from(business.text),
        newest.c.tenant.is_not_distinct_from(business.tenant),
    )
    query = select(func.count()).select_from(newest).where(newest.c.status.in_(_LIVE), *mine)
    return int(databases.database_of_shard(shard).scalar(query, shard))
