"""The text of a token, `toc_ID_SECRET`, and its hash.

The secret has 256 random bits, written as 43 letters and digits, so the text is one word that a scanner
of source code can find. The database holds only the SHA-256 of the whole text. A slow hash (bcrypt,
Argon2) protects passwords that people choose, because these can be guessed one by one; nobody can try
2^256 secrets, and a slow hash would let strangers use up the processor with wrong tokens.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string

ID_CHARS = 12
SECRET_CHARS = 43  # 62^43 > 2^256
TOKEN_CHARS = len("toc_") + ID_CHARS + 1 + SECRET_CHARS
_ID_ALPHABET = string.digits + string.ascii_lowercase
_SECRET_ALPHABET = _ID_ALPHABET + string.ascii_uppercase
_TOKEN = re.compile(rf"toc_([0-9a-z]{{{ID_CHARS}}})_[0-9A-Za-z]{{{SECRET_CHARS}}}", re.ASCII)
_ID = re.compile(rf"[0-9a-z]{{{ID_CHARS}}}", re.ASCII)


def make_token_text() -> tuple[str, str]:
    """A new token: its id, and its whole text, which must be shown once and stored nowhere."""
    token_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(ID_CHARS))
    number, secret = secrets.randbits(256), ""
    for _ in range(SECRET_CHARS):
        number, digit = divmod(number, len(_SECRET_ALPHABET))
        secret += _SECRET_ALPHABET[digit]
    return token_id, f"toc_{token_id}_{secret}"


def token_id_of(text: str) -> str | None:
    """The id in a token's text; None: it is no text of a token."""
    found = _TOKEN.fullmatch(text) if len(text) == TOKEN_CHARS else None
    return None if found is None else found[1]


def is_token_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def hash_token(text: str) -> str:
    """The SHA-256 of a token's whole text, as the database holds it."""
    return hashlib.sha256(text.encode()).hexdigest()
