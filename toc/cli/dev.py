"""`toc dev`: everything in one process, no server needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, NamedTuple

import typer

from toc.cli.clients import current_person
from toc.cli.common_options import serving_command
from toc.cli.exit_codes import NO
from toc.cli.handler_modules import Apps, import_handlers
from toc.cli.output import Output
from toc.cli.stop_limit import limit_stop
from toc.cli.stop_request import StopRequest
from toc.domain.declared_type import DeclaredType
from toc.errors import SettingsError
from toc.handlers.builtin import make_printing_handler
from toc.handlers.registry import EVERY_TYPE, Registry
from toc.http import import_web_module
from toc.node.dev_servers import DevDirectory, PrivateRedis
from toc.node.node import Node
from toc.node.type_settings import apply_declarations
from toc.runtime.clock import SystemClock
from toc.runtime.settings import DEV_DIR, Settings, load_settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypes

log = logging.getLogger(__name__)

WATCH_S = 1.0
STOP_S_MAX = 60.0  # beside worker.stop_s: above what all parts may take together

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The directory of the databases and the Redis socket (default: .toc).",
    ),
]


@serving_command
def run_dev(output: Output, app: Apps = None, directory: Directory = None) -> None:
    """Run everything in this process, for development: no server needed.

    Databases (SQLite) and a private Redis live in a directory, by default .toc. Clients that run
    in the same working directory find them without any settings. Without --app each fired job of the
    type "default" is printed; jobs of other types wait for a handler. Stop it with Ctrl-C; the jobs stay.
    60 s after the time that handlers have (worker.stop_s) it ends in any case, and then exits 1.
    """
    del output

    path = directory or DEV_DIR
    redis = PrivateRedis(path)
    with StopRequest(at_once=redis.kill) as stop, DevDirectory(path) as here:
        handlers = import_handlers(app) if app else _make_printing_handlers()
        settings = here.load_dev_settings()
        migrate.upgrade(settings)
        if settings.types:
            _declare_types(settings)
        with redis:
            node = Node(settings, handlers=handlers)
            node.start()
            web = _start_web(settings, handlers)
            try:
                typer.echo(
                    _make_welcome_text(
                        path, settings, _choose_example_type(handlers), printing=not app
                    )
                )
                typer.echo(web.text)
                while not stop.wait_for_stop(WATCH_S):
                    redis.restart_if_ended()
                typer.echo("stopping ...")
                limit_stop(settings.worker.stop_s + STOP_S_MAX, NO, redis.kill)
            finally:
                web.stop()
                node.stop()


def _declare_types(settings: Settings) -> None:
    """Declares the types of toc.toml."""
    databases = Databases.from_settings(settings, SystemClock(), pool_size=1)
    with closing(databases):
        types = DatabaseMetadata(databases).types
        declared = DeclaredTypes(databases, types, settings.limits.declared_types)
        apply_declarations(settings, declared, current_person(), "toc dev")


def _make_printing_handlers() -> Registry:
    """Handlers that print the job, for the type "default" only: a real job must not end by being printed."""
    # Databases and Redis run on this machine and have its clock.
    handlers = Registry()
    handlers.handler()(make_printing_handler(typer.echo, SystemClock().wall_ms))
    return handlers


def _choose_example_type(handlers: Registry) -> str:
    """A biz_type that has a handler: "default" if possible, else the first type."""
    return "default" if handlers.get("default") else next(iter(handlers)).biz_type


class _DevWeb(NamedTuple):
    """The HTTP server of `toc dev`: its stop, and the lines that tell of it."""

    stop: Callable[[], object]
    text: str


def _start_web(settings: Settings, handlers: Registry) -> _DevWeb:
    """Serves HTTP if it can: without the extra, or if the port is taken, `toc dev` goes on without it."""
    try:
        _declare_handled_types(settings, handlers)
        site = import_web_module("toc.dashboard.site")
        server = import_web_module("toc.http.serve").WebServer(settings, site.make_site)
        server.start()
    except SettingsError as error:
        return _DevWeb(lambda: None, f"No HTTP: {error}\n")
    biz_type = _choose_example_type(handlers)
    job = f'{{"biz_id": 42, "biz_type": "{biz_type}", "delay": 5}}'
    access = (
        "only programs on this machine may call it" if not server.has_tokens else "it needs a token"
    )
    text = f"""HTTP ({access}):

    in a browser: {server.url}/ui/
    $ curl {server.url}/v1/jobs -H 'Content-Type: application/json' -d '{job}'
"""
    return _DevWeb(server.stop, text)


def _declare_handled_types(settings: Settings, handlers: Registry) -> None:
    """Declares the types that have a handler here: over HTTP there are only declared types."""
    databases = Databases.from_settings(settings, SystemClock())
    try:
        biz_types = DatabaseMetadata(databases).types
        declared = DeclaredTypes(databases, biz_types, settings.limits.declared_types)
        for name in {spec.biz_type for spec in handlers} - {EVERY_TYPE}:
            declared.change(name, partial(_declare_unless_declared, name), current_person())
    finally:
        databases.close()


def _declare_unless_declared(name: str, now: DeclaredType | None) -> DeclaredType:
    return now or DeclaredType(name)


def _make_welcome_text(path: Path, settings: Settings, biz_type: str, *, printing: bool) -> str:
    client = load_settings()
    same = (client.databases, client.redis_url) == (settings.databases, settings.redis_url)
    variables = {
        "TOC_DATABASES": ",".join(settings.databases),
        "TOC_REDIS_URL": settings.redis_url,
    }
    exports = "".join(f"    export {name}={quote(text)}\n" for name, text in variables.items())
    setup = "" if same else exports + "\n"
    named = "" if biz_type == "default" else f', biz_type="{biz_type}"'
    option = "" if biz_type == "default" else f" --type {biz_type}"
    fires = "this shell prints it when it fires" if printing else "your handler gets it"
    return f"""toc runs here. In another shell, in this same directory ({Path.cwd()}):

{setup}    $ python
    >>> import toc
    >>> from datetime import timedelta
    >>> toc.schedule(42, timedelta(seconds=5){named})

or `toc schedule 42 5s{option}`; {fires}. Then try `toc job show --biz-id 42`.
Data: {path}/toc_0.db; delete {path} to begin anew. Stop: Ctrl-C.
"""
