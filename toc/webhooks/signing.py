"""Signatures of Standard Webhooks 1.0: HMAC-SHA256 over the id, the time and the body of a request."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from toc.errors import InvalidInput

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix that all secrets have
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
_SECRET_BYTES = 32


def new_secret() -> str:
    """A new random secret, as text: "whsec_" and 32 bytes as base64."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def secret_bytes_of(text: str) -> bytes:
    """The bytes of a secret text. Raises InvalidInput, which does not show the secret."""
    rule = f"must be '{SECRET_PREFIX}' and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes as base64"
    try:
        found = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("secret", "…", rule) from None
    in_bounds = SECRET_BYTES_MIN <= len(found) <= SECRET_BYTES_MAX
    if not text.startswith(SECRET_PREFIX) or not in_bounds:
        raise InvalidInput("secret", "…", rule)
    return found


def signature_headers(
    message_id: str, now_s: int, body: bytes, keys: Sequence[bytes]
) -> list[tuple[bytes, bytes]]:
    """The three headers of a signed request; one signature for each key.

    `now_s`: the time of this attempt in seconds since 1970, which receivers compare with their clock.
    """
    if "." in message_id or not message_id.isprintable() or not message_id.isascii():
        # With a dot in the id, one text to be signed could be split in two ways.
        raise InvalidInput("message_id", message_id, "must be printable ASCII without dots")
    signed = f"{message_id}.{now_s}.".encode() + body
    signatures = [
        "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys
    ]
    return [
        (b"webhook-id", message_id.encode()),
        (b"webhook-timestamp", str(now_s).encode()),
        (b"webhook-signature", " ".join(signatures).encode()),
    ]
