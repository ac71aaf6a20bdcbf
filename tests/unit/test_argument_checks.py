"""What callers may pass in. Every refusal names field, value and rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.argument_checks import (
    NESTING_MAX,
    check_biz_type,
    check_dedup_key,
    encode_attribute,
    parse_attribute_json,
)
from toc.domain.biz_ids import check_business_id, check_tenant, hash_text_id
from toc.errors import InvalidInput, TocError

NAMES = "must be 1 to 64 letters, digits"
KEYS = "must be up to 64 printable ASCII characters without spaces"
IDS = "must be an integer from 0 to 2^64-1, or a text of 1 to 64 characters"
TENANTS = "must be 1 to 32 letters, digits, '-' or '_'"

REFUSED: list[tuple[Callable[[Any], Any], str, Any, str]] = [
    *((check_business_id, "biz_id", value, IDS) for value in (-1, 2**64, True, b"7", 7.0, None)),
    (check_business_id, "biz_id", "", "must have 1 to 64 characters if it is a text, has 0"),
    (check_business_id, "biz_id", "x" * 65, "must have 1 to 64 characters if it is a text, has 65"),
    *(
        (check_business_id, "biz_id", value, "must not begin or end with a space")
        for value in (" ", " a", "a ", "a\n", "\ta", "a\u3000")
    ),
    *(
        (check_business_id, "biz_id", value, "must be Unicode without control characters")
        for value in ("a\x00b", "a\nb", "a\x1fb", "a\x7fb", "a\x85b", "a\ud800b")
    ),
    *(
        (check_tenant, "tenant", value, TENANTS)
        for value in ("", "a b", "é", "a.b", "a\n", "x" * 33, 5, b"a")
    ),
    *(
        (check_biz_type, "biz_type", value, NAMES)
        for value in ("", "a b", ".a", "-a", "a/b", "é", "a\n", "x" * 65, None, 5)
    ),
    *(
        (check_dedup_key, "dedup_key", value, KEYS)
        for value in ("a b", "é", "a\n", "\t", "x" * 65, 5, b"k", "\x7f")
    ),
]


@pytest.mark.parametrize(("check", "field", "value", "rule"), REFUSED)
def test_refusals_name_field_value_and_rule(
    check: Callable[[Any], Any], field: str, value: Any, rule: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(value)
    error = caught.value
    assert isinstance(error, TocError)
    assert isinstance(error, ValueError)
    assert (error.field, error.value, error.code) == (field, value, "invalid_input")
    assert error.rule.startswith(rule)
    assert str(error).startswith(f"{field}: {rule}")
    assert repr(value)[:20] in str(error)


@pytest.mark.parametrize("value", [0, 1, 2**64 - 1])
def test_integers_as_business_ids(value: int) -> None:
    assert check_business_id(value) == (value, None, None)
    assert check_business_id(value).given_id == value


@pytest.mark.parametrize(
    "value", ["A-42", "42", "a b", "é", "e\u0301", "😀" * 64, "x" * 64, "'\"\\%"]
)
def test_texts_as_business_ids(value: str) -> None:
    found = check_business_id(value, "shop-1")
    assert found == (hash_text_id(value), value, "shop-1")
    assert found.given_id == value
    assert 0 <= found.number < 2**63


def test_the_number_of_a_text() -> None:
    """These numbers are in databases for ever."""
    assert hash_text_id("A-42") == 1210951568664519185
    assert hash_text_id("é") != hash_text_id("e\u0301")
    assert hash_text_id("a") != hash_text_id("A")


@pytest.mark.parametrize("value", [None, "a", "Shop_1-b", "x" * 32])
def test_tenants(value: str | None) -> None:
    assert check_tenant(value) == value


@pytest.mark.parametrize("value", ["a", "0", "order.close", "A-b_c.9", "x" * 64])
def test_biz_types(value: str) -> None:
    assert check_biz_type(value) == value


@pytest.mark.parametrize("value", [None, "", "k", "!~", "%s'\"\\`", "x" * 64])
def test_dedup_keys(value: str | None) -> None:
    assert check_dedup_key(value) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=5)


@given(OBJECTS)
def test_an_attribute_comes_back_equal(value: dict[str, Any]) -> None:
    text = encode_attribute(value, 10**6)
    assert text is not None
    assert parse_attribute_json(text) == value
    assert "\x00" not in text


def test_no_attribute() -> None:
    assert encode_attribute(None, 4096) is None
    assert parse_attribute_json(None) == {}


def test_the_limit_is_of_bytes_and_not_of_characters() -> None:
    text = encode_attribute({"x": "é" * 10}, 28)
    assert text == '{"x":"' + "é" * 10 + '"}'
    with pytest.raises(InvalidInput, match="at most 27 bytes as JSON, is 28"):
        encode_attribute({"x": "é" * 10}, 27)


def recursive() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def deep(levels: int = 100_000, end: Any = 1) -> dict[str, Any]:
    value: Any = end
    for n in range(levels - 1):
        value = (value,) if n % 3 == 1 else [value, "{[" * 50] if n % 3 == 2 else {"x": value}
    return {"x": value}


@pytest.mark.parametrize(
    "value",
    [
        [], "{}", 5, pytest.param({"x": object()}, id="object"), {"x": {1, 2}}, {"x": b"bytes"},
        {"x": float("nan")}, {"x": float("-inf")}, {"x": "\ud800"}, {("a", "b"): 1}, recursive(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^attribute: must be") as caught:
        encode_attribute(value, 4096)
    assert caught.value.field == "attribute"


@pytest.mark.parametrize(
    "value",
    [["4111"], {"card": "4111", "x": object()}, {"card": "4111", "$toc.codec": 1}, {"4111": [[]]}],
)
def test_no_error_shows_an_attribute(value: Any) -> None:
    """It may be secret, and an error of a handler stands in dead letters, logs and alarms."""
    with pytest.raises(InvalidInput) as caught:
        encode_attribute(value, 5)
    assert "4111" not in f"{caught.value} {caught.value.value}"


def test_what_is_too_deep_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^attribute: must be JSON"):
        encode_attribute(deep(), 4096)


@pytest.mark.parametrize("end", [1, None, "[{" * 40])
def test_objects_and_lists_are_nested_as_deep_as_every_engine_reads(end: Any) -> None:
    assert encode_attribute(deep(NESTING_MAX, end), 65_535) is not None
    assert encode_attribute(deep(NESTING_MAX - 1, {}), 65_535) is not None
    for value in (deep(NESTING_MAX + 1, end), deep(NESTING_MAX, []), deep(5000, end)):
        with pytest.raises(
            InvalidInput, match=r"^attribute: must be JSON whose .* at most 31 deep"
        ):
            encode_attribute(value, 10**9)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    value = {"x": [{"y": [1]} for _ in range(500)]}
    assert encode_attribute(value, 65_535) is not None


def test_a_long_value_is_shown_cut() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_dedup_key("x" * 10_000)
    assert len(str(caught.value)) < 250
    assert json.loads(json.dumps(caught.value.value)) == "x" * 10_000
