"""Checks payloads (the attributes of jobs) against a JSON Schema of draft 2020-12.

The Rust package `jsonschema_rs` validates. Its patterns run in an engine whose time is linear in the text, so
no pattern can be made slow by a payload. A schema's cost is bounded when it is declared: its size, its depth,
its keywords, and the number of its parts after each `$ref` is replaced by what it refers to. A `$ref` must
lead to a place in the same schema, and not back to itself; nothing is ever fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from toc.errors import InvalidInput, SettingsError

SCHEMA_BYTES_MAX = 64_000  # as JSON; the column of the settings has 65,535 bytes
DEPTH_MAX = 32
PARTS_MAX = 2000  # schemas within the schema, counted once for each `$ref` that leads to them
PATTERN_CHARS_MAX = 1000
REGEX_BYTES_MAX = 1_000_000  # the memory of a compiled pattern
FIELD = "payload_schema"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

_ONE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
)  # keywords whose value is a schema
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})  # a list of schemas
_MAP = frozenset(
    {"properties", "patternProperties", "$defs", "dependentSchemas"}
)  # schemas by name
_PLAIN = frozenset({
    "$ref", "$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "type", "enum", "const", "format", "multipleOf", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
    "maxContains", "minContains", "maxProperties", "minProperties", "required", "dependentRequired",
})  # fmt: skip
# Without `unevaluatedProperties` and `unevaluatedItems`, which evaluate parts again, and without anchors and
# `$id`, which change what a `$ref` means.
KEYWORDS = _ONE | _LIST | _MAP | _PLAIN


class PayloadCheck:
    """A compiled schema. Thread-safe. Raises InvalidInput if the schema is refused."""

    def __init__(self, schema: dict[str, Any]) -> None:
        check_schema_bounds(schema)
        self._validator = _compile_schema(schema)

    def find_fault(self, payload: object) -> tuple[str, str] | None:
        """The first place that breaks the schema: its JSON pointer, and the rule; None: there is none.

        The rule shows no value of the payload, which may be secret: errors get into logs and dead letters.
        """
        error = self._first_error(payload)
        if error is None:
            return None
        pointer = "".join(f"/{_escape_pointer(part)}" for part in error.instance_path)
        rule = str(error.message)
        return pointer, rule if len(rule) <= 200 else f"{rule[:197]}..."

    def _first_error(self, payload: object) -> Any:
        # `iter_errors` would make an object for each fault before it gives the first one: seconds for a
        # list of 100,000 wrong numbers, while the event loop of `toc web` waits.
        import jsonschema_rs  # noqa: PLC0415 - only for types that have a schema

        try:
            self._validator.validate(payload)
        except jsonschema_rs.ValidationError as error:
            return error
        return None


def check_schema_bounds(schema: object) -> None:
    """Raises InvalidInput for a schema that is no JSON, too large, too deep, or has a refused keyword."""
    if not isinstance(schema, dict):
        _refuse(schema, "must be a JSON object")
    try:
        text = json.dumps(schema, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        _refuse("…", "must be JSON")
    size = len(text.encode(errors="replace"))
    if size > SCHEMA_BYTES_MAX:
        _refuse("…", f"must be at most {SCHEMA_BYTES_MAX} bytes as JSON, is {size}")
    draft = schema.get("$schema", DRAFT)
    if draft != DRAFT:
        _refuse(draft, f'$schema: must be "{DRAFT}" or absent')
    parts: dict[str, Any] = {}
    _check_part(schema, "", 1, parts)
    _count_parts(parts, "", 0, frozenset())


def _check_part(part: object, pointer: str, depth: int, parts: dict[str, Any]) -> None:
    """Checks the keywords of a schema, and of the schemas in it; adds them to `parts`, by pointer."""
    if depth > DEPTH_MAX:
        _refuse("…", f"must be nested at most {DEPTH_MAX} deep")
    if not isinstance(part, dict | bool):
        _refuse(part, f"{pointer or 'the root'}: must be an object, true or false")
    parts[pointer] = part
    if isinstance(part, bool):
        return
    for keyword, value in part.items():
        if keyword not in KEYWORDS:
            _refuse(keyword, f"{pointer}/{keyword}: this keyword is not supported")
        if keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            _refuse(value, f"{pointer}/$ref: must begin with '#': a place in this schema")
        patterns = {"pattern": [value], "patternProperties": value}.get(keyword)
        for pattern in patterns if isinstance(patterns, (list, dict)) else ():
            _check_pattern(pattern, f"{pointer}/{keyword}")
    for name, inner in _parts_of(part):
        _check_part(inner, f"{pointer}/{name}", depth + 1, parts)


def _check_pattern(pattern: object, pointer: str) -> None:
    if not isinstance(pattern, str) or len(pattern) > PATTERN_CHARS_MAX:
        _refuse(pattern, f"{pointer}: must be text of at most {PATTERN_CHARS_MAX} characters")


def _parts_of(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly in a schema, with their places."""
    for keyword, value in part.items():
        if keyword in _ONE:
            yield keyword, value
        elif keyword in _LIST and isinstance(value, list):
            yield from ((f"{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _MAP and isinstance(value, dict):
            yield from (
                (f"{keyword}/{_escape_pointer(name)}", inner) for name, inner in value.items()
            )


def _count_parts(parts: Mapping[str, Any], pointer: str, count: int, above: frozenset[str]) -> int:
    """`count` and the number of parts of a schema, each `$ref` followed. `above`: the `$ref`s on the way."""
    count += 1
    if count > PARTS_MAX:
        _refuse("…", f"must have at most {PARTS_MAX} parts, each counted for each $ref to it")
    part = parts[pointer]
    if isinstance(part, bool):
        return count
    reference = part.get("$ref")
    if reference is not None:
        target = reference.removeprefix("#")
        if target not in parts:
            _refuse(reference, "$ref: must be '#/…', the JSON pointer of a schema in this schema")
        if target in above or not target or len(above) >= DEPTH_MAX:
            rule = f"$ref: must not lead back to itself, nor through more than {DEPTH_MAX} others"
            _refuse(reference, rule)
        count = _count_parts(parts, target, count, above | {target})
    for name, _ in _parts_of(part):
        if not name.startswith("$defs/"):  # applied only where a $ref leads to it
            count = _count_parts(parts, f"{pointer}/{name}", count, above)
    return count


def _compile_schema(schema: dict[str, Any]) -> Any:
    try:
        import jsonschema_rs  # noqa: PLC0415 - only for types that have a schema
    except ImportError:
        raise SettingsError(
            "a declared type has a payload schema: install toc[web], whose jsonschema-rs checks payloads"
        ) from None
    # Not the default engine, which backtracks: a payload could make it slow.
    options = jsonschema_rs.RegexOptions(size_limit=REGEX_BYTES_MAX, dfa_size_limit=REGEX_BYTES_MAX)
    try:
        return jsonschema_rs.Draft202012Validator(
            schema,
            pattern_options=options,
            validate_formats=True,
            retriever=_refuse_to_fetch,
            mask="the value",
        )
    except jsonschema_rs.ValidationError as error:
        pointer = "".join(f"/{_escape_pointer(part)}" for part in error.instance_path)
        _refuse("…", f"{pointer or 'the root'}: {error.message[:200]}")


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")


def _escape_pointer(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def _refuse(value: object, rule: str) -> NoReturn:
    raise InvalidInput(FIELD, value, rule)
