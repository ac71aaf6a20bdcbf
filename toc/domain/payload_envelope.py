"""The form of an encrypted payload in the column `attribute`: a JSON object that names its codec and key.

    {"$toc.codec":"pii","key":"9f1c22ab","data":"BASE64"}

The text has exactly this form, so that a changed byte anywhere is noticed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from toc.errors import InvalidInput

CODEC_KEY = "$toc.codec"
"""The first name in an encrypted payload. Payloads of callers must not have it."""

CODEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
PLAIN_BYTES_MAX = 48_000
"""Bytes of a payload as JSON whose encrypted form still fits the column: it has 4/3 of them, and names."""


def is_encrypted(attribute: object) -> bool:
    """Whether a parsed attribute, which other programs may have written, claims to be encrypted."""
    return isinstance(attribute, dict) and CODEC_KEY in attribute


class PayloadIdentity(NamedTuple):
    """The row that a payload belongs to."""

    job_id: int
    biz_type: str
    biz_id: int | str
    tenant: str | None


class Envelope(NamedTuple):
    """An encrypted payload: the name of the codec, the id of the key, and the encrypted bytes."""

    codec: str
    key_id: str
    data: bytes

    def to_text(self) -> str:
        data = base64.b64encode(self.data).decode()
        return f'{{"{CODEC_KEY}":"{self.codec}","key":"{self.key_id}","data":"{data}"}}'

    @classmethod
    def from_text(cls, text: str, attribute: Mapping[str, Any]) -> Envelope | None:
        """The envelope in a text; None: it has another form. `attribute`: the text as parsed JSON."""
        try:
            data = base64.b64decode(attribute["data"], validate=True)
            found = cls(attribute[CODEC_KEY], attribute["key"], data)
            return found if found.to_text() == text else None
        except (KeyError, TypeError, ValueError, binascii.Error):
            return None


def associated_bytes(codec: str, key_id: str, row: PayloadIdentity) -> bytes:
    """What is authenticated with a payload: its data in another row, or under another key, is refused."""
    facts = ["toc payload 1", codec, key_id, *row]
    return json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()


def check_plain_size(attribute: str | None, field: str = "attribute") -> None:
    """Raises InvalidInput for a payload whose encrypted form does not fit the column."""
    size = len((attribute or "").encode())
    if size > PLAIN_BYTES_MAX:
        rule = f"must be at most {PLAIN_BYTES_MAX} bytes as JSON to be encrypted, is {size}"
        raise InvalidInput(field, "…", rule)


def check_codec_name(value: object) -> str:
    """The name of a codec. Raises InvalidInput."""
    if not isinstance(value, str) or not CODEC_NAME.fullmatch(value):
        rule = "must be 1 to 32 letters, digits, '_' or '-', and begin with a letter or digit"
        raise InvalidInput("codec", value, rule)
    return value
