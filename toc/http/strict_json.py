"""Reads JSON from strangers: bounded depth and numbers, no duplicate names, no NaN."""

from __future__ import annotations

import json
import math
from typing import Any

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""Integers that a JSON column keeps exactly; it turns others into floating point numbers."""
_DIGITS_MAX = (
    20  # of an integer; 2^64 has 20. The time of int() grows with the square of their number
)
_BRACKETS = bytes.maketrans(b"[]", b"{}")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = ord("{")


class BadJson(ValueError):
    """The text is not JSON that toc accepts; the message says why, without the text itself."""


def parse_json(body: bytes, nesting_max: int) -> Any:
    """Parses a document. Raises BadJson."""
    if is_nested_deeper(body, nesting_max):
        raise BadJson(f"objects and lists may be nested {nesting_max} deep, not deeper")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise BadJson("the text is not UTF-8") from None
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None


def is_nested_deeper(body: bytes, nesting_max: int) -> bool:
    """Whether objects and lists are nested more than `nesting_max` deep, so that a parser would recurse."""
    if body.count(b"{") + body.count(b"[") <= nesting_max:
        return False
    brackets = _without_strings(body).translate(_BRACKETS, _OTHERS)
    left = brackets
    for _ in range(nesting_max):  # each round takes the innermost pairs away: quick for long lists
        if not left:
            return False
        left = left.replace(b"{}", b"")
    if not left:
        return False
    depth = 0  # too deep, or no JSON
    for bracket in brackets:
        depth += 1 if bracket == _OPENING else -1
        if depth > nesting_max:
            return True
    return False


def _without_strings(body: bytes) -> bytes:
    """The text without its strings, the last of which may lack its end.

    A backslash outside of a string is no JSON: what follows it does not matter. Several times as quick as a
    regular expression.
    """
    if b"\\" in body:  # in this order: the second of two backslashes escapes nothing
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(body.split(b'"')[::2])


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadJson("an object has a name twice")
    return found


def _parse_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _DIGITS_MAX else INTEGER_MAX + 1
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise BadJson("an integer must be from -2^63 to 2^64-1; write a larger number as a text")
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJson("a number is too large; write it as a text")
    return value


def _refuse_constant(name: str) -> Any:
    raise BadJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_int=_parse_integer,
    parse_float=_parse_float,
    parse_constant=_refuse_constant,
)
