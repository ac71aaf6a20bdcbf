"""Bounds of schemas: nothing is fetched, no pattern is slow, no schema grows by its own references."""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from toc.domain.declared_type import DeclaredType, check_payload
from toc.domain.payload_schema import (
    DEPTH_MAX,
    DRAFT,
    PARTS_MAX,
    PATTERN_CHARS_MAX,
    SCHEMA_BYTES_MAX,
    PayloadCheck,
    _compile_schema,
    check_schema_bounds,
)
from toc.errors import InvalidInput, SettingsError


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels - 1):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(steps: int) -> dict[str, Any]:
    """A small schema with 2 ** steps parts, once its references are followed."""
    names = {
        f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]}
        for n in range(steps)
    }
    return {"$ref": "#/$defs/s0", "$defs": names | {f"s{steps}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        ([], "must be a JSON object"),
        ({"default": {1, 2}}, "must be JSON"),
        ({"default": float("nan")}, "must be JSON"),
        ({"$comment": "x" * SCHEMA_BYTES_MAX}, "at most 64000 bytes"),
        (nested(DEPTH_MAX + 1), "nested at most 32 deep"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "2020-12"),
        ({"maxlength": 5}, "/maxlength: this keyword is not supported"),
        ({"properties": {"a": {"unevaluatedProperties": False}}}, "not supported"),
        ({"$id": "http://here"}, "not supported"),
        ({"$dynamicRef": "#a"}, "not supported"),
        ({"$ref": "http://here/schema.json"}, "must begin with '#'"),
        ({"$ref": "other.json#/a"}, "must begin with '#'"),
        ({"items": {"$ref": 5}}, "must begin with '#'"),
        ({"$ref": "#"}, "back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"properties": {"a": {"items": {"$ref": "#/properties/a"}}}}, "back to itself"),
        (
            {"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
            "back to itself",
        ),
        ({"$ref": "#/$defs/b"}, "JSON pointer"),
        ({"$ref": "#/$defs", "$defs": {"a": True}}, "JSON pointer"),
        ({"$ref": "#anchor"}, "JSON pointer"),
        (doubling(20), f"at most {PARTS_MAX} parts"),
        ({"pattern": "a" * (PATTERN_CHARS_MAX + 1)}, "at most 1000 characters"),
        ({"pattern": 5}, "at most 1000 characters"),
        ({"patternProperties": {"(": True}}, "regex"),
        ({"pattern": "(?=a)b"}, "regex"),
        ({"pattern": r"(a)\1"}, "regex"),
        ({"pattern": "((a{1000}){1000}){1000}"}, "regex"),
        ({"type": "text"}, "/type"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"items": [True]}, "/items: must be an object"),
    ],
)
def test_refused_schemas(schema: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule) as caught:
        PayloadCheck(schema)
    assert caught.value.field == "payload_schema"


def test_what_is_just_within_the_bounds() -> None:
    assert PayloadCheck(nested(DEPTH_MAX)).find_fault({}) is None
    assert PayloadCheck(doubling(8) | {"$schema": DRAFT}).find_fault({}) is None
    shared = {"$defs": {"a": {"type": "integer"}}, "properties": {}}
    shared["properties"] = {name: {"$ref": "#/$defs/a"} for name in "xyz"}
    assert PayloadCheck(shared).find_fault({"y": ""}) == (
        "/y",
        'the value is not of type "integer"',
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "integer"}, {"enum": ["a"]}, {"const": "a"}, {"pattern": "^a"}, {"maxLength": 2},
        {"format": "date"}, {"not": {"type": "string"}}, {"anyOf": [{"type": "null"}]}, False,
    ],
)  # fmt: skip
def test_no_value_of_a_payload_is_shown(rule: Any) -> None:
    """What a handler schedules wrongly is its error: the text stands in dead letters and in alarms."""
    fields = {"payload_schema": {"properties": {"card": rule}}}
    with pytest.raises(InvalidInput) as caught:
        check_payload(DeclaredType.from_fields("t", fields), {"card": "4111-2222"})
    assert caught.value.field == "attribute/card"
    assert "4111" not in f"{caught.value} {caught.value.value}"


def test_formats_are_checked() -> None:
    check = PayloadCheck({"properties": {"at": {"type": "string", "format": "date-time"}}})
    assert check.find_fault({"at": "2026-01-01T00:00:00Z"}) is None
    assert check.find_fault({"at": "tomorrow"}) is not None


def test_a_pattern_that_backtracks_elsewhere_is_fast() -> None:
    """Python's engine, and the validator's own, need 2 ** 40 steps for this text, or give up."""
    check = PayloadCheck({"properties": {"a": {"pattern": "^(a+)+$"}}})
    assert check.find_fault({"a": "a" * 60_000 + "b"}) is not None
    assert check.find_fault({"a": "a" * 60_000}) is None


def test_nothing_is_fetched() -> None:
    """Even by the validator, if the check of the bounds let such a reference through."""
    asked = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            self.send_response(404)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(InvalidInput):
            _compile_schema({"$ref": f"http://127.0.0.1:{server.server_port}/x.json"})
    finally:
        server.shutdown()
        server.server_close()
    assert not asked.is_set()


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    check_schema_bounds({"type": "object"})
    with pytest.raises(SettingsError, match=r"toc\[web\]"):
        PayloadCheck({"type": "object"})


def test_only_the_first_fault_costs_time() -> None:
    """A list of wrong elements takes about as long as one of right elements, not a thousand times as long."""
    check = PayloadCheck({"items": {"type": "string"}})

    def least_s(payload: list[object]) -> float:
        found = []
        for _ in range(3):
            start_s = time.perf_counter()
            check.find_fault(payload)
            found.append(time.perf_counter() - start_s)
        return min(found)

    assert check.find_fault([1] * 50_000) == ("/0", 'the value is not of type "string"')
    assert least_s([1] * 50_000) < 50 * least_s(["x"] * 50_000)
