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

from toc.runtime.key_ring import (
    KEY_ID_PATTERN,
    ChangedTextError,
    KeyRing,
    UnknownKeyError,
    new_key_line,
)
from toc.runtime.setting_groups import WebhookSettings

__all__ = ["SecretBox", "SecretUnreadableError", "new_key_line"]

_SEALED = re.compile(rf"({KEY_ID_PATTERN}):([A-Za-z0-9+/]+={{0,2}})", re.ASCII)
_HOW = "set webhooks.key_file (or TOC_WEBHOOKS__KEY) to keys as `toc webhooks key` prints them"


class SecretUnreadableError(Exception):
    """An encrypted secret cannot be decrypted: its key is missing, or the text was changed."""


class SecretBox:
    """Encrypts with the first key of a ring, decrypts with any."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    @classmethod
    def from_settings(cls, settings: WebhookSettings) -> SecretBox:
        """Raises SettingsError if no key is set, or the file cannot be read."""
        return cls(KeyRing.read("webhooks", settings.key, settings.key_file, _HOW))

    def encrypt(self, name: str, secret: str) -> str:
        """The secret of the destination `name`, encrypted by the first key: "key id:base64"."""
        sealed = self._ring.encrypt(secret.encode(), name.encode())
        return f"{self._ring.first_id}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, name: str, text: str) -> str:
        """Raises SecretUnreadableError, which shows neither text nor secret."""
        found = _SEALED.fullmatch(text)
        key_id, sealed = (found[1], found[2]) if found else ("?", "")
        try:
            data = base64.b64decode(sealed, validate=True)
            return self._ring.decrypt(key_id, data, name.encode()).decode()
        except UnknownKeyError as error:
            raise SecretUnreadableError(
                f"the secret of webhook {name!r} is encrypted by the key {str(error)!r}, which is not set"
            ) from None
        except (ChangedTextError, binascii.Error, ValueError):
            text = f"the secret of webhook {name!r} does not fit its key: the row was changed"
            raise SecretUnreadableError(text) from None

    def is_current(self, text: str) -> bool:
        """Whether a text is encrypted by the first key."""
        return text.startswith(f"{self._ring.first_id}:")
