"""Keys for AES-256-GCM that the database never has: of webhooks' secrets and of payloads.

A key line is "id:base64". The first key of a ring encrypts, every key decrypts, and each encrypted text names
its key. So a key is replaced in three steps: the new key is added to the end of the list everywhere, then it
becomes the first one, and the old key is removed when no text of that key is left.

Needs the package `cryptography`, so this module is imported where keys are used.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from toc.errors import SettingsError

KEYS_MAX = 16
KEY_ID_PATTERN = r"[A-Za-z0-9_-]{1,16}"
_KEY_BYTES, _NONCE_BYTES = 32, 12
OVERHEAD_BYTES = _NONCE_BYTES + 16
"""How many bytes an encrypted text is longer than its plain text: the nonce and the tag."""
_KEY_LINE = re.compile(rf"({KEY_ID_PATTERN}):([A-Za-z0-9+/]{{43}}=)", re.ASCII)


class UnknownKeyError(Exception):
    """The key that encrypted a text is not in the ring."""


class ChangedTextError(Exception):
    """An encrypted text was changed, or belongs elsewhere; or the ring has other bytes under its key's id."""


def new_key_line() -> str:
    """A new key as one line of the key file: the key's id and 32 random bytes as base64."""
    return f"{secrets.token_hex(4)}:{base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"


class KeyRing:
    """The keys of one purpose. `lines`: key lines. `source`, `how`: for errors, which show no key.

    Raises SettingsError.
    """

    def __init__(self, lines: Sequence[str], source: str, how: str) -> None:
        self._ciphers: dict[str, AESGCM] = {}
        if not 1 <= len(lines) <= KEYS_MAX:
            raise SettingsError(
                f"{source}: has {len(lines)} keys, must have 1 to {KEYS_MAX}: {how}"
            )
        for number, line in enumerate(lines, 1):
            found = _KEY_LINE.fullmatch(line)
            if found is None or found[1] in self._ciphers:
                fault = "is not a key" if found is None else f"has the id {found[1]!r} again"
                raise SettingsError(f"{source}: key number {number} {fault}: {how}")
            self._ciphers[found[1]] = AESGCM(base64.b64decode(found[2]))
        self.first_id = next(iter(self._ciphers))

    @classmethod
    def read(cls, group: str, key: SecretStr | None, key_file: str | None, how: str) -> KeyRing:
        """The ring of a group of settings, as "webhooks". Raises SettingsError if no key can be read."""
        if key_file is not None:
            source = f"{group}.key_file {key_file}"
            try:
                text = Path(key_file).read_text("ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "is not ASCII"
                raise SettingsError(f"{source}: cannot be read: {reason}") from None
            return cls([line.strip() for line in text.splitlines() if line.strip()], source, how)
        if key is None:
            raise SettingsError(f"{group}.key: is not set: {how}")
        return cls(key.get_secret_value().replace(",", " ").split(), f"{group}.key", how)

    def encrypt(self, plain: bytes, associated: bytes) -> bytes:
        """Encrypts by the first key. `associated`: authenticated too, and must be given to decrypt."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._ciphers[self.first_id].encrypt(nonce, plain, associated)

    def decrypt(self, key_id: str, sealed: bytes, associated: bytes) -> bytes:
        """Raises UnknownKeyError and ChangedTextError, which show neither text nor key."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnknownKeyError(key_id)
        if len(sealed) < OVERHEAD_BYTES:
            raise ChangedTextError
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
        except InvalidTag:
            raise ChangedTextError from None
