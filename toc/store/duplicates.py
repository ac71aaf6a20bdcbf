"""Which unique index refused a row: three engines say it in three ways, always with the index's name."""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from toc.store.schema import LIVE_INDEX


def is_live_duplicate(error: IntegrityError) -> bool:
    """True: a live job holds (biz_id, biz_type, dedup_key)."""
    # MySQL "… for key 'toc_job_0001.uq_live'", MariaDB "… for key 'uq_live'",
    # SQLite "UNIQUE constraint failed: toc_job_0001.biz_id, …, toc_job_0001.live_key" (or the index).
    return LIVE_INDEX in str(error.orig) or "live_key" in str(error.orig)


def is_primary_duplicate(error: IntegrityError) -> bool:
    """True: the job_id is taken."""
    message = str(error.orig)
    return "PRIMARY" in message or message.endswith(".job_id")
