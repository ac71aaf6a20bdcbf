"""`toc dev`: everything in one process, no server needed."""

from __future__ import annotations

import logging
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from toc.cli.apps import Apps, load_apps
from toc.cli.frame import serves
from toc.cli.output import Output
from toc.cli.signals import StopRequest

if TYPE_CHECKING:
    from toc.handlers.registry import Registry
    from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

WATCH_S = 1.0

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Where databases and socket lie (default: .toc)."),
]


@serves
def dev(output: Output, app: Apps = None, directory: Directory = None) -> None:
    """Run everything in this process, for development: no server needed.

    Databases (SQLite) and a private Redis live in a directory, by default .toc. Clients that run
    in the same working directory find them without any settings. Without --app each fired job is
    printed. Stop it with Ctrl-C; the jobs stay.
    """
    del output
    from toc.node.dev import DevDirectory, PrivateRedis  # noqa: PLC0415 - quick start
    from toc.node.node import Node  # noqa: PLC0415
    from toc.runtime.settings import DEV_DIR  # noqa: PLC0415
    from toc.store import migrate  # noqa: PLC0415

    path = directory or DEV_DIR
    redis = PrivateRedis(path)
    with StopRequest(at_once=redis.kill) as stop, DevDirectory(path) as here:
        handlers = load_apps(app) if app else _printing()
        settings = here.settings()
        migrate.upgrade(settings)
        with redis:
            node = Node(settings, handlers=handlers)
            node.start()
            try:
                typer.echo(_welcome(path, settings, printing=not app))
                while not stop.wait(WATCH_S):
                    redis.watch()
                typer.echo("stopping ...")
            finally:
                node.stop()


def _printing() -> Registry:
    from toc.handlers.builtin import printer  # noqa: PLC0415
    from toc.handlers.registry import EVERY_TYPE, Registry  # noqa: PLC0415
    from toc.runtime.clock import SystemClock  # noqa: PLC0415

    # Databases and Redis run on this machine: its clock is theirs.
    handlers = Registry()
    handlers.handler(EVERY_TYPE)(printer(typer.echo, SystemClock().wall_ms))
    return handlers


def _welcome(path: Path, settings: Settings, *, printing: bool) -> str:
    from toc.runtime.settings import load_settings  # noqa: PLC0415

    client = load_settings()
    same = (client.databases, client.redis_url) == (settings.databases, settings.redis_url)
    variables = {
        "TOC_DATABASES": ",".join(settings.databases),
        "TOC_REDIS_URL": settings.redis_url,
    }
    exports = "".join(f"    export {name}={quote(text)}\n" for name, text in variables.items())
    setup = "" if same else exports + "\n"
    fires = "this shell prints it when it fires" if printing else "your handler gets it"
    return f"""toc runs here. In another shell, in this same directory ({Path.cwd()}):

{setup}    $ python
    >>> import toc
    >>> from datetime import timedelta
    >>> toc.schedule(42, timedelta(seconds=5))

or `toc schedule 42 5s`; {fires}. Then try `toc job show --biz-id 42`.
Data: {path}/toc_0.db; delete {path} to begin anew. Stop: Ctrl-C.
"""
