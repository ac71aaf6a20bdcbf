"""From an error to one line on standard error and an exit code.

The codes are an interface: docs/cli.md lists them, scripts act on them.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence

import typer

OK, NO, USAGE, UNAVAILABLE, SETTINGS, REPAIRED, FAULT, RESTART = 0, 1, 2, 3, 4, 5, 70, 75
INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE

EXIT_CODES = """\b
Exit codes:
  0   ok
  1   the answer is no (not cancelled, not found, doctor found a fault, ...)
  2   wrong usage or bad input
  3   a server does not answer
  4   settings or schema are wrong
  5   there were disagreements, and all are repaired (toc reconcile)
  70  a fault in toc itself
  75  restart wanted: too many handlers are stuck (toc worker)"""

_MYSQL_CLIENT_ERRORS = 2000  # from here on: the driver's own, about the connection
_NO_SERVERS = "run `toc dev` in this directory, or set TOC_DATABASES and TOC_REDIS_URL"

_USER = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]*@")
_QUERY = re.compile(r"([?&](?:password|passwd|ssl_password)=)[^\s&]*", re.IGNORECASE)


class CommandError(Exception):
    """A command cannot go on: the text is its line on standard error, `code` its exit code."""

    def __init__(self, text: str, code: int) -> None:
        self.code = code
        super().__init__(text)


def masked(text: str) -> str:
    """A text with the passwords of all URLs in it replaced by asterisks."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))


def say(text: str) -> None:
    """One line on standard error."""
    line = "; ".join(part.strip() for part in masked(text).splitlines() if part.strip())
    typer.echo(f"toc: {line}", err=True)


def report(error: Exception, *, verbose: bool) -> int:
    """Says what went wrong; returns the exit code. A traceback only when `verbose`."""
    if isinstance(error, BrokenPipeError):
        # Whoever read us has gone. Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if verbose:
        typer.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)
    text, code = explain(error)
    say(text)
    return code


def explain(error: Exception) -> tuple[str, int]:
    """The line and the exit code of an error."""
    if isinstance(error, CommandError):
        return str(error), error.code
    translate = _FOREIGN.get(type(error).__module__.partition(".")[0])
    if translate is not None:
        return translate(error)
    if isinstance(error, ModuleNotFoundError):  # a driver that a URL names
        return f"{error}: is it installed?", SETTINGS
    return f"internal error: {type(error).__name__}: {_first_line(error)} (-v shows where)", FAULT


def _explain_toc(error: Exception) -> tuple[str, int]:
    from toc import errors  # noqa: PLC0415 - quick start

    if isinstance(error, errors.TimerUnavailable):
        return _explain_timer(error)
    if isinstance(error, errors.StoreUnavailable) and error.refused:
        return _explain_sql(error.__cause__)
    codes = (
        (errors.InvalidInput, USAGE),
        ((errors.SettingsError, errors.SchemaMismatch, errors.WrongDatabase), SETTINGS),
        ((errors.StoreUnavailable, errors.PartlyScheduled, errors.ClusterUnavailable), UNAVAILABLE),
    )
    return str(error), next((code for kind, code in codes if isinstance(error, kind)), NO)


def _explain_timer(error: Exception) -> tuple[str, int]:
    kind = type(error.__cause__).__name__
    if kind.startswith("Authentication"):
        return f"Redis refuses the login: check TOC_REDIS_URL ({_first_line(error)})", SETTINGS
    from toc.runtime.settings import DEV_DIR  # noqa: PLC0415

    hint = f": {_NO_SERVERS}" if f" {DEV_DIR}/" in str(error) else ""
    return f"{_first_line(error).rstrip('.')}{hint}", UNAVAILABLE


def _explain_sql(error: object) -> tuple[str, int]:
    from toc.errors import MYSQL_REFUSALS  # noqa: PLC0415

    """Errors that no verb translates: those of a migration, and what a server refuses."""
    original = getattr(error, "orig", None)
    arguments: Sequence[object] = getattr(original, "args", ())
    number = _number(error)
    text = str(arguments[1]) if len(arguments) > 1 else _first_line(error)
    if isinstance(number, int) and number in MYSQL_REFUSALS:
        return f"the database refuses: {text}", SETTINGS
    if isinstance(number, int) and number >= _MYSQL_CLIENT_ERRORS:
        return f"a database does not answer: {text}", UNAVAILABLE
    if isinstance(number, str):
        hint = f": {_NO_SERVERS}" if number == "unable to open database file" else ""
        return f"a database does not answer: {number}{hint}", UNAVAILABLE
    if original is None:
        return f"the databases' URLs cannot be used: {text}", SETTINGS
    return f"a database refuses: {text}", FAULT


def _number(error: object) -> object:
    """The driver's own number of an error; of SQLite, its text."""
    arguments: Sequence[object] = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments else None


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _explain_redis(error: Exception) -> tuple[str, int]:
    return f"Redis refuses: {_first_line(error)}", SETTINGS


_FOREIGN = {"toc": _explain_toc, "sqlalchemy": _explain_sql, "redis": _explain_redis}
"""Whose errors they are -> what they mean."""
