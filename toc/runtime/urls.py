"""Checks the URLs of databases and of Redis when settings are loaded, before anything connects.

Options in a database's URL go to the driver. A few options would break toc's promises: with another charset
than the session's a text can break out of its quotes, `init_command` and `read_default_file` run or read
anything, and each driver reads TLS options in its own way (one reads `ssl_disabled=false` as true). So only
listed options are allowed; toc sets everything else that a connection needs itself (`store.sessions`).
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

MYSQL = frozenset({"mysql", "mariadb"})
SOCKET_BYTES_MAX = 103 if sys.platform == "darwin" else 107
"""How long the path of a Unix socket may be."""

_NOT_PLAIN = re.compile(r"[\s\x00-\x1f\x7f]")
_CHARSET = "utf8mb4"
_SETTINGS = {
    "connect_timeout": "connect_timeout_s", "read_timeout": "read_timeout_s",
    "write_timeout": "read_timeout_s",
}  # fmt: skip
"""Options that have a setting instead."""


def parse_database_url(text: str, name: str, *, needs_database: bool = True) -> URL:
    """The URL of a MySQL, MariaDB or SQLite database, checked. `name`: what errors call the URL.

    Raises ValueError with the rule that is broken. No error shows the URL: it may hold a password.
    """
    if _NOT_PLAIN.search(text):
        raise ValueError(
            f"{name} must not hold a space or a control character: write a space as %20"
        )
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # their texts repeat parts, which may be a password
        raise ValueError(f"{name} is not a SQLAlchemy URL") from None
    kind = url.get_backend_name()
    if kind not in MYSQL and kind != "sqlite":
        raise ValueError(f"{name} must be mysql, mariadb or sqlite")
    if kind != "sqlite" and text.count("@") > 1:
        raise ValueError(f"{name} has more than one @: write the one in user or password as %40")
    if kind != "sqlite" and "@" in text and url.username is None:
        raise ValueError(f"{name} has its @ behind a /: write a / in the user as %2F")
    _check_no_control_characters(name, url)
    if kind == "sqlite":
        _check_sqlite_path(name, url.database or "")
    elif needs_database and not url.database:
        raise ValueError(f"{name} must name a database")
    for option, value in url.query.items():
        _check_url_option(name, kind, option, value)
    return url


def _check_no_control_characters(name: str, url: URL) -> None:
    """Raises ValueError for a control character, written as %0a: logs and scripts show these parts."""
    parts = {"user": url.username, "host": url.host, "database": url.database}
    for part, value in parts.items():
        if not unquote(value or "").isprintable():
            raise ValueError(
                f"{name}: the {part} must not hold a control character, not as %0A either"
            )


def check_redis_url(text: str) -> None:
    """Raises ValueError for a password that the driver would take for a host, a port or a path.

    Without this check the driver's errors would show the password, as a host that does not answer.
    """
    if _NOT_PLAIN.search(text):
        raise ValueError("must not hold a space or a control character: write a space as %20")
    rest = text.partition("://")[2]
    head = re.split(r"[/?#]", rest, maxsplit=1)[0]
    is_socket = text.startswith("unix://")
    if head and "@" in rest[len(head) :]:
        raise ValueError(
            "there is an @ behind a / ? or #: write these in a password as %2F %3F %23"
        )
    auth, _, hosts = head.rpartition("@")
    _check_redis_credentials(auth, rest)
    if is_socket:
        if auth and hosts:
            raise ValueError(
                "behind the @ must come the absolute path of the socket: unix://:password@/path"
            )
        check_socket_path(rest.rpartition("@")[2].partition("?")[0])
        return
    port = re.fullmatch(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", hosts.partition(",")[0])
    if port is None or not (port[1] or "0").isdecimal():
        raise ValueError(
            "the part behind the host must be a port: is the @ before the host missing?"
        )
    try:
        urlsplit(f"redis://{hosts.partition(',')[0]}")
    except ValueError:  # its text repeats the host
        raise ValueError("the text in [ ] must be an IPv6 address") from None


def _check_redis_credentials(auth: str, rest: str) -> None:
    """Raises ValueError if the part before the @ is not user:password or :password."""
    if "[" in auth or "]" in auth:
        raise ValueError("there is a [ or ] before the @: write these in a password as %5B %5D")
    if auth and ":" not in auth and "password=" not in rest:
        raise ValueError(
            "the part before the @ must be user:password or :password (is the colon missing?)"
        )


def _check_sqlite_path(name: str, path: str) -> None:
    """Raises ValueError for a path that is no file: each connection would have its own, empty database."""
    if not path or ":memory:" in path or path.startswith("file:"):
        raise ValueError(
            f"{name} must name a database that is a file: write sqlite:///toc_0.db, or "
            "sqlite:////path/toc_0.db with an absolute path"
        )


def check_mysql_driver(url: URL, name: str) -> None:
    """Raises ValueError for mysql:// if the driver that this name stands for is not installed."""
    if url.drivername in MYSQL and find_spec("MySQLdb") is None:
        raise ValueError(
            f"{name}: write {url.drivername}+pymysql:// for {url.drivername}:// (which means the driver "
            "MySQLdb; it is not installed, PyMySQL comes with toc)"
        )


def check_socket_path(path: str) -> None:
    """Raises ValueError for a path that no Unix socket can have."""
    size = len(os.fsencode(path))
    if size > SOCKET_BYTES_MAX:
        raise ValueError(
            f"the path of the socket has {size} bytes, the system takes {SOCKET_BYTES_MAX} at most: "
            "take a shorter path, or one from the working directory"
        )


def _check_url_option(name: str, kind: str, option: str, value: str | tuple[str, ...]) -> None:
    """Raises ValueError for an option that is not allowed, or not with this value."""
    if kind == "sqlite":
        raise ValueError(f"{name}: the option {option!r} is not allowed: SQLite URLs take none")
    if option == "charset":
        if value != _CHARSET:
            raise ValueError(f"{name}: charset must be {_CHARSET}, which it is without the option")
    elif option == "unix_socket":
        if not isinstance(value, str) or not value.startswith("/"):
            raise ValueError(f"{name}: unix_socket must be one absolute path")
    elif option in _SETTINGS:
        raise ValueError(
            f"{name}: the option {option!r} is not allowed: set {_SETTINGS[option]} instead"
        )
    elif option == "ssl" or option.startswith("ssl_"):
        raise ValueError(
            f"{name}: the option {option!r} is not allowed: set mysql.tls and mysql.tls_ca instead "
            "(TOC_MYSQL__TLS, TOC_MYSQL__TLS_CA)"
        )
    else:
        raise ValueError(
            f"{name}: the option {option!r} is not allowed: only charset={_CHARSET} and "
            "unix_socket are"
        )
