"""Checks of the callers' arguments, made before anything is written."""

from __future__ import annotations

import json
import re
from typing import Any

from toc.domain.payload_envelope import CODEC_KEY
from toc.errors import InvalidInput
from toc.sentences import sentence

BIZ_TYPE_CHARS_MAX = 64
DEDUP_KEY_CHARS_MAX = 64
ACTOR_CHARS_MAX = 96
TRACE_CHARS_MAX = 64
REASON_CHARS_MAX = 1000
NESTING_MAX = 31
"""The maximum depth of nested objects and lists; MariaDB's JSON functions refuse deeper nesting."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Printable ASCII without spaces: every database engine compares such texts equally.
_KEY = re.compile(r"[!-~]*")


def is_number(value: object) -> bool:
    """Whether a value is an int or a float; True and False do not count as numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_integer(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(
            field, value, sentence("must be an integer from {low} to {high}", low=low, high=high)
        )
    return value


def check_biz_type(value: object) -> str:
    if not isinstance(value, str) or len(value) > BIZ_TYPE_CHARS_MAX or not _NAME.fullmatch(value):
        raise InvalidInput(
            "biz_type",
            value,
            sentence(
                "must be 1 to {most} letters, digits, '.', '_' or '-', and start with a letter or digit",
                most=BIZ_TYPE_CHARS_MAX,
            ),
        )
    return value


def check_dedup_key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > DEDUP_KEY_CHARS_MAX or not _KEY.fullmatch(value):
        raise InvalidInput(
            "dedup_key",
            value,
            f"must be up to {DEDUP_KEY_CHARS_MAX} printable ASCII characters without spaces",
        )
    return value


def check_trace(value: object) -> str | None:
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= TRACE_CHARS_MAX
        or not _KEY.fullmatch(value)
    ):
        raise InvalidInput(
            "trace",
            value,
            f"must be 1 to {TRACE_CHARS_MAX} printable ASCII characters without spaces",
        )
    return value


def check_actor(value: object) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= ACTOR_CHARS_MAX
        or not value.isprintable()
    ):
        raise InvalidInput(
            "actor",
            value,
            sentence("must be 1 to {most} printable characters", most=ACTOR_CHARS_MAX),
        )
    return value


def check_reason(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > REASON_CHARS_MAX or not _is_valid_unicode(value):
        raise InvalidInput(
            "reason",
            value,
            sentence("must be text of up to {most} characters", most=REASON_CHARS_MAX),
        )
    return value


def _is_valid_unicode(text: str) -> bool:
    """False for a text with a lone surrogate: no database or file can store it."""
    return text.encode(errors="replace").decode() == text


_TOO_DEEP = f"must be JSON whose objects and lists are nested at most {NESTING_MAX} deep"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_attribute(value: object, bytes_max: int) -> str | None:
    """Encodes an attribute as JSON text of at most `bytes_max` bytes; None for no attribute.

    Raises InvalidInput, which does not show the attribute: errors get into logs, events and traces.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        kind = type(value).__name__
        rule = f"must be a dict (a JSON object) or None, not of the class {kind}"
        raise InvalidInput("attribute", "…", rule)
    if CODEC_KEY in value:
        raise InvalidInput(
            "attribute", "…", f"must not have the name {CODEC_KEY!r}, which is toc's"
        )
    try:
        text = _JSON.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except RecursionError:
        raise InvalidInput("attribute", "…", _TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        raise InvalidInput("attribute", "…", f"must be JSON: {error}") from None
    if size > bytes_max:
        raise InvalidInput(
            "attribute", "…", f"must be at most {bytes_max} bytes as JSON, is {size}"
        )
    # Counting brackets is cheap, and for most attributes it makes the walk below unnecessary.
    if text.count("{") + text.count("[") > NESTING_MAX and _is_nested_deeper(value, NESTING_MAX):
        raise InvalidInput("attribute", "…", _TOO_DEEP)
    return text


def _is_nested_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested more than `levels` deep."""
    inside: list[object] = [value]
    for _ in range(levels):
        found: list[object] = []
        for each in inside:
            if isinstance(each, dict):
                found += [v for v in each.values() if isinstance(v, dict | list | tuple)]
            elif isinstance(each, list | tuple):
                found += [v for v in each if isinstance(v, dict | list | tuple)]
        if not found:
            return False
        inside = found
    return True


def parse_attribute_json(text: str | None) -> dict[str, Any]:
    """Parses the JSON text of a job's attribute, as the row stores it; returns an empty dict for None."""
    if not text:
        return {}
    value: dict[str, Any] = json.loads(text)
    return value
