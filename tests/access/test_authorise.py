"""What a caller may do: beside a plain model, and each rule by itself."""

from __future__ import annotations

import fnmatch
import itertools
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toc.access.authorise import check_pattern, is_allowed, matches_pattern
from toc.access.caller import LOOPBACK_CALLER, SCOPES, Caller, Scope
from toc.errors import InvalidInput

NAMES = st.text("ab.", min_size=1, max_size=8)
PATTERNS = st.text("ab.*?", min_size=1, max_size=8)
TENANTS = st.sampled_from([None, "a", "b"])


@cache
def model_matches(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return model_matches(pattern[1:], name) or (name != "" and model_matches(pattern, name[1:]))
    return name != "" and pattern[0] in ("?", name[0]) and model_matches(pattern[1:], name[1:])


@given(PATTERNS, NAMES)
@example("*", "a")
@example("a*b*", "aab")
@example("*ab", "aab")
def test_patterns_match_as_the_model_says(pattern: str, name: str) -> None:
    assert matches_pattern(pattern, name) == model_matches(pattern, name)
    assert matches_pattern(pattern, name) == fnmatch.fnmatchcase(name, pattern)


def test_upper_and_lower_case_differ() -> None:
    assert not matches_pattern("Order.*", "order.close")


def test_no_pattern_takes_exponential_time() -> None:
    assert not matches_pattern("*a" * 32, "a" * 63 + "b")  # a backtracking matcher would not end


@given(
    st.frozensets(st.sampled_from(SCOPES)),
    st.lists(PATTERNS, max_size=3),
    TENANTS,
    st.sampled_from(SCOPES),
    st.none() | NAMES,
    TENANTS,
)
def test_a_call_is_allowed_as_the_model_says(
    scopes: frozenset[Scope],
    patterns: list[str],
    tenant: str | None,
    scope: Scope,
    biz_type: str | None,
    of_row: str | None,
) -> None:
    caller = Caller("id", "shop", scopes, tuple(patterns), tenant)
    has_type = any(
        (pattern == "*") if biz_type is None else model_matches(pattern, biz_type)
        for pattern in patterns
    )
    expected = scope in scopes and has_type and tenant == of_row
    assert is_allowed(caller, scope, biz_type, of_row) == expected


def test_one_scope_gives_no_other() -> None:
    for own, asked in itertools.product(SCOPES, SCOPES):
        caller = Caller("id", "shop", frozenset([own]), ("*",), None)
        assert is_allowed(caller, asked, "order.close", None) == (own == asked)


def test_a_caller_without_a_tenant_touches_no_row_of_one_and_the_reverse() -> None:
    for own, of_row in itertools.product([None, "a", "A", "b"], repeat=2):
        caller = Caller("id", "shop", frozenset(SCOPES), ("*",), own)
        assert is_allowed(caller, "read", "order.close", of_row) == (own == of_row)


def test_without_scopes_or_types_nothing_is_allowed() -> None:
    for scope in SCOPES:
        assert not is_allowed(Caller("id", "shop", frozenset(), ("*",), None), scope, "a", None)
        assert not is_allowed(Caller("id", "shop", frozenset(SCOPES), (), None), scope, "a", None)
        assert not is_allowed(
            Caller("id", "shop", frozenset(SCOPES), ("a*",), None), scope, None, None
        )
        assert is_allowed(LOOPBACK_CALLER, scope, None, None)
        assert not is_allowed(LOOPBACK_CALLER, scope, "a", "tenant")


@pytest.mark.parametrize(
    "pattern",
    ["", "[a-z]", "a]", "!a", "a b", "a,b", "ä", "a\n", "a/b", "{a,b}", "x" * 65, None, 5],
)
def test_other_patterns_are_refused(pattern: object) -> None:
    with pytest.raises(InvalidInput, match="type: must be 1 to 64 letters"):
        check_pattern(pattern)


@given(PATTERNS)
def test_patterns_are_accepted_as_they_are(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


def test_the_actor_names_the_token_and_fits_into_an_event() -> None:
    caller = Caller("a" * 12, "o" * 64, frozenset(), (), None)
    assert caller.actor == f"token:{'a' * 12}:{'o' * 64}"
    assert len(caller.actor) <= 96
    assert LOOPBACK_CALLER.actor == "token:-:loopback"
