"""Encrypts the secrets of destinations for the database, with keys that the database never has.

AES-256-GCM with a random nonce. The destination's name is authenticated too: an encrypted secret that is
copied into the row of another destination cannot be decrypted. Each text names its key, so keys can be
replaced: the new key is added as the first one, `toc webhooks rekey` encrypts all secrets again, and then the
old key is removed.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toc.errors import SettingsError
from toc.runtime.setting_groups import WebhookSettings

KEYS_MAX = 16
_KEY_BYTES, _NONCE_BYTES = 32, 12
_KEY_LINE = re.compile(r"([A-Za-z0-9_-]{1,16}):([A-Za-z0-9+/]{43}=)", re.ASCII)
_SEALED = re.compile(r"([A-Za-z0-9_-]{1,16}):([A-Za-z0-9+/]+={0,2})", re.ASCII)
_HOW = "set webhooks.key_file (or TOC_WEBHOOKS__KEY) to keys as `toc webhooks key` prints them"


class SecretUnreadableError(Exception):
    """An encrypted secret cannot be decrypted: its key is missing, or the text was changed."""


def new_key_line() -> str:
    """A new key as one line of the key file: the key's id and 32 random bytes as base64."""
    return f"{secrets.token_hex(4)}:{base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"


class SecretBox:
    """Encrypts with the first key, decrypts with any. `lines`: key lines, see `new_key_line`."""

    def __init__(self, lines: Sequence[str], source: str) -> None:
        self._ciphers: dict[str, AESGCM] = {}
        if not 1 <= len(lines) <= KEYS_MAX:
            raise SettingsError(
                f"{source}: has {len(lines)} keys, must have 1 to {KEYS_MAX}: {_HOW}"
            )
        for number, line in enumerate(lines, 1):
            found = _KEY_LINE.fullmatch(line)
            if found is None or found[1] in self._ciphers:
                fault = "is not a key" if found is None else f"has the id {found[1]!r} again"
                raise SettingsError(f"{source}: key number {number} {fault}: {_HOW}")
            self._ciphers[found[1]] = AESGCM(base64.b64decode(found[2]))
        self._first_id = next(iter(self._ciphers))

    @classmethod
    def from_settings(cls, settings: WebhookSettings) -> SecretBox:
        """Raises SettingsError if no key is set, or the file cannot be read."""
        if settings.key_file is not None:
            source = f"webhooks.key_file {settings.key_file}"
            try:
                text = Path(settings.key_file).read_text("ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "is not ASCII"
                raise SettingsError(f"{source}: cannot be read: {reason}") from None
            return cls([line.strip() for line in text.splitlines() if line.strip()], source)
        if settings.key is None:
            raise SettingsError(f"webhooks.key: is not set: {_HOW}")
        return cls(settings.key.get_secret_value().replace(",", " ").split(), "webhooks.key")

    def encrypt(self, name: str, secret: str) -> str:
        """The secret of the destination `name`, encrypted by the first key: "key id:base64"."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self._first_id].encrypt(nonce, secret.encode(), name.encode())
        return f"{self._first_id}:{base64.b64encode(nonce + sealed).decode()}"

    def decrypt(self, name: str, text: str) -> str:
        """Raises SecretUnreadableError, which shows neither text nor secret."""
        found = _SEALED.fullmatch(text)
        cipher = self._ciphers.get(found[1]) if found else None
        if found is None or cipher is None:
            key_id = found[1] if found else "?"
            raise SecretUnreadableError(
                f"the secret of webhook {name!r} is encrypted by the key {key_id!r}, which is not set"
            )
        try:
            sealed = base64.b64decode(found[2], validate=True)
            nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            return cipher.decrypt(nonce, rest, name.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError):
            text = f"the secret of webhook {name!r} does not fit its key: the row was changed"
            raise SecretUnreadableError(text) from None

    def is_current(self, text: str) -> bool:
        """Whether a text is encrypted by the first key."""
        return text.startswith(f"{self._first_id}:")
