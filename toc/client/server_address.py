"""The URL and the token of a server, and whether the token may be sent there."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from toc.domain.secret_masking import SecretText
from toc.errors import InvalidInput, SettingsError
from toc.runtime.client_settings import ClientSettings
from toc.runtime.settings import TOKEN_VARIABLE

URL_CHARS_MAX = 2000
TOKEN_CHARS_MAX = 512
_TOKEN = re.compile(r"[!-~]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server. `url`: without a "/" at its end. `token`: None: the server serves loopback without tokens."""

    url: str
    token: SecretText | None = field(repr=False)

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")


def make_server_address(
    url: object, token: str | None, token_file: str | None, settings: ClientSettings
) -> ServerAddress:
    """Checks the URL and finds the token: the given one, else that of the given file, of TOC_TOKEN, of
    `client.token_file`.

    Raises InvalidInput for a URL, and SettingsError for a token or its file. Neither shows a token.
    """
    checked, is_loopback = _check_url(url)
    found = token if token is not None else _find_token(token_file, settings)
    if found is None and not is_loopback:
        raise SettingsError(
            f"a token is needed for {checked}: give one, or set {TOKEN_VARIABLE} or client.token_file"
        )
    if found is not None and (
        not isinstance(found, str) or len(found) > TOKEN_CHARS_MAX or not _TOKEN.fullmatch(found)
    ):
        raise SettingsError(
            f"the token must be 1 to {TOKEN_CHARS_MAX} printable ASCII characters without spaces"
        )
    if not checked.startswith("https://") and not is_loopback:
        raise InvalidInput(
            "url", checked, "must begin with https://: a token is sent in clear to loopback only"
        )
    return ServerAddress(checked, None if found is None else SecretText(found))


def _check_url(url: object) -> tuple[str, bool]:
    """The URL without a "/" at its end, and whether it is one of loopback. Raises InvalidInput."""
    rule = "must be https://HOST, with :PORT and /PATH if wanted; no user, query or fragment"
    if not isinstance(url, str) or not 1 <= len(url) <= URL_CHARS_MAX or not _TOKEN.fullmatch(url):
        raise InvalidInput("url", _without_user(url), rule)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput("url", _without_user(url), rule) from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or "@" in parts.netloc
        or "?" in url
        or "#" in url
        or "\\" in url
    ):
        raise InvalidInput("url", _without_user(url), rule)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone: no name server is asked."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_user(url: object) -> object:
    """The URL as an error may show it: a user and a password before "@" are left out."""
    return "***@" + url.rpartition("@")[2] if isinstance(url, str) and "@" in url else url


def _find_token(token_file: str | None, settings: ClientSettings) -> str | None:
    if token_file is not None:
        return _read_token(token_file)
    found = os.environ.get(TOKEN_VARIABLE)
    if found is not None:
        return found.strip()
    return None if settings.token_file is None else _read_token(settings.token_file)


def _read_token(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(TOKEN_CHARS_MAX + 2)
    except OSError as error:
        raise SettingsError(f"cannot read the token file {path!r}: {error.strerror}") from None
    return content.decode("ascii", "replace").strip()
