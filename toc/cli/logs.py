"""Sets up logging for the command line. toc as a library only writes to loggers."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from toc.domain.secret_masking import mask_and_cut, mask_secrets
from toc.domain.text_escaping import escape_json_document, escape_to_one_line
from toc.handlers.current_job import JobFilter

log = logging.getLogger(__name__)


class _MaskingFormatter(logging.Formatter):
    """One line for each record, and indented lines for its traceback; passwords are masked."""

    def format(self, record: logging.LogRecord) -> str:
        message = _message_of(record)
        record.name = escape_to_one_line(mask_and_cut(record.name))
        record.message = escape_to_one_line(message) + _make_job_suffix(record, message)
        record.asctime = _utc_time_text(record.created)
        lines = [self.formatMessage(record)]
        for text in self._masked_tracebacks(record):
            lines += [f"  {escape_to_one_line(line)}" for line in text.split("\n")]
        return mask_secrets("\n".join(lines))

    def _masked_tracebacks(self, record: logging.LogRecord) -> Iterator[str]:
        if record.exc_info:
            yield mask_and_cut(self.formatException(record.exc_info))
        if record.stack_info:
            yield mask_and_cut(self.formatStack(record.stack_info))


class _JsonFormatter(_MaskingFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _utc_time_text(record.created),
            "level": record.levelname.lower(),
            "logger": mask_and_cut(record.name),
            "message": _message_of(record),
        }
        values = {name: vars(record).get(name) for name in _FIELDS}
        line |= {
            name: _field_of(name, value) for name, value in values.items() if value is not None
        }
        traces = [*self._masked_tracebacks(record)]
        if traces:
            line["exception"] = mask_secrets("\n".join(traces))
        return escape_json_document(json.dumps(line, ensure_ascii=False))


_FIELDS = ("job_id", "biz_type", "biz_id", "attempt", "trace_id", "span_id")


def _field_of(name: str, value: object) -> object:
    """A field of a JSON line. The user may have set it to any object, which need not be one of JSON.

    All but `attempt` are texts: as in all JSON of toc, since 64-bit numbers do not survive every reader.
    """
    if name == "attempt" and isinstance(value, int) and 0 <= value < 2**31:
        return value
    return mask_and_cut(_text_of(value))


def _message_of(record: logging.LogRecord) -> str:
    """The text of a record; without its arguments, if a handler of the user gave wrong ones."""
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - whatever the arguments' own methods raise
        name = type(error).__name__
        text = f"{_text_of(record.msg)} (the arguments of this log call do not fit: {name})"
    return mask_and_cut(text)


def _text_of(value: object) -> str:
    """The text of an object of any class."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - whatever its class raises
        return f"(this has no text: {type(error).__name__})"


def _make_job_suffix(record: logging.LogRecord, message: str) -> str:
    """A text that names the job whose handler logs; empty if the message names the job."""
    job_id, biz_type, attempt = (
        None if value is None else mask_and_cut(_text_of(value))
        for value in (vars(record).get(name) for name in ("job_id", "biz_type", "attempt"))
    )
    if job_id is None or biz_type is None or job_id in message:
        return ""
    return escape_to_one_line(f" [job {job_id} of {biz_type}, attempt {attempt}]")


def configure_logging(level: int, *, as_json: bool) -> None:
    """Sends log records of `level` and above to standard error."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_JsonFormatter())
    elif sys.stderr.isatty():
        handler = _make_rich_handler()
    else:
        handler.setFormatter(_MaskingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.addFilter(JobFilter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.INFO))
    logging.getLogger("alembic").setLevel(logging.WARNING)  # alembic logs its plugins
    logging.getLogger("apscheduler").setLevel(logging.WARNING)  # apscheduler logs its jobs
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs each call, with its URL
    logging.getLogger("toc").setLevel(level)  # debug is for toc only: drivers log too much


def log_uncaught_errors() -> None:
    """Makes log records of Python's warnings, and of exceptions that end threads."""
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_thread_error


def _log_thread_error(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is None or isinstance(ended.exc_value, SystemExit):
        return
    name = "" if ended.thread is None else ended.thread.name
    log.error("an exception has ended the thread %s", name, exc_info=ended.exc_value)


def _make_rich_handler() -> logging.Handler:
    from rich.console import Console  # noqa: PLC0415 - quick start
    from rich.logging import RichHandler  # noqa: PLC0415

    handler = RichHandler(console=Console(stderr=True), show_path=False)
    handler.setFormatter(_MaskingFormatter("%(message)s"))
    return handler


def _utc_time_text(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
