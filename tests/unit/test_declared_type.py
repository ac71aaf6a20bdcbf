"""The fields of a declaration: what is refused, and what JSON keeps."""

from __future__ import annotations

from typing import Any

import pytest

from toc.domain.declared_type import DeclaredType, check_payload
from toc.domain.retry_policies import NAMED_POLICIES, DelayList, Exponential, to_retry_policy
from toc.errors import InvalidInput

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["price"],
    "properties": {"price": {"type": "integer", "minimum": 1}, "items": {"$ref": "#/$defs/list"}},
    "$defs": {"list": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}},
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mode": "pull", "timeout_s": 30, "max_attempts": 16, "retry": [10, 30, 60]},
        {"retry": "webhook"},
        {"retry": {"first_s": 1.0, "factor": 3.0, "max_s": 10.0, "jitter": 0.0}},
        {"mode": "sink", "sink": "webhook:shop"},
        {"payload_schema": SCHEMA},
    ],
)
def test_json_keeps_what_is_set(fields: dict[str, Any]) -> None:
    made = DeclaredType.from_fields("order.close", fields)
    again = DeclaredType.from_json("order.close", made.to_json())
    assert again == made
    assert again.set_fields == {"mode": "handler"} | fields
    assert again.explicit == fields.keys() & {"timeout_s", "max_attempts", "retry"}


def test_a_value_equal_to_the_default_is_still_set() -> None:
    made = DeclaredType.from_fields("a", {"timeout_s": 30, "retry": "exponential"})
    assert made.explicit == {"timeout_s", "retry"}
    assert (made.timeout_s, made.max_attempts, made.retry) == (30, 16, Exponential())


def test_a_sink_says_the_mode_too() -> None:
    assert DeclaredType.from_fields("a", {"sink": "webhook:shop"}).mode == "sink"


def test_changes_set_and_unset_fields() -> None:
    made = DeclaredType.from_fields("a", {"timeout_s": 5, "max_attempts": 3})
    changed = made.with_changes({"timeout_s": None, "retry": [1]})
    assert changed.set_fields == {"mode": "handler", "max_attempts": 3, "retry": [1]}
    assert changed.retry == DelayList((1,))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mode": "push"}, "mode"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 86_401}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"retry": []}, "retry"),
        ({"retry": [1] * 101}, "retry"),
        ({"retry": "webhok"}, "retry"),
        ({"retry": [-1]}, "retry"),
        ({"retry": {"first_s": -1}}, "retry.first_s"),
        ({"retry": {"first": 1}}, "retry"),
        ({"retry": 5}, "retry"),
        ({"mode": "sink"}, "sink"),
        ({"mode": "pull", "sink": "webhook:shop"}, "sink"),
        ({"mode": "sink", "sink": "http://shop"}, "sink"),
        ({"mode": "sink", "sink": "webhook:"}, "sink"),
        ({"mode": "sink", "sink": "webhook:" + "a" * 65}, "sink"),
    ],
)
def test_refused_fields(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        DeclaredType.from_fields("order.close", fields)
    assert caught.value.field == field


def test_refused_names_and_texts() -> None:
    with pytest.raises(InvalidInput, match="biz_type"):
        DeclaredType("no spaces")
    for text in ("[]", "{", "[" * 5000):
        with pytest.raises(InvalidInput, match="settings"):
            DeclaredType.from_json("a", text)


def test_a_newer_releases_field_is_left_out() -> None:
    assert DeclaredType.from_json("a", '{"mode":"pull","colour":"red"}').mode == "pull"


# ---- payloads


def test_a_payload_is_checked_with_the_place_of_its_fault() -> None:
    made = DeclaredType("order.close", payload_schema=SCHEMA)
    check_payload(made, {"price": 1, "items": ["a"]})
    for payload, field, rule in (
        ({"price": 0}, "attribute/price", "minimum"),
        ({}, "attribute", "price"),
        (None, "attribute", "price"),
        ({"price": 1, "items": ["a", "B"]}, "attribute/items/1", "match"),
    ):
        with pytest.raises(InvalidInput, match=rule) as caught:
            check_payload(made, payload)
        assert caught.value.field == field
    with pytest.raises(InvalidInput, match=r"order\.close") as caught:
        check_payload(made, {"price": "x" * 10_000}, field="jobs/3/payload")
    assert caught.value.field == "jobs/3/payload/price"
    assert len(caught.value.rule) < 400


def test_the_place_is_a_json_pointer() -> None:
    made = DeclaredType("a", payload_schema={"properties": {"a/b~": {"type": "integer"}}})
    with pytest.raises(InvalidInput) as caught:
        check_payload(made, {"a/b~": ""})
    assert caught.value.field == "attribute/a~1b~0"


def test_a_type_without_schema_takes_any_payload() -> None:
    check_payload(DeclaredType("a"), {"x": object()})


# ---- named retry policies


def test_the_webhook_policy_is_that_of_the_seeds() -> None:
    policy = to_retry_policy("webhook")
    waits = [policy.delay_s(attempt, 1.0) for attempt in range(1, 11)]
    assert waits == [0, 0, 120, 600, 600, 3600, 7200, 21_600, 54_000, 54_000]
    assert to_retry_policy("exponential") == Exponential()
    assert set(NAMED_POLICIES) == {"webhook", "exponential"}


def test_a_codec_has_a_name_and_hides_the_payload_from_limits() -> None:
    fields = {"codec": "pii", "concurrency": 2, "per": "biz_id"}
    declared = DeclaredType.from_fields("a", fields)
    assert DeclaredType.from_json("a", declared.to_json()) == declared
    assert declared.set_fields["codec"] == "pii"
    assert declared.with_changes({"codec": None}).codec is None
    with pytest.raises(InvalidInput, match="codec"):
        DeclaredType.from_fields("a", {"codec": "p i"})
    with pytest.raises(InvalidInput, match="per"):
        declared.with_changes({"per": "payload.shop"})


def test_a_priority_is_from_0_to_9() -> None:
    declared = DeclaredType.from_fields("a", {"priority": 0})
    assert DeclaredType.from_json("a", declared.to_json()) == declared
    assert declared.set_fields["priority"] == 0
    assert declared.with_changes({"priority": None}).priority is None
    for value in (-1, 10, 1.0, True, "1"):
        with pytest.raises(InvalidInput, match="priority"):
            declared.with_changes({"priority": value})
