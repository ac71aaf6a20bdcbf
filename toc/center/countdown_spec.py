"""The arguments of `countdown`, as they were checked. Imports no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toc.center.job_spec import CheckedJob, check_job_fields
from toc.domain.argument_checks import check_integer
from toc.domain.countdown import COUNTDOWN_KEY, check_own_key
from toc.errors import InvalidInput
from toc.runtime.setting_groups import LimitSettings

ON_DUPLICATE_OF_COUNTDOWNS = ("keep", "once", "error")


def check_countdown(
    now_ms: int, limits: LimitSettings, deadline: object, count: object, fields: Mapping[str, Any]
) -> CheckedJob:
    """The job of a countdown. `fields`: the other arguments of `countdown`. Raises InvalidInput."""
    check_integer("count", count, 1, limits.countdown)
    if fields["on_duplicate"] not in ON_DUPLICATE_OF_COUNTDOWNS:
        rule = f"must be one of {', '.join(map(repr, ON_DUPLICATE_OF_COUNTDOWNS))} for a countdown"
        raise InvalidInput("on_duplicate", fields["on_duplicate"], rule)
    key = check_own_key(fields["dedup_key"])
    try:
        job = check_job_fields(
            now_ms,
            limits.attribute_bytes,
            {**fields, "action_time": deadline, "dedup_key": None},
            "default",
        )
    except InvalidInput as error:
        if error.field != "action_time":
            raise
        raise InvalidInput("deadline", error.value, error.rule) from None
    return job._replace(dedup_key=COUNTDOWN_KEY + key)
