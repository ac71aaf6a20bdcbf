"""The arguments of `debounce`, as they were checked. Imports no database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from toc.center.job_spec import CheckedJob, check_job_fields
from toc.domain.countdown import check_own_key
from toc.domain.times import ceil_ms
from toc.errors import InvalidInput
from toc.runtime.setting_groups import LimitSettings

QUIET_S_MAX = 366 * 86_400


class CheckedDebounce(NamedTuple):
    """job: without its key, due at the end of the quiet period. key: as the caller gave it."""

    job: CheckedJob
    key: str
    max_wait_ms: int


def check_debounce(
    now_ms: int, limits: LimitSettings, quiet: object, max_wait: object, fields: Mapping[str, Any]
) -> CheckedDebounce:
    """Checks the arguments of `debounce`; `fields`: the others. Raises InvalidInput."""
    quiet_ms = _check_duration("quiet", quiet)
    max_wait_ms = _check_duration("max_wait", max_wait)
    if max_wait_ms < quiet_ms:
        raise InvalidInput("max_wait", max_wait, "must not be shorter than quiet")
    key = check_own_key(fields["dedup_key"])
    job = check_job_fields(
        now_ms,
        limits.attribute_bytes,
        {**fields, "action_time": timedelta(milliseconds=quiet_ms), "dedup_key": None},
        "default",
    )
    return CheckedDebounce(job, key, max_wait_ms)


def _check_duration(field: str, value: object) -> int:
    """A duration, in ms. Raises InvalidInput."""
    if not isinstance(value, timedelta) or not 0 < value.total_seconds() <= QUIET_S_MAX:
        raise InvalidInput(field, value, "must be a timedelta above 0, of at most 366 days")
    return ceil_ms(value)
