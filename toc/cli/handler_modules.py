"""Imports the modules that hold a business' handlers."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated

import typer

from toc.cli.exit_codes import USAGE, CommandError
from toc.handlers.registry import Registry, registry

Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="A module with handlers, to be imported; may be repeated. "
        "MODULE:NAME for a Registry of your own.",
    ),
]


def import_handlers(apps: Sequence[str]) -> Registry:
    """Imports the modules, with the working directory on sys.path; returns the registry to run.

    Raises CommandError when a module cannot be imported and when there are no handlers.
    """
    if not apps:
        raise CommandError("no handlers: name their modules with --app", USAGE)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = []
    for app in apps:
        name, _, attribute = app.partition(":")
        _check_module_name(app, name)
        module = _import_module(name)
        own = getattr(module, attribute, None) if attribute else registry
        if not isinstance(own, Registry):
            raise CommandError(f"{app}: {attribute!r} is not a toc Registry in that module", USAGE)
        found.append(own)
    if any(own is not found[0] for own in found):
        raise CommandError("the modules use several registries; a worker runs one", USAGE)
    if not len(found[0]):
        raise CommandError(
            f"no handlers: nothing in {', '.join(apps)} is decorated with @toc.handler", USAGE
        )
    return found[0]


def _check_module_name(app: str, name: str) -> None:
    """Raises CommandError if `name` is not the name of a module but, for example, the path of a file."""
    if not name:
        raise CommandError(f"--app {app!r}: needs the name of a module, like --app shop", USAGE)
    path = PurePath(name)
    if path.suffix != ".py" and len(path.parts) == 1:
        return
    hint = f"write --app {'.'.join(path.with_suffix('').parts)}"
    if path.is_absolute() or ".." in path.parts:
        hint = f"run this in the directory of the file, with --app {path.stem}"
    raise CommandError(f"--app {app}: is a file, not a module: {hint}", USAGE)


def _import_module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A module may raise anything when it is imported: SystemExit too.
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1] if frames else None
        inside = last is not None and "importlib" not in last.filename
        where = f" ({last.filename}, line {last.lineno})" if last and inside else ""
        text = str(error).splitlines()[0] if str(error) else ""
        raise CommandError(
            f"cannot import {name!r}: {type(error).__name__}: {text}{where}", USAGE
        ) from error
