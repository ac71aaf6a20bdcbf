"""All commands, and the one place where the process gets its exit code."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, NoReturn

import typer

from toc.cli import (
    admin,
    dead,
    dev,
    doctor,
    exit_codes,
    explain,
    grants,
    jobs,
    migrate,
    nodes,
    settings,
    slots,
    status,
    worker,
)
from toc.cli.common_options import answers, is_usage_error
from toc.cli.output import Output

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def _group(help_text: str) -> typer.Typer:
    # rich's help pages cost 0.3 s at every call for help.
    return typer.Typer(
        help=help_text,
        context_settings=_CONTEXT,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
    )


app = _group("A timeout center: durable jobs in sharded MySQL, timed by Redis, never lost.")
job_app = _group("Look at jobs.")
dead_app = _group("Jobs whose attempts are used up.")
admin_app = _group("Change sets of jobs: a dry run first, a bounded rate, an audit trail.")


@app.callback(epilog=exit_codes.EXIT_CODES)
def _root(
    ctx: typer.Context,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log more; show where an error comes from.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    ctx.obj = verbose
    if version:
        typer.echo(f"toc {version_of('toc')}")
        raise typer.Exit
    _show_help_without_command(ctx)


@job_app.callback()
@dead_app.callback()
@admin_app.callback()
def _show_help_without_command(ctx: typer.Context) -> None:
    """A group without a command shows its help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@answers
def version(output: Output) -> None:
    """Show the version of toc and of what it stands on."""
    names = ("toc", "sqlalchemy", "pymysql", "redis", "alembic", "kazoo")
    versions = {name: version_of(name) for name in names} | {"python": platform.python_version()}
    output.answer(versions, "\n".join(f"{name} {text}" for name, text in versions.items()))


def _make_lazy_command(name: str, help_text: str) -> None:
    """A command whose module is imported only when it is called: its options take longer than all other
    commands.
    """

    def command(ctx: typer.Context) -> Any:
        inner = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        inner.command(name, context_settings=_CONTEXT)(
            getattr(import_module(f"toc.cli.{name}"), name)
        )
        return inner(args=ctx.args, prog_name=f"toc {name}", standalone_mode=False)

    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=help_text, context_settings=passed_on)(command)


app.command("dev")(dev.dev)
app.command("worker")(worker.worker)
app.command("migrate")(migrate.migrate)
app.command("grants")(grants.grants)
app.command("schedule")(jobs.schedule)
app.command("cancel")(jobs.cancel)
app.command("reschedule")(jobs.reschedule)
app.add_typer(job_app, name="job")
job_app.command("show")(jobs.show)
app.command("explain")(explain.explain)
app.add_typer(dead_app, name="dead")
dead_app.command("list")(dead.listed)
dead_app.command("redrive")(dead.redrive)
app.add_typer(admin_app, name="admin")
admin_app.command("cancel")(admin.cancel)
admin_app.command("postpone")(admin.postpone)
admin_app.command("redrive")(admin.redrive)
app.command("slots")(slots.slots)
app.command("nodes")(nodes.nodes)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("settings")(settings.settings)
app.command("version")(version)
_make_lazy_command("reconcile", "Compare the databases with Redis, all of it; repair and report.")
_make_lazy_command(
    "nightly", "What the leader does every night: reconcile, measure lateness, archive."
)
_make_lazy_command("purge", "Delete what has ended long ago, once, in all databases: for cron.")
_make_lazy_command("sql", "Run one SELECT over all shards, as if they were one table; read-only.")
_make_lazy_command("demo", "Show it: a shop's order timeouts, live, and a check at the end.")
_make_lazy_command("move", "Move a database to another MySQL server beside live traffic.")
_make_lazy_command(
    "check", "Say whether toc kept its promises: check a history of calls and handlers."
)
_make_lazy_command("bench", "Measure it, on the servers of the settings.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process'); returns its exit code."""
    try:
        code = app(args=arguments, prog_name="toc", standalone_mode=False)
    except typer.Abort:
        exit_codes.print_error_line("aborted")
        return exit_codes.NO
    except Exception as error:  # noqa: BLE001 - all others become a line and an exit code
        if not is_usage_error(error):
            return exit_codes.report(error, verbose="-v" in (arguments or sys.argv))
        exit_codes.print_error_line(
            f"{_explain_usage_error(error)} (see `{_command(error)} --help`)"
        )
        return exit_codes.USAGE
    return code if isinstance(code, int) else exit_codes.OK


def _explain_usage_error(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return "toc" if context is None else str(context.command_path)


def run() -> NoReturn:
    """The program `toc`."""
    _open_closed_streams()
    sys.exit(main())


def _open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that the caller has closed (`>&-`)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
