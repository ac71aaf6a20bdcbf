"""Reads bodies and queries of requests, with bounds while reading, into models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from toc.http.problems import HttpProblem, invalid
from toc.http.strict_json import BadJson, parse_json
from toc.runtime.web_settings import WebLimitSettings

QUERY_CHARS_MAX = 512
FIELD_CHARS_MAX = 120
_MEDIA_TYPE = re.compile(r'application/json(?:\s*;\s*charset="?utf-8"?)?', re.IGNORECASE | re.ASCII)


async def read_body(
    request: Request,
    models: Sequence[type[BaseModel]],
    limits: WebLimitSettings,
    *,
    needed: bool,
) -> BaseModel:
    """The body as one of the models: of several, the last that has a name of the document, else the first.

    needed: False: an empty body is an empty object. Raises HttpProblem.
    """
    headers = request.headers
    length = headers.get("content-length")
    if length is not None and length.isdigit() and int(length[:20]) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        chunks.append(chunk)
    body = b"".join(chunks)
    if not body and not needed:
        return models[0]()
    if not _MEDIA_TYPE.fullmatch(headers.get("content-type", "")) or "content-encoding" in headers:
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "the body must be application/json in UTF-8, without a Content-Encoding",
        )
    try:
        document = parse_json(body, limits.nesting)
    except BadJson as error:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "bad_json", f"the body: {error}") from None
    if not isinstance(document, dict):
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "bad_json", "the body must be a JSON object")
    return make_model(_choose_model(models, document), document)


def read_query(request: Request, known: Mapping[str, str]) -> dict[str, str]:
    """The values behind "?". Raises HttpProblem for an unknown name, or one that stands there twice."""
    text = request.scope["query_string"]
    if not text:
        return {}
    if len(text) > QUERY_CHARS_MAX:
        raise invalid("query", f"must have at most {QUERY_CHARS_MAX} characters")
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise invalid(name[:FIELD_CHARS_MAX], "is not a name of this call's query")
        if name in found:
            raise invalid(name, "may stand in the query once")
        found[name] = value
    return found


def _choose_model(models: Sequence[type[BaseModel]], document: dict[str, Any]) -> type[BaseModel]:
    for model in reversed(models[1:]):
        if document.keys() & model.model_fields.keys():
            return model
    return models[0]


def make_model(model: type[BaseModel], document: Mapping[str, Any]) -> BaseModel:
    """The model of a document. Raises HttpProblem, which names the first wrong field and its rule."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ""
        for part in first["loc"]:
            if isinstance(part, int):
                path += f"[{part}]"
            elif part in model.model_fields or not path or path.endswith("]"):
                path += f".{part}" if path else str(part)
        rule = (
            first["msg"] if first["type"] != "extra_forbidden" else "is not a name of this document"
        )
        raise invalid(path[:FIELD_CHARS_MAX] or "body", rule[:300]) from None


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too_large",
        f"the body may have {limit} bytes",
        headers={"Connection": "close"},
        rule="web.limits.body_bytes",
    )
