"""toc over HTTP: an ASGI app, and the process `toc web`.

    toc.http:app            the app with the settings in force, for any ASGI server
    toc.http.make_app(...)  an app with settings of your own, to mount into another app

    routes         the table of routes: method, path, scope, documents and action of each
    endpoint       what happens with each call: identity, limits, body, deadline, audit, errors
    backend        what the calls share: center, catalogue of types, tokens, audit, limits
    job_calls, job_verbs, lease_calls, declaration_calls   the actions; job_checks: the checks of new jobs
    mass_change_calls, mass_runs            mass changes: the actions, and the threads that make them
    models, problems, strict_json, wire_times   documents, errors, JSON and times of HTTP
    openapi, openapi_links   the OpenAPI document, made from the table and the models
    serve, listening, connections           `toc web`: uvicorn with bounds

Needs the extra toc[web]. Importing this package imports no part of the extra.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from toc.http.app import make_app

    app: Starlette

__all__ = ["app", "make_app"]

EXTRA_HINT = "the HTTP interface needs the extra toc[web]: pip install 'toc[web]'"
_lock = threading.Lock()


def _import_name(name: str) -> Any:
    """Imports `make_app`, or makes `app`, when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if name not in globals():
            found = import_web_module("toc.http.app").make_app
            globals()[name] = found if name == "make_app" else found()
    return globals()[name]


def import_web_module(name: str) -> Any:
    """Imports a module that needs the extra. Raises SettingsError if the extra is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "toc":
            raise
        from toc.errors import SettingsError  # noqa: PLC0415 - importing toc.http stays quick

        raise SettingsError(f"{EXTRA_HINT} ({error.name} is missing)") from error


if not TYPE_CHECKING:  # so that a type checker still refuses names that do not exist
    __getattr__ = _import_name
