"""Turns an error into one line on standard error and an exit code.

The codes are an interface: docs/reference/cli.md lists them, scripts act on them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from toc import errors
from toc.domain.secret_masking import mask_secrets
from toc.domain.text_escaping import escape_control_chars, escape_to_one_line

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

_NO_SERVERS = "run `toc dev` in this directory, or set TOC_DATABASES and TOC_REDIS_URL"


class CommandError(Exception):
    """Ends a command: `text` becomes the line on standard error, `code` the exit code."""

    def __init__(self, text: str, code: int) -> None:
        self.code = code
        super().__init__(text)


def print_error_line(text: str) -> None:
    """Prints one line on standard error; passwords are masked."""
    line = "; ".join(part.strip() for part in mask_secrets(text).splitlines() if part.strip())
    typer.echo(f"toc: {escape_to_one_line(line)}", err=True)


def print_error(error: Exception, *, verbose: bool) -> int:
    """Prints what went wrong; returns the exit code. A traceback only when `verbose`."""
    if isinstance(error, BrokenPipeError):
        # The program that reads the output has ended. Python would report this again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if verbose:
        trace = "".join(traceback.format_exception(error))
        typer.echo(escape_control_chars(mask_secrets(trace)), err=True, nl=False)
    text, code = error_text_and_code(error)
    print_error_line(text)
    return code


def error_text_and_code(error: Exception) -> tuple[str, int]:
    """The text and the exit code of an error; passwords are masked."""
    text, code = _unmasked_text_and_code(error)
    return mask_secrets(text), code


def _unmasked_text_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, CommandError):
        return str(error), error.code
    translate = _TRANSLATIONS.get(type(error).__module__.partition(".")[0])
    if translate is not None:
        return translate(error)
    if isinstance(error, ModuleNotFoundError):  # a URL names a driver that is not installed
        return f"{error}: is it installed?", SETTINGS
    return f"internal error: {type(error).__name__}: {_first_line(error)} (-v shows where)", FAULT


def _explain_toc_error(error: Exception) -> tuple[str, int]:
    if isinstance(error, errors.TimerUnavailable):
        return _explain_timer_error(error)
    if isinstance(error, errors.StoreUnavailable) and error.refused:
        return _explain_sql_error(error.__cause__)
    return str(error), next((code for kind, code in _CODES.items() if isinstance(error, kind)), NO)


def _explain_timer_error(error: Exception) -> tuple[str, int]:
    kind = type(error.__cause__).__name__
    if kind.startswith("Authentication"):
        return f"Redis refuses the login: check TOC_REDIS_URL ({_first_line(error)})", SETTINGS
    from toc.runtime.settings import DEV_DIR  # noqa: PLC0415 - quick start

    hint = f": {_NO_SERVERS}" if f" {DEV_DIR}/" in str(error) else ""
    return f"{_first_line(error).rstrip('.')}{hint}", UNAVAILABLE


def _explain_sql_error(error: object) -> tuple[str, int]:
    """Errors that are no TocError: those of a migration, and refusals by a server."""
    from toc.store.driver_errors import is_unavailable_number  # noqa: PLC0415 - quick start

    original = getattr(error, "orig", None)
    arguments: Sequence[object] = getattr(original, "args", ())
    number = arguments[0] if arguments else None  # SQLite has a text instead of a number
    text = str(arguments[1]) if len(arguments) > 1 else _first_line(error)
    if isinstance(number, int):
        if number in errors.MYSQL_REFUSALS:
            hint = errors.GRANTS_HINT if number in errors.MYSQL_DENIED else ""
            return f"the database refuses: {text}{hint}", SETTINGS
        if is_unavailable_number(number):
            return f"a database does not answer: {text}", UNAVAILABLE
    if isinstance(number, str):
        hint = f": {_NO_SERVERS}" if number == "unable to open database file" else ""
        return f"a database does not answer: {number}{hint}", UNAVAILABLE
    if original is None:
        return f"the databases' URLs cannot be used: {text}", SETTINGS
    return f"a database refuses: {text}", FAULT


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _explain_redis_error(error: Exception) -> tuple[str, int]:
    return f"Redis refuses: {_first_line(error)}", SETTINGS


_CODES = {
    errors.InvalidInput: USAGE,
    errors.SettingsError: SETTINGS,
    errors.SchemaMismatch: SETTINGS,
    errors.StatementFailed: SETTINGS,
    errors.WrongDatabase: SETTINGS,
    errors.StoreUnavailable: UNAVAILABLE,
    errors.TooManyCalls: UNAVAILABLE,
    errors.Unauthenticated: SETTINGS,
    errors.Forbidden: SETTINGS,
    errors.RequestFailed: SETTINGS,
    errors.PartlyScheduled: UNAVAILABLE,
    errors.ClusterUnavailable: UNAVAILABLE,
}
_TRANSLATIONS = {
    "toc": _explain_toc_error,
    "sqlalchemy": _explain_sql_error,
    "redis": _explain_redis_error,
}
"""The package that an error comes from -> the function that explains it."""
