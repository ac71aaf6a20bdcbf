"""Secrets in texts: passwords of URLs, and options whose name says that they are secret.

Two ways, since a text alone does not say where a password ends. `SecretUrl` and `SecretText` know what
they are, and show nothing of it. `masked` is for any text, as an error of a driver: it hides what may be
a password up to the last "@" of the line, rather too much than too little. It is sure for passwords
without spaces; raw spaces in URLs are refused by the settings.
"""

from __future__ import annotations

import re
from bisect import bisect_left

HIDDEN = "***"

_SCHEMES = r"(?:mysql|mariadb|sqlite|rediss?|unix|https?|s3a?|gs|abfss?|hdfs|file)(?:\+\w+)?://"
_NEXT_URL = re.compile(rf"[\s,;'\"(]{_SCHEMES}")
_USER = re.compile(r"\w://(?!\[)[^\s:/]*:")
_PORT = re.compile(r"\d{1,5}(?=[/?#,;:)\]'\"\s]|$)")
_SPACE = re.compile(r"\s")
_NAME_BACKWARDS = re.compile(r"[\w.-]*")
_VALUE = re.compile(r"[^\s&]+")

_NAME_CHARS_MAX = 256

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|pwd|secret|token|credential|signature|(?:access|api)[._-]?key"
    r"|(?:^|[._-])(?:key|pass|auth|sas|sig)(?:$|[._-])",
    re.IGNORECASE,
)
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARGUMENT_NAMES = frozenset({"key", "token", "auth"})
"""Names of arguments in Python code, which a traceback shows: secret only as options of a URL."""


def masked(text: str) -> str:
    """The text without the passwords of all URLs and options in it, in time linear in its length."""
    return _without_options("\n".join(map(_without_passwords, text.split("\n"))))


def is_secret_name(name: str) -> bool:
    """Whether an option, as one of Spark's, is called like a secret: its value is not to be shown."""
    return _SECRET_NAME.search(_CAMEL_CASE.sub("_", name)) is not None


def _without_passwords(line: str) -> str:
    """One line. A password reaches to the last "@" before the next URL, one like a port to a space.

    Positions are found once for the line: a search from each URL would take the square of the length.
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


def _without_options(text: str) -> str:
    shown, done = [], 0
    equals = text.find("=")
    while equals >= 0:
        begin = max(done, equals - _NAME_CHARS_MAX)
        found = _NAME_BACKWARDS.match(text[begin:equals][::-1])
        name = found[0][::-1] if found else ""
        before = text[equals - len(name) - 1 : equals - len(name)]
        value = _VALUE.match(text, equals + 1) if _is_option(name, before) else None
        if value is not None:
            shown.append(f"{text[done : equals + 1]}{HIDDEN}")
            done = value.end()
        equals = text.find("=", max(done, equals + 1))
    return "".join(shown) + text[done:]


def _is_option(name: str, before: str) -> bool:
    return is_secret_name(name) and (name not in _ARGUMENT_NAMES or before in ("?", "&"))


def _match_starts(pattern: str | re.Pattern[str], text: str) -> list[int]:
    return [found.start() for found in re.finditer(pattern, text)]


def revealed(text: str) -> str:
    """The whole of a text, also of a `SecretText`, as a plain str."""
    return "".join(text)


class SecretText(str):
    """A text that is shown as asterisks by str(), repr() and in f-strings; in all else it is whole."""

    __slots__ = ()

    @property
    def masked(self) -> str:
        """What may be shown."""
        return HIDDEN

    def __repr__(self) -> str:
        return repr(self.masked)

    def __str__(self) -> str:
        return self.masked

    def __format__(self, how: str) -> str:
        return format(self.masked, how)


class SecretUrl(SecretText):
    """A URL that is shown without its password. What parses it (regular expressions, join) has all of it."""

    __slots__ = ()

    @property
    def masked(self) -> str:
        whole = revealed(self)
        host, at = whole.find("://"), whole.rfind("@")
        colon = whole.find(":", host + 3)
        if host >= 0 and 0 <= colon < at:
            whole = f"{whole[: colon + 1]}{HIDDEN}{whole[at:]}"
        return _without_options(whole)
