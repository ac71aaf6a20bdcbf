"""One call of the HTTP interface, and what its answer or its error means. Pure: nothing is sent here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toc.domain.text_escaping import escape_to_one_line
from toc.errors import (
    DuplicateJob,
    Forbidden,
    InvalidInput,
    NotFound,
    RequestFailed,
    ServerUnavailable,
    TocError,
    TooManyCalls,
    Unauthenticated,
)

DETAIL_CHARS_MAX = 500
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_NAMES = {"payload": "attribute", "key": "dedup_key", "delay": "action_time"}
"""Names of HTTP that differ from those of Python."""
_SIMPLE = {kind.code: kind for kind in (Unauthenticated, Forbidden, NotFound)}
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A call. `path`: begins with "/v1/". `content`: the body as JSON.

    is_repeatable: a repetition after a lost answer does no harm, and its answer means the same. arguments:
    those of the verb, by their names in Python: errors of the server name them. read_s: how long the server
    may send nothing; None: as the settings say.
    """

    method: str
    path: str
    content: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    read_s: float | None = None


class HttpAnswer(NamedTuple):
    """An answer as it came. `retry_after`, `date`: the headers of these names."""

    status: int
    content: bytes
    media_type: str = "application/json"
    retry_after: str | None = None
    date: str | None = None


class CallFailure(NamedTuple):
    """Why a call failed. `had_no_effect`: it certainly changed nothing. `may_pass`: a repetition may succeed.

    `wait_s`: the server wants no repetition before.
    """

    error: TocError
    may_pass: bool = False
    had_no_effect: bool = True
    wait_s: float = 0.0


def encode_body(document: Any) -> bytes:
    """A body as JSON."""
    return _JSON.encode(document).encode()


def read_document(answer: HttpAnswer) -> dict[str, Any]:
    """The document of an answer that is no error. Raises RequestFailed."""
    document = _parse_object(answer.content)
    if document is None:
        raise RequestFailed(
            f"the server answers {answer.status} without a JSON object: is it toc?", answer.status
        )
    return document


def failure_of(call: HttpCall, answer: HttpAnswer) -> CallFailure | None:
    """The failure that an answer tells of; None: it tells of none."""
    status = answer.status
    if 200 <= status < 300:
        return None
    document = _parse_object(answer.content) if "json" in answer.media_type else None
    problem = document or {}
    if status == 429:
        wait_s = _wait_s_of(answer, 1.0)
        limit = str(problem.get("rule", "")).removeprefix("web.limits.") or "calls_per_s"
        return CallFailure(TooManyCalls(limit, wait_s), may_pass=True, wait_s=wait_s)
    if status in (502, 503, 504):
        code = problem.get("code")
        # These two are refused before anything is done.
        no_effect = code in ("overloaded", "access_unavailable")
        text = _text_of(problem) if document else f"the server answers {status}"
        unavailable = ServerUnavailable(
            text, may_have_effect=not no_effect and call.method != "GET"
        )
        return CallFailure(unavailable, True, no_effect, _wait_s_of(answer, 0.0))
    return CallFailure(error_of_problem(problem, status, call.arguments))


def error_of_problem(
    problem: Mapping[str, Any], status: int, arguments: Mapping[str, Any]
) -> TocError:
    """The error of toc that a problem+json document tells of, with the names of Python."""
    code, text = problem.get("code"), _text_of(problem)
    if code == InvalidInput.code and isinstance(problem.get("field"), str):
        name = python_name_of(problem["field"])
        value = arguments.get(re.split(r"[./\[]", name)[0])
        return InvalidInput(name, value, str(problem.get("rule") or "is refused by the server"))
    if code == DuplicateJob.code and str(problem.get("job_id")).isdecimal():
        return DuplicateJob(
            int(problem["job_id"]), arguments.get("biz_id", 0), arguments.get("biz_type", "default"),
            arguments.get("dedup_key") or "", running=problem.get("running") is True,
        )  # fmt: skip
    simple = _SIMPLE.get(code) if isinstance(code, str) else None
    if simple is not None:
        return simple(text)
    if code in ("store_unavailable", "deadline", "overloaded", "access_unavailable"):  # of an item
        return ServerUnavailable(text, may_have_effect=code in ("store_unavailable", "deadline"))
    request_id = problem.get("request_id")
    return RequestFailed(
        f"the server answers {status}: {text}",
        status,
        code if isinstance(code, str) else None,
        request_id if isinstance(request_id, str) else None,
    )


def python_name_of(field_name: str) -> str:
    """The name in Python of a field over HTTP, as "payload/items[0]"."""
    first = re.match(r"\w*", field_name)
    name = first[0] if first else ""
    return _NAMES.get(name, name) + field_name[len(name) :]


def _text_of(problem: Mapping[str, Any]) -> str:
    text = problem.get("detail")
    if not isinstance(text, str):
        return "no further text; is it toc?"
    return escape_to_one_line(text)[:DETAIL_CHARS_MAX]


def _wait_s_of(answer: HttpAnswer, default_s: float) -> float:
    """The seconds of the header Retry-After; a date there counts as missing."""
    given = answer.retry_after or ""
    return float(given) if _SECONDS.fullmatch(given) else default_s


def _parse_object(content: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
