"""What a handler has told about its job: progress and a result, as one JSON text in the column `result`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from toc.domain.argument_checks import check_integer
from toc.errors import InvalidInput

COUNT_MAX = 2**53 - 1  # so that every JSON reader keeps the digits
DOCUMENT_BYTES_MAX = 65_535  # the column's type
RESULT_BYTES_MAX = 60_000
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Progress(NamedTuple):
    """How far a job is: `done` of `total`."""

    done: int
    total: int


class ResultDocument(NamedTuple):
    """The content of the column. progress, result: None if the handler has told or given none."""

    progress: Progress | None
    result: Any


def check_progress(done: object, total: object) -> Progress:
    """Raises InvalidInput unless both are integers and 0 <= done <= total."""
    total = check_integer("total", total, 1, COUNT_MAX)
    return Progress(check_integer("done", done, 0, total), total)


def encode_result(value: object) -> str:
    """A result as JSON text. Raises InvalidInput if it is not JSON, or larger than a row can hold."""
    try:
        text = _JSON.encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("result", value, f"must be JSON: {error}") from None
    if size > RESULT_BYTES_MAX:
        rule = f"must be at most {RESULT_BYTES_MAX} bytes as JSON, is {size}"
        raise InvalidInput("result", f"{text[:40]}…", rule)
    return text


def encode_document(progress: Progress | None, result_json: str | None) -> str:
    """The text for the column. `result_json`: the result as JSON text; None: there is none."""
    parts = []
    if progress is not None:
        parts.append(f'"progress":[{progress.done},{progress.total}]')
    if result_json is not None:
        parts.append(f'"result":{result_json}')
    return "{" + ",".join(parts) + "}"


def parse_document(text: str | None) -> ResultDocument:
    """Parses the column. A text that toc has not written, because a person did, is the result as it is."""
    if not text:
        return ResultDocument(None, None)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ResultDocument(None, text)
    if not isinstance(found, dict) or not found.keys() <= {"progress", "result"}:
        return ResultDocument(None, found)
    progress = None
    if "progress" in found:
        try:
            done, total = found["progress"]
            progress = check_progress(done, total)
        except (TypeError, ValueError, InvalidInput):
            return ResultDocument(None, found)
    return ResultDocument(progress, found.get("result"))
