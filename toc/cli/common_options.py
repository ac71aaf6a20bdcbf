"""Options that all commands have (-v, --log-json, --json), and errors as one line.

A command is a function that takes an `Output` first and returns an exit code, or None for 0.
`answering_command` and `serving_command` add the common options, and turn exceptions into exit codes.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Annotated, Any

import typer

from toc.cli import exit_codes, logs
from toc.cli.output import Output

log = logging.getLogger(__name__)

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log more, and show the traceback of an error.")
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]


def http_port_option(paths: str) -> Any:
    """The option --http-port of a command that serves `paths` for operators."""
    text = f"Serve {paths} on http.host; 0 takes a free port."
    return typer.Option("--http-port", min=0, max=65_535, help=text)


_COMMON: dict[str, Any] = {"verbose": Verbose, "log_json": LogJson}


def answering_command(function: Callable[..., int | None]) -> Callable[..., int]:
    """Makes a command that prints an answer on standard output, as JSON with --json."""
    return _make_command(function, _COMMON | {"as_json": Json}, logging.WARNING)


def serving_command(function: Callable[..., int | None]) -> Callable[..., int]:
    """Makes a command that runs until it is stopped, and logs what it does."""
    return _make_command(function, _COMMON, logging.INFO)


def _make_command(
    function: Callable[..., int | None], common: dict[str, Any], level: int
) -> Callable[..., int]:
    @functools.wraps(function)
    def run_command(ctx: typer.Context, **values: object) -> int:
        verbose = bool(values.pop("verbose") or ctx.obj)
        log_json = bool(values.pop("log_json"))
        logs.configure_logging(logging.DEBUG if verbose else level, as_json=log_json)
        output = Output(as_json=bool(values.pop("as_json", False)))
        try:
            return function(output, **values) or exit_codes.OK
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if is_usage_error(error):
                raise
            if log_json and not isinstance(error, BrokenPipeError):
                text, code = exit_codes.error_text_and_code(error)
                log.log(logging.ERROR, "%s", text, exc_info=error if verbose else None)
                return code
            return exit_codes.print_error(error, verbose=verbose)

    # Typer builds the options from the signature: the function's own parameters, without the output, and the
    # common ones.
    signature = inspect.signature(function, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [p.replace(kind=keyword) for p in list(signature.parameters.values())[1:]]
    added = [
        inspect.Parameter(name, keyword, default=False, annotation=annotation)
        for name, annotation in common.items()
    ]
    context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
    parameters = [context, *own, *added]
    run_command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_command


def is_usage_error(error: Exception) -> bool:
    """Whether the error comes from parsing the command line."""
    return hasattr(error, "format_message")
