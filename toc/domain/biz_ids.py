"""Business ids: integers, or texts such as order numbers and UUIDs (ADR 27)."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import NamedTuple

from toc.domain.routing import BIZ_ID_MAX
from toc.errors import InvalidInput
from toc.sentences import sentence

TEXT_CHARS_MAX = 64
TENANT_CHARS_MAX = 32
_TENANT = re.compile(r"[A-Za-z0-9_-]+")


class BusinessId(NamedTuple):
    """The values of the columns `biz_id`, `biz_text` and `tenant` for a business id.

    number: the integer, or the hash of the text; determines the shard. text: None if the id is an integer.
    tenant: None if no tenants are used.
    """

    number: int
    text: str | None = None
    tenant: str | None = None

    @property
    def given_id(self) -> int | str:
        """The integer or the text that the caller gave as the business id."""
        return self.number if self.text is None else self.text


def hash_text_id(text: str) -> int:
    """The 63-bit hash of a text: the first 63 bits of the SHA-256 of its UTF-8 bytes.

    In SQL: `CONV(LEFT(SHA2('A-42', 256), 16), 16, 10) >> 1`.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def check_business_id(value: object, tenant: object = None) -> BusinessId:
    """Checks a business id and returns its column values. Raises InvalidInput."""
    tenant = check_tenant(tenant)
    if isinstance(value, str):
        text = str(_check_text_id(value))  # a plain str, not a subclass
        return BusinessId(hash_text_id(text), text, tenant)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= BIZ_ID_MAX:
        rule = sentence(
            "must be an integer from 0 to 2^64-1, or a text of 1 to {most} characters",
            most=TEXT_CHARS_MAX,
        )
        raise InvalidInput("biz_id", value, rule)
    # A plain int: the hash of an IntEnum would be that of its name.
    return BusinessId(int(value), None, tenant)


def _check_text_id(value: str) -> str:
    if not 1 <= len(value) <= TEXT_CHARS_MAX:
        rule: str = sentence(
            "must have 1 to {most} characters if it is a text, has {length}",
            most=TEXT_CHARS_MAX,
            length=len(value),
        )
    elif value != value.strip():
        rule = "must not begin or end with a space"
    elif any(unicodedata.category(each) in ("Cc", "Cs") for each in value):
        rule = "must be Unicode without control characters"
    else:
        return value
    raise InvalidInput("biz_id", value, rule)


def check_tenant(value: object) -> str | None:
    """The tenant of a business id; None: no tenants are used. Raises InvalidInput."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > TENANT_CHARS_MAX or not _TENANT.fullmatch(value):
        rule = f"must be 1 to {TENANT_CHARS_MAX} letters, digits, '-' or '_'"
        raise InvalidInput("tenant", value, rule)
    return value
