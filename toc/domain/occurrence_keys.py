"""The dedup_keys of occurrences of recurring schedules: `recurring@2026-01-05T03:00:00Z;3600`.

The key says which nominal time a job is for, and, for an occurrence of the chain, how many seconds after
its due time it may still begin. So a worker needs to ask nobody about a schedule before it runs a job.
Light to import: each job asks for its nominal time here.
"""

from __future__ import annotations

import re
from datetime import datetime

from toc.domain.times import EPOCH, datetime_of

KEY_PREFIX = "recurring@"
_KEY = re.compile(r"recurring@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)(?:;(\d{1,7}))?", re.ASCII)


def chain_key_of(nominal_ms: int, catch_up_s: int) -> str:
    """The dedup_key of an occurrence of the chain."""
    return f"{extra_key_of(nominal_ms)};{catch_up_s}"


def extra_key_of(nominal_ms: int) -> str:
    """The dedup_key of an occurrence outside the chain: of a backfill, or that a person asked for."""
    at = datetime_of(nominal_ms).isoformat(timespec="seconds").replace("+00:00", "Z")
    return KEY_PREFIX + at


def nominal_ms_of_key(dedup_key: str | None) -> int | None:
    """The nominal time of a job by its key; None: it is no occurrence."""
    found = _match_key(dedup_key)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1])
    except ValueError:
        return None
    return round((moment - EPOCH).total_seconds() * 1000)


def catch_up_s_of_key(dedup_key: str | None) -> int | None:
    """How long after its due time an occurrence may begin, by its key; None: for ever."""
    found = _match_key(dedup_key)
    return None if found is None or found[2] is None else int(found[2])


def is_chain_key(dedup_key: str | None) -> bool:
    """Whether a job may be the occurrence after whose end the next one is made."""
    return catch_up_s_of_key(dedup_key) is not None


def _match_key(dedup_key: str | None) -> re.Match[str] | None:
    if dedup_key is None or not dedup_key.startswith(KEY_PREFIX):
        return None
    return _KEY.fullmatch(dedup_key)
