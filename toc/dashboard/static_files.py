"""The style sheet, the scripts and their licences, as files of this package."""

from __future__ import annotations

import hashlib
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

_FILES = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "charts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/htmx.min.js": "text/javascript",
    "vendor/uplot.min.js": "text/javascript",
    "vendor/uplot.min.css": "text/css",
    "answer_chart.js": "text/javascript",
}
_YEAR_S = 31_536_000


class StaticFile(NamedTuple):
    """A file and its version: the beginning of its SHA-256."""

    content: bytes
    version: str
    media_type: str


@cache
def read_file(name: str) -> StaticFile:
    """A file of the list. Raises KeyError."""
    media_type = _FILES[name]
    content = files(__package__).joinpath("static", *name.split("/")).read_bytes()
    return StaticFile(content, hashlib.sha256(content).hexdigest()[:16], media_type)


def static_url(root: str, name: str) -> str:
    """The path of a file, with its version: a browser may keep it for ever."""
    return f"{root}/ui/static/{name}?v={read_file(name).version}"


async def send_static(request: Request) -> Response:
    """GET /ui/static/{name}."""
    name: str = request.path_params["name"]
    if name not in _FILES:
        return Response(status_code=HTTPStatus.NOT_FOUND)
    found = read_file(name)
    is_current = request.query_params.get("v") == found.version
    age = f"public, max-age={_YEAR_S}, immutable" if is_current else "no-cache"
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": age})
