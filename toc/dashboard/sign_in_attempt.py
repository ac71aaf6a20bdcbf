"""One sign-in that a browser has begun: what the provider must give back, and where the browser goes then."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

PAGE_CHARS_MAX = 1000
_COOKIE = re.compile(r"([A-Za-z0-9_-]{43})!([A-Za-z0-9%_.~/-]{0,3000})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """A random secret, which only the browser's cookie has, and the page to show at the end.

    state, nonce and verifier follow from the secret, so any replica can check them, and none remembers them.
    None of the three tells the secret or another one.
    """

    page: str
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def state(self) -> str:
        """What the browser brings back: another browser has another cookie."""
        return self._derive("state")

    @property
    def nonce(self) -> str:
        """What the provider's token must contain: another token was made for another sign-in."""
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        """What proves to the provider that the code was made for this sign-in (PKCE)."""
        return self._derive("verifier")

    def _derive(self, label: str) -> str:
        return hmac.new(self.secret.encode(), label.encode(), hashlib.sha256).hexdigest()

    def as_cookie(self) -> str:
        """The text of the cookie."""
        return f"{self.secret}!{quote(self.page)}"

    @classmethod
    def from_cookie(cls, text: str | None) -> SignInAttempt | None:
        """The sign-in of a cookie; None: there is none. The page in it is not checked."""
        found = _COOKIE.fullmatch(text or "")
        return None if found is None else cls(unquote(found[2]), found[1])


def own_page(root: str, wanted: str) -> str:
    """The page that somebody names, if it is one of ours; else the first page."""
    home = f"{root}/ui/"
    is_ours = (
        wanted.startswith(home)
        and len(wanted) <= PAGE_CHARS_MAX
        and wanted.isprintable()
        and "\\" not in wanted
    )
    return wanted if is_ours else home
