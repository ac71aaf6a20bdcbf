"""The one function that decides what a caller may do, and the patterns of biz_types in tokens.

A pattern (glob) has the characters of a biz_type, `*` for any characters, also none, and `?` for exactly
one. There is nothing else: no brackets, no escapes, and upper and lower case differ. `fnmatch` has
brackets, and translates to regular expressions whose time may grow exponentially; this needs at most
length(pattern) x length(name) steps.
"""

from __future__ import annotations

import re

from toc.access.caller import ANY_TYPE, Caller, Scope
from toc.domain.argument_checks import BIZ_TYPE_CHARS_MAX
from toc.errors import InvalidInput

_PATTERN = re.compile(rf"[A-Za-z0-9._*?-]{{1,{BIZ_TYPE_CHARS_MAX}}}", re.ASCII)


def is_allowed(caller: Caller, scope: Scope, biz_type: str | None, tenant: str | None) -> bool:
    """Whether the caller may do what `scope` names with rows of this type and tenant.

    Call it for every item of a batch, with the type and tenant of the *row*, after the row is read: a
    job_id can be guessed. `biz_type` None: the call concerns no single type; then the caller needs the
    pattern `*`. `tenant` None: the row has none. A caller without a tenant may touch no row that has
    one.
    """
    if scope not in caller.scopes or tenant != caller.tenant:
        return False
    if biz_type is None:
        return ANY_TYPE in caller.biz_types
    return any(matches_pattern(pattern, biz_type) for pattern in caller.biz_types)


def check_pattern(value: object) -> str:
    """A pattern of biz_types. Raises InvalidInput."""
    if not isinstance(value, str) or not _PATTERN.fullmatch(value):
        rule = (
            f"must be 1 to {BIZ_TYPE_CHARS_MAX} letters, digits, '.', '_' or '-', with '*' for any "
            "characters and '?' for one; there are no brackets"
        )
        raise InvalidInput("type", value, rule)
    return value


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether the whole name matches the pattern."""
    at = star = 0
    after_star = -1  # the place in the pattern behind the last `*`; -1: there was none
    here = 0
    while here < len(name):
        if at < len(pattern) and pattern[at] == "*":
            at += 1
            after_star, star = at, here
        elif at < len(pattern) and pattern[at] in ("?", name[here]):
            at, here = at + 1, here + 1
        elif (
            after_star >= 0
        ):  # let the last `*` stand for one more character, and try again behind it
            star += 1
            at, here = after_star, star
        else:
            return False
    return all(rest == "*" for rest in pattern[at:])
