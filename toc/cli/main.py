"""All commands, and the one place where the process gets its exit code."""

from __future__ import annotations

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
    explain,
    failures,
    jobs,
    migrate,
    nodes,
    settings,
    slots,
    status,
    worker,
)
from toc.cli.frame import answers, is_usage_error
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


@app.callback(epilog=failures.EXIT_CODES)
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
    _help_alone(ctx)


@job_app.callback()
@dead_app.callback()
@admin_app.callback()
def _help_alone(ctx: typer.Context) -> None:
    """A group without a command shows its help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@answers
def version(output: Output) -> None:
    """Show the version of toc and of what it stands on."""
    names = ("toc", "sqlalchemy", "pymysql", "redis", "alembic", "kazoo")
    versions = {name: version_of(name) for name in names} | {"python": platform.python_version()}
    output.answer(versions, "\n".join(f"{name} {text}" for name, text in versions.items()))


def _later(name: str, help_text: str) -> None:
    """A command that is imported when it is called: its options cost more than all others."""

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
_later("reconcile", "Compare the databases with Redis, all of it; repair and report.")
_later("nightly", "What the leader does every night: reconcile, measure lateness, archive.")
_later("sql", "Run one SELECT over all shards, as if they were one table; read-only.")
_later("demo", "Show it: a shop's order timeouts, live, and a check at the end.")
_later("move", "Move a database to another MySQL server beside live traffic.")
_later("check", "Say whether toc kept its promises: check a history of calls and handlers.")
_later("bench", "Measure it, on the servers of the settings.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process'); returns its exit code."""
    try:
        code = app(args=arguments, prog_name="toc", standalone_mode=False)
    except typer.Abort:
        failures.say("aborted")
        return failures.NO
    except Exception as error:  # noqa: BLE001 - the last net
        if not is_usage_error(error):
            return failures.report(error, verbose="-v" in (arguments or sys.argv))
        failures.say(f"{_usage(error)} (see `{_command(error)} --help`)")
        return failures.USAGE
    return code if isinstance(code, int) else failures.OK


def _usage(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return "toc" if context is None else str(context.command_path)


def run() -> NoReturn:
    """The program `toc`."""
    sys.exit(main())
