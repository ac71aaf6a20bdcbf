"""Hides secrets in texts: passwords of URLs, and options whose name says that they are secret.

`SecretUrl` and `SecretText` are secret values that are shown masked. `mask_secrets` is for any other text,
such as a driver's error. A text does not say where a password ends, so `mask_secrets` hides everything up to
the last "@" of the line: rather too much than too little. `mask_secrets` hides every password without spaces;
the settings refuse URLs with spaces. It also hides the secrets of toc's own tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from toc.domain.text_escaping import cut_out_middle

HIDDEN = "***"

SHOWN_CHARS_MAX = 16_384
"""Of a longer message, field or traceback the beginning and the end are shown in logs and traces."""

_SCHEMES = r"(?:mysql|mariadb|sqlite|rediss?|unix|https?|amqps?|kafka|s3a?|gs|abfss?|hdfs|file)(?:\+\w+)?://"
_NEXT_URL = re.compile(rf"[\s,;'\"(]{_SCHEMES}")
_USER = re.compile(r"\w://(?!\[)[^\s:/]*:")
_PORT = re.compile(r"\d{1,5}(?=[/?#,;:)\]'\"\s]|$)")
_SPACE = re.compile(r"\s")
_NAME_BACKWARDS = re.compile(r"[\w.-]*")
_VALUE = re.compile(r"[^\s&]+")

_TOKEN = re.compile(r"(toc_[0-9a-z]{12}_)[0-9A-Za-z]{43}", re.ASCII)

_NAME_CHARS_MAX = 256

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|pwd|secret|token|credential|signature|(?:access|api)[._-]?key"
    r"|(?:^|[._-])(?:key|pass|auth|sas|sig)(?:$|[._-])",
    re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARGUMENT_NAMES = frozenset({"key", "token", "auth"})
"""Names of arguments in Python code, which a traceback shows: secret only as options of a URL."""


def mask_secrets(text: str) -> str:
    """The text without the passwords of all URLs and options in it, in time linear in its length."""
    return mask_tokens(_mask_secret_options("\n".join(map(_mask_url_passwords, text.split("\n")))))


def mask_tokens(text: str) -> str:
    """The text without the secrets of toc's tokens (toc_ID_SECRET); their ids stay."""
    return _TOKEN.sub(rf"\1{HIDDEN}", text) if "toc_" in text else text


def is_secret_name(name: str) -> bool:
    """Whether the name of an option, for example of Spark, says that its value is secret."""
    return _SECRET_NAME.search(_CAMEL_CASE.sub("_", name)) is not None


def _mask_url_passwords(line: str) -> str:
    """Masks the passwords of the URLs in one line.

    A password ends at the last "@" before the next URL. A password that begins like a port ends at the
    last "@" before a space.

    Positions are found once for the line: a search from each URL would take quadratic time.
    """
    ats = _match_starts("@", line)
    if not ats:
        return line
    urls, spaces = _match_starts(_NEXT_URL, line), _match_starts(_SPACE, line)
    shown, done, look = [], 0, 0
    while user := _USER.search(line, look):
        begin = user.end()
        is_port = _PORT.match(line, begin) is not None
        ends, first = (spaces, begin) if is_port else (urls, begin + 1)
        end = bisect_left(ends, first)
        last = bisect_left(ats, ends[end] if end < len(ends) else len(line)) - 1
        if last >= 0 and ats[last] >= begin and not line[begin].isspace():
            shown.append(f"{line[done:begin]}{HIDDEN}@")
            done = look = ats[last] + 1
        else:
            look = begin - 2  # the colon may be that of the next "://"
    return "".join(shown) + line[done:]


def _mask_secret_options(text: str) -> str:
    shown, done = [], 0
    equals = text.find("=")
    while equals >= 0:
        begin = max(done, equals - _NAME_CHARS_MAX)
        found = _NAME_BACKWARDS.match(text[begin:equals][::-1])
        name = found[0][::-1] if found else ""
        before = text[equals - len(name) - 1 : equals - len(name)]
        value = _VALUE.match(text, equals + 1) if _is_secret_option(name, before) else None
        if value is not None:
            shown.append(f"{text[done : equals + 1]}{HIDDEN}")
            done = value.end()
        equals = text.find("=", max(done, equals + 1))
    return "".join(shown) + text[done:]


def _is_secret_option(name: str, before: str) -> bool:
    return is_secret_name(name) and (name not in _ARGUMENT_NAMES or before in ("?", "&"))


def _match_starts(pattern: str | re.Pattern[str], text: str) -> list[int]:
    return [found.start() for found in re.finditer(pattern, text)]


def reveal_secret(text: str) -> str:
    """The unmasked text, also of a `SecretText`, as a plain str."""
    return "".join(text)


class SecretText(str):
    """A secret text: str(), repr() and f-strings show asterisks; all other str methods use the real text."""

    __slots__ = ()

    @property
    def masked(self) -> str:
        """The masked text, which may be shown."""
        return HIDDEN

    def __repr__(self) -> str:
        return repr(self.masked)

    def __str__(self) -> str:
        return self.masked

    def __format__(self, how: str) -> str:
        return format(self.masked, how)


class SecretUrl(SecretText):
    """A URL that str() shows without its password. Regular expressions and join() use the real text."""

    __slots__ = ()

    @property
    def masked(self) -> str:
        whole = reveal_secret(self)
        host, at = whole.find("://"), whole.rfind("@")
        colon = whole.find(":", host + 3)
        if host >= 0 and 0 <= colon < at:
            whole = f"{whole[: colon + 1]}{HIDDEN}{whole[at:]}"
        return _mask_secret_options(whole)


def mask_and_cut(text: str) -> str:
    """The text for logs and traces: without passwords; of a long text the beginning and the end."""
    # Masked before it is cut: half of a URL would not be recognized.
    return cut_out_middle(mask_secrets(text), SHOWN_CHARS_MAX)
