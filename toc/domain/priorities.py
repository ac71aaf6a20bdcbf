"""Priorities: which of the due jobs that wait go first, and the ageing that bounds the waiting (ADR 51).

Due time comes first: a job that is not due is never taken, whatever its priority. Among due jobs that wait,
each step of priority counts as `ageing_s` seconds of waiting. So a job is overtaken only by jobs that are due
at most (their priority - its priority) x ageing_s later.
"""

from __future__ import annotations

from toc.domain.argument_checks import check_integer

PRIORITY_MAX = 9
PRIORITIES = range(PRIORITY_MAX + 1)
"""0 is the default, 9 goes first."""


def check_priority(value: object) -> int:
    """Raises InvalidInput if the value is no integer from 0 to 9."""
    return check_integer("priority", value, 0, PRIORITY_MAX)


def priority_of_row(value: int) -> int:
    """The priority of a row. A number outside of 0 to 9, which a person wrote, counts as the nearest one."""
    return min(max(value, 0), PRIORITY_MAX)
