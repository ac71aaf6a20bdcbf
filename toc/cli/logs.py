"""Logging, set up by the command line and nowhere else: toc as a library only writes to loggers.

On a terminal rich's handler, else plain `time level logger message` lines, or JSON lines.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from toc.cli.failures import masked


class _Masked(logging.Formatter):
    """What a server or driver says may repeat a URL."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _Plain(_Masked):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        del datefmt
        return _iso(record.created)


class _JsonLines(_Plain):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return masked(json.dumps(line, ensure_ascii=False))


def configure(level: int, *, as_json: bool) -> None:
    """Sends log records of `level` and above to standard error."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_JsonLines())
    elif sys.stderr.isatty():
        handler = _on_terminal()
    else:
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.INFO))
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of its plugins
    logging.getLogger("apscheduler").setLevel(logging.WARNING)  # it tells of its jobs
    logging.getLogger("toc").setLevel(level)  # debug is for toc: drivers would drown it


def _on_terminal() -> logging.Handler:
    from rich.console import Console  # noqa: PLC0415 - quick start
    from rich.logging import RichHandler  # noqa: PLC0415

    handler = RichHandler(console=Console(stderr=True), show_path=False)
    handler.setFormatter(_Masked("%(message)s"))
    return handler


def _iso(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
