"""Which unique index refused a row: three engines say it in three ways, always with the index's name."""

from __future__ import annotations

import re

from sqlalchemy.exc import IntegrityError

from toc.store.schema import LIVE_INDEX

_DUPLICATE = 1062
_OWN_KEY = re.compile(rf"""['.](PRIMARY|{LIVE_INDEX}|uq_name)'["\]]*$""")  # where the text ends


def is_own_duplicate(error: IntegrityError) -> bool:
    """True: of a key of toc's own, not of one that somebody has added, and of no other rule."""
    message = str(error.orig)
    if message.startswith("UNIQUE constraint failed"):
        return True  # SQLite names columns: whose key it is cannot be told
    number, *texts = getattr(error.orig, "args", ()) or (None,)
    return number == _DUPLICATE and _OWN_KEY.search(str(texts[-1:])) is not None


def is_live_duplicate(error: IntegrityError) -> bool:
    """True: a live job holds (biz_id, type_no, dedup_key)."""
    # MySQL "… for key 'toc_job_0001.uq_live'", MariaDB "… for key 'uq_live'",
    # SQLite "UNIQUE constraint failed: toc_job_0001.biz_id, …, toc_job_0001.live_key" (or the index).
    return LIVE_INDEX in str(error.orig) or "live_key" in str(error.orig)


def is_primary_duplicate(error: IntegrityError) -> bool:
    """True: the job_id is taken."""
    message = str(error.orig)
    return "PRIMARY" in message or message.endswith(".job_id")
